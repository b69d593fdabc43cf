//! What a call changes: the effects of the rules, collected in memory until they are [written](crate::commit).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::letter::Edit;
use lazaret_core::store::OperationId;
use lazaret_core::store::rules::{
    AuditLine, CountChange, Detached, Effects, Failed, GrantRow, GroupChanges, LetterChange, SequenceChange,
};
use lazaret_core::{Failure, Fingerprint, Letter, Partition, SequenceId};
use uuid::Uuid;

use crate::ends::NewEnd;
use crate::error::{Fault, Work};
use crate::group_notes::GroupKey;
use crate::letter_row::HeldLetter;
use crate::sequence_row::{OpenSequence, sequence_key};
use crate::store::Queue;

/// A sequence that the transaction has locked, or would open.
#[derive(Debug, Default)]
pub(crate) struct SequenceSlot {
    /// The row in the table.
    pub(crate) stored: Option<i64>,
    /// The row as it is to be.
    pub(crate) current: Option<OpenSequence>,
    pub(crate) changed: bool,
    /// `true` if it gets a new revision.
    pub(crate) revised: bool,
}

/// A letter to insert. `sid` is none for a closed one.
#[derive(Debug)]
pub(crate) struct NewLetter {
    pub(crate) lid: i64,
    pub(crate) qid: i64,
    pub(crate) sid: Option<i64>,
    pub(crate) letter: Letter,
}

/// Changes of the counters of a queue.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) sequences: i64,
    pub(crate) by_state: [i64; 9],
}

/// A grant to write.
#[derive(Debug)]
pub(crate) struct HeldGrant {
    pub(crate) stored: bool,
    pub(crate) changed: bool,
    pub(crate) row: GrantRow,
}

/// An edit to insert: the row of its letter, its number, and the size of the originals up to it.
#[derive(Debug)]
pub(crate) struct NewEdit {
    pub(crate) lid: i64,
    pub(crate) number: i64,
    pub(crate) kept: usize,
    pub(crate) edit: Edit,
}

/// The changes of a call that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) sequences: BTreeMap<(i64, Uuid), SequenceSlot>,
    pub(crate) new_letters: Vec<NewLetter>,
    pub(crate) letters: BTreeMap<i64, HeldLetter>,
    pub(crate) payloads: Vec<(i64, Option<Bytes>)>,
    pub(crate) edits: Vec<NewEdit>,
    pub(crate) purged: Vec<i64>,
    /// Letters whose headers, payloads and edits are erased.
    pub(crate) erased: Vec<i64>,
    /// The ids of these letters, by which plans have them.
    pub(crate) erased_ids: Vec<Uuid>,
    pub(crate) grants: BTreeMap<(i64, Partition), HeldGrant>,
    pub(crate) counts: BTreeMap<i64, Counted>,
    pub(crate) groups: BTreeMap<GroupKey, GroupChanges>,
    pub(crate) audit: Vec<AuditLine>,
    pub(crate) ends: Vec<NewEnd>,
    /// The operations of settlements that have a rate.
    pub(crate) paced: BTreeSet<OperationId>,
    /// The operations that end with this call.
    pub(crate) ended: BTreeSet<OperationId>,
}

impl Unit {
    /// Remembers a sequence that was locked.
    pub(crate) fn hold(&mut self, open: OpenSequence) {
        let slot = self.sequences.entry((open.qid, sequence_key(&open.name))).or_default();
        if slot.stored.is_none() && slot.current.is_none() {
            (slot.stored, slot.current) = (Some(open.sid), Some(open));
        }
    }

    /// Remembers that a sequence is not open.
    pub(crate) fn hold_absent(&mut self, queue: &Queue, sequence: &SequenceId) {
        self.sequences.entry((queue.qid, sequence_key(sequence))).or_default();
    }

    /// `true` if the sequence was locked, or is known to be not open.
    pub(crate) fn holds(&self, queue: &Queue, sequence: &SequenceId) -> bool {
        self.sequences.contains_key(&(queue.qid, sequence_key(sequence)))
    }

    /// A sequence that is held, as it is now.
    pub(crate) fn sequence(&self, queue: &Queue, sequence: &SequenceId) -> Option<&OpenSequence> {
        self.sequences.get(&(queue.qid, sequence_key(sequence)))?.current.as_ref()
    }

