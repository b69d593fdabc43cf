//! The position in a file, as stored in a checkpoint.

use std::hash::Hasher;
use std::ops::RangeInclusive;

use bytes::Bytes;
use lazaret_core::source::Commit;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

/// The number of bytes that identify a file: at its start, and before the end of the settled content.
pub(crate) const HEAD_BYTES: usize = 1024;
/// The maximum number of settled ranges beyond the position (I7).
const MAX_RANGES: usize = 4096;
/// The version of the token. Version 1 has no tail, and its head ends at the position.
const VERSION: u32 = 2;

/// The settled part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilePosition {
    /// The end of the last line in the settled prefix; 0 at the start of the file.
    pub(crate) offset: u64,
    /// The settled ranges beyond the offset.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
}

/// A fingerprint of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    bytes: usize,
    hash: String,
}

/// Identifies a file by its settled content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The start of the file.
    pub(crate) head: Fingerprint,
    /// The last settled bytes; `None` in a token of version 1.
    pub(crate) tail: Option<Fingerprint>,
}

/// The reason why a token is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The token does not belong to a file source.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// The token has an unsupported version.
    #[error("unsupported version {0}, expected at most {VERSION}")]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
struct Token {
    version: u32,
    offset: u64,
    settled: Vec<(u64, u64)>,
    head: Fingerprint,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tail: Option<Fingerprint>,
}

impl Fingerprint {
    /// Computes the fingerprint of the content before the offset.
    pub(crate) fn of(head: &[u8], offset: u64) -> Self {
        let bytes = head.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let mut hasher = SipHasher13::new();
        hasher.write(&head[..bytes]);
        Self { bytes, hash: format!("{:032x}", hasher.finish128().as_u128()) }
    }

    /// Returns `true` if this is the fingerprint of exactly these bytes.
    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        *self == Self::of(content, content.len() as u64)
    }

    /// Returns `true` if the fingerprint matches a file that starts with these bytes.
    pub(crate) fn matches(&self, head: &[u8]) -> bool {
        head.get(..self.bytes).is_some_and(|head| *self == Self::of(head, head.len() as u64))
    }
}

impl FilePosition {
    /// Returns the position after a commit. It never moves back.
    pub(crate) fn after(&self, commit: Commit) -> Self {
        let offset = commit.position.map_or(self.offset, |position| position.offset.max(self.offset));
        let mut settled = commit.settled_beyond;
        settled.retain(|range| *range.end() > offset);
        settled.truncate(MAX_RANGES);
        Self { offset, settled }
    }

    /// Returns the end of all settled content.
    pub(crate) fn reach(&self) -> u64 {
        self.settled.iter().map(|range| *range.end()).max().map_or(self.offset, |end| end.max(self.offset))
    }

    /// Serializes the position as a token, for a file that starts with `head` and has `tail` before its
    /// [reach](Self::reach).
    pub(crate) fn to_token(&self, head: &[u8], tail: &[u8]) -> Bytes {
        let settled = self.settled.iter().map(|range| (*range.start(), *range.end())).collect();
        let head = Fingerprint::of(head, self.reach());
        let tail = Some(Fingerprint::of(tail, self.reach()));
        let token = Token { version: VERSION, offset: self.offset, settled, head, tail };
        // Numbers and strings always serialize.
        serde_json::to_vec(&token).unwrap_or_default().into()
    }

    /// Parses a token into the position and the identity of the file.
    pub(crate) fn from_token(token: &[u8]) -> Result<(Self, Identity), TokenError> {
        let token: Token = serde_json::from_slice(token)?;
        let settled: Vec<_> = match token.version {
            // The fingerprint does not cover the ranges beyond the position, which may belong to another
            // file. Their messages are delivered again.
            1 => Vec::new(),
            VERSION => token.settled.into_iter().map(|(start, end)| start..=end).collect(),
            other => return Err(TokenError::Version(other)),
        };
        Ok((Self { offset: token.offset, settled }, Identity { head: token.head, tail: token.tail }))
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Partition, Position};

    use super::*;

    fn commit(offset: Option<u64>, settled: Vec<RangeInclusive<u64>>) -> Commit {
        let position = offset.map(|offset| Position::new(0, offset));
        Commit { partition: Partition::new("s", 0), position, settled_beyond: settled }
    }

    #[test]
    fn a_token_restores_the_position() {
        let position = FilePosition { offset: u64::MAX, settled: vec![3..=7, 9..=9] };
        let (back, Identity { head, tail }) =
            FilePosition::from_token(&position.to_token(b"abc", b"xyz")).unwrap();
        assert_eq!(back, position);
        assert!(head.matches(b"abc") && head.matches(b"abcd"));
        assert!(!head.matches(b"ab") && !head.matches(b"abX"));
        let tail = tail.unwrap();
        assert!(tail.is_of(b"xyz") && !tail.is_of(b"xy") && !tail.is_of(b"wxyz"));
    }

    #[test]
    fn only_content_that_was_settled_is_compared() {
        let head = |position: FilePosition| {
            FilePosition::from_token(&position.to_token(b"abc", b"")).unwrap().1.head
        };
        assert!(head(FilePosition { offset: 2, settled: vec![] }).matches(b"abX"));
        assert!(head(FilePosition::default()).matches(b""));
        let beyond = head(FilePosition { offset: 0, settled: vec![3..=3] });
        assert!(beyond.matches(b"abcX") && !beyond.matches(b"abX") && !beyond.matches(b"ab"));
    }

    #[test]
    fn ranges_of_the_first_version_are_delivered_again() {
        // I1: the fingerprint does not cover the ranges.
        let first = br#"{"version":1,"offset":2,"settled":[[5,9]],"head":{"bytes":2,"hash":"h"}}"#;
        let (position, identity) = FilePosition::from_token(first).unwrap();
        assert_eq!(position, FilePosition { offset: 2, settled: vec![] });
        assert_eq!(identity.tail, None);
    }

    #[test]
    fn a_position_never_moves_back() {
        let position = FilePosition { offset: 10, settled: vec![12..=13] };
        let back = position.after(commit(Some(5), vec![7..=8, 12..=13]));
        assert_eq!(back, position, "passed ranges are dropped");
        assert_eq!(
            position.after(commit(None, vec![20..=21])),
            FilePosition { offset: 10, settled: vec![20..=21] }
        );
        assert_eq!(position.after(commit(Some(13), vec![])), FilePosition { offset: 13, settled: vec![] });
    }

    #[test]
    fn an_invalid_token_is_an_error() {
        assert!(FilePosition::from_token(b"8263").is_err());
        let other = br#"{"version":7,"offset":1,"settled":[],"head":{"bytes":0,"hash":""}}"#;
        assert_eq!(
            FilePosition::from_token(other).unwrap_err().to_string(),
            "unsupported version 7, expected at most 2"
        );
    }
}
