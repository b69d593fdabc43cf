//! Polls the letters of operations, and performs acts.

use std::time::Duration;

use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Pending, Poll, PollDecision, PollStep, SequenceChange, StageCursor,
};
use lazaret_core::store::{Action, Claim, OperationMachine, Outcome, PayloadDigest};
use lazaret_core::{Letter, Timestamp};

use super::{commanding, table};
use crate::error::Work;
use crate::letters::{OpenSequence, Queue};
use crate::rows::{UndecodedLetter, time};
use crate::undecoded_claims::{UndecodedClaim, UndecodedWork};

/// One call: its parameters, and the letters so far.
struct Poller<'a> {
    owner: &'a str,
    lease: Duration,
    poll: Poll,
    /// The bodies of the letters so far.
    bodies: Vec<Vec<u8>>,
    /// `true` if an unfinished operation that was started before the current one has letters of the queue without an outcome.
    has_earlier: bool,
}

/// A pending letter in its current state.
struct ItemState {
    letter: Option<Letter>,
    /// The body of the letter, if that is not decoded.
    body: Option<Vec<u8>>,
    digest: PayloadDigest,
    open: Option<OpenSequence>,
    in_earlier: bool,
}

impl ItemState {
    fn view(&self, now: i64) -> ItemView<'_> {
        ItemView {
            letter: self.letter.as_ref(),
            digest: self.digest,
            row: self.open.as_ref().map(|open| &open.row),
            in_earlier: self.in_earlier,
            now: time(now),
        }
    }
}

