//! How far a file was read, as it is kept in a checkpoint.

use std::hash::Hasher;
use std::ops::RangeInclusive;

use bytes::Bytes;
use lazaret_core::source::Commit;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

/// How many bytes at the start of a file it is recognised by.
pub(crate) const HEAD: usize = 1024;
/// How many ranges beyond the position are kept (I7).
const MOST_RANGES: usize = 4096;
/// The version of the token.
const VERSION: u32 = 1;

/// How far a file is settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The end of the last line of the settled prefix; 0 at the beginning.
    pub(crate) offset: u64,
    /// What is settled beyond it.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
}

/// What the start of a file looked like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    bytes: usize,
    hash: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    version: u32,
    offset: u64,
    settled: Vec<(u64, u64)>,
    head: Fingerprint,
}

impl Fingerprint {
    /// The fingerprint of what stands before the offset.
    pub(crate) fn of(head: &[u8], offset: u64) -> Self {
        let bytes = head.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let mut hasher = SipHasher13::new();
        hasher.write(&head[..bytes]);
        Self { bytes, hash: format!("{:032x}", hasher.finish128().as_u128()) }
    }

    /// Whether a file that begins like this is the same.
    pub(crate) fn fits(&self, head: &[u8]) -> bool {
        head.get(..self.bytes).is_some_and(|head| *self == Self::of(head, head.len() as u64))
    }
}

impl Place {
    /// The place after a commit. It never moves back.
    pub(crate) fn after(&self, commit: Commit) -> Self {
        let offset = commit.position.map_or(self.offset, |position| position.offset.max(self.offset));
        let mut settled = commit.settled_beyond;
        settled.retain(|range| *range.end() > offset);
        settled.truncate(MOST_RANGES);
        Self { offset, settled }
    }

    /// The place as a token, for a file that begins like this.
    pub(crate) fn to_token(&self, head: &[u8]) -> Bytes {
        let settled = self.settled.iter().map(|range| (*range.start(), *range.end())).collect();
        let head = Fingerprint::of(head, self.offset);
        let token = Token { version: VERSION, offset: self.offset, settled, head };
        // Numbers and a text always become JSON.
        serde_json::to_vec(&token).unwrap_or_default().into()
    }

    /// The place in a token, and what the file began like.
    pub(crate) fn from_token(token: &[u8]) -> Result<(Self, Fingerprint), String> {
        let token: Token = serde_json::from_slice(token).map_err(|error| error.to_string())?;
        if token.version != VERSION {
            return Err(format!("it has version {}; this program knows version {VERSION}", token.version));
        }
        let settled = token.settled.into_iter().map(|(start, end)| start..=end).collect();
        Ok((Self { offset: token.offset, settled }, token.head))
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
    fn a_token_gives_back_the_place() {
        let place = Place { offset: u64::MAX, settled: vec![3..=7, 9..=9] };
        let (back, head) = Place::from_token(&place.to_token(b"abc")).unwrap();
        assert_eq!(back, place);
        assert!(head.fits(b"abc") && head.fits(b"abcd"));
        assert!(!head.fits(b"ab") && !head.fits(b"abX"));
    }

    #[test]
    fn only_what_is_before_the_place_must_stay() {
        let (_, head) = Place::from_token(&Place { offset: 2, settled: vec![] }.to_token(b"abc")).unwrap();
        assert!(head.fits(b"abX"));
        let (_, head) = Place::from_token(&Place::default().to_token(b"abc")).unwrap();
        assert!(head.fits(b""));
    }

    #[test]
    fn a_place_never_moves_back() {
        let place = Place { offset: 10, settled: vec![12..=13] };
        let back = place.after(commit(Some(5), vec![7..=8, 12..=13]));
        assert_eq!(back, place, "what it has passed is not kept as beyond");
        assert_eq!(place.after(commit(None, vec![20..=21])), Place { offset: 10, settled: vec![20..=21] });
        assert_eq!(place.after(commit(Some(13), vec![])), Place { offset: 13, settled: vec![] });
    }

    #[test]
    fn a_token_that_makes_no_sense_says_why() {
        assert!(Place::from_token(b"8263").is_err());
        let other = br#"{"version":7,"offset":1,"settled":[],"head":{"bytes":0,"hash":""}}"#;
        assert_eq!(Place::from_token(other).unwrap_err(), "it has version 7; this program knows version 1");
    }
}
