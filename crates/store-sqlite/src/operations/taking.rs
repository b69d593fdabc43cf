//! Handing out the letters of operations whose turn has come, and doing acts.

use std::time::Duration;

use lazaret_core::store::{Act, Action, OperationMachine, OperationState, Outcome, PolledWork, WorkItem};
use lazaret_core::{LetterId, LetterState, Timestamp};

use super::table::{self, Pending};
use crate::error::{Fault, Work};
use crate::letters::{Found, Queue};
use crate::rows::{bound, letter_id, time};

/// How many letters are skipped in one call at most, so that it stays short.
const SKIPS: u64 = 1000;

/// What came of a letter whose turn may have come.
enum Step {
    /// It is to be tried.
    Try(Box<WorkItem>),
    /// The act was done.
    Done,
    /// It is left out.
    Skip,
    /// Somebody holds its sequence, or a pause does.
    Later,
}

/// Who asks for letters, and for how many.
struct Taker<'a> {
    owner: &'a str,
    lease: Duration,
    limit: usize,
    /// How many letters had their turn in this call.
    given: usize,
    taken: PolledWork,
}

impl Taker<'_> {
    fn again(&mut self, at: Timestamp) {
        self.taken.again_at = Some(self.taken.again_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl Queue<'_> {
    pub(crate) fn take_turns(&mut self, owner: &str, lease: Duration, limit: usize) -> Work<PolledWork> {
        let mut taker = Taker { owner, lease, limit, given: 0, taken: PolledWork::default() };
        for mut machine in table::live(self.connection, self.facts.qid)? {
            let before = (machine.clone(), taker.given);
            self.serve(&mut machine, &mut taker)?;
            if machine != before.0 {
                table::write_course(self.connection, &machine)?;
            }
            if taker.given > before.1 {
                table::mark_served(self.connection, machine.operation.id, self.now)?;
            }
        }
        Ok(taker.taken)
    }

    /// Does for one operation what can be done now, and says when to ask again.
    fn serve(&mut self, machine: &mut OperationMachine, taker: &mut Taker<'_>) -> Work<()> {
        self.advance(machine)?;
        let now = time(self.now);
        match machine.operation.state {
            OperationState::Running => {
                let again_at = self.serve_running(machine, taker)?;
                let left = table::next_pending(self.connection, machine.operation.plan, self.facts.qid, 0)?;
                if machine.operation.state == OperationState::Running && left.is_some() {
                    taker.again(again_at.unwrap_or_else(|| now + OperationMachine::ASK_AGAIN));
                }
            }
            OperationState::Scheduled => taker.again(machine.operation.rollout.start_at.unwrap_or(now)),
            OperationState::Cancelled => self.sweep(machine, taker)?,
            _ => {}
        }
        Ok(())
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to ask again, if that is known.
    fn serve_running(
        &mut self,
        machine: &mut OperationMachine,
        taker: &mut Taker<'_>,
    ) -> Work<Option<Timestamp>> {
        let now = time(self.now);
        let mut skipped = 0;
        loop {
            let allowance = machine.allowance();
            let mut from = 0;
            while let Some(item) =
                table::next_pending(self.connection, machine.operation.plan, self.facts.qid, from)?
                && item.ordinal < bound(allowance)
            {
                if taker.given >= taker.limit || skipped >= SKIPS {
                    return Ok(Some(now));
                }
                if machine.pace(now) == 0 {
                    return Ok(Some(machine.pace_at(now)));
                }
                from = item.ordinal + 1;
                match self.step(machine, &item, taker)? {
                    Step::Try(turn) => {
                        taker.taken.items.push(*turn);
                        taker.given += 1;
                        machine.spend(1, now);
                        from = item.last + 1;
                    }
                    Step::Done => {
                        self.skip(machine, item.ordinal, Outcome::Ok)?;
                        taker.taken.settled += 1;
                        taker.given += 1;
                        machine.spend(1, now);
                    }
                    Step::Skip => {
                        self.skip(machine, item.ordinal, Outcome::SkippedChanged)?;
                        if item.ordinal == item.last {
                            let sequence = (self.facts.qid, item.sequence.as_str());
                            table::unreserve(self.connection, machine.operation.id, Some(sequence))?;
                        }
                        taker.taken.settled += 1;
                        skipped += 1;
                    }
                    // Those behind it must wait for it, too.
                    Step::Later if machine.operation.action == Action::Retry => from = item.last + 1,
                    Step::Later => {}
                }
            }
            self.advance(machine)?;
            if machine.allowance() <= allowance {
                return Ok(None);
            }
        }
    }

    /// Looks at one letter and does what its turn asks for.
    fn step(&mut self, machine: &OperationMachine, item: &Pending, taker: &Taker<'_>) -> Work<Step> {
        let id = letter_id(&item.letter)?;
        let Some((letter, sequence)) = self.find(id)? else { return Ok(Step::Skip) };
        if !letter.state.is_open() {
            return Ok(Step::Skip);
        }
        let row = self.sequence(&sequence)?;
        let row =
            row.ok_or_else(|| Fault::Corrupt(format!("letter {id} is open in {sequence}, which is not")))?;
        let leased = row.is_leased(self.now);
        if let Some(act) = machine.operation.action.act() {
            if leased && letter.index <= row.head_index {
                return Ok(Step::Later);
            }
            return self.step_act(machine, item, (id, &letter), act);
        }
        if leased || row.paused {
            return Ok(Step::Later);
        }
        let changed = letter.index != row.head_index
            || is_quarantined_since(item, &letter)
            || table::is_in_earlier(self.connection, item.letter, machine.operation.id)?
            || self.body(letter.lid)?.payload_left_out;
        if changed {
            return Ok(Step::Skip);
        }
        let operation = machine.operation.id;
        let claim = self.claim_turn(row, taker.owner, taker.lease, bound(operation.0))?;
        Ok(Step::Try(Box::new(WorkItem { operation, claim })))
    }

    fn step_act(
        &mut self,
        machine: &OperationMachine,
        item: &Pending,
        (id, letter): (LetterId, &Found),
        act: Act,
    ) -> Work<Step> {
        let changed = (act == Act::Park && letter.state == LetterState::Parked)
            || (act == Act::Release && is_quarantined_since(item, letter))
            || table::is_in_earlier(self.connection, item.letter, machine.operation.id)?;
        if changed {
            return Ok(Step::Skip);
        }
        self.act(id, act, &machine.actor())?;
        Ok(Step::Done)
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    fn sweep(&self, machine: &mut OperationMachine, taker: &mut Taker<'_>) -> Work<()> {
        let mut from = 0;
        while let Some(item) =
            table::next_pending(self.connection, machine.operation.plan, self.facts.qid, from)?
        {
            from = item.ordinal + 1;
            if self.is_tried(&item, machine)? {
                taker.again(time(self.now) + OperationMachine::ASK_AGAIN);
            } else {
                self.skip(machine, item.ordinal, Outcome::SkippedCancelled)?;
                taker.taken.settled += 1;
            }
        }
        Ok(())
    }

    fn is_tried(&self, item: &Pending, machine: &OperationMachine) -> Work<bool> {
        let Some((letter, sequence)) = self.find(letter_id(&item.letter)?)? else { return Ok(false) };
        let Some(row) = self.sequence(&sequence)?.filter(|_| letter.state.is_open()) else {
            return Ok(false);
        };
        let ours = row.operation(self.now) == Some(bound(machine.operation.id.0));
        Ok(ours && letter.index == row.head_index)
    }
}

/// Whether somebody has put the letter into quarantine since it was frozen.
fn is_quarantined_since(item: &Pending, letter: &Found) -> bool {
    letter.state == LetterState::Quarantined && item.state != LetterState::Quarantined as i64
}
