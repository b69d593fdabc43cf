//! `ls`: letters that match a query.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Letter, State};

use super::Run;
use super::groups::argument;
use crate::client::{Client, LetterQuery};
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::hints::short_id;
use crate::output::{Cell, Column, Format, Record, Tone, age, count, gist, plural};
use crate::paging::{Listed, Paging, print_list};
use crate::selection::Query;

/// Letters that match.
#[derive(Debug, Args)]
pub struct Ls {
    #[command(flatten)]
    query: Query,

    #[command(flatten)]
    paging: Paging,
}

impl Run for Ls {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let query = self.query.text();
        let fetch = async |after, limit| {
            client.letters(&LetterQuery { query: query.clone(), after, limit: Some(limit) }).await
        };
        let listed = print_list(context, &self.paging, fetch, |_| true).await?;
        if context.format() == Format::Table {
            conclude(context, &client, &query, &listed).await?;
        }
        Ok(Exit::Ok)
    }
}

async fn conclude(context: &Context, client: &Client, query: &str, listed: &Listed<Letter>) -> Result<()> {
    let screen = &context.screen;
    let shown = listed.records.len() as u64;
    let Some(first) = listed.records.first() else {
        screen.say(if query.is_empty() { "no open letters" } else { "no letters match" });
        screen.next(if query.is_empty() { "lazaret status" } else { "lazaret ls" });
        return Ok(());
    };
    let Some(next) = &listed.next else {
        screen.say(&plural(shown, "letter"));
        screen.next(&format!("lazaret show {}", short_id(&first.id)));
        return Ok(());
    };
    let all = client.count(query).await?;
    let sign = if all.exact { "" } else { "at least " };
    screen.say(&format!("{} of {sign}{}", count(shown), plural(all.letters, "letter")));
    let more = format!("lazaret ls{} --after {next}", argument(query));
    screen.next_of(&[more, format!("lazaret show {}", short_id(&first.id))]);
    Ok(())
}

/// How a state looks.
pub(super) fn state_tone(state: State) -> Tone {
    match state {
        State::Dead | State::Quarantined => Tone::Bad,
        State::Retrying | State::Parked => Tone::Warning,
        State::Resolved => Tone::Good,
        State::Waiting | State::Evicted | State::Skipped | State::Expired => Tone::Dim,
    }
}

impl Record for Letter {
    const COLUMNS: &'static [Column] = &[
        Column::new("LETTER"),
        Column::new("QUEUE").cut(8).drop(2),
        Column::new("SEQUENCE").cut(8),
        Column::new("STATE"),
        Column::new("REASON").cut(8).drop(1),
        Column::new("TRIES").right().drop(4),
        Column::new("AGE").right(),
        Column::new("DUE").right().drop(6),
        Column::new("TYPE").cut(8).drop(5),
        Column::new("OWNER").cut(6).drop(7),
        Column::new("ERROR").cut(16).drop(3),
    ];
    const CSV: &'static [&'static str] = &[
        "id",
        "queue",
        "consumer",
        "stream",
        "sequence",
        "index",
        "state",
        "reason",
        "phase",
        "error.type",
        "error.message",
        "attempts",
        "crash-attempts",
        "replay-attempts",
        "message.id",
        "message.key",
        "message.type",
        "message.position",
        "enqueued-at",
        "first-failed-at",
        "last-failed-at",
        "last-touched-at",
        "due-at",
        "expires-at",
        "owner",
        "assignee",
        "poison",
        "group",
        "diagnostics",
    ];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let error = self.error.as_ref().map(|error| gist(&error.error_type, &error.message));
        vec![
            Cell::new(short_id(&self.id)).tone(Tone::Strong),
            Cell::new(&self.queue),
            Cell::new(&self.sequence),
            Cell::new(self.state.as_str()).tone(state_tone(self.state)),
            Cell::or_dash(self.reason.as_ref()),
            Cell::new(count(u64::from(self.attempts) + u64::from(self.replay_attempts))),
            Cell::new(age(self.enqueued_at, now)),
            Cell::or_dash(self.due_at.map(|at| age(at, now))),
            Cell::or_dash(self.message.event_type.as_ref()),
            Cell::or_dash(self.owner.as_ref()),
            Cell::or_dash(error),
        ]
    }
}
