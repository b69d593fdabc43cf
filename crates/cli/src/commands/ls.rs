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
    let Some(first) = most_telling(&listed.records) else {
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

/// The letter to look at first: one that has a cause and stays, before one that may go by itself or only waits.
fn most_telling(letters: &[Letter]) -> Option<&Letter> {
    letters.iter().min_by_key(|letter| match letter.state {
        State::Dead | State::Quarantined | State::Parked => 0,
        State::Retrying => 1,
        _ => 2,
    })
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
        Column::new("QUEUE").cut(8).drop(5),
        Column::new("SEQUENCE").cut(8),
        Column::new("STATE"),
        Column::new("REASON").cut(22).drop(1),
        Column::new("FAILED").right().drop(3),
        Column::new("AGE").right(),
        Column::new("DUE").right().drop(2),
        Column::new("TYPE").cut(8).drop(4),
        Column::new("OWNER").cut(6).drop(6),
        Column::new("ERROR").cut(40),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::snapshots::letter;

    #[test]
    fn the_letter_to_look_at_first_has_a_cause() {
        let of = |states: &[State]| {
            let letters: Vec<Letter> = states.iter().map(|state| letter("0a1b2c3d", "a", *state)).collect();
            most_telling(&letters).map(|letter| letter.state)
        };
        assert_eq!(of(&[State::Waiting, State::Retrying, State::Dead]), Some(State::Dead));
        assert_eq!(of(&[State::Waiting, State::Retrying]), Some(State::Retrying));
        assert_eq!(of(&[State::Resolved, State::Waiting]), Some(State::Resolved));
        assert_eq!(of(&[]), None);
    }
}
