//! Formats one line per consumer, blocked key, group, operation and log entry.

use std::time::Duration;

use lazaret_api::numbers::{count, span};

use crate::screen::{BlockedKey, Consumer, Group, HeadState, LogEntry, Operation};
use crate::styled_line::{StyledLine, Tone};

/// The minimum and maximum width of a column of names.
const NAME_WIDTH: (usize, usize) = (7, 24);
/// The minimum and maximum width of a progress bar.
const BAR_WIDTH: (usize, usize) = (6, 24);
/// The width of the state of a head: `retry 12 in 99.9 s`.
const HEAD_WIDTH: usize = 17;

/// Values that are drawn on one line each.
pub(crate) trait Row: Sized {
    /// Returns one line per row, for a terminal of this width.
    fn lines(rows: &[Self], width: usize) -> Vec<StyledLine>;
}

impl Row for Consumer {
    fn lines(rows: &[Self], _width: usize) -> Vec<StyledLine> {
        let names = column(rows.iter().map(|row| StyledLine::of(&row.name, Tone::Strong)));
        let states = column(rows.iter().map(|row| StyledLine::of(&row.state, row.tone)));
        let lines = rows.iter().zip(names).zip(states);
        lines.map(|((row, name), state)| row.line(name.plain("  ").join(state))).collect()
    }
}

impl Consumer {
    fn line(&self, start: StyledLine) -> StyledLine {
        let number = |line: StyledLine, value: u64, name: &str, tone| {
            let tone = if value == 0 { Tone::Dim } else { tone };
            line.add(format!("  {:>4} {name}", count(value)), tone)
        };
        let mut line = number(start, self.dead, "dead", Tone::Bad);
        line = number(line, self.retrying, "retrying", Tone::Warning);
        line = number(line, self.waiting, "waiting", Tone::Warning);
        if self.held > 0 {
            line = number(line, self.held, "held", Tone::Warning);
        }
        if let Some(rate) = self.rate {
            line = line.plain(format!("  {rate:.0}/s"));
        }
        if let Some(lag) = self.lag {
            line = line.plain(format!("  lag {}", count(lag)));
        }
        match &self.note {
            Some(note) => line.add(format!("  {note}"), Tone::Bad),
            None => line,
        }
    }
}

impl Row for BlockedKey {
    fn lines(rows: &[Self], _width: usize) -> Vec<StyledLine> {
        let names = column(rows.iter().map(|row| StyledLine::of(&row.name, Tone::Plain)));
        rows.iter().zip(names).map(|(row, name)| row.line(name.plain(" "))).collect()
    }
}

impl BlockedKey {
    fn line(&self, start: StyledLine) -> StyledLine {
        let (state, tone) = match &self.head {
            HeadState::Retrying { attempt, due_in } => (retry(*attempt, *due_in), Tone::Warning),
            HeadState::Held(state) => (state.clone(), Tone::Bad),
        };
        let mut line = start.join(padded(StyledLine::of(state, tone), HEAD_WIDTH)).plain(" ");
        if self.is_paused {
            line = line.add("paused ", Tone::Warning);
        }
        for (index, letter) in self.lane.iter().enumerate() {
            line = match index {
                0 => line.add(letter, tone),
                _ => line.add(" ← ", Tone::Dim).plain(letter),
            };
        }
        let more = self.letters.saturating_sub(self.lane.len() as u64);
        if more > 0 { line.add(format!(" … {} more", count(more)), Tone::Dim) } else { line }
    }
}

fn retry(attempt: u32, due_in: Option<Duration>) -> String {
    match due_in {
        None => format!("retry {attempt}"),
        Some(Duration::ZERO) => format!("retry {attempt} now"),
        Some(due) if due < Duration::from_secs(60) => {
            format!("retry {attempt} in {:.1} s", due.as_secs_f64())
        }
        Some(due) => format!("retry {attempt} in {}", span(due.as_secs_f64())),
    }
}

impl Row for Group {
    fn lines(rows: &[Self], _width: usize) -> Vec<StyledLine> {
        rows.iter().map(Self::line).collect()
    }
}

impl Group {
    fn line(&self) -> StyledLine {
        let tone = if self.dead > 0 { Tone::Bad } else { Tone::Warning };
        let mut line = StyledLine::of(format!("{:>3} dead", count(self.dead)), tone);
        for (letters, state) in [(self.retrying, "retrying"), (self.held, "held")] {
            if letters > 0 {
                line = line.add(format!(" {} {state}", count(letters)), Tone::Warning);
            }
        }
        line.add(format!(" {} behind  ", count(self.behind)), Tone::Dim)
            .add(&self.reason, Tone::Strong)
            .plain(format!("  {}", self.message))
    }
}

impl Row for Operation {
    fn lines(rows: &[Self], width: usize) -> Vec<StyledLine> {
        rows.iter().map(|row| row.line(width)).collect()
    }
}

