//! Handing out the letters of operations, and doing acts.

use std::time::Duration;

use lazaret_core::store::rules::{self, ItemView, LeaseKind, Pending, Poll, PollStep, Round, Stage, Turn};
use lazaret_core::store::{OperationMachine, Outcome, PolledWork};
use lazaret_core::{Letter, Timestamp};

use super::table;
use crate::error::Work;
use crate::letters::{Open, Queue};
use crate::rows::time;

/// Who asks for letters, and what was handed out so far.
struct Poller<'a> {
    owner: &'a str,
    lease: Duration,
    poll: Poll,
}

/// A letter whose turn may have come, as it stands now.
struct Seen {
    letter: Option<Letter>,
    open: Option<Open>,
    in_earlier: bool,
}

impl Seen {
    fn view(&self, now: i64) -> ItemView<'_> {
        ItemView {
            letter: self.letter.as_ref(),
            row: self.open.as_ref().map(|open| &open.row),
            in_earlier: self.in_earlier,
            now: time(now),
        }
    }
}

impl Queue<'_> {
    pub(crate) fn poll_work(&mut self, owner: &str, lease: Duration, limit: usize) -> Work<PolledWork> {
        let mut poller = Poller { owner, lease, poll: Poll::new(limit, time(self.now)) };
        for mut machine in table::live(self.connection, self.numbers.qid)? {
            let before = (machine.clone(), poller.poll.given());
            self.serve(&mut machine, &mut poller)?;
            if machine != before.0 {
                table::write_operation(self.connection, &machine)?;
            }
            if poller.poll.given() > before.1 {
                table::mark_served(self.connection, machine.operation.id, self.now)?;
            }
        }
        Ok(poller.poll.finish())
    }

    /// Does for one operation what can be done now.
    fn serve(&mut self, machine: &mut OperationMachine, poller: &mut Poller<'_>) -> Work<()> {
        self.advance(machine)?;
        match poller.poll.begin(machine) {
            Round::Nothing => {}
            Round::Run(stage) => {
                let stopped = self.run(machine, poller, stage)?;
                let left = self.next_pending(machine, 0)?.is_some();
                poller.poll.end(machine, stopped, left);
            }
            Round::Sweep => self.sweep(machine, poller)?,
        }
        Ok(())
    }

    fn next_pending(&self, machine: &OperationMachine, from: u64) -> Work<Option<Pending>> {
        table::next_pending(self.connection, machine.operation.plan, self.numbers.qid, from)
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to go on, if that is known.
    fn run(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        mut stage: Stage,
    ) -> Work<Option<Timestamp>> {
        loop {
            let item = self.next_pending(machine, stage.from())?;
            match (poller.poll.step(machine, &stage, item.as_ref()), item) {
                (PollStep::Look, Some(item)) => self.look(machine, poller, &mut stage, &item)?,
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    self.advance(machine)?;
                    let Some(next) = poller.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
    }

    fn seen(&mut self, machine: &OperationMachine, item: &Pending) -> Work<Seen> {
        let letter = match self.light(item.letter)? {
            rules::Known::Letter((_, letter)) => Some(letter),
            rules::Known::Purged(_) | rules::Known::Absent => None,
        };
        let open = match &letter {
            Some(letter) if letter.state.is_open() => self.sequence(&letter.sequence)?,
            _ => None,
        };
        let in_earlier = table::is_in_earlier(self.connection, item.letter, machine.operation.id)?;
        Ok(Seen { letter, open, in_earlier })
    }

    /// Looks at one letter and does what its turn asks for.
    fn look(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        stage: &mut Stage,
        item: &Pending,
    ) -> Work<()> {
        let seen = self.seen(machine, item)?;
        match (rules::turn(&machine.operation, item, &seen.view(self.now)), &seen.open) {
            (Turn::Try, Some(open)) => {
                let kind = LeaseKind::Operation(machine.operation.id);
                let claim = self.take(open, poller.owner, poller.lease, kind)?;
                poller.poll.tried(machine, stage, item, claim);
            }
            (Turn::Act(act), _) => {
                self.act(item.letter, act, &machine.actor())?;
                self.write_outcome(machine, item, Outcome::Ok)?;
                poller.poll.acted(machine, stage, item);
            }
            (Turn::Later, _) => poller.poll.postponed(machine, stage, item),
            (Turn::Skip | Turn::Try, _) => {
                self.write_outcome(machine, item, Outcome::SkippedChanged)?;
                if poller.poll.skipped(machine, stage, item)
                    && let Some(letter) = &seen.letter
                {
                    let sequence = (self.numbers.qid, letter.sequence.as_str());
                    table::unreserve(self.connection, machine.operation.id, Some(sequence))?;
                }
            }
        }
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    fn sweep(&mut self, machine: &mut OperationMachine, poller: &mut Poller<'_>) -> Work<()> {
        let mut from = 0;
        while let Some(item) = self.next_pending(machine, from)? {
            from = item.ordinal + 1;
            let seen = self.seen(machine, &item)?;
            let tried = rules::is_tried(&machine.operation, &seen.view(self.now));
            if poller.poll.swept(machine, tried) {
                self.write_outcome(machine, &item, Outcome::SkippedCancelled)?;
            }
        }
        Ok(())
    }
}
