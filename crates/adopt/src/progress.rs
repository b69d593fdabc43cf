//! The progress of an adoption, and its checkpoint in the store.

use bytes::Bytes;
use lazaret_core::Timestamp;
use lazaret_core::letter::Diagnostics;
use lazaret_core::store::{Anchor, Checkpoint};
use serde::{Deserialize, Serialize};

use crate::source::Cursor;

/// The maximum number of unknown records that are listed. All are counted (I7).
pub(crate) const LISTED_LIMIT: usize = 100;
const VERSION: u32 = 1;

/// Counts of dead letters by outcome. Every record read is counted once in `adopted`, `already_there`,
/// `closed`, `unknown` or `foreign`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Tally {
    /// The number of records that were read and whose outcome is durable.
    pub read: u64,
    /// The number of records that became letters.
    pub adopted: u64,
    /// The number of records whose message already had a letter, open or closed, with the same key and
    /// payload.
    pub already_there: u64,
    /// The number of records that were dealt with before. They were skipped.
    pub closed: u64,
    /// The number of records that were not recognised as dead letters. They were skipped and remain in place.
    pub unknown: u64,
    /// The number of records of other groups. They were skipped.
    pub foreign: u64,
    /// The number of letters whose description could not be read completely, or whose id belongs to a
    /// different message. Their diagnostics hold warnings.
    pub damaged: u64,
    /// The number of records that were deleted before they were read.
    pub gone: u64,
}

impl Tally {
    /// Adds the counts of another run or another source.
    pub fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.adopted += other.adopted;
        self.already_there += other.already_there;
        self.closed += other.closed;
        self.unknown += other.unknown;
        self.foreign += other.foreign;
        self.damaged += other.damaged;
        self.gone += other.gone;
    }
}

/// The progress of an adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report<C> {
    /// The counts of this run.
    pub run: Tally,
    /// The counts of all runs, from the checkpoint. The next run counts letters that were adopted just
    /// before a crash as already there.
    pub total: Tally,
    /// The position at which reading continues.
    pub next: C,
    /// The number of places from there to the end. A bounded adoption uses the end from when it started.
    pub left: u64,
    /// The addresses of unknown records from all runs, at most 100.
    pub unknown_at: Vec<String>,
}

/// The outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Adopted { damaged: bool },
    AlreadyThere { damaged: bool },
    Closed,
    Unknown,
    Foreign,
}

/// The token of the checkpoint.
#[derive(Serialize, Deserialize)]
struct Token<C> {
    version: u32,
    /// The position at which reading continues.
    next: C,
    total: Tally,
    unknown_at: Vec<String>,
}

impl<C: Cursor> Report<C> {
    /// Restores the progress from a checkpoint. An unreadable checkpoint is ignored: reading starts at
    /// the beginning, and letters that were already adopted are recognised.
    pub(crate) fn from_checkpoint(checkpoint: Option<&Checkpoint>) -> Self {
        let token =
            checkpoint.and_then(|checkpoint| checkpoint.processed.as_ref()).map(|anchor| &anchor.token);
        let decoded = token.and_then(|token| serde_json::from_slice::<Token<C>>(token).ok());
        let Some(decoded) = decoded.filter(|decoded| decoded.version == VERSION) else {
            if token.is_some() {
                tracing::warn!("adoption checkpoint unreadable, reading from the beginning");
            }
            return Self::default();
        };
        Self { total: decoded.total, next: decoded.next, unknown_at: decoded.unknown_at, ..Self::default() }
    }

