//! `restore` and `purge`: changes to many closed letters, each on its own.

use clap::Args;
use lazaret_api::{BulkAnswer, BulkRequest, Code, Selection};
use lazaret_core::query::Query;
use serde::Serialize;

use super::Run;
use super::groups::argument;
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, count, csv_header, csv_row, plural};
use crate::prompt;
use crate::selection::Letters;

/// How many letters may be named in one request.
const AT_ONCE: usize = 1000;
/// How many letters that failed are told one by one.
const FAILURES_SHOWN: usize = 10;

/// Which letters, and why.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Yes, every evicted letter is meant")))]
pub(super) struct Bulk {
    #[command(flatten)]
    letters: Letters,

    /// Why; it stands in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Bring evicted letters back. A query that names no state is about evicted letters.
#[derive(Debug, Args)]
pub struct Restore {
    #[command(flatten)]
    bulk: Bulk,
}

/// Remove closed letters for good. A query that names no state is about evicted letters.
#[derive(Debug, Args)]
pub struct Purge {
    #[command(flatten)]
    bulk: Bulk,
}

impl Run for Restore {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Restore).await
    }
}

impl Run for Purge {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Purge).await
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Restore,
    Purge,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Restore => "restore",
            Self::Purge => "purge",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Restore => "restored",
            Self::Purge => "purged",
        }
    }
}

impl Bulk {
    async fn run(self, context: &Context, verb: Verb) -> Result<Exit> {
        self.letters.check()?;
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        prompt::needs_yes(self.yes)?;
        let client = context.client()?;
        let selection = about_evicted(self.letters.selection(&client).await?)?;
        let sum = if self.yes || is_wanted(&client, verb, &selection).await? {
            carry_out(&client, verb, selection, &self.reason).await?
        } else {
            BulkAnswer::default()
        };
        conclude(context, verb, &sum)
    }
}

/// The same selection, about evicted letters unless it names a state: open ones can be neither restored nor purged.
fn about_evicted(selection: Selection) -> Result<Selection> {
    let Some(text) = selection.query.as_deref() else { return Ok(selection) };
    let query =
        Query::parse(text).map_err(|error| Error::usage(format!("the query cannot be read: {error}")))?;
    let query = match (text.trim().is_empty(), query.names_state()) {
        (true, _) => "state:evicted".to_owned(),
        (false, false) => format!("({text}) state:evicted"),
        (false, true) => text.to_owned(),
    };
    Ok(Selection { query: Some(query), ids: None, all: false })
}

/// Asks whether it shall be done. Where nothing matches there is nothing to ask, and nothing is wanted.
async fn is_wanted(client: &Client, verb: Verb, selection: &Selection) -> Result<bool> {
    let (letters, sign, list) = match (&selection.ids, &selection.query) {
        (Some(ids), _) => (ids.len() as u64, "", argument("state:evicted")),
        (None, query) => {
            let query = query.as_deref().unwrap_or_default();
            let all = client.count(query).await?;
            if all.exact && all.letters == 0 {
                return Ok(false);
            }
            (all.letters, if all.exact { "" } else { "at least " }, argument(query))
        }
    };
    let letters = plural(letters, "letter");
    let yes = match verb {
        Verb::Restore => prompt::confirm(&format!("Restore {sign}{letters}?"))?,
        Verb::Purge => {
            prompt::confirm_word(&format!("Purge {sign}{letters}? They cannot be brought back."), "purge")?
        }
    };
    if yes { Ok(true) } else { Err(Error::Declined { next: format!("lazaret ls{list}") }) }
}

/// Asks again and again until all of it is done, or nothing moves any more.
async fn carry_out(client: &Client, verb: Verb, selection: Selection, reason: &str) -> Result<BulkAnswer> {
    let mut sum = BulkAnswer::default();
    if let Some(ids) = &selection.ids {
        for ids in ids.chunks(AT_ONCE) {
            let selection = Selection { ids: Some(ids.to_vec()), ..Selection::default() };
            add(&mut sum, once(client, verb, selection, reason).await?);
        }
        return Ok(sum);
    }
    loop {
        let answer = once(client, verb, selection.clone(), reason).await?;
        // Letters that failed are found again, so what counts is whether any was done.
        let goes_on = answer.more && answer.done > 0;
        add(&mut sum, answer);
        if !goes_on {
            return Ok(sum);
        }
    }
}

