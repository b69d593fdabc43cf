//! Reads a streamed response line by line, in bounded memory.

use bytes::{Bytes, BytesMut};
use reqwest::Response;

use super::transport::reason;
use crate::error::{Error, Result};

/// The longest accepted line: a letter with a large payload, in base64.
const MAX_LINE_BYTES: usize = 256 * 1024 * 1024;

/// The lines of a response.
pub struct Lines {
    response: Response,
    url: String,
    splitter: Splitter,
    ended: bool,
}

impl Lines {
    pub(super) fn new(response: Response, url: String) -> Self {
        Self { response, url, splitter: Splitter::default(), ended: false }
    }

    /// Returns the next line without its line break; `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks before the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(line) = self.splitter.next() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(self.splitter.rest());
            }
            let chunk = self.response.chunk().await;
            let chunk =
                chunk.map_err(|error| Error::Unreachable { url: self.url.clone(), why: reason(&error) })?;
            match chunk {
                None => self.ended = true,
                Some(chunk) => self.splitter.push(&chunk),
            }
            if self.splitter.buffered() > MAX_LINE_BYTES {
                return Err(Error::Other(format!("a line of the response exceeds {MAX_LINE_BYTES} bytes")));
            }
        }
    }
}

/// Splits chunks of bytes into lines.
#[derive(Default)]
pub(super) struct Splitter {
    bytes: BytesMut,
    /// The length of the prefix without a line break, so that a long line is searched once.
    searched: usize,
}

impl Splitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn buffered(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn next(&mut self) -> Option<Bytes> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|end| end + self.searched) else {
            self.searched = self.bytes.len();
            return None;
        };
        self.searched = 0;
        let mut line = self.bytes.split_to(end + 1);
        line.truncate(end - usize::from(end > 0 && line[end - 1] == b'\r'));
        Some(line.freeze())
    }

    /// Returns the bytes after the last line break.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        self.searched = 0;
        Some(self.bytes.split().freeze()).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_come_whole_however_the_bytes_are_cut(
            lines in prop::collection::vec("[a-zü ]{0,12}", 0..8), cut in 1_usize..7,
        ) {
            let text = lines.join("\n");
            let mut splitter = Splitter::default();
            let mut read = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                splitter.push(piece);
                while let Some(line) = splitter.next() {
                    read.push(line);
                }
            }
            read.extend(splitter.rest());
            let expected: Vec<&str> = text.split('\n').collect();
            let expected = if text.ends_with('\n') || text.is_empty() { &expected[..expected.len() - 1] } else { &expected };
            prop_assert_eq!(read, expected.iter().map(|line| line.as_bytes()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lines_end_with_lf_or_crlf() {
        let mut splitter = Splitter::default();
        splitter.push(b"a\r\n\r\n\nb");
        let lines: Vec<_> = std::iter::from_fn(|| splitter.next()).collect();
        assert_eq!(lines, [&b"a"[..], b"", b""]);
        assert_eq!(splitter.rest().unwrap(), &b"b"[..]);
    }
}
