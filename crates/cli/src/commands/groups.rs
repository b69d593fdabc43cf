//! `groups` and `group`: list and show letters grouped by cause.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::Group;

use super::Run;
use crate::client::{Client, LetterQuery};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{query_argument, query_value, quoted, short_group};
use crate::output::{
    Cell, Column, Fields, Format, Record, Tone, age, count, error_summary, plural, print_page, sparkline,
    time_with_age,
};
use crate::paging::{Paging, print_list};
use crate::selection::Query;
use crate::unknown_names::explain_empty;

/// List letters grouped by cause.
#[derive(Debug, Args)]
pub struct Groups {
    #[command(flatten)]
    query: Query,

    /// Include groups without open letters
    #[arg(long)]
    closed: bool,

    #[command(flatten)]
    paging: Paging,
}

impl Run for Groups {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let query = self.query.text();
        let fetch = async |after, limit| {
            client.groups(&LetterQuery { query: query.clone(), after, limit: Some(limit) }, self.closed).await
        };
        let listed = print_list(context, &self.paging, fetch, |_| true).await?;
        if listed.nothing {
            explain_empty(context, &client, &query).await?;
        }
        if context.format() != Format::Table {
            return Ok(Exit::Ok);
        }
        let screen = &context.screen;
        match (listed.records.first(), listed.next) {
            (None, _) if query.is_empty() => {
                screen.info("no open letters");
                screen.next_command("lazaret status");
            }
            (None, _) => {
                screen.info("no groups match");
                screen.next_command("lazaret groups");
            }
            (Some(first), next) => {
                screen.info(&totals(&listed.records));
                match next {
                    Some(next) => screen
                        .next_command(&format!("lazaret groups{} --after {next}", query_argument(&query))),
                    None => screen.next_command(&show_command(first)),
                }
            }
        }
        Ok(Exit::Ok)
    }
}

/// Returns the command that shows a group, by its complete id: groups of other queues, and closed ones, can have the same
/// fingerprint without being listed.
fn show_command(group: &Group) -> String {
    format!("lazaret group {}", quoted(&group.id))
}

/// Formats the totals. Letters behind a failed one are open as well, and have no cause of their own.
fn totals(groups: &[Group]) -> String {
    let letters = groups.iter().map(|group| group.letters).sum();
    let behind: u64 = groups.iter().map(|group| group.blocked_behind).sum();
    let waits = if behind == 1 { "waits" } else { "wait" };
    let behind = if behind == 0 { String::new() } else { format!(", {} {waits} behind them", count(behind)) };
    format!("{}: {} failed{behind}", plural(groups.len() as u64, "group"), plural(letters, "letter"))
}

/// Show one group.
#[derive(Debug, Args)]
pub struct ShowGroup {
    /// Show the group with this id or fingerprint prefix
    id: String,
}

impl Run for ShowGroup {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let group = find(&client, &self.id).await?;
        let (screen, now) = (&context.screen, context.now());
        if context.format() != Format::Table {
            print_page(screen, context.format(), &group, std::slice::from_ref(&group), now)?;
            return Ok(Exit::Ok);
        }
        for line in describe(&group, now).lines() {
            screen.line(&line)?;
        }
        screen.next_commands(&next(&group));
        Ok(Exit::Ok)
    }
}

/// Returns the next commands for a group. Without open letters there is nothing to retry, only closed letters to list.
fn next(group: &Group) -> Vec<String> {
    let query = format!("group:{}", query_value(&group.id));
    if group.letters == 0 {
        return vec![format!("lazaret ls {}", quoted(&format!("{query} state:closed")))];
    }
    let query = quoted(&query);
    vec![format!("lazaret ls {query}"), format!("lazaret plan retry {query}")]
}