    /// Changes a sequence. `sid` is the number of the row, if it is opened.
    pub(crate) fn change_sequence(
        &mut self,
        queue: &Queue,
        sequence: &SequenceId,
        sid: Option<i64>,
        change: SequenceChange,
    ) -> Work<()> {
        let slot = self.sequences.entry((queue.qid, sequence_key(sequence))).or_default();
        let counted = self.counts.entry(queue.qid).or_default();
        let missing = || Fault::Corrupt(format!("the row of the open sequence {sequence} is missing"));
        match change {
            SequenceChange::Keep => return Ok(()),
            SequenceChange::Open(row) => {
                let sid =
                    sid.ok_or_else(|| Fault::Corrupt("a sequence was opened without a number".to_owned()))?;
                slot.current = Some(OpenSequence { sid, qid: queue.qid, name: sequence.clone(), row });
                slot.revised = true;
                counted.sequences += 1;
            }
            SequenceChange::Put(row) => slot.current.as_mut().ok_or_else(missing)?.row = row,
            SequenceChange::Reopen(row) => {
                slot.current.as_mut().ok_or_else(missing)?.row = row;
                slot.revised = true;
            }
            SequenceChange::Remove => {
                slot.current.take().ok_or_else(missing)?;
                slot.revised = false;
                counted.sequences -= 1;
            }
        }
        slot.changed = true;
        Ok(())
    }

    fn count(&mut self, queue: &Queue, change: &CountChange) {
        for (counted, by) in change.changes() {
            self.counts.entry(queue.qid).or_default().by_state[counted.state as usize] += by;
            if let Some(group) = counted.group {
                self.group(queue, group).count(counted.state, by);
            }
        }
        for (blocked, by) in change.blocks() {
            self.group(queue, blocked.group).block(blocked, by);
        }
    }

    fn group(&mut self, queue: &Queue, group: Fingerprint) -> &mut GroupChanges {
        self.groups.entry((queue.qid, group)).or_default()
    }

    fn record_failure(&mut self, queue: &Queue, cause: Option<&Failure>, failed: Option<Failed>) {
        let (Some(cause), Some(Failed { at, enters })) = (cause, failed) else { return };
        let group = self.group(queue, cause.fingerprint);
        if enters { group.enter(cause, at) } else { group.record_failure(cause, at) }
    }

    fn list_end(&mut self, queue: &Queue, letter: &Letter) {
        let Letter { id, state, attempts, .. } = *letter;
        self.ends.push(NewEnd { qid: queue.qid, id, state, attempts });
    }

    /// Inserts a letter with the effects of the rule. `lid` is its number, and that of its sequence if it opens one.
    pub(crate) fn insert(
        &mut self,
        queue: &Queue,
        lid: i64,
        mut letter: Letter,
        effects: Effects,
        now: Timestamp,
    ) -> Work<()> {
        let Effects { letter: change, sequence, count_change, failed, audit, ended, .. } = effects;
        let name = letter.sequence.clone();
        self.count(queue, &count_change);
        self.record_failure(queue, letter.cause.as_ref(), failed);
        self.change_sequence(queue, &name, Some(lid), sequence)?;
        change.apply(&mut letter, now);
        let sid = match letter.state.is_open() {
            true => self.sequence(queue, &name).map(|open| open.sid),
            false => None,
        };
        self.audit.extend(audit);
        if ended {
            self.list_end(queue, &letter);
        }
        self.new_letters.push(NewLetter { lid, qid: queue.qid, sid, letter });
        Ok(())
    }

    /// Applies the effects of a rule to a stored letter, and returns it in its new form. `sid` is the number of its sequence, if
    /// it opens one, also one that it is detached to.
    pub(crate) fn apply(
        &mut self,
        queue: &Queue,
        mut held: HeldLetter,
        effects: Effects,
        sid: Option<i64>,
        now: Timestamp,
    ) -> Work<HeldLetter> {
        let Effects { letter: change, sequence, detached, count_change, failed, audit, ended } = effects;
        let name = held.letter.sequence.clone();
        self.count(queue, &count_change);
        self.change_sequence(queue, &name, sid, sequence)?;
        self.audit.extend(audit);
        if matches!(change, LetterChange::Forget) {
            self.letters.remove(&held.lid);
            self.purged.push(held.lid);
            if ended {
                self.list_end(queue, &held.letter);
            }
            return Ok(held);
        }
        let had_payload = !held.letter.payload_left_out;
        if matches!(change, LetterChange::Erase(_)) {
            held.edits = 0;
            self.erased.push(held.lid);
            self.erased_ids.push(held.letter.id.as_uuid());
        }
        change.apply(&mut held.letter, now);
        self.record_failure(queue, held.letter.cause.as_ref(), failed);
        if ended {
            self.list_end(queue, &held.letter);
        }
        if had_payload && held.letter.payload_left_out {
            self.payloads.push((held.lid, None));
        }
        match (held.letter.state.is_open(), held.sid) {
            (true, None) => {
                held.sid = self.sequence(queue, &name).map(|open| open.sid);
                held.closed_at = None;
            }
            (false, Some(_)) => (held.sid, held.closed_at) = (None, Some(now)),
            _ => {}
        }
        if let Some(Detached { sequence, row }) = detached {
            self.change_sequence(queue, &sequence, sid, SequenceChange::Open(row))?;
            (held.sid, held.letter.sequence) = (sid, sequence);
        }
        self.letters.insert(held.lid, held.clone());
        Ok(held)
    }
}