    /// Encodes the progress as a checkpoint.
    pub(crate) fn checkpoint(&self, now: Timestamp) -> Checkpoint {
        let Self { total, next, unknown_at, .. } = self;
        let token =
            Token { version: VERSION, next: next.clone(), total: *total, unknown_at: unknown_at.clone() };
        let token = serde_json::to_vec(&token).expect("a cursor serialises to JSON");
        let metadata: Diagnostics = [
            ("read", total.read),
            ("adopted", total.adopted),
            ("already-there", total.already_there),
            ("closed", total.closed),
            ("unknown", total.unknown),
            ("foreign", total.foreign),
            ("damaged", total.damaged),
            ("gone", total.gone),
        ]
        .map(|(name, number)| (name.to_owned(), number.to_string()))
        .into();
        Checkpoint {
            processed: Some(Anchor { token: Bytes::from(token), at: now }),
            heartbeat: Some(now),
            metadata,
            ..Checkpoint::default()
        }
    }

    /// Counts records that were deleted before they were read.
    pub(crate) fn count_deleted(&mut self, gone: u64) {
        let tally = Tally { gone, ..Tally::default() };
        self.run.add(&tally);
        self.total.add(&tally);
    }

    /// Counts a record whose outcome is durable.
    pub(crate) fn count(&mut self, outcome: Outcome, address: impl FnOnce() -> String) {
        let mut tally = Tally { read: 1, ..Tally::default() };
        match outcome {
            Outcome::Adopted { damaged } => (tally.adopted, tally.damaged) = (1, u64::from(damaged)),
            Outcome::AlreadyThere { damaged } => {
                (tally.already_there, tally.damaged) = (1, u64::from(damaged));
            }
            Outcome::Closed => tally.closed = 1,
            Outcome::Unknown => tally.unknown = 1,
            Outcome::Foreign => tally.foreign = 1,
        }
        if outcome == Outcome::Unknown && self.unknown_at.len() < LISTED_LIMIT {
            let address = address();
            // The same addresses appear again when reading restarts at the beginning.
            if !self.unknown_at.contains(&address) {
                self.unknown_at.push(address);
            }
        }
        self.run.add(&tally);
        self.total.add(&tally);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Offsets(BTreeMap<u32, u64>);

    impl Cursor for Offsets {
        type Place = (u32, u64);

        fn move_back_to(&mut self, _: &Self::Place) {}

        fn is_past(&self, _: &Self::Place) -> bool {
            true
        }
    }

    #[test]
    fn a_checkpoint_restores_the_progress() {
        let mut report = Report { next: Offsets([(0, 7), (3, 1)].into()), ..Report::default() };
        report.count(Outcome::Adopted { damaged: true }, || unreachable!("only unknown records are listed"));
        report.count(Outcome::AlreadyThere { damaged: false }, String::new);
        report.count(Outcome::Unknown, || "dlt/0/6".to_owned());
        report.count_deleted(4);
        let checkpoint = report.checkpoint(Timestamp::UNIX_EPOCH);
        assert_eq!(checkpoint.metadata["damaged"], "1");
        let again = Report::<Offsets>::from_checkpoint(Some(&checkpoint));
        assert_eq!((again.total, again.run), (report.run, Tally::default()));
        assert_eq!((again.next, again.unknown_at), (report.next, vec!["dlt/0/6".to_owned()]));
    }

    #[test]
    fn an_unreadable_checkpoint_is_ignored() {
        let anchor = |token: &'static str| Some(Anchor { token: token.into(), at: Timestamp::UNIX_EPOCH });
        for token in ["", "invalid", r#"{"version":2,"next":{"0":5},"total":{},"unknown_at":[]}"#] {
            let checkpoint = Checkpoint { processed: anchor(token), ..Checkpoint::default() };
            assert_eq!(Report::<Offsets>::from_checkpoint(Some(&checkpoint)), Report::default());
        }
    }

    #[test]
    fn the_list_of_unknown_records_is_bounded() {
        // I7
        let mut report = Report::<Offsets>::default();
        for offset in 0..1000 {
            report.count(Outcome::Unknown, || format!("dlt/0/{offset}"));
        }
        assert_eq!((report.run.unknown, report.unknown_at.len()), (1000, LISTED_LIMIT));
    }
}
