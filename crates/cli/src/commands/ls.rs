//! `ls`: lists letters that match a query.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Letter, State};

use super::Run;
use crate::client::{Client, LetterQuery};
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::hints::{query_argument, short_id};
use crate::output::{Cell, Column, Format, Record, Tone, age, count, error_summary, plural};
use crate::paging::{Listed, Paging, print_list};
use crate::selection::Query;
use crate::unknown_names::explain_empty;

/// List letters that match a query.
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
        if listed.nothing {
            explain_empty(context, &client, &query).await?;
        }
        if context.format() == Format::Table {
            conclude(context, &client, &query, &listed).await?;
        }
        Ok(Exit::Ok)
    }
}

async fn conclude(context: &Context, client: &Client, query: &str, listed: &Listed<Letter>) -> Result<()> {
    let screen = &context.screen;
    let shown = listed.records.len() as u64;
    let Some(first) = most_relevant(&listed.records) else {
        screen.info(if query.is_empty() { "no open letters" } else { "no letters match" });
        screen.next_command(if query.is_empty() { "lazaret status" } else { "lazaret ls" });
        return Ok(());
    };
    let Some(next) = &listed.next else {
        screen.info(&plural(shown, "letter"));
        screen.next_command(&format!("lazaret show {}", short_id(&first.id)));
        return Ok(());
    };
    let all = client.count(query).await?;
    let qualifier = if all.exact { "" } else { "at least " };
    screen.info(&format!("{} of {qualifier}{}", count(shown), plural(all.letters, "letter")));
    let more = format!("lazaret ls{} --after {next}", query_argument(query));
    screen.next_commands(&[more, format!("lazaret show {}", short_id(&first.id))]);
    Ok(())
}

/// Returns the letter to inspect first: one that needs a person, before one that is retried or only waits.
fn most_relevant(letters: &[Letter]) -> Option<&Letter> {
    letters.iter().min_by_key(|letter| match letter.state {
        State::Dead | State::Quarantined | State::Parked => 0,
        State::Retrying => 1,
        _ => 2,
    })
}

/// Returns the tone of a state.
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
        Column::new("QUEUE").min_width(8).drop_priority(5),
        Column::new("SEQUENCE").min_width(8),
        Column::new("STATE"),
        Column::new("REASON").min_width(22).drop_priority(1),
        Column::new("FAILED").right().drop_priority(3),
        Column::new("AGE").right(),
        Column::new("DUE").right().drop_priority(2),
        Column::new("TYPE").min_width(8).drop_priority(4),
        Column::new("OWNER").min_width(6).drop_priority(6),
        Column::new("ERROR").min_width(40),
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
        let error = self.error.as_ref().map(|error| error_summary(&error.error_type, &error.message));
        vec![
            Cell::new(short_id(&self.id)).tone(Tone::Strong),
            Cell::new(&self.queue),
            Cell::new(self.shown_sequence()),
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
    use crate::fixtures::letter;

    #[test]
    fn the_letter_to_inspect_first_needs_a_person() {
        let of = |states: &[State]| {
            let letters: Vec<Letter> = states.iter().map(|state| letter("0a1b2c3d", "a", *state)).collect();
            most_relevant(&letters).map(|letter| letter.state)
        };
        assert_eq!(of(&[State::Waiting, State::Retrying, State::Dead]), Some(State::Dead));
        assert_eq!(of(&[State::Waiting, State::Retrying]), Some(State::Retrying));
        assert_eq!(of(&[State::Resolved, State::Waiting]), Some(State::Resolved));
        assert_eq!(of(&[]), None);
    }
}
