//! `restore`, `purge`, `erase`, `resolve` and `quarantine`: change many letters, each independently.

use std::collections::BTreeSet;

use clap::Args;
use lazaret_api::{BulkAnswer, BulkRequest, Code, Selection};
use lazaret_core::query::Query;
use serde::Serialize;

use super::Run;
use super::backup::{self, StoreFile};
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::query_argument;
use crate::output::{Format, Line, Tone, count, csv_header, csv_row, plural};
use crate::prompt;
use crate::selection::Letters;
use crate::unknown_names::explain_empty;

/// The most ids in one request.
const MAX_IDS: usize = 1000;
/// The most failures that are printed one by one.
const MAX_FAILURES_SHOWN: usize = 10;

/// The arguments of all but `restore`, and those of `restore` for letters.
#[derive(Debug, Args)]
pub(super) struct Bulk {
    #[command(flatten)]
    letters: Letters,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: String,

    /// Skip the confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Restore evicted letters, or the embedded store from a backup. A query without a state selects evicted letters; they are restored when
/// the command ends. The path of a file that `lazaret backup` wrote selects the store; stop its daemon first.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Select every evicted letter")))]
pub struct Restore {
    #[command(flatten)]
    letters: Letters,

    /// State the reason for the audit log; required for letters
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: Option<String>,

    /// Skip the confirmation
    #[arg(long, short = 'y')]
    yes: bool,

    #[command(flatten)]
    store: StoreFile,

    /// Replace the existing store, which is kept under another name
    #[arg(long)]
    force: bool,
}

/// Delete closed letters permanently. A query without a state selects evicted letters.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Select every evicted letter")))]
pub struct Purge {
    #[command(flatten)]
    bulk: Bulk,
}

/// Erase the content of letters: payloads, headers, comments and the texts of failures. Ids, states and times stay. Open letters are
/// evicted. A query without a state selects open and closed letters.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Select every letter")))]
pub struct Erase {
    #[command(flatten)]
    bulk: Bulk,
}

/// Mark letters as handled by other means: they are closed, and later letters of their sequences go on. A query without a state
/// selects letters that failed, not those that wait behind them.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Select every letter that failed")))]
pub struct Resolve {
    #[command(flatten)]
    bulk: Bulk,
}

/// Isolate letters: no retry takes them, and no replay unless it names them. Later letters of their sequences wait. A query without
/// a state selects letters that failed, not those that wait behind them.
#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Select every letter that failed")))]
pub struct Quarantine {
    #[command(flatten)]
    bulk: Bulk,
}

impl Run for Resolve {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Resolve).await
    }
}

impl Run for Quarantine {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Quarantine).await
    }
}

impl Run for Restore {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let Self { letters, reason, yes, store, force } = self;
        if let Some(file) = backup::named_file(&letters.query.words, force || store.is_given())? {
            return backup::restore(context, file, &store, force).await;
        }
        let Some(reason) = reason else {
            return Err(Error::usage_hint("--reason is missing", "state the reason for the audit log"));
        };
        Bulk { letters, reason, yes }.run(context, Verb::Restore).await
    }
}

impl Run for Purge {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Purge).await
    }
}

impl Run for Erase {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        self.bulk.run(context, Verb::Erase).await
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Restore,
    Purge,
    Erase,
    Resolve,
    Quarantine,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Restore => "restore",
            Self::Purge => "purge",
            Self::Erase => "erase",
            Self::Resolve => "resolve",
            Self::Quarantine => "quarantine",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Restore => "restored",
            Self::Purge => "purged",
            Self::Erase => "erased",
            Self::Resolve => "resolved",
            Self::Quarantine => "quarantined",
        }
    }

    /// Returns the states that a query without one selects: those from which the change makes sense. A letter that waits behind
    /// another was never tried, so it is not resolved with it.
    fn default_states(self) -> &'static str {
        match self {
            Self::Restore | Self::Purge => "state:evicted",
            Self::Erase => "state:open,closed",
            Self::Resolve => "state:retrying,dead,parked,quarantined",
            Self::Quarantine => "state:retrying,dead,parked",
        }
    }

    fn question(self, letters: &str) -> String {
        match self {
            Self::Restore => format!("Restore {letters}?"),
            Self::Purge => format!("Purge {letters}? This cannot be undone."),
            Self::Erase => {
                format!("Erase the content of {letters}? Open ones are evicted. This cannot be undone.")
            }
            Self::Resolve => format!("Resolve {letters}? Their messages are not handled again."),
            Self::Quarantine => format!("Quarantine {letters}?"),
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
        let selection = with_states(verb, self.letters.selection(&client).await?)?;
        let query = selection.query.clone().unwrap_or_default();
        let sum = if self.yes || confirm(&client, verb, &selection).await? {
            carry_out(&client, verb, selection, &self.reason).await?
        } else {
            BulkAnswer::default()
        };
        if sum.done == 0 && sum.failed.is_empty() {
            explain_empty(context, &client, &query).await?;
        }
        conclude(context, verb, &sum)
    }
}

