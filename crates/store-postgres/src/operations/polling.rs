//! Polls the letters of operations, and performs acts.

use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, LetterLookup, Need, Pending, Poll, SequenceChange, Serving, Swept,
};
use lazaret_core::store::{OperationId, OperationMachine, Outcome, PayloadDigest, PolledWork, Result};
use lazaret_core::{SequenceId, Timestamp};

use crate::error::Work;
use crate::leases::Claimant;
use crate::letter_row::HeldLetter;
use crate::operations::ahead::Ahead;
use crate::sequence_row::OpenSequence;
use crate::store::{PostgresStore, Queue, first};
use crate::transaction::{Transaction, transaction};
use crate::values::unsigned;
use crate::views::Tried;

/// The operations that have letters of this queue without an outcome, the least recently served first. `OFFSET 0` keeps the server from
/// reading the letters of all plans.
const LIVE: &str = "SELECT o.operation FROM operations o WHERE o.served_at IS NOT NULL
    AND EXISTS (SELECT 1 FROM items i WHERE i.plan = o.plan AND i.qid = $1 AND i.outcome IS NULL OFFSET 0)
    ORDER BY o.served_at, o.operation";
const PAYLOAD_DIGEST: &str = "SELECT sha256(payload) FROM payloads WHERE lid = $1";

/// Serves one operation: the parameters of the call, and what was read ahead.
struct Poller<'a> {
    queue: &'a Queue,
    claimant: Claimant<'a>,
    ahead: Ahead,
    /// The sequence of the letter that comes next, when its plan was frozen.
    planned: Option<SequenceId>,
}

/// A pending letter in its current state.
pub(super) struct ItemState {
    pub(super) held: Option<HeldLetter>,
    pub(super) digest: PayloadDigest,
    pub(super) open: Option<OpenSequence>,
    pub(super) in_earlier: bool,
}

impl ItemState {
    fn view(&self, now: Timestamp) -> ItemView<'_> {
        ItemView {
            letter: self.held.as_ref().map(|held| &held.letter),
            digest: self.digest,
            row: self.open.as_ref().map(|open| &open.row),
            in_earlier: self.in_earlier,
            now,
        }
    }
}

/// `true` if an open letter left this sequence after the sequence was looked up.
pub(super) fn left_meanwhile(held: &HeldLetter, sequence: &SequenceId) -> bool {
    held.letter.state.is_open() && held.letter.sequence != *sequence
}

impl PostgresStore {
    /// Serves each operation in a transaction of its own: none waits for another one while it holds one.
    pub(crate) async fn poll(
        &self,
        queue: &Queue,
        claimant: Claimant<'_>,
        limit: usize,
    ) -> Result<PolledWork> {
        let (mut work, mut given) = (PolledWork::default(), 0);
        for row in self.ask("poll_work", LIVE, &[&queue.qid]).await? {
            let id = unsigned(row.get(0)).map_err(|fault| fault.into_error("poll_work"))?;
            let left = limit.saturating_sub(given);
            let (served, more) =
                transaction!(self, "poll_work", |tx| tx.serve(queue, OperationId(id), claimant, left));
            given += more;
            work.items.extend(served.items);
            work.settled += served.settled;
            work.again_at = [work.again_at, served.again_at].into_iter().flatten().min();
        }
        Ok(work)
    }
}

