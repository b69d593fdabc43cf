//! From the bytes that a handler wrote to the words of a failure.

use std::collections::VecDeque;

use lazaret_core::failure::MESSAGE_LIMIT;

/// The bytes as text that can be shown anywhere: what is not UTF-8, and control characters, become `�`; white space at
/// the ends goes.
pub(crate) fn words(bytes: &[u8]) -> String {
    let harmless = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    let text = String::from_utf8_lossy(bytes);
    // The end of a line may be of two characters; it is one all the same.
    text.trim().replace("\r\n", "\n").chars().map(harmless).collect()
}

/// A message and what is to be said about it, within the limit of a message. The remarks are never cut.
pub(crate) fn with_remarks(mut text: String, remarks: &[String]) -> String {
    if remarks.is_empty() {
        return text;
    }
    let remarks = remarks.join("; ");
    if text.is_empty() {
        return remarks;
    }
    let room = MESSAGE_LIMIT.saturating_sub(remarks.len() + " ()".len());
    text.truncate(text.floor_char_boundary(room));
    format!("{text} ({remarks})")
}

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    /// How many bytes are kept.
    const LIMIT: usize = MESSAGE_LIMIT;

    /// Takes what came, and forgets the oldest.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(Self::LIMIT)..];
        let surplus = (self.bytes.len() + new.len()).saturating_sub(Self::LIMIT);
        self.bytes.drain(..surplus);
        self.bytes.extend(new);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// What is there, as text.
    pub(crate) fn words(&self) -> String {
        // A character may have lost its beginning.
        let begins = self.bytes.iter().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
        let begins = if self.bytes.len() == Self::LIMIT { begins } else { 0 };
        let mut text = words(&self.bytes.iter().skip(begins).copied().collect::<Vec<_>>());
        // What replaces a byte is longer than it. The end is what must stay.
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
        assert_eq!(words(b"\r\n a\x1b[31mb\xff\r\nc\td\0 \n"), "a\u{fffd}[31mb\u{fffd}\nc\td\u{fffd}");
        assert_eq!(words(b" \n "), "");
    }

    #[test]
    fn remarks_are_never_cut() {
        assert_eq!(with_remarks("text".into(), &[]), "text");
        assert_eq!(with_remarks(String::new(), &["a".into()]), "a");
        let full = with_remarks("é".repeat(MESSAGE_LIMIT), &["a".into(), "b".into()]);
        assert!(full.len() <= MESSAGE_LIMIT && full.ends_with(" (a; b)"), "{}", full.len());
    }

    #[test]
    fn a_tail_keeps_the_last_bytes() {
        // I7
        let mut tail = Tail::default();
        tail.push(b"first ");
        tail.push(b"second");
        assert_eq!(tail.words(), "first second");
        tail.push("é".repeat(Tail::LIMIT).as_bytes());
        assert_eq!(tail.bytes.len(), Tail::LIMIT);
        tail.push(b"end");
        let words = tail.words();
        assert!(words.starts_with('é') && words.ends_with("éend"), "no half character at the beginning");
        tail.push(&[b'\x1b'; Tail::LIMIT]);
        tail.push(b"KeyError");
        let words = tail.words();
        assert!(words.len() <= MESSAGE_LIMIT && words.ends_with("\u{fffd}KeyError"), "the end is never cut");
        tail.clear();
        assert_eq!(tail.words(), "");
    }
}