/// Restricts a query without a state to the states of the verb.
fn with_states(verb: Verb, selection: Selection) -> Result<Selection> {
    let Some(text) = selection.query.as_deref() else { return Ok(selection) };
    let query = Query::parse(text).map_err(|error| Error::usage(format!("invalid query: {error}")))?;
    let states = verb.default_states();
    let query = match (text.trim().is_empty(), query.names_state()) {
        (true, _) => states.to_owned(),
        (false, false) => format!("({text}) {states}"),
        (false, true) => text.to_owned(),
    };
    Ok(Selection { query: Some(query), ids: None, all: false })
}

/// Asks for confirmation. Returns false without asking when nothing matches.
async fn confirm(client: &Client, verb: Verb, selection: &Selection) -> Result<bool> {
    let (letters, qualifier, list) = match (&selection.ids, &selection.query) {
        (Some(ids), _) => (ids.len() as u64, "", query_argument(verb.default_states())),
        (None, query) => {
            let query = query.as_deref().unwrap_or_default();
            let all = client.count(query).await?;
            if all.exact && all.letters == 0 {
                return Ok(false);
            }
            (all.letters, if all.exact { "" } else { "at least " }, query_argument(query))
        }
    };
    let question = verb.question(&format!("{qualifier}{}", plural(letters, "letter")));
    let yes = match verb {
        Verb::Purge | Verb::Erase => prompt::confirm_word(&question, verb.as_str())?,
        Verb::Restore | Verb::Resolve | Verb::Quarantine => prompt::confirm(&question)?,
    };
    if yes { Ok(true) } else { Err(Error::Declined { next: format!("lazaret ls{list}") }) }
}

/// Repeats the request until every letter is done, or none makes progress.
async fn carry_out(client: &Client, verb: Verb, selection: Selection, reason: &str) -> Result<BulkAnswer> {
    let mut sum = BulkAnswer::default();
    if let Some(ids) = &selection.ids {
        for ids in ids.chunks(MAX_IDS) {
            let selection = Selection { ids: Some(ids.to_vec()), ..Selection::default() };
            add(&mut sum, once(client, verb, selection, reason).await?);
        }
        return Ok(sum);
    }
    loop {
        let answer = once(client, verb, selection.clone(), reason).await?;
        // Failed letters match again, so the loop ends when no letter was changed.
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
    // Each answer of a command that names letters speaks of the whole store, so the last one counts.
    sum.remains = answer.remains;
    sum.unfinished = answer.unfinished;
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
            for failure in sum.failed.iter().take(MAX_FAILURES_SHOWN) {
                let line = Line::new()
                    .add(&failure.id, Tone::Strong)
                    .plain(" ")
                    .add(failure.code.as_str(), Tone::Bad);
                screen.stderr_line(&line.plain(format!(": {}", failure.detail)));
            }
            let failed = count(sum.failed.len() as u64);
            screen.line(&Line::of(format!(
                "{} {}, {failed} failed",
                plural(sum.done, "letter"),
                verb.done()
            )))?;
            if sum.done == 0 && sum.failed.is_empty() {
                screen.stderr_line(
                    &Line::new().add("nothing to do: ", Tone::Warning).plain("no letters match"),
                );
            }
            if sum.more {
                let what = "more letters match, and none of those tried could be changed";
                screen.stderr_line(&Line::new().add("note: ", Tone::Warning).plain(what));
            }
            if let Some(remains) = &sum.remains {
                screen.stderr_line(&Line::new().add("note: ", Tone::Warning).plain(remains));
            }
            // Each hint once, however many letters it is for.
            let hints: BTreeSet<&str> =
                sum.failed.iter().filter_map(|failure| failure.hint.as_deref()).collect();
            for hint in hints {
                screen.stderr_line(&Line::new().add("hint: ", Tone::Hint).plain(hint));
            }
            screen.next_command(match verb {
                Verb::Restore if sum.done > 0 => "lazaret ls",
                Verb::Quarantine if sum.done > 0 => "lazaret ls state:quarantined",
                _ => "lazaret status",
            });
        }
    }
    Ok(exit_of(sum))
}

