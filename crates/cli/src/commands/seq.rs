//! `seq`: shows a sequence from its head.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Letter, Sequence};
use unicode_width::UnicodeWidthStr;

use super::Run;
use super::ls::state_tone;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{query_value, quoted, short_id};
use crate::output::{
    Cell, Column, Format, Line, Table, Tone, age, count, error_summary, plural, print_page, truncate,
};
use crate::sanitize::sanitize;
use crate::unknown_names::check_queue;

/// The default number of letters.
const DEFAULT_LIMIT: u64 = 50;
/// The smallest width of a sequence's name, however narrow the terminal is.
const MIN_NAME_WIDTH: usize = 8;

/// Show a sequence.
#[derive(Debug, Args)]
pub struct Seq {
    /// Select the queue as consumer/component; the consumer alone if it has one component
    queue: String,

    /// Select the sequence, such as the key of its messages
    sequence: String,

    /// Limit the number of letters
    #[arg(long, short = 'n', value_name = "N", default_value_t = DEFAULT_LIMIT, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Continue after the cursor of the previous page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl Run for Seq {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        // The only component of a consumer has the consumer's name.
        let queue =
            if self.queue.contains('/') { self.queue.clone() } else { format!("{0}/{0}", self.queue) };
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX).min(1000);
        let sequence = client.sequence(&queue, &self.sequence, self.after.as_deref(), Some(limit)).await?;
        if sequence.size == 0 {
            check_queue(&client, &queue).await?;
            let what = format!("sequence {} has no open letters in {queue}", self.sequence);
            let all = quoted(&history(&self.sequence));
            let key = quoted(&format!("key:{}", query_value(&self.sequence)));
            let hint = format!(
                "list its closed letters with `lazaret ls {all}`, and letters of the key that left it with `lazaret ls {key}`"
            );
            return Err(Error::not_found_hint(what, hint));
        }
        let now = context.now();
        if context.format() != Format::Table {
            print_page(&context.screen, context.format(), &sequence, &sequence.letters, now)?;
            return Ok(Exit::Ok);
        }
        print(context, &sequence, self.after.is_none(), now)?;
        match (&sequence.next, sequence.letters.first()) {
            (Some(next), _) => context.screen.next_command(&format!(
                "lazaret seq {} {} --after {next}",
                quoted(&queue),
                quoted(&self.sequence)
            )),
            (None, Some(head)) => {
                context.screen.next_command(&format!("lazaret show {}", short_id(&head.id)));
            }
            (None, None) => context.screen.next_command("lazaret status"),
        }
        Ok(Exit::Ok)
    }
}

/// Returns a query for every letter of a sequence.
fn history(sequence: &str) -> String {
    format!("seq:{} state:open,closed", query_value(sequence))
}

fn print(context: &Context, sequence: &Sequence, from_head: bool, now: Timestamp) -> Result<()> {
    for line in heading(sequence, from_head, now, context.screen.width()) {
        context.screen.line(&line)?;
    }
    context.screen.table(&lane(&sequence.letters, from_head, now))
}

/// Formats the heading: on one line, or wrapped to this width.
pub(super) fn heading(sequence: &Sequence, from_head: bool, now: Timestamp, width: usize) -> Vec<Line> {
    let waiting = sequence.size.saturating_sub(1);
    let waits = if waiting == 1 { "waits" } else { "wait" };
    let oldest = sequence.letters.first().filter(|_| from_head);
    let since = oldest.map(|letter| format!("open since {}", age(letter.enqueued_at, now)));
    let comma = if since.is_some() { "," } else { "" };
    let place = format!(" in {}:", sanitize(&sequence.queue));
    let name =
        truncate(&sanitize(&sequence.sequence), width.saturating_sub(place.width()).max(MIN_NAME_WIDTH));
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
    Column::new("TYPE").min_width(8).drop_priority(3),
    Column::new("MESSAGE").min_width(8).drop_priority(2),
    Column::new("FAILED").right().drop_priority(4),
    Column::new("AGE").right(),
    Column::new("ERROR").min_width(40),
];

fn lane(letters: &[Letter], from_head: bool, now: Timestamp) -> Table {
    let mut table = Table::new(&COLUMNS);
    for (index, letter) in letters.iter().enumerate() {
        let place = match (from_head, index) {
            (true, 0) => Cell::new("HEAD").tone(Tone::Bad),
            (true, behind) => Cell::new(format!("+{behind}")).tone(Tone::Dim),
            (false, _) => Cell::new("+").tone(Tone::Dim),
        };
        let error = letter.error.as_ref().map(|error| error_summary(&error.error_type, &error.message));
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
