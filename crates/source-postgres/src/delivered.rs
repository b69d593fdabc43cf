//! Rows that were delivered and are not acknowledged yet.

use std::collections::VecDeque;

use lazaret_core::source::Commit;

use crate::checkpoint::Progress;
use crate::options::Ack;

/// The maximum number of settled ranges beyond the position (I7).
const MAX_RANGES: usize = 1024;

/// A delivered row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredRow {
    pub(crate) id: i64,
    /// The transaction that wrote the row. Another row with the same id has a different one. 0 where
    /// rows stay.
    pub(crate) version: i64,
}

/// Rows that were delivered under the current assignment and are not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) generation: u64,
    /// The unsettled rows, in order, with the fingerprints of rows that stay.
    open: VecDeque<(DeliveredRow, Option<String>)>,
    /// The settled rows that are not deleted yet.
    settled: Vec<DeliveredRow>,
    last: Option<u64>,
    /// The position, followed by the position as written.
    progress: Progress,
    written: Progress,
}

/// The rows and the position that a commit acknowledges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    generation: u64,
    pub(crate) progress: Progress,
    pub(crate) delete: Vec<DeliveredRow>,
}

impl Delivered {
    pub(crate) fn assign(&mut self, generation: u64, committed: Progress) {
        *self = Self { generation, progress: committed.clone(), written: committed, ..Self::default() };
    }

    pub(crate) fn push(&mut self, id: u64, version: i64, fingerprint: Option<String>) {
        self.open.push_back((DeliveredRow { id: id.cast_signed(), version }, fingerprint));
        self.last = Some(id);
    }

    /// Applies a commit. The position never moves back. It may stay while messages beyond it are settled.
    pub(crate) fn commit(&mut self, commit: Commit, ack: Ack) {
        if let Some(position) = commit.position {
            while self.open.front().is_some_and(|(row, _)| row.id.cast_unsigned() <= position.offset) {
                let Some((row, fingerprint)) = self.open.pop_front() else { break };
                (self.progress.id, self.progress.anchor) = (Some(row.id.cast_unsigned()), fingerprint);
                if ack == Ack::Delete {
                    self.settled.push(row);
                }
            }
        }
        // Ids up to the last delivered one are final. Nothing can be known about later ids.
        let (position, last) = (self.progress.id, self.last);
        let mut settled = commit.settled_beyond;
        settled.retain(|range| Some(*range.end()) <= last && Some(*range.start()) > position);
        settled.truncate(MAX_RANGES);
        self.progress.settled = settled;
    }

    /// Returns what is to be acknowledged, or `None` if there is nothing.
    pub(crate) fn pending(&self) -> Option<Acknowledged> {
        let is_new = self.progress != self.written || !self.settled.is_empty();
        is_new.then(|| Acknowledged {
            generation: self.generation,
            progress: self.progress.clone(),
            delete: self.settled.clone(),
        })
    }

    /// Removes rows that were acknowledged.
    pub(crate) fn acknowledged(&mut self, done: Acknowledged) {
        if done.generation == self.generation {
            self.settled.drain(..done.delete.len());
            self.written = done.progress;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use lazaret_core::{Partition, Position};

    use super::*;

    fn progress(id: u64, settled: Vec<RangeInclusive<u64>>) -> Progress {
        Progress { id: Some(id), settled, ..Progress::default() }
    }

    fn delivered(ids: &[u64]) -> Delivered {
        let mut delivered = Delivered::default();
        delivered.assign(3, progress(2, vec![]));
        ids.iter().for_each(|id| delivered.push(*id, version_of(*id), None));
        delivered
    }

    fn version_of(id: u64) -> i64 {
        id.cast_signed() + 1000
    }

    fn rows(ids: &[u64]) -> Vec<DeliveredRow> {
        ids.iter().map(|id| DeliveredRow { id: id.cast_signed(), version: version_of(*id) }).collect()
    }

    fn commit(id: Option<u64>, settled_beyond: Vec<RangeInclusive<u64>>) -> Commit {
        let position = id.map(|id| Position::new(0, id));
        Commit { partition: Partition::new("orders", 0), position, settled_beyond }
    }

    #[test]
    fn only_rows_that_were_delivered_are_deleted() {
        // I1: a row between them that was never seen stays.
        let mut delivered = delivered(&[5, 7, 8, 12]);
        delivered.commit(commit(Some(8), vec![]), Ack::Delete);
        let what = delivered.pending().unwrap();
        assert_eq!((what.progress.id, &what.delete), (Some(8), &rows(&[5, 7, 8])));
        delivered.commit(commit(Some(12), vec![]), Ack::Delete);
        delivered.acknowledged(what);
        assert_eq!(delivered.pending().unwrap().delete, rows(&[12]), "what was not acknowledged yet");
    }

    #[test]
    fn a_commit_that_failed_is_made_again() {
        let mut delivered = delivered(&[5, 7]);
        delivered.commit(commit(Some(5), vec![]), Ack::Delete);
        let first = delivered.pending().unwrap();
        delivered.commit(commit(Some(5), vec![]), Ack::Delete);
        assert_eq!(delivered.pending(), Some(first.clone()));
        delivered.acknowledged(first);
        delivered.commit(commit(Some(5), vec![]), Ack::Delete);
        assert_eq!(delivered.pending(), None);
    }

    #[test]
    fn a_position_stays_while_messages_beyond_it_are_settled() {
        let mut delivered = delivered(&[5, 7, 8]);
        delivered.commit(commit(None, vec![7..=8, 10..=20]), Ack::Position);
        let what = delivered.pending().unwrap();
        assert_eq!(what.progress, progress(2, vec![7..=8]), "10 was not delivered");
        assert!(what.delete.is_empty());
    }

    #[test]
    fn the_end_of_an_earlier_commit_changes_nothing() {
        let mut delivered = delivered(&[5]);
        delivered.commit(commit(Some(5), vec![]), Ack::Delete);
        let what = delivered.pending().unwrap();
        delivered.assign(4, Progress::default());
        delivered.acknowledged(what);
        assert_eq!(delivered.written, Progress::default());
    }

    #[test]
    fn the_anchor_is_the_last_row_of_the_settled_prefix() {
        let mut delivered = Delivered::default();
        delivered.assign(3, progress(2, vec![]));
        for id in [5, 7] {
            delivered.push(id, 0, Some(format!("row {id}")));
        }
        delivered.commit(commit(Some(5), vec![7..=7]), Ack::Position);
        assert_eq!(delivered.pending().unwrap().progress.anchor.as_deref(), Some("row 5"));
    }
}
