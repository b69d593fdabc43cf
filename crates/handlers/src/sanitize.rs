//! Sanitizes the output of handlers for failure messages.

use std::collections::VecDeque;

use lazaret_core::failure::{BACKTRACE_LIMIT, MESSAGE_LIMIT};

use crate::report::Report;

/// Converts bytes to text that is safe to display. Invalid UTF-8 and control characters become `�`, and
/// white space at both ends is trimmed.
pub(crate) fn sanitize(bytes: &[u8]) -> String {
    let harmless = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    let text = String::from_utf8_lossy(bytes);
    // A CRLF counts as one line end.
    text.trim().replace("\r\n", "\n").chars().map(harmless).collect()
}

/// Appends notes to a message, within the size limit of messages. The notes are never truncated.
pub(crate) fn with_notes(mut text: String, notes: &[String]) -> String {
    if notes.is_empty() {
        return text;
    }
    let notes = notes.join("; ");
    if text.is_empty() {
        return notes;
    }
    let available = MESSAGE_LIMIT.saturating_sub(notes.len() + " ()".len());
    text.truncate(text.floor_char_boundary(available));
    format!("{text} ({notes})")
}

/// The last bytes of a stream: enough for a report with a stack trace. A message is a part of it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    /// The maximum number of bytes that are kept.
    const KEPT: usize = 2 * (BACKTRACE_LIMIT + MESSAGE_LIMIT);

    /// Appends bytes and discards the oldest ones beyond the limit.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(Self::KEPT)..];
        let surplus = (self.bytes.len() + new.len()).saturating_sub(Self::KEPT);
        self.bytes.drain(..surplus);
        self.bytes.extend(new);
    }

    /// Discards all bytes.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns the sanitized text of the end.
    pub(crate) fn text(&self) -> String {
        self.text_up_to(self.bytes.len())
    }

    /// Returns the sanitized text of the end, and the report of the failure if the last line is one. In
    /// that case the text does not include the report.
    pub(crate) fn text_and_report(&mut self) -> (String, Option<Report>) {
        let written = self.bytes.make_contiguous().trim_ascii_end();
        let start = written.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        match Report::from_line(&written[start..]) {
            Some(report) => (self.text_up_to(start), Some(report)),
            None => (self.text(), None),
        }
    }

    /// Returns the sanitized text before `end`, up to the size of a message.
    fn text_up_to(&self, end: usize) -> String {
        let start = end.saturating_sub(MESSAGE_LIMIT);
        let is_cut = start > 0 || self.bytes.len() == Self::KEPT;
        let bytes: Vec<u8> = self.bytes.range(start..end).copied().collect();
        // The first character may be incomplete.
        let begins = bytes.iter().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
        let mut text = sanitize(&bytes[if is_cut { begins } else { 0 }..]);
        // Replacement characters are longer than the bytes that they replace. Keep the end of the text.
        let surplus = text.len().saturating_sub(MESSAGE_LIMIT);
        text.drain(..text.ceil_char_boundary(surplus));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_become_harmless_text() {
        assert_eq!(sanitize(b"\r\n a\x1b[31mb\xff\r\nc\td\0 \n"), "a\u{fffd}[31mb\u{fffd}\nc\td\u{fffd}");
        assert_eq!(sanitize(b" \n "), "");
    }

    #[test]
    fn notes_are_never_truncated() {
        assert_eq!(with_notes("text".into(), &[]), "text");
        assert_eq!(with_notes(String::new(), &["a".into()]), "a");
        let full = with_notes("é".repeat(MESSAGE_LIMIT), &["a".into(), "b".into()]);
        assert!(full.len() <= MESSAGE_LIMIT && full.ends_with(" (a; b)"), "{}", full.len());
    }

    #[test]
    fn a_tail_keeps_the_last_bytes() {
        // I7
        let mut tail = Tail::default();
        tail.push(b"first ");
        tail.push(b"second");
        assert_eq!(tail.text(), "first second");
        tail.push("é".repeat(Tail::KEPT).as_bytes());
        assert_eq!(tail.bytes.len(), Tail::KEPT);
        tail.push(b"end");
        let text = tail.text();
        assert!(text.starts_with('é') && text.ends_with("éend"), "no half character at the beginning");
        tail.push(&[b'\x1b'; MESSAGE_LIMIT]);
        tail.push(b"KeyError");
        let text = tail.text();
        assert!(text.len() <= MESSAGE_LIMIT && text.ends_with("\u{fffd}KeyError"), "the end is never cut");
        tail.clear();
        assert_eq!(tail.text(), "");
    }

    #[test]
    fn a_last_line_that_is_a_report_is_no_part_of_the_text() {
        let mut tail = Tail::default();
        tail.push(b"INFO begun\n{\"level\":30}\n");
        let (text, report) = tail.text_and_report();
        assert_eq!((text.as_str(), report.is_none()), ("INFO begun\n{\"level\":30}", true));
        // Longer than a message.
        let trace = "at shop.Pay.charge ".repeat(1000);
        tail.push(format!("{{\"errorType\":\"E\",\"stackTrace\":\"{trace}\"}}\n \n").as_bytes());
        let (text, report) = tail.text_and_report();
        assert_eq!(text, "INFO begun\n{\"level\":30}");
        assert_eq!(report.unwrap().error_type.as_deref(), Some("E"));
    }
}
