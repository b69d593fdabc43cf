//! `show`: shows one letter with its cause, history and payload.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Attempt, Edit, Failure, Header, Letter, LetterDetail, MessageDetail, PayloadState, State};

use super::Run;
use super::ls::state_tone;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{query_value, quoted, short_id};
use crate::output::{
    Cell, Column, Fields, Format, Line, Record, Screen, Table, Tone, count, csv_header, csv_row,
    error_summary, plural, span, time_with_age, with_type,
};
use crate::reveal::Reveal;
use crate::sanitize::{sanitize, sanitize_bytes};
use crate::selection::resolve_one;

/// The most bytes of a payload that are shown without `--full`.
const MAX_PAYLOAD_SHOWN: usize = 4096;
/// The most lines of a backtrace that are shown without `--full`.
const MAX_BACKTRACE_SHOWN: usize = 12;

/// Show one letter.
#[derive(Debug, Args)]
pub struct Show {
    /// Select the letter by id, id prefix, or a query that matches one letter, such as message:e-2
    id: String,

    /// Print the payload only: sanitized on a terminal, raw bytes elsewhere
    #[arg(long)]
    payload: bool,

    /// Print the payload as it arrived, before all edits; as --payload prints it
    #[arg(long, conflicts_with = "payload")]
    original: bool,

    /// Show the complete payload and backtrace
    #[arg(long, conflicts_with_all = ["payload", "original"])]
    full: bool,

    #[command(flatten)]
    reveal: Reveal,
}

