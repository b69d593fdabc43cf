//! How far an adoption has come, in memory and as a checkpoint in the store.

use std::collections::BTreeMap;

use bytes::Bytes;
use lazaret_core::Timestamp;
use lazaret_core::letter::Diagnostics;
use lazaret_core::store::{Anchor, Checkpoint};
use serde::{Deserialize, Serialize};

/// How many records that are not known are named; the others are counted (I7).
const NAMED_LIMIT: usize = 100;
const VERSION: u32 = 1;

/// How many records of a dead-letter topic became what. Every record that was read is counted once in `adopted`,
/// `already_there`, `unknown` or `foreign`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Tally {
    /// Records that were read and whose fate is durable.
    pub read: u64,
    /// Records that became letters.
    pub adopted: u64,
    /// Records whose message has a letter, open or closed, from before or from another copy.
    pub already_there: u64,
    /// Records without failure headers that are known, left out. They are still in the topic.
    pub unknown: u64,
    /// Records of other groups, left out.
    pub foreign: u64,
    /// Of the letters, those whose headers could not be read whole. Their diagnostics say what is missing.
    pub damaged: u64,
    /// Offsets that the topic no longer had when reading went on.
    pub gone: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.adopted += other.adopted;
        self.already_there += other.already_there;
        self.unknown += other.unknown;
        self.foreign += other.foreign;
        self.damaged += other.damaged;
        self.gone += other.gone;
    }
}

/// How far an adoption has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What this run did.
    pub run: Tally,
    /// What all runs did together, as the checkpoint in the store says. What was adopted right before a death is counted as
    /// already there by the next run.
    pub total: Tally,
    /// Where each partition of the topic goes on.
    pub next: BTreeMap<u32, u64>,
    /// How many offsets lie between there and the end: of a bounded adoption the end as it was at the beginning.
    pub left: u64,
    /// Where records stand that are not known, the first ones of all runs, as topic, partition and offset.
    pub unknown_at: Vec<String>,
}

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Adopted { damaged: bool },
    AlreadyThere { damaged: bool },
    Unknown,
    Foreign,
}

/// What stands in the token of the checkpoint.
#[derive(Serialize, Deserialize)]
struct Place {
    version: u32,
    /// The first offset of each partition that is not settled.
    next: BTreeMap<u32, u64>,
    total: Tally,
    unknown_at: Vec<String>,
}

impl Report {
    /// What a checkpoint says. One that cannot be read says nothing: the topic is read again from its beginning, and what was
    /// adopted is known.
    pub(super) fn from_checkpoint(checkpoint: Option<&Checkpoint>) -> Self {
        let token =
            checkpoint.and_then(|checkpoint| checkpoint.processed.as_ref()).map(|anchor| &anchor.token);
        let place = token.and_then(|token| serde_json::from_slice::<Place>(token).ok());
        let Some(place) = place.filter(|place| place.version == VERSION) else {
            if token.is_some() {
                tracing::warn!(
                    "the checkpoint of an adoption cannot be read; the topic is read from its beginning"
                );
            }
            return Self::default();
        };
        Self { total: place.total, next: place.next, unknown_at: place.unknown_at, ..Self::default() }
    }

    /// The checkpoint that says this.
    pub(super) fn checkpoint(&self, now: Timestamp) -> Checkpoint {
        let Self { total, next, unknown_at, .. } = self;
        let place =
            Place { version: VERSION, next: next.clone(), total: *total, unknown_at: unknown_at.clone() };
        let token = serde_json::to_vec(&place).expect("numbers and text are JSON");
        let metadata: Diagnostics = [
            ("read", total.read),
            ("adopted", total.adopted),
            ("already-there", total.already_there),
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

    /// Counts offsets that are gone.
    pub(super) fn miss(&mut self, gone: u64) {
        let tally = Tally { gone, ..Tally::default() };
        self.run.add(&tally);
        self.total.add(&tally);
    }

    /// Counts a record whose fate is durable.
    pub(super) fn count(&mut self, fate: Fate, address: impl FnOnce() -> String) {
        let mut tally = Tally { read: 1, ..Tally::default() };
        match fate {
            Fate::Adopted { damaged } => (tally.adopted, tally.damaged) = (1, u64::from(damaged)),
            Fate::AlreadyThere { damaged } => (tally.already_there, tally.damaged) = (1, u64::from(damaged)),
            Fate::Unknown => tally.unknown = 1,
            Fate::Foreign => tally.foreign = 1,
        }
        if fate == Fate::Unknown && self.unknown_at.len() < NAMED_LIMIT {
            let address = address();
            // A topic that is read again from its beginning names them again.
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
    use super::*;

    #[test]
    fn a_checkpoint_says_what_was_reported() {
        let mut report = Report { next: [(0, 7), (3, 1)].into(), ..Report::default() };
        report.count(Fate::Adopted { damaged: true }, || unreachable!("only what is not known is named"));
        report.count(Fate::AlreadyThere { damaged: false }, String::new);
        report.count(Fate::Unknown, || "dlt/0/6".to_owned());
        report.miss(4);
        let checkpoint = report.checkpoint(Timestamp::UNIX_EPOCH);
        assert_eq!(checkpoint.metadata["damaged"], "1");
        let again = Report::from_checkpoint(Some(&checkpoint));
        assert_eq!((again.total, again.run), (report.run, Tally::default()));
        assert_eq!((again.next, again.unknown_at), (report.next, vec!["dlt/0/6".to_owned()]));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_says_nothing() {
        let anchor = |token: &'static str| Some(Anchor { token: token.into(), at: Timestamp::UNIX_EPOCH });
        for token in ["", "nonsense", r#"{"version":2,"next":{"0":5},"total":{},"unknown_at":[]}"#] {
            let checkpoint = Checkpoint { processed: anchor(token), ..Checkpoint::default() };
            assert_eq!(Report::from_checkpoint(Some(&checkpoint)), Report::default());
        }
    }

    #[test]
    fn what_is_not_known_is_named_within_bounds() {
        // I7
        let mut report = Report::default();
        for offset in 0..1000 {
            report.count(Fate::Unknown, || format!("dlt/0/{offset}"));
        }
        assert_eq!((report.run.unknown, report.unknown_at.len()), (1000, NAMED_LIMIT));
    }
}
