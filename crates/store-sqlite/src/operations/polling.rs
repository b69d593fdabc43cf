//! Polls the letters of operations, and performs acts.

use std::time::Duration;

use lazaret_core::Letter;
use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Need, Pending, Poll, SequenceChange, Serving, Swept,
};
use lazaret_core::store::{Action, Claim, OperationMachine, Outcome, PayloadDigest};

use super::{commanding, table};
use crate::error::Work;
use crate::letters::{OpenSequence, Queue};
use crate::rows::{UndecodedLetter, time};
use crate::undecoded_claims::{UndecodedClaim, UndecodedWork};

/// Serves one operation: the parameters of the call, and what was read for it.
struct Poller<'a> {
    owner: &'a str,
    lease: Duration,
    /// The bodies of the letters so far, of all operations.
    bodies: &'a mut Vec<Vec<u8>>,
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
        let (mut poll, mut bodies) = (Poll::new(limit, time(self.now)), Vec::new());
        self.cache.operations.give_back(self.connection)?;
        let live = table::live(self.connection, self.numbers.qid)?;
        let unfinished = live.iter().map(|machine| &machine.operation).filter(|one| !one.state.is_over());
        let first = unfinished.map(|operation| operation.id).min();
        for machine in live {
            let has_earlier = first.is_some_and(|first| first < machine.operation.id);
            let mut poller = Poller { owner, lease, bodies: &mut bodies, has_earlier };
            let mut serving = Serving::new(&mut poll, machine.clone());
            self.serve(&mut serving, &mut poller)?;
            if serving.machine != machine {
                table::write_operation(self.connection, &serving.machine)?;
            }
            if serving.given() > 0 {
                table::mark_served(self.connection, machine.operation.id, self.now)?;
            }
        }
        Ok(UndecodedWork { work: poll.finish(), bodies })
    }

    /// Serves one operation as far as it can proceed now.
    fn serve(&mut self, serving: &mut Serving<'_>, poller: &mut Poller<'_>) -> Work<()> {
        loop {
            match serving.next() {
                Need::Advance => {
                    self.advance(&mut serving.machine)?;
                    serving.advanced();
                }
                Need::Pending(from) => serving.pending(self.next_to_inspect(&serving.machine, from)?),
                Need::Item(item) => self.inspect(serving, poller, &item)?,
                Need::Pace(item) => self.pace(serving, &item)?,
                Need::Sweep => serving.swept(self.sweep(&serving.machine)?),
                Need::Left => serving.left(self.next_pending(&serving.machine, 0)?.is_some()),
                Need::Done => return Ok(()),
            }
        }
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

    /// Performs the action on one letter.
    fn inspect(&mut self, serving: &mut Serving<'_>, poller: &mut Poller<'_>, item: &Pending) -> Work<()> {
        let mut state = self.load_item(&serving.machine, poller, item)?;
        match (serving.action(item, &state.view(self.now)), &state.open) {
            (ItemAction::Try, Some(open)) => {
                let kind = LeaseKind::Operation(serving.machine.operation.id);
                let head = state.letter.take().zip(state.body.take());
                let head = head.map(|(letter, body)| UndecodedLetter { letter, body });
                let claim = self.lease_sequence(open, poller.owner, poller.lease, kind, head)?;
                let UndecodedClaim { lease, head: UndecodedLetter { letter, body }, interrupted, lost } =
                    claim;
                serving.tried(item, Claim { lease, head: letter, interrupted, lost });
                poller.bodies.push(body);
            }
            (ItemAction::Act(act), _) => {
                self.act(item.letter, act, &serving.machine.actor())?;
                self.write_outcome(&serving.machine, item, Outcome::Ok)?;
                serving.acted(item);
            }
            (ItemAction::Postpone, _) => serving.postponed(item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                self.write_outcome(&serving.machine, item, Outcome::SkippedChanged)?;
                if item.is_last() {
                    self.unreserve_planned(&serving.machine, item)?;
                }
                serving.skipped(item);
            }
        }
        Ok(())
    }

    /// Applies the rate of the operation to the letters that its act has released.
    fn pace(&mut self, serving: &mut Serving<'_>, item: &Pending) -> Work<()> {
        let mut paced = 0;
        if let rules::LetterLookup::Letter(lid) = self.row_of(item.letter)?
            && let letter = self.light_by_row(lid)?
            && let Some(open) = self.sequence(&letter.sequence)?
            && let Some(from) = serving.released_from(&open.row)
            && let Some((row, letters)) = serving.pace(self.released_letters(open.sid, from)?, &open.row)
        {
            self.write_sequence(None, Some(&open), &SequenceChange::Put(row))?;
            paced = letters;
        }
        serving.paced(paced);
        Ok(())
    }

    /// Skips a page of the letters of the queue that a cancelled operation has left, except those in flight.
    fn sweep(&self, machine: &OperationMachine) -> Work<Swept> {
        let qid = Some(self.numbers.qid);
        let page = commanding::free_page(self.connection, &machine.operation, qid, self.now)?;
        let in_flight = page.is_last && self.next_pending(machine, 0)?.is_some();
        Ok(Swept { skipped: page.skipped, more: !page.is_last, in_flight })
    }
}

/// The payload of a whole letter now: without edits it is the frozen one.
pub(super) fn current_digest_of(letter: &Letter, item: &Pending) -> PayloadDigest {
    match item.digest {
        Some(frozen) if !letter.payload_left_out && letter.edits.is_empty() => frozen,
        _ => PayloadDigest::of(letter.message.payload.as_deref()),
    }
}