impl Queue<'_> {
    pub(crate) fn poll_work(&mut self, owner: &str, lease: Duration, limit: usize) -> Work<UndecodedWork> {
        let poll = Poll::new(limit, time(self.now));
        let mut poller = Poller { owner, lease, poll, bodies: Vec::new(), has_earlier: false };
        self.cache.operations.give_back(self.connection)?;
        let live = table::live(self.connection, self.numbers.qid)?;
        let unfinished = live.iter().map(|machine| &machine.operation).filter(|one| !one.state.is_over());
        let first = unfinished.map(|operation| operation.id).min();
        for mut machine in live {
            poller.has_earlier = first.is_some_and(|first| first < machine.operation.id);
            let before = (machine.clone(), poller.poll.given());
            self.serve(&mut machine, &mut poller)?;
            if machine != before.0 {
                table::write_operation(self.connection, &machine)?;
            }
            if poller.poll.given() > before.1 {
                table::mark_served(self.connection, machine.operation.id, self.now)?;
            }
        }
        Ok(UndecodedWork { work: poller.poll.finish(), bodies: poller.bodies })
    }

    /// Serves one operation as far as it can proceed now.
    fn serve(&mut self, machine: &mut OperationMachine, poller: &mut Poller<'_>) -> Work<()> {
        self.advance(machine)?;
        match poller.poll.begin(machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run(machine, poller, stage)?;
                let left = self.next_pending(machine, 0)?.is_some();
                poller.poll.end(machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(machine, poller)?,
        }
        Ok(())
    }

    fn next_pending(&self, machine: &OperationMachine, from: u64) -> Work<Option<Pending>> {
        table::next_pending(self.connection, machine.operation.plan, self.numbers.qid, from)
    }

    /// The next letter to inspect. The sequences that a replay has in flight would be postponed one by one, in each poll: they are passed
    /// over at once.
    fn next_to_inspect(&self, machine: &OperationMachine, from: u64) -> Work<Option<Pending>> {
        if machine.operation.action != Action::Retry {
            return self.next_pending(machine, from);
        }
        table::next_not_in_flight(self.connection, &machine.operation, self.numbers.qid, from, self.now)
    }

    /// Runs the letters of a running operation, stage by stage. Returns when to continue, if known.
    fn run(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        mut stage: StageCursor,
    ) -> Work<Option<Timestamp>> {
        loop {
            let item = self.next_to_inspect(machine, stage.from())?;
            match (poller.poll.step(machine, &stage, item.as_ref()), item) {
                (PollStep::Inspect, Some(item)) => self.inspect(machine, poller, &mut stage, &item)?,
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    self.advance(machine)?;
                    let Some(next) = poller.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
    }

    fn load_item(
        &mut self,
        machine: &OperationMachine,
        poller: &Poller<'_>,
        item: &Pending,
    ) -> Work<ItemState> {
        let mut body = None;
        let (digest, letter) = match self.row_of(item.letter)? {
            // The letter of a replay is read whole: it is returned with the claim.
            rules::LetterLookup::Letter(lid) if machine.operation.action == Action::Retry => {
                let mut read = self.whole_undecoded(lid)?;
                read.letter.payload_left_out = read.payload_left_out();
                body = Some(read.body);
                (current_digest_of(&read.letter, item), Some(read.letter))
            }
            rules::LetterLookup::Letter(lid) => {
                let letter = self.light_by_row(lid)?;
                (self.current_digest(lid, &letter, item)?, Some(letter))
            }
            rules::LetterLookup::Purged(_) | rules::LetterLookup::Absent => (PayloadDigest::of(None), None),
        };
        let open = match &letter {
            Some(letter) if letter.state.is_open() => self.sequence(&letter.sequence)?,
            _ => None,
        };
        let in_earlier =
            poller.has_earlier && table::is_in_earlier(self.connection, item.letter, machine.operation.id)?;
        Ok(ItemState { letter, body, digest, open, in_earlier })
    }

    /// The payload of a letter now. Only edits change a payload, and leaving it out: without them it is the frozen one, and is not
    /// read on the thread of the writer.
    fn current_digest(&self, lid: i64, letter: &Letter, item: &Pending) -> Work<PayloadDigest> {
        match item.digest {
            Some(frozen) if !letter.payload_left_out && !table::is_edited(self.connection, lid)? => {
                Ok(frozen)
            }
            _ => table::payload_digest(self.connection, lid),
        }
    }

    /// Decides the action on one letter and performs it.
    fn inspect(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        stage: &mut StageCursor,
        item: &Pending,
    ) -> Work<()> {
        let mut state = self.load_item(machine, poller, item)?;
        let action = rules::item_action(&machine.operation, item, &state.view(self.now));
        match (action, &state.open) {
            (ItemAction::Try, Some(open)) => {
                let kind = LeaseKind::Operation(machine.operation.id);
                let head = state.letter.take().zip(state.body.take());
                let head = head.map(|(letter, body)| UndecodedLetter { letter, body });
                let claim = self.lease_sequence(open, poller.owner, poller.lease, kind, head)?;
                let UndecodedClaim { lease, head: UndecodedLetter { letter, body }, interrupted, lost } =
                    claim;
                poller.poll.tried(machine, stage, item, Claim { lease, head: letter, interrupted, lost });
                poller.bodies.push(body);
            }
            (ItemAction::Act(act), _) => {
                self.act(item.letter, act, &machine.actor())?;
                self.write_outcome(machine, item, Outcome::Ok)?;
                poller.poll.acted(machine, stage, item);
                let sequence = state.letter.as_ref().map(|letter| &letter.sequence);
                let open = sequence.map(|sequence| self.sequence(sequence)).transpose()?.flatten();
                if let Some(open) = open
                    && let Some(from) = poller.poll.released_from(machine, item, &open.row)
                    && let letters = self.released_letters(open.sid, from)?
                    && let Some(row) = poller.poll.paced(machine, letters, &open.row)
                {
                    self.write_sequence(None, Some(&open), &SequenceChange::Put(row))?;
                }
            }
            (ItemAction::Postpone, _) => poller.poll.postponed(machine, stage, item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                self.write_outcome(machine, item, Outcome::SkippedChanged)?;
                if poller.poll.skipped(machine, stage, item) {
                    self.unreserve_planned(machine, item)?;
                }
            }
        }
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose lease was lost, and a page of those of the queue that the command has left.
    fn sweep(&self, machine: &mut OperationMachine, poller: &mut Poller<'_>) -> Work<()> {
        let qid = Some(self.numbers.qid);
        let page = commanding::free_page(self.connection, &machine.operation, qid, self.now)?;
        for _ in 0..page.skipped {
            poller.poll.swept(machine, false);
        }
        if !page.is_last {
            poller.poll.again(time(self.now));
        } else if self.next_pending(machine, 0)?.is_some() {
            poller.poll.swept(machine, true);
        }
        Ok(())
    }
}

/// The payload of a whole letter now: without edits it is the frozen one.
pub(super) fn current_digest_of(letter: &Letter, item: &Pending) -> PayloadDigest {
    match item.digest {
        Some(frozen) if !letter.payload_left_out && letter.edits.is_empty() => frozen,
        _ => PayloadDigest::of(letter.message.payload.as_deref()),
    }
}