impl Run for Show {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let id = resolve_one(&client, &self.id).await?;
        let screen = &context.screen;
        let detail = match self.reveal.reason() {
            Some(reason) => Some(client.reveal(&id, reason).await?),
            None => None,
        };
        if self.payload {
            let payload = match &detail {
                Some(revealed) => payload(revealed)?,
                None => client.payload(&id).await?,
            };
            print_payload(screen, &payload)?;
            return Ok(Exit::Ok);
        }
        let is_revealed = detail.is_some();
        let detail = match detail {
            Some(revealed) => revealed,
            None => client.letter(&id).await?,
        };
        if self.original {
            let payload = match detail.edits.first() {
                Some(first) => original(&detail, first)?,
                None if is_revealed => payload(&detail)?,
                None => client.payload(&id).await?,
            };
            print_payload(screen, &payload)?;
            return Ok(Exit::Ok);
        }
        match context.format() {
            Format::Table => {
                let view = View { now: context.now(), full: self.full };
                view.print(screen, &detail)?;
                screen.next_commands(&next(&detail.letter, detail.content.payload_state));
            }
            Format::Json => screen.json(&detail)?,
            Format::Jsonl => screen.json_line(&detail)?,
            Format::Csv => {
                let value =
                    serde_json::to_value(&detail.letter).map_err(|error| Error::Other(error.to_string()))?;
                let row = csv_row(Letter::CSV, &value);
                screen.raw(format!("{}\n{row}\n", csv_header(Letter::CSV)).as_bytes())?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Returns the payload of a letter that was shown whole.
fn payload(detail: &LetterDetail) -> Result<Bytes> {
    let (id, content) = (&detail.letter.id, &detail.content);
    decode(content.payload.as_deref(), content.payload_base64.as_deref(), id)
        .unwrap_or_else(|| Err(Error::not_found(format!("letter {id} has no payload"))))
}

/// Reads bytes that are text or base64; `None` without either.
fn decode(text: Option<&str>, base64: Option<&str>, id: &str) -> Option<Result<Bytes>> {
    match (text, base64) {
        (Some(text), _) => Some(Ok(Bytes::from(text.to_owned()))),
        (None, Some(base64)) => {
            let bytes = STANDARD.decode(base64.as_bytes()).map(Bytes::from);
            Some(bytes.map_err(|error| Error::Other(format!("invalid payload of {id}: {error}"))))
        }
        (None, None) => None,
    }
}

/// Returns the payload before the first edit.
fn original(detail: &LetterDetail, first: &Edit) -> Result<Bytes> {
    let id = &detail.letter.id;
    match decode(first.original.as_deref(), first.original_base64.as_deref(), id) {
        Some(payload) => payload,
        None if detail.content.payload_state == PayloadState::Hidden => {
            Err(Error::Other(format!("the payload of {id} is hidden: the token lacks the scope payload")))
        }
        None => Err(Error::not_found(format!("letter {id} arrived without a payload"))),
    }
}

/// Returns the next commands for a letter in this state. One whose payload was not stored can only be closed.
fn next(letter: &Letter, payload: PayloadState) -> Vec<String> {
    let id = short_id(&letter.id);
    // A letter that left its sequence is alone in one of its own: the others of its key tell more.
    let sequence = match (&letter.left_sequence, &letter.message.key) {
        (Some(_), Some(key)) => format!("lazaret ls {}", quoted(&format!("key:{}", query_value(key)))),
        _ => format!("lazaret seq {} {}", quoted(&letter.queue), quoted(&letter.sequence)),
    };
    match letter.state {
        State::Waiting => vec![sequence],
        State::Evicted => vec![format!("lazaret restore --ids {id} --reason TEXT")],
        State::Resolved | State::Skipped | State::Expired => vec!["lazaret ls".to_owned()],
        State::Retrying | State::Dead | State::Parked | State::Quarantined
            if payload == PayloadState::LeftOut =>
        {
            let close = |verb: &str| format!("lazaret {verb} --ids {id} --reason TEXT");
            vec![close("resolve"), close("evict"), sequence]
        }
        State::Retrying | State::Dead | State::Parked | State::Quarantined => {
            vec![format!("lazaret retry --ids {id} --reason TEXT"), sequence]
        }
    }
}

/// Prints the raw bytes, or sanitized lines on a terminal.
fn print_payload(screen: &Screen, payload: &[u8]) -> Result<()> {
    if !screen.stdout_is_terminal() {
        return screen.raw(payload);
    }
    payload_lines(payload, usize::MAX).iter().try_for_each(|line| screen.line(&Line::of(line)))
}

/// Splits a payload into lines and sanitizes each.
fn payload_lines(payload: &[u8], most: usize) -> Vec<String> {
    let shown = &payload[..payload.len().min(most)];
    let shown = shown.strip_suffix(b"\n").unwrap_or(shown);
    shown
        .split(|byte| *byte == b'\n')
        .map(|line| sanitize_bytes(line.strip_suffix(b"\r").unwrap_or(line)))
        .collect()
}

/// Formats a letter for people.
struct View {
    now: Timestamp,
    full: bool,
}

impl View {
    fn print(&self, screen: &Screen, detail: &LetterDetail) -> Result<()> {
        for line in self.lines(detail).iter().chain(&headers(&detail.content.headers)) {
            screen.line(line)?;
        }
        if !detail.history.is_empty() {
            screen.line(&heading("history"))?;
            screen.table(&self.history(&detail.history))?;
        }
        for line in self.payload(detail) {
            screen.line(&line)?;
        }
        Ok(())
    }

    fn lines(&self, detail: &LetterDetail) -> Vec<Line> {
        let mut lines: Vec<Line> = self.facts(detail).lines().collect();
        if let Some(cause) = &detail.cause {
            lines.extend(self.cause(cause));
        }
        if let Some(erased) = &detail.erased {
            let who = format!("{} {}", erased.by, time_with_age(erased.at, self.now));
            lines.push(Line::new().add("erased  ", Tone::Dim).plain(format!("{}: {}", who, erased.why)));
        }
        for comment in &detail.comments {
            let who = format!("{} {}", comment.by, time_with_age(comment.at, self.now));
            lines.push(Line::new().add("comment  ", Tone::Dim).plain(format!("{}: {}", who, comment.text)));
        }
        for edit in &detail.edits {
            let who = format!("{} {}", edit.by, time_with_age(edit.at, self.now));
            lines.push(Line::new().add("edited  ", Tone::Dim).plain(format!("{}: {}", who, edit.why)));
        }
        if !detail.edits.is_empty() {
            let id = short_id(&detail.letter.id);
            lines.push(dim(&format!("the payload as it arrived: lazaret show {id} --original")));
        }
        lines
    }

    fn facts(&self, detail: &LetterDetail) -> Fields {
        let (letter, content) = (&detail.letter, &detail.content);
        let time = |at: Timestamp| time_with_age(at, self.now);
        let mut fields = Fields::new();
        fields.toned("letter", &letter.id, Tone::Strong);
        fields.toned("state", letter.state.as_str(), state_tone(letter.state));
        fields.add("queue", &letter.queue);
        match &letter.left_sequence {
            Some(left) => {
                let note = "left when the letter died: later messages went on, and a replay is out of order";
                fields.add("sequence", format!("{left}, {note}"));
            }
            None => fields.add("sequence", &letter.sequence),
        }
        fields.add("message", &letter.message.id);
        fields.add("stream", format!("{} at {}", letter.stream, letter.message.position));
        fields.add(
            "key",
            letter.message.key.as_deref().or(letter.message.key_base64.as_deref()).unwrap_or("none"),
        );
        fields.maybe("type", letter.message.event_type.as_deref());
        fields.maybe("correlation", content.correlation.as_deref());
        fields.maybe("time", content.time.map(time));
        fields.add("failed", attempts(letter));
        fields.add("stored", time(letter.enqueued_at));
        fields.maybe("first failed", letter.first_failed_at.map(time));
        fields.maybe("last failed", letter.last_failed_at.map(time));
        fields.maybe("due", letter.due_at.map(time));
        fields.maybe("expires", letter.expires_at.map(time));
        fields.maybe("owner", letter.owner.as_deref());
        fields.maybe("assignee", letter.assignee.as_deref());
        fields.maybe("group", letter.group.as_deref());
        if letter.poison {
            fields.toned("poison", "failed repeatedly with the same error", Tone::Bad);
        }
        for (name, value) in &letter.diagnostics {
            fields.add("diagnostic", format!("{name}: {value}"));
        }
        for (name, value) in &detail.context {
            fields.add("context", format!("{name}: {value}"));
        }
        fields
    }

    fn cause(&self, cause: &Failure) -> Vec<Line> {
        let mut lines = vec![heading("cause")];
        let status = cause.status.map_or_else(String::new, |status| format!(", status {status}"));
        let panicked = if cause.panicked { ", panicked" } else { "" };
        let first = Line::new().add(&cause.reason, Tone::Bad);
        lines.push(first.plain(format!(" in phase {}{status}{panicked}", cause.phase)));
        // Continuation lines are indented, so that a message cannot imitate Lazaret's own output.
        let mut message = cause.message.trim_end().split('\n');
        let first = message.next().unwrap_or_default();
        lines.push(Line::of(with_type(&cause.error_type, first)));
        lines.extend(message.map(|line| Line::of(format!("  {line}"))));
        for link in &cause.chain {
            let kind = link.error_type.as_deref().map_or_else(String::new, |kind| format!("{kind}: "));
            lines.push(Line::of(format!("  caused by {kind}{}", link.message)));
        }
        let backtrace: Vec<&str> = cause.backtrace.as_deref().unwrap_or_default().lines().collect();
        let shown = if self.full { backtrace.len() } else { MAX_BACKTRACE_SHOWN };
        lines
            .extend(backtrace.iter().take(shown).map(|line| Line::new().add(format!("  {line}"), Tone::Dim)));
        if backtrace.len() > shown {
            let more = plural((backtrace.len() - shown) as u64, "more line");
            lines.push(Line::new().add(format!("  … {more}; show them with --full"), Tone::Dim));
        }
        lines
    }

    fn history(&self, history: &[Attempt]) -> Table {
        const COLUMNS: [Column; 5] = [
            Column::new("ATTEMPT").right(),
            Column::new("BY"),
            Column::new("AT").drop_priority(1),
            Column::new("TOOK").right().drop_priority(2),
            Column::new("RESULT").min_width(16),
        ];
        let mut table = Table::new(&COLUMNS);
        for attempt in history {
            let result = match &attempt.failure {
                None => Cell::new("handled").tone(Tone::Good),
                Some(failure) => Cell::new(format!(
                    "{} {}",
                    failure.reason,
                    error_summary(&failure.error_type, &failure.message)
                )),
            };
            table.row(vec![
                Cell::new(attempt.attempt.to_string()),
                Cell::new(attempt.kind.as_str()),
                Cell::new(time_with_age(attempt.at, self.now)),
                Cell::new(took(attempt.took_seconds)),
                result,
            ]);
        }
        table
    }

    fn payload(&self, detail: &LetterDetail) -> Vec<Line> {
        let content = &detail.content;
        let size = format!("{} bytes", count(content.payload_bytes));
        let kind =
            content.content_type.as_deref().map_or_else(String::new, |kind| format!(", {}", sanitize(kind)));
        let mut lines = vec![heading(&format!("payload ({size}{kind})"))];
        match content.payload_state {
            PayloadState::Shown => lines.extend(self.payload_shown(content)),
            PayloadState::Hidden => lines.push(dim("hidden: the token lacks the scope payload")),
            PayloadState::None => lines.push(dim("none: a tombstone")),
            PayloadState::LeftOut if detail.erased.is_some() => lines.push(dim("erased")),
            PayloadState::LeftOut if content.undecodable.is_some() => {
                lines.push(dim("not there: it is damaged, or was not stored"));
            }
            PayloadState::LeftOut => lines.push(dim("not stored: the consumer has include-payload: false")),
        }
        if !content.redacted.is_empty() {
            let what = content.redacted.join(", ");
            lines.push(dim(&format!("redacted: {}; show it with --reveal --reason TEXT", sanitize(&what))));
        }
        if let Some(why) = &content.undecodable {
            lines.push(Line::new().add("the message cannot be decoded: ", Tone::Bad).plain(why));
        }
        lines
    }

    fn payload_shown(&self, content: &MessageDetail) -> Vec<Line> {
        let (bytes, note) = match (&content.payload, &content.payload_base64) {
            (Some(text), _) => (text.as_bytes(), None),
            (None, Some(base64)) => (base64.as_bytes(), Some("binary, shown as base64:")),
            (None, None) => (&b""[..], None),
        };
        let most = if self.full { usize::MAX } else { MAX_PAYLOAD_SHOWN };
        let mut lines: Vec<Line> = note.into_iter().map(dim).collect();
        lines.extend(payload_lines(bytes, most).iter().map(Line::of));
        if bytes.len() > most {
            lines.push(dim(&format!(
                "… truncated after {most} bytes; show all with --full, or print the bytes with --payload"
            )));
        }
        lines
    }
}

/// Returns the lines of a letter, for a screen of this width.
pub(super) fn screen_lines(detail: &LetterDetail, now: Timestamp, width: usize) -> Vec<Line> {
    let view = View { now, full: false };
    let mut lines = view.lines(detail);
    lines.extend(headers(&detail.content.headers));
    if !detail.history.is_empty() {
        lines.push(heading("history"));
        lines.extend(view.history(&detail.history).render(width, false).lines().map(Line::of));
    }
    lines.extend(view.payload(detail));
    lines
}

fn headers(headers: &[Header]) -> Vec<Line> {
    let line = |header: &Header| {
        let value = header.value.as_deref().or(header.value_base64.as_deref()).unwrap_or("(null)");
        Line::new().add(&header.name, Tone::Dim).plain(": ").plain(value)
    };
    let title = (!headers.is_empty()).then(|| heading("headers"));
    title.into_iter().chain(headers.iter().map(line)).collect()
}

fn dim(text: &str) -> Line {
    Line::new().add(text, Tone::Dim)
}

fn heading(text: &str) -> Line {
    Line::new().add(format!("--- {text}"), Tone::Dim)
}

fn took(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0}ms", seconds * 1000.0) } else { span(seconds) }
}

/// Formats the failed attempts. A successful attempt closes the letter and is not counted.
fn attempts(letter: &Letter) -> String {
    let mut text = plural(u64::from(letter.attempts), "attempt");
    if letter.replay_attempts > 0 {
        text.push_str(&format!(", {} in replays", letter.replay_attempts));
    }
    if letter.crash_attempts > 0 {
        text.push_str(&format!(", {} crashed the process", letter.crash_attempts));
    }
    text
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Message, Position, QueueName};

    use super::*;
    use crate::fixtures::letter;

    #[test]
    fn the_next_command_for_a_letter_that_left_its_sequence_lists_its_key() {
        let mut left = letter("7f3a90c1", "~d:7f3a90c1:bob", State::Dead);
        left.message.key = Some("bob".to_owned());
        assert_eq!(next(&left, PayloadState::Shown)[1], "lazaret seq payments/ledger '~d:7f3a90c1:bob'");
        left.left_sequence = Some("bob".to_owned());
        assert_eq!(next(&left, PayloadState::Shown)[1], "lazaret ls key:bob");
    }

    #[test]
    fn a_letter_whose_payload_was_not_stored_is_closed_and_not_retried() {
        let dead = letter("7f3a90c1", "bob", State::Dead);
        let sequence = "lazaret seq payments/ledger bob";
        assert_eq!(
            next(&dead, PayloadState::LeftOut),
            [
                "lazaret resolve --ids 7f3a90c1 --reason TEXT",
                "lazaret evict --ids 7f3a90c1 --reason TEXT",
                sequence
            ]
        );
        // A tombstone has no payload, and can be retried.
        let retried = ["lazaret retry --ids 7f3a90c1 --reason TEXT", sequence];
        assert_eq!(next(&dead, PayloadState::None), retried);
        let evicted = letter("7f3a90c1", "bob", State::Evicted);
        assert!(next(&evicted, PayloadState::LeftOut)[0].starts_with("lazaret restore --ids 7f3a90c1"));
    }

    #[test]
    fn a_payload_that_is_not_there_says_why() {
        let message = Message::new("evt-1", "orders", Position::new(0, 0)).into();
        let mut letter =
            lazaret_core::Letter::new(QueueName::of("a", "a"), "k".into(), message, Timestamp::UNIX_EPOCH);
        letter.payload_left_out = true;
        let shown = |letter: &lazaret_core::Letter| {
            let lines = screen_lines(&LetterDetail::of(letter, true), Timestamp::UNIX_EPOCH, 80);
            lines.iter().map(|line| line.render(false)).collect::<Vec<_>>().join("\n")
        };
        assert!(shown(&letter).contains("not stored: the consumer has include-payload: false"));
        let why = "the encrypted payload of letter 7 cannot be decrypted: it was changed";
        let message = Message { undecodable: Some(why.into()), ..(*letter.message).clone() };
        letter.message = message.into();
        let damaged = shown(&letter);
        assert!(damaged.contains("\nnot there: it is damaged, or was not stored\n"), "{damaged}");
        assert!(damaged.contains(&format!("the message cannot be decoded: {why}")), "{damaged}");
        assert!(!damaged.contains("include-payload") && !damaged.contains("the source"), "{damaged}");
    }

    #[test]
    fn a_payload_cannot_imitate_the_output() {
        let lines = payload_lines(b"{\n\"a\": \"\x1b[2J\"\r\n}\n\xff", usize::MAX);
        assert_eq!(lines, ["{", r#""a": "\u{1b}[2J""#, "}", r"\xff"]);
        assert_eq!(payload_lines(b"abc", 2), ["ab"]);
        assert_eq!(payload_lines(b"", 10), [""]);
    }
}
