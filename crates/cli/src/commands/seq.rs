//! `seq`: a sequence, its head first, and who waits behind it.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Letter, Sequence};
use unicode_width::UnicodeWidthStr;

use super::Run;
use super::ls::state_tone;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{quoted, short_id};
use crate::neutral::neutral;
use crate::output::{Cell, Column, Format, Line, Table, Tone, age, count, cut, gist, plural, print_page};

/// How many letters are shown unless said otherwise.
const SHOWN: u64 = 50;
/// How much of a sequence's name is shown at least, however narrow the terminal is.
const LEAST_NAME: usize = 8;

/// A sequence.
#[derive(Debug, Args)]
pub struct Seq {
    /// The queue, `consumer/component`, or the consumer alone where it has one component
    queue: String,

    /// The sequence, such as the key of its messages
    sequence: String,

    /// Print at most so many letters
    #[arg(long, value_name = "N", default_value_t = SHOWN, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Go on where the page before ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl Run for Seq {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        // A consumer with one handler has one component that is named like it.
        let queue =
            if self.queue.contains('/') { self.queue.clone() } else { format!("{0}/{0}", self.queue) };
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX).min(1000);
        let sequence = client.sequence(&queue, &self.sequence, self.after.as_deref(), Some(limit)).await?;
        if sequence.size == 0 {
            let what = format!("the sequence {} is not open in {queue}", self.sequence);
            let all = quoted(&history(&self.sequence));
            return Err(Error::not_found_hint(what, format!("`lazaret ls {all}` shows what became of it")));
        }
        let now = context.now();
        if context.format() != Format::Table {
            print_page(&context.screen, context.format(), &sequence, &sequence.letters, now)?;
            return Ok(Exit::Ok);
        }
        print(context, &sequence, self.after.is_none(), now)?;
        match (&sequence.next, sequence.letters.first()) {
            (Some(next), _) => context.screen.next(&format!(
                "lazaret seq {} {} --after {next}",
                quoted(&queue),
                quoted(&self.sequence)
            )),
            (None, Some(head)) => context.screen.next(&format!("lazaret show {}", short_id(&head.id))),
            (None, None) => context.screen.next("lazaret status"),
        }
        Ok(Exit::Ok)
    }
}

/// A query for everything that ever happened to a sequence.
fn history(sequence: &str) -> String {
    format!("seq:{} state:open,closed", crate::hints::query_value(sequence))
}

fn print(context: &Context, sequence: &Sequence, from_head: bool, now: Timestamp) -> Result<()> {
    for line in heading(sequence, from_head, now, context.screen.width()) {
        context.screen.line(&line)?;
    }
    context.screen.table(&lane(&sequence.letters, from_head, now))
}

/// Whose sequence it is and who waits: on one line, or on as many as it takes at this width.
fn heading(sequence: &Sequence, from_head: bool, now: Timestamp, width: usize) -> Vec<Line> {
    let waiting = sequence.size.saturating_sub(1);
    let waits = if waiting == 1 { "waits" } else { "wait" };
    let oldest = sequence.letters.first().filter(|_| from_head);
    let since = oldest.map(|letter| format!("open since {}", age(letter.enqueued_at, now)));
    let comma = if since.is_some() { "," } else { "" };
    let place = format!(" in {}:", neutral(&sequence.queue));
    let name = cut(&neutral(&sequence.sequence), width.saturating_sub(place.width()).max(LEAST_NAME));
    let mut used = name.width() + place.width();
    let mut lines = vec![Line::new().add(name, Tone::Strong).plain(place)];
    let behind = format!("{} {waits} behind the head{comma}", plural(waiting, "letter"));
    for piece in std::iter::once(behind).chain(since) {
        used += 1 + piece.width();
        match lines.pop() {
            Some(line) if used <= width => lines.push(line.plain(format!(" {piece}"))),
            last => {
                lines.extend(last);
                used = piece.width();
                lines.push(Line::of(piece));
            }
        }
    }
    lines
}

const COLUMNS: [Column; 8] = [
    Column::new("PLACE"),
    Column::new("LETTER"),
    Column::new("STATE"),
    Column::new("TYPE").cut(8).drop(3),
    Column::new("MESSAGE").cut(8).drop(2),
    Column::new("FAILED").right().drop(4),
    Column::new("AGE").right(),
    Column::new("ERROR").cut(40),
];

fn lane(letters: &[Letter], from_head: bool, now: Timestamp) -> Table {
    let mut table = Table::new(&COLUMNS);
    for (index, letter) in letters.iter().enumerate() {
        let place = match (from_head, index) {
            (true, 0) => Cell::new("HEAD").tone(Tone::Bad),
            (true, behind) => Cell::new(format!("+{behind}")).tone(Tone::Dim),
            (false, _) => Cell::new("+").tone(Tone::Dim),
        };
        let error = letter.error.as_ref().map(|error| gist(&error.error_type, &error.message));
        table.row(vec![
            place,
            Cell::new(short_id(&letter.id)).tone(Tone::Strong),
            Cell::new(letter.state.as_str()).tone(state_tone(letter.state)),
            Cell::or_dash(letter.message.event_type.as_ref()),
            Cell::new(&letter.message.id),
            Cell::new(count(u64::from(letter.attempts) + u64::from(letter.replay_attempts))),
            Cell::new(age(letter.enqueued_at, now)),
            Cell::or_dash(error),
        ]);
    }
    table
}
