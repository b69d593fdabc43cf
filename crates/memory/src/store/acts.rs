//! What people do to letters by hand.

use jiff::Timestamp;
use lazaret_core::SequenceId;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{Act, Actor, Cleared, ErrorKind, Result, StoreError};

use super::Step;
use super::queue::Queue;

impl Queue {
    pub(super) fn act(&mut self, id: LetterId, act: Act, by: &Actor, step: Step<'_>) -> Result<Letter> {
        let Some(letter) = self.letter(id) else {
            if let Some(state) = self.traces.get(&id) {
                let context = format!("cannot {} letter {id}: it was {state} and then purged", act.as_str());
                return Err(StoreError::not_done(ErrorKind::Conflict, "act", context));
            }
            let context = format!("there is no letter {id} in {}", self.name);
            return Err(StoreError::not_done(ErrorKind::NotFound, "act", context));
        };
        let (sequence, index, before) = (letter.sequence.clone(), letter.index, letter.state);
        self.check_act(act, letter, &step)?;
        match act {
            Act::Evict => _ = self.close(id, LetterState::Evicted, step.now),
            Act::Resolve => _ = self.close(id, LetterState::Resolved, step.now),
            Act::Park => _ = self.set_state(id, LetterState::Parked, step.now),
            Act::Quarantine => _ = self.set_state(id, LetterState::Quarantined, step.now),
            Act::Release => {
                self.set_state(id, LetterState::Retrying, step.now);
                let letter = self.stored_mut(id);
                letter.due_at = Some(step.now);
                letter.attempts = 0;
                letter.crash_attempts = 0;
                letter.poison = false;
            }
            Act::Restore => {
                let index = self.old_place(id, &sequence, index, step.now)?;
                self.set_state(id, LetterState::Dead, step.now);
                self.stored_mut(id).index = index;
                if !self.place(&sequence, index, id) {
                    self.mark_opened(&sequence);
                }
            }
        }
        self.refresh(&sequence);
        let letter = self.stored(id).clone();
        let (before, after) = (Some(before.as_str()), Some(letter.state.as_str()));
        step.audit.write(step.now, by, act.as_str(), id.to_string(), before, after);
        Ok(letter)
    }

    /// Where a letter that comes back stands: where it stood, unless letters of its partition that were delivered again
    /// meanwhile would be out of order with it (I2).
    fn old_place(&mut self, id: LetterId, sequence: &SequenceId, index: u64, now: Timestamp) -> Result<u64> {
        let index = self.free_index(sequence, index);
        let letter = self.stored(id).clone();
        let Some(row) = self.open.get(sequence) else { return Ok(index) };
        let in_order = row.letters.iter().all(|(other, id)| {
            let theirs = &self.stored(*id).message;
            theirs.partition() != letter.message.partition()
                || (theirs.position.offset < letter.message.position.offset) == (*other < index)
        });
        if in_order {
            return Ok(index);
        }
        match self.first_later(&letter, now)? {
            Some(later) => Ok(self.index_before(sequence, later)),
            None => Ok(self.next_index()),
        }
    }

    fn check_act(&self, act: Act, letter: &Letter, step: &Step<'_>) -> Result<()> {
        let conflict = |why: &str| {
            let context = format!("cannot {} letter {}: {why}", act.as_str(), letter.id);
            Err(StoreError::not_done(ErrorKind::Conflict, "act", context))
        };
        let allowed =
            if act == Act::Restore { letter.state == LetterState::Evicted } else { letter.state.is_open() };
        if !allowed {
            return conflict(&format!("it is {}", letter.state));
        }
        if act == Act::Release && letter.payload_left_out {
            return conflict("its payload was left out, so there is nothing to run");
        }
        // A letter at or before the head of a sequence in work: what the worker holds would no longer be the head.
        if self.is_in_work(letter, step.now) {
            return conflict("somebody is working on its sequence");
        }
        Ok(())
    }

    pub(super) fn clear(&mut self, by: &Actor, step: Step<'_>) -> Cleared {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let sequences: Vec<SequenceId> = self.open.keys().cloned().collect();
        for sequence in sequences {
            let row = &self.open[&sequence];
            let keep = usize::from(row.is_leased(step.now));
            let letters: Vec<LetterId> = row.letters.values().skip(keep).copied().collect();
            cleared.busy += keep as u64;
            cleared.evicted += letters.len() as u64;
            for id in letters {
                self.close(id, LetterState::Evicted, step.now);
            }
            self.refresh(&sequence);
        }
        let after = format!("{} evicted, {} busy", cleared.evicted, cleared.busy);
        step.audit.write(step.now, by, "clear", self.name.to_string(), None, Some(&after));
        cleared
    }
}