impl Operation {
    fn line(&self, width: usize) -> StyledLine {
        let done = self.ok + self.failed_again + self.skipped;
        let bar_width = (width / 3).clamp(BAR_WIDTH.0, BAR_WIDTH.1);
        let share = if self.letters == 0 { 1.0 } else { done as f64 / self.letters as f64 };
        let full = ((share * bar_width as f64).round() as usize).min(bar_width);
        let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(bar_width - full));
        let failed = if self.failed_again > 0 { Tone::Bad } else { Tone::Plain };
        let mut line = StyledLine::of(&self.id, Tone::Strong)
            .add(format!(" {} ", self.state), self.tone)
            .add(bar, self.tone)
            .plain(format!(" {}/{}, {} ok, ", count(done), count(self.letters), count(self.ok)))
            .add(format!("{} failed again", count(self.failed_again)), failed);
        if self.skipped > 0 {
            line = line.plain(format!(", {} skipped", count(self.skipped)));
        }
        match &self.note {
            Some(note) => line.add(format!("; {note}"), Tone::Warning),
            None => line,
        }
    }
}

impl Row for LogEntry {
    fn lines(rows: &[Self], _width: usize) -> Vec<StyledLine> {
        let line = |row: &Self| StyledLine::of(format!("{} ", row.at), Tone::Dim).add(&row.text, row.tone);
        rows.iter().map(line).collect()
    }
}

/// Pads texts to the same width, within `NAME_WIDTH`.
fn column(texts: impl Iterator<Item = StyledLine>) -> Vec<StyledLine> {
    let texts: Vec<StyledLine> = texts.map(|text| text.fit(NAME_WIDTH.1)).collect();
    let width = texts.iter().map(StyledLine::width).max().unwrap_or(0).max(NAME_WIDTH.0);
    texts.into_iter().map(|text| padded(text, width)).collect()
}

fn padded(text: StyledLine, width: usize) -> StyledLine {
    let blanks = width.saturating_sub(text.width());
    text.plain(" ".repeat(blanks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<R: Row>(rows: &[R], width: usize) -> Vec<String> {
        R::lines(rows, width).iter().map(StyledLine::text).collect()
    }

    #[test]
    fn a_consumer_shows_what_needs_attention_last() {
        let shop = Consumer {
            name: "shop".into(),
            state: "paused".into(),
            dead: 1284,
            waiting: 3,
            lag: Some(12_345),
            rate: Some(119.6),
            note: Some("fuse blown: 50 in a row".into()),
            ..Consumer::default()
        };
        let mail = Consumer {
            name: "notification-mail".into(),
            state: "running".into(),
            held: 2,
            ..Consumer::default()
        };
        assert_eq!(
            texts(&[shop, mail], 80),
            [
                "shop               paused   1,284 dead     0 retrying     3 waiting  120/s  lag 12,345  fuse blown: 50 in a row",
                "notification-mail  running     0 dead     0 retrying     0 waiting     2 held",
            ]
        );
    }

    #[test]
    fn a_head_tells_when_it_is_retried() {
        let key = |head| BlockedKey {
            name: "ada-0".into(),
            head,
            lane: vec!["100".into(), "200".into()],
            letters: 5,
            is_paused: false,
        };
        let retrying = |due_in| key(HeadState::Retrying { attempt: 3, due_in });
        let rows = [
            retrying(Some(Duration::from_millis(800))),
            retrying(Some(Duration::ZERO)),
            retrying(Some(Duration::from_secs(630))),
            retrying(None),
            BlockedKey { is_paused: true, ..key(HeadState::Held("dead".into())) },
        ];
        assert_eq!(
            texts(&rows, 80),
            [
                "ada-0   retry 3 in 0.8 s  100 ← 200 … 3 more",
                "ada-0   retry 3 now       100 ← 200 … 3 more",
                "ada-0   retry 3 in 10m30s 100 ← 200 … 3 more",
                "ada-0   retry 3           100 ← 200 … 3 more",
                "ada-0   dead              paused 100 ← 200 … 3 more",
            ]
        );
    }

    #[test]
    fn a_bar_shows_the_share_that_is_done_and_fits_the_terminal() {
        let operation = Operation {
            id: "op_1".into(),
            state: "running".into(),
            letters: 8,
            ok: 4,
            note: Some("starts".into()),
            ..Operation::default()
        };
        assert_eq!(
            texts(std::slice::from_ref(&operation), 80),
            ["op_1 running [############............] 4/8, 4 ok, 0 failed again; starts"]
        );
        assert!(texts(std::slice::from_ref(&operation), 30)[0].contains("[#####.....] "));
        let none = Operation { letters: 0, ok: 0, ..operation };
        assert!(texts(&[none], 10)[0].contains("[######] 0/0"));
    }
}
