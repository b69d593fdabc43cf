//! The document of a group, and what it has counted.

use std::collections::{BTreeMap, BTreeSet};

use lazaret_core::letter::LetterState;
use lazaret_core::store::rules::{Blocked, GroupRow, LatestFailure};
use lazaret_core::store::{GroupId, Trend};
use lazaret_core::{Fingerprint, QueueName, Reason};
use serde::{Deserialize, Serialize};

use super::left::CountDoc;
use crate::values::{int, nanos, time, uint};

/// A group, and which decisions it has counted that are not carried out to the end: their sequences or batches still hold them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupDoc {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    pub(crate) queue: QueueName,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) version: i64,
    /// `None` while it has no letters.
    pub(crate) row: Option<GroupRowDoc>,
    /// Number of its open letters, for the order of a listing.
    pub(crate) open: i64,
    counted: Vec<CountedDoc>,
}

/// A decision that was counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CountedDoc {
    /// The id of its sequence or its batch.
    #[serde(rename = "sequence")]
    holder: String,
    version: i64,
}

/// The versions of sequences and batches whose decisions are not carried out to the end, by id.
pub(crate) type Pending = BTreeMap<String, i64>;

/// The counters of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupRowDoc {
    reason: Reason,
    error_type: String,
    message: String,
    by_state: [i64; 9],
    sequences: i64,
    behind: i64,
    first_seen: i64,
    last_seen: i64,
    trend: Trend,
}

/// A decision, as far as groups count it.
pub(crate) struct Decision {
    /// The id of the document that holds it: a sequence, or a batch.
    pub(crate) holder: String,
    pub(crate) version: i64,
    pub(crate) counts: Vec<CountDoc>,
}

impl GroupDoc {
    pub(crate) fn new(queue: &QueueName, fingerprint: Fingerprint) -> Self {
        let id = GroupId { queue: queue.clone(), fingerprint }.to_string();
        let (queue, counted) = (queue.clone(), Vec::new());
        Self { id, queue, fingerprint, version: 0, row: None, open: 0, counted }
    }

    pub(crate) fn group_id(&self) -> GroupId {
        GroupId { queue: self.queue.clone(), fingerprint: self.fingerprint }
    }

    /// The sequences and batches whose decisions it remembers.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = &String> {
        self.counted.iter().map(|counted| &counted.holder)
    }

    /// Counts the decisions that it has not counted yet. Returns whether there was one.
    ///
    /// `pending` was read after this document. A decision that is not pending was counted before its document let go of it, and
    /// need not be remembered any longer. So the memory of a group is as long as what is under way, however many sequences it has.
    pub(crate) fn count(&mut self, decisions: &[Decision], pending: &Pending) -> bool {
        let is_pending = |holder: &String, version: i64| pending.get(holder) == Some(&version);
        self.counted.retain(|counted| is_pending(&counted.holder, counted.version));
        let mut known: BTreeSet<String> = self.counted.iter().map(|counted| counted.holder.clone()).collect();
        let mut changed = false;
        for Decision { holder, version, counts } in decisions {
            let concerns =
                || counts.iter().any(|count| count.groups().any(|group| group == self.fingerprint));
            // Two callers may carry out one decision, and count together.
            if !is_pending(holder, *version) || !concerns() || !known.insert(holder.clone()) {
                continue;
            }
            counts.iter().for_each(|count| self.apply(count));
            self.counted.push(CountedDoc { holder: holder.clone(), version: *version });
            changed = true;
        }
        changed
    }

    fn apply(&mut self, count: &CountDoc) {
        let group = self.fingerprint;
        if !count.groups().any(|concerned| concerned == group) {
            return;
        }
        let now = time(count.at);
        let mut row = self.row.as_ref().map_or_else(|| GroupRow::new(now), GroupRowDoc::to_row);
        for (_, state, by) in count.letters.iter().filter(|(of, ..)| *of == group) {
            row.count(*state, *by);
        }
        for (_, behind, by) in count.blocked.iter().filter(|(of, ..)| *of == group) {
            row.block(Blocked { group, behind: uint(*behind) }, *by);
        }
        match count.failed.as_ref().filter(|failed| failed.failure.fingerprint == group) {
            Some(failed) if failed.enters => row.enter(&failed.failure, time(failed.at), now),
            Some(failed) => row.record_failure(&failed.failure, time(failed.at)),
            None => {}
        }
        let open = LetterState::ALL.iter().filter(|state| state.is_open());
        self.open = open.map(|state| int(row.by_state[*state as usize])).sum();
        self.row = (!row.is_empty()).then(|| GroupRowDoc::of(&row));
    }
}