/// The exit code: success only if every letter was changed, and an erasure left nothing that a repetition removes.
fn exit_of(sum: &BulkAnswer) -> Exit {
    let all_missing =
        !sum.failed.is_empty() && sum.failed.iter().all(|failure| failure.code == Code::NotFound);
    match sum.failed.is_empty() {
        true if sum.more || sum.unfinished => Exit::Partly,
        true => Exit::Ok,
        false if sum.done == 0 && all_missing && !sum.unfinished => Exit::NotFound,
        false => Exit::Partly,
    }
}

#[derive(Serialize)]
struct Counts {
    done: u64,
    failed: usize,
    more: bool,
}

#[cfg(test)]
mod tests {
    use lazaret_api::BulkFailure;

    use super::*;

    #[test]
    fn letters_that_could_not_be_changed_are_a_partial_failure() {
        let failed = |code| vec![BulkFailure { id: "x".into(), code, detail: "no".into(), hint: None }];
        let answer = |done, failed| BulkAnswer { done, failed, ..BulkAnswer::default() };
        for (sum, exit) in [
            (answer(2, Vec::new()), Exit::Ok),
            (answer(0, Vec::new()), Exit::Ok),
            (answer(2, failed(Code::Conflict)), Exit::Partly),
            (answer(0, failed(Code::Conflict)), Exit::Partly),
            (answer(2, failed(Code::NotFound)), Exit::Partly),
            (answer(0, failed(Code::NotFound)), Exit::NotFound),
            (BulkAnswer { unfinished: true, ..answer(2, Vec::new()) }, Exit::Partly),
            (BulkAnswer { more: true, ..answer(0, Vec::new()) }, Exit::Partly),
            // PostgreSQL and MongoDB say what their operators have to do: that is no failure.
            (BulkAnswer { remains: Some("VACUUM".into()), ..answer(2, Vec::new()) }, Exit::Ok),
        ] {
            assert_eq!(exit_of(&sum), exit, "{sum:?}");
        }
    }

    #[test]
    fn what_cannot_be_undone_says_so_with_the_number_of_letters() {
        for verb in [Verb::Erase, Verb::Purge] {
            let question = verb.question("3 letters");
            assert!(
                question.contains("3 letters") && question.contains("This cannot be undone."),
                "{question}"
            );
        }
    }

    #[test]
    fn a_query_without_a_state_selects_the_letters_of_the_verb() {
        let of = |query: &str| {
            let selection = Selection { query: Some(query.into()), ids: None, all: query.is_empty() };
            with_states(Verb::Restore, selection).map(|selection| selection.query.unwrap())
        };
        assert_eq!(of("").unwrap(), "state:evicted");
        assert_eq!(of("a or b").unwrap(), "(a or b) state:evicted");
        assert_eq!(of("state:resolved a").unwrap(), "state:resolved a");
        assert_eq!(of("state:").unwrap_err().exit(), Exit::Usage);
        let ids = Selection { ids: Some(vec!["x".into()]), ..Selection::default() };
        assert_eq!(with_states(Verb::Restore, ids.clone()).unwrap(), ids);
        let query = Selection { query: Some("a or b".into()), ..Selection::default() };
        let resolved = with_states(Verb::Resolve, query).unwrap().query.unwrap();
        assert_eq!(resolved, "(a or b) state:retrying,dead,parked,quarantined");
    }
}