async fn once(client: &Client, verb: Verb, selection: Selection, reason: &str) -> Result<BulkAnswer> {
    client.bulk(verb.as_str(), &BulkRequest { selection, reason: Some(reason.to_owned()) }).await
}

fn add(sum: &mut BulkAnswer, answer: BulkAnswer) {
    sum.done += answer.done;
    sum.more = answer.more;
    for failure in answer.failed {
        if !sum.failed.iter().any(|known| known.id == failure.id) {
            sum.failed.push(failure);
        }
    }
}

fn conclude(context: &Context, verb: Verb, sum: &BulkAnswer) -> Result<Exit> {
    let screen = &context.screen;
    match context.format() {
        Format::Json | Format::Jsonl => screen.json_line(sum)?,
        Format::Csv => {
            const PATHS: [&str; 3] = ["done", "failed", "more"];
            let value =
                serde_json::to_value(Counts { done: sum.done, failed: sum.failed.len(), more: sum.more });
            let row = csv_row(&PATHS, &value.unwrap_or_default());
            screen.raw(format!("{}\n{row}\n", csv_header(&PATHS)).as_bytes())?;
        }
        Format::Table => {
            for failure in sum.failed.iter().take(FAILURES_SHOWN) {
                let line = Line::new()
                    .add(&failure.id, Tone::Strong)
                    .plain(" ")
                    .add(failure.code.as_str(), Tone::Bad);
                screen.talk(&line.plain(format!(": {}", failure.detail)));
            }
            let failed = count(sum.failed.len() as u64);
            screen.line(&Line::of(format!(
                "{} {}, {failed} not",
                plural(sum.done, "letter"),
                verb.done()
            )))?;
            if sum.done == 0 && sum.failed.is_empty() {
                screen.talk(&Line::new().add("nothing to do: ", Tone::Warning).plain("no letters match"));
            }
            if sum.failed.iter().any(|failure| passes(&failure.detail)) {
                screen.say("somebody works on these sequences at this moment: try again in a moment");
            }
            let is_back = verb == Verb::Restore && sum.done > 0;
            screen.next(if is_back { "lazaret ls" } else { "lazaret status" });
        }
    }
    let all_missing =
        !sum.failed.is_empty() && sum.failed.iter().all(|failure| failure.code == Code::NotFound);
    Ok(match (sum.done, sum.failed.is_empty()) {
        (_, true) => Exit::Ok,
        (0, false) if all_missing => Exit::NotFound,
        _ => Exit::Partly,
    })
}

/// Whether a letter was refused for something that is over soon, as right after an eviction. The code is the same as for a
/// state that does not allow it; only the words differ, and nothing but a hint hangs on them.
fn passes(detail: &str) -> bool {
    detail.contains("somebody is working on")
}

#[derive(Serialize)]
struct Counts {
    done: u64,
    failed: usize,
    more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_state_is_about_evicted_letters() {
        let of = |query: &str| {
            let selection = Selection { query: Some(query.into()), ids: None, all: query.is_empty() };
            about_evicted(selection).map(|selection| selection.query.unwrap())
        };
        assert_eq!(of("").unwrap(), "state:evicted");
        assert_eq!(of("a or b").unwrap(), "(a or b) state:evicted");
        assert_eq!(of("state:resolved a").unwrap(), "state:resolved a");
        assert_eq!(of("state:").unwrap_err().exit(), Exit::Usage);
        let ids = Selection { ids: Some(vec!["x".into()]), ..Selection::default() };
        assert_eq!(about_evicted(ids.clone()).unwrap(), ids);
    }
}