impl GroupRowDoc {
    fn of(row: &GroupRow) -> Self {
        Self {
            reason: row.latest.reason.clone(),
            error_type: row.latest.error_type.clone(),
            message: row.latest.message.clone(),
            by_state: row.by_state.map(int),
            sequences: int(row.sequences),
            behind: int(row.behind),
            first_seen: nanos(row.first_seen),
            last_seen: nanos(row.last_seen),
            trend: row.trend,
        }
    }

    pub(crate) fn to_row(&self) -> GroupRow {
        let latest = LatestFailure {
            reason: self.reason.clone(),
            error_type: self.error_type.clone(),
            message: self.message.clone(),
        };
        GroupRow {
            latest: latest.into(),
            by_state: self.by_state.map(uint),
            sequences: uint(self.sequences),
            behind: uint(self.behind),
            first_seen: time(self.first_seen),
            last_seen: time(self.last_seen),
            trend: self.trend,
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Failure;

    use super::super::left::FailedDoc;
    use super::*;

    fn decision(group: Fingerprint, version: i64) -> Decision {
        let failure = Failure::new(Reason::TIMEOUT, "HttpError", "boom");
        let count = CountDoc {
            at: 0,
            letters: vec![(group, LetterState::Dead, 1)],
            blocked: vec![(group, 0, 1)],
            failed: Some(FailedDoc { at: 0, enters: true, failure }),
        };
        Decision { holder: "s".into(), version, counts: vec![count] }
    }

    fn pending(sequence: &str, version: i64) -> Pending {
        Pending::from([(sequence.to_owned(), version)])
    }

    #[test]
    fn a_decision_is_counted_once_however_often_it_is_carried_out() {
        let failure = Failure::new(Reason::TIMEOUT, "HttpError", "boom");
        let group = failure.fingerprint;
        let mut doc = GroupDoc::new(&"a/b".into(), group);
        assert!(doc.count(&[decision(group, 3)], &pending("s", 3)));
        assert!(!doc.count(&[decision(group, 3)], &pending("s", 3)), "it is remembered");
        assert!(!doc.count(&[decision(group, 3)], &Pending::new()), "another call has finished it");
        assert!(!doc.count(&[decision(group, 3)], &pending("s", 4)), "a late one");
        assert!(doc.count(&[decision(group, 4)], &pending("s", 4)));
        let (mut twice, both) = (doc.clone(), [decision(group, 5), decision(group, 5)]);
        assert!(twice.count(&both, &pending("s", 5)), "two callers carry it out");
        assert_eq!(twice.open, doc.open + 1);
        let back: GroupDoc = bson::deserialize_from_slice(&bson::serialize_to_vec(&doc).unwrap()).unwrap();
        let row = back.row.as_ref().unwrap().to_row();
        assert_eq!((back.open, row.by_state[LetterState::Dead as usize], row.sequences), (2, 2, 2));
    }

    #[test]
    fn what_is_carried_out_is_forgotten() {
        // I7
        let group = Failure::new(Reason::TIMEOUT, "HttpError", "boom").fingerprint;
        let mut doc = GroupDoc::new(&"a/b".into(), group);
        doc.count(&[decision(group, 1)], &pending("s", 1));
        let other = Decision { holder: "t".into(), ..decision(group, 1) };
        doc.count(&[other], &pending("t", 1));
        assert_eq!(doc.remembered().collect::<Vec<_>>(), ["t"]);
    }
}
