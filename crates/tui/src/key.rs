//! Parses keys from the bytes that a terminal sends.

/// The start of a control sequence.
const ESCAPE: u8 = 0x1b;
/// The maximum length of an incomplete sequence that is buffered (I7).
const MAX_PENDING: usize = 32;

/// A pressed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Ctrl-U: erases the line.
    EraseLine,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home: to the first row.
    Home,
    /// End: to the last row.
    End,
    /// Tab: to the next section.
    Tab,
    /// Shift-Tab: to the previous section.
    BackTab,
    /// Ctrl-C or Ctrl-D.
    Interrupt,
}

/// Parses bytes as they are read. Buffers an incomplete sequence until its remaining bytes arrive.
#[derive(Debug, Default)]
pub(crate) struct KeyParser {
    pending: Vec<u8>,
}

/// The meaning of the first bytes.
enum Parsed {
    /// A key, or bytes without a meaning here, and their length.
    Key(Option<Key>, usize),
    /// The beginning of a longer sequence.
    Incomplete,
}

impl KeyParser {
    /// Returns the keys of a chunk. A trailing escape is the Escape key, because the bytes of a sequence
    /// arrive together.
    pub(crate) fn parse(&mut self, chunk: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(chunk);
        let mut keys = Vec::new();
        while !self.pending.is_empty() {
            match first(&self.pending) {
                Parsed::Key(key, length) => {
                    keys.extend(key);
                    self.pending.drain(..length);
                }
                Parsed::Incomplete if self.pending.len() > MAX_PENDING => self.pending.clear(),
                Parsed::Incomplete => break,
            }
        }
        keys
    }
}

fn first(bytes: &[u8]) -> Parsed {
    let key = match bytes[0] {
        ESCAPE => return escape(bytes),
        b'\r' | b'\n' => Some(Key::Enter),
        b'\t' => Some(Key::Tab),
        0x08 | 0x7f => Some(Key::Backspace),
        0x03 | 0x04 => Some(Key::Interrupt),
        0x15 => Some(Key::EraseLine),
        control if control < 0x20 => None,
        _ => return character(bytes),
    };
    Parsed::Key(key, 1)
}

/// Parses a sequence: `ESC [ parameters final`, or `ESC O final`. Alt with a letter sends an escape
/// before the letter, and is ignored.
fn escape(bytes: &[u8]) -> Parsed {
    match bytes.get(1) {
        None | Some(&ESCAPE) => Parsed::Key(Some(Key::Escape), 1),
        Some(b'[') => {
            let Some(length) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
                return Parsed::Incomplete;
            };
            let parameters = &bytes[2..2 + length];
            Parsed::Key(special(bytes[2 + length], parameters), 3 + length)
        }
        Some(b'O') => match bytes.get(2) {
            Some(last) => Parsed::Key(special(*last, b""), 3),
            None => Parsed::Incomplete,
        },
        Some(_) => match first(&bytes[1..]) {
            Parsed::Key(_, length) => Parsed::Key(None, 1 + length),
            Parsed::Incomplete => Parsed::Incomplete,
        },
    }
}

fn special(last: u8, parameters: &[u8]) -> Option<Key> {
    match (last, parameters) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'Z', _) => Some(Key::BackTab),
        _ => None,
    }
}

fn character(bytes: &[u8]) -> Parsed {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) if error.error_len().is_none() => return Parsed::Incomplete,
        // Not UTF-8.
        Err(_) => return Parsed::Key(None, 1),
    };
    match text.chars().next() {
        Some(c) => Parsed::Key(Some(Key::Char(c)), c.len_utf8()),
        None => Parsed::Key(None, 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(chunks: &[&[u8]]) -> Vec<Key> {
        let mut parser = KeyParser::default();
        chunks.iter().flat_map(|chunk| parser.parse(chunk)).collect()
    }

    #[test]
    fn sequences_are_keys_and_not_letters() {
        let arrows = keys(&[b"\x1b[A\x1b[B\x1bOA\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[Z"]);
        let expected =
            [Key::Up, Key::Down, Key::Up, Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::BackTab];
        assert_eq!(arrows, expected);
        // Keys with Shift, and unknown keys.
        assert_eq!(keys(&[b"\x1b[1;2A\x1b[15~q"]), [Key::Up, Key::Char('q')]);
        assert_eq!(
            keys(&[b"\r\t\x7f\x15\x03\x01"]),
            [Key::Enter, Key::Tab, Key::Backspace, Key::EraseLine, Key::Interrupt]
        );
    }

    #[test]
    fn an_escape_alone_is_a_key_and_one_with_a_letter_is_alt() {
        assert_eq!(keys(&[b"\x1b", b"q"]), [Key::Escape, Key::Char('q')]);
        assert_eq!(keys(&[b"\x1b\x1b"]), [Key::Escape, Key::Escape]);
        assert_eq!(keys(&[b"\x1bqx"]), [Key::Char('x')]);
    }

    #[test]
    fn a_character_may_come_in_pieces_and_invalid_bytes_are_dropped() {
        assert_eq!(keys(&["ä漢".as_bytes()]), [Key::Char('ä'), Key::Char('漢')]);
        assert_eq!(keys(&[b"\xc3", b"\xa4x"]), [Key::Char('ä'), Key::Char('x')]);
        assert_eq!(keys(&[b"\x1b[", b"A"]), [Key::Up]);
        assert_eq!(keys(&[b"\xff\xfea"]), [Key::Char('a')]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_and_what_is_pending_is_bounded(chunks in prop::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut parser = KeyParser::default();
            for chunk in chunks {
                let keys = parser.parse(&chunk);
                prop_assert!(keys.len() <= chunk.len() + MAX_PENDING);
                prop_assert!(parser.pending.len() <= MAX_PENDING);
            }
        }
    }
}