impl Transaction<'_> {
    /// Serves one operation as far as it can proceed now. Returns the number of letters tried or acted upon, too.
    async fn serve(
        &mut self,
        queue: &Queue,
        id: OperationId,
        claimant: Claimant<'_>,
        limit: usize,
    ) -> Work<(PolledWork, usize)> {
        let Some(machine) = self.lock_operation(id).await? else { return Ok((PolledWork::default(), 0)) };
        self.read_clock().await?;
        let mut poll = Poll::new(limit, self.now());
        let mut poller = Poller { queue, claimant, ahead: Ahead::of(limit), planned: None };
        let mut serving = Serving::new(&mut poll, machine.clone());
        loop {
            match serving.next() {
                Need::Advance => {
                    self.advance(&mut serving.machine).await?;
                    serving.advanced();
                }
                Need::Pending(from) => {
                    let next = self.next_ahead(&serving.machine, queue, &mut poller.ahead, from).await?;
                    let (item, planned) = next.unzip();
                    poller.planned = planned;
                    serving.pending(item);
                }
                Need::Item(item) => self.inspect(&mut serving, &mut poller, &item).await?,
                Need::Pace(_) => self.pace(&mut serving, &poller).await?,
                Need::Sweep => serving.swept(self.sweep(&serving.machine, queue).await?),
                Need::Left => {
                    let left = self.next_pending(machine.operation.plan, queue.qid, 0, 1).await?;
                    serving.left(!left.is_empty());
                }
                Need::Done => break,
            }
        }
        let (given, served) = (serving.given(), serving.machine);
        if served != machine || given > 0 {
            self.write_operation(&served, given > 0).await?;
        }
        Ok((poll.finish(), given))
    }

    /// Loads a pending letter with its sequence, both locked. `None` if another transaction works on the sequence, or did: this one
    /// holds the operation, for which that one may be waiting.
    async fn load_item(
        &mut self,
        queue: &Queue,
        machine: &OperationMachine,
        (item, sequence): (&Pending, &SequenceId),
    ) -> Work<Option<ItemState>> {
        let open = match self.try_sequence(queue, sequence).await? {
            Tried::Busy => return Ok(None),
            Tried::Absent => None,
            Tried::Locked(open) => Some(*open),
        };
        let held = match self.letter(queue, item.letter).await? {
            LetterLookup::Letter(held) => Some(held),
            LetterLookup::Purged(_) | LetterLookup::Absent => None,
        };
        if held.as_ref().is_some_and(|held| left_meanwhile(held, sequence)) {
            return Ok(None);
        }
        let mut digest = PayloadDigest::of(None);
        if let Some(held) = &held {
            let rows = self.query(PAYLOAD_DIGEST, &[&held.lid]).await?;
            let bytes: Option<Vec<u8>> = first(&rows, |row| Ok(row.try_get(0)?))?.flatten();
            if let Some(Ok(bytes)) = bytes.map(TryInto::try_into) {
                digest = PayloadDigest::from_bytes(bytes);
            }
        }
        let open = open.filter(|_| held.as_ref().is_some_and(|held| held.letter.state.is_open()));
        let in_earlier = self.is_in_earlier(item.letter, machine.operation.id).await?;
        Ok(Some(ItemState { held, digest, open, in_earlier }))
    }

    /// Performs the action on one letter.
    async fn inspect(
        &mut self,
        serving: &mut Serving<'_>,
        poller: &mut Poller<'_>,
        item: &Pending,
    ) -> Work<()> {
        let Poller { queue, claimant, ahead, planned: Some(sequence) } = poller else { return Ok(()) };
        let (queue, operation) = (*queue, serving.machine.operation.id);
        let state = match ahead.state(item.letter) {
            Some(known) => known,
            None => self.load_item(queue, &serving.machine, (item, sequence)).await?,
        };
        let Some(state) = state else {
            serving.postponed(item);
            return Ok(());
        };
        match (serving.action(item, &state.view(self.now())), &state.open) {
            (ItemAction::Try, Some(open)) => {
                let kind = LeaseKind::Operation(operation);
                let claim = match ahead.head(open) {
                    Some((head, fence)) => self.lease(queue, open, head, *claimant, kind, fence).await?,
                    None => self.lease_for(queue, open, *claimant, kind).await?,
                };
                serving.tried(item, claim);
            }
            (ItemAction::Act(act), _) => {
                self.act_on(queue, item.letter, act, &serving.machine.actor()).await?;
                self.write_rows().await?;
                self.write_outcome(&serving.machine, item, Outcome::Ok).await?;
                serving.acted(item);
            }
            (ItemAction::Postpone, _) => serving.postponed(item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                let planned = match sequence.origin() {
                    // The letters behind it are in the sequence that it has left, if it had not left it before.
                    Some(_) => self.planned_sequence(serving.machine.operation.plan, item.ordinal).await?,
                    None => None,
                };
                let planned = planned.as_ref().unwrap_or(sequence);
                if matches!(self.try_sequence(queue, planned).await?, Tried::Busy) {
                    serving.postponed(item);
                    return Ok(());
                }
                self.write_outcome(&serving.machine, item, Outcome::SkippedChanged).await?;
                if item.is_last() {
                    self.unreserve(queue, planned, operation)?;
                }
                serving.skipped(item);
            }
        }
        Ok(())
    }

    /// Applies the rate of the operation to the letters that its act has released.
    async fn pace(&mut self, serving: &mut Serving<'_>, poller: &Poller<'_>) -> Work<()> {
        let mut paced = 0;
        if let Some(sequence) = &poller.planned
            && let Some(open) = self.unit.sequence(poller.queue, sequence).cloned()
            && let Some(from) = serving.released_from(&open.row)
        {
            let letters = self.released_letters(open.sid, from).await?;
            if let Some((row, letters)) = serving.pace(letters, &open.row) {
                self.unit.change_sequence(poller.queue, sequence, None, SequenceChange::Put(row))?;
                paced = letters;
            }
        }
        serving.paced(paced);
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose leases were lost.
    async fn sweep(&mut self, machine: &OperationMachine, queue: &Queue) -> Work<Swept> {
        let (mut swept, mut from, plan) = (Swept::default(), 0, machine.operation.plan);
        while let Some((item, sequence)) = self.next_pending(plan, queue.qid, from, 1).await?.pop_front() {
            from = item.ordinal + 1;
            let state = self.load_item(queue, machine, (&item, &sequence)).await?;
            // One that another transaction works on may just be settled.
            if state.is_none_or(|state| rules::is_tried(&machine.operation, &state.view(self.now()))) {
                swept.in_flight = true;
            } else {
                self.write_outcome(machine, &item, Outcome::SkippedCancelled).await?;
                swept.skipped += 1;
            }
        }
        Ok(swept)
    }
}