/// Finds a group by id, or by a unique prefix.
async fn find(client: &Client, id: &str) -> Result<Group> {
    if id.contains('@') {
        return client.group(id).await;
    }
    let missing = || Error::not_found(format!("group {id} not found"));
    if !id.starts_with("g") || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        let hint = "group ids look like g1_4f1c0a2b; list them with `lazaret groups`";
        return Err(Error::usage_hint(format!("invalid group id {id:?}"), hint));
    }
    let query = format!("group:{id} state:open,closed");
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = client.groups(&LetterQuery { query: query.clone(), after, limit: Some(2) }, true).await?;
        found.extend(page.groups);
        after = page.next;
        if found.len() > 1 || after.is_none() {
            break;
        }
    }
    let mut groups = found.into_iter();
    match (groups.next(), groups.next()) {
        (None, _) => Err(missing()),
        (Some(group), None) => Ok(group),
        (Some(one), Some(other)) => {
            let what = format!("ambiguous group id {id}: it matches {} and {}", one.id, other.id);
            Err(Error::usage_hint(what, "pass the complete id"))
        }
    }
}

/// Formats the number of open letters, and all of them by state.
fn letters(group: &Group) -> String {
    let states = group.states.summary();
    let states = if states.is_empty() { "none" } else { &states };
    format!("{} open ({states})", count(group.letters))
}

pub(super) fn describe(group: &Group, now: Timestamp) -> Fields {
    let mut fields = Fields::new();
    fields.toned("group", &group.id, Tone::Strong);
    fields.add("queue", &group.queue);
    fields.toned("reason", &group.reason, Tone::Bad);
    fields.add("error", error_summary(&group.error.error_type, &group.error.message));
    fields.maybe("owner", group.owner.as_deref());
    fields.add("letters", letters(group));
    let blocked =
        format!("{} open, {} behind them", count(group.sequences), plural(group.blocked_behind, "letter"));
    fields.add("sequences", blocked);
    fields.maybe("oldest", group.oldest_at.map(|at| time_with_age(at, now)));
    if let Some(at) = group.next_expiry_at {
        let tone = if group.expires_soon(now).is_some() { Tone::Warning } else { Tone::Plain };
        fields.toned("next expires", time_with_age(at, now), tone);
    }
    fields.add("first seen", time_with_age(group.first_seen_at, now));
    fields.add("last seen", time_with_age(group.last_seen_at, now));
    let bucket = crate::output::span(group.trend_bucket_seconds as f64);
    fields.add("trend", format!("{} (one bar per {bucket}, up to now)", sparkline(&group.trend)));
    fields
}

impl Record for Group {
    const COLUMNS: &'static [Column] = &[
        Column::new("GROUP"),
        Column::new("QUEUE").min_width(8).drop_priority(4),
        Column::new("LETTERS").right(),
        Column::new("SEQUENCES").right().drop_priority(3),
        Column::new("BEHIND").right().drop_priority(1),
        Column::new("OLDEST").right(),
        Column::new("TREND").drop_priority(5),
        Column::new("OWNER").min_width(6).drop_priority(6),
        Column::new("REASON").min_width(22).drop_priority(2),
        // The cause matters most: keep it readable on an 80-column terminal.
        Column::new("CAUSE").min_width(40),
    ];
    const CSV: &'static [&'static str] = &[
        "id",
        "queue",
        "reason",
        "error.type",
        "error.message",
        "letters",
        "sequences",
        "blocked-behind",
        "oldest-at",
        "first-seen-at",
        "last-seen-at",
        "owner",
        "next-expiry-at",
    ];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(short_group(&self.id)).tone(Tone::Strong),
            Cell::new(&self.queue),
            Cell::new(count(self.letters)),
            Cell::new(count(self.sequences)),
            Cell::new(count(self.blocked_behind)),
            Cell::or_dash(self.oldest_at.map(|at| age(at, now))),
            Cell::new(sparkline(&self.trend)),
            Cell::or_dash(self.owner.as_ref()),
            Cell::new(&self.reason).tone(Tone::Bad),
            Cell::new(error_summary(&self.error.error_type, &self.error.message)),
        ]
    }
}
