//! Polls the letters of operations, and performs acts.

use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, LetterLookup, Pending, Poll, PollDecision, PollStep,
    SequenceChange, StageCursor,
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

/// One operation in a poll: what was asked for, and the letters so far.
struct Poller<'a> {
    queue: &'a Queue,
    claimant: Claimant<'a>,
    poll: Poll,
    ahead: Ahead,
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
        let Some(mut machine) = self.lock_operation(id).await? else { return Ok((PolledWork::default(), 0)) };
        self.read_clock().await?;
        let before = machine.clone();
        let mut poller =
            Poller { queue, claimant, poll: Poll::new(limit, self.now()), ahead: Ahead::of(limit) };
        self.advance(&mut machine).await?;
        match poller.poll.begin(&machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run_stages(&mut machine, &mut poller, stage).await?;
                let left = !self.next_pending(machine.operation.plan, queue.qid, 0, 1).await?.is_empty();
                poller.poll.end(&machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(&mut machine, &mut poller).await?,
        }
        let given = poller.poll.given();
        if machine != before || given > 0 {
            self.write_operation(&machine, given > 0).await?;
        }
        Ok((poller.poll.finish(), given))
    }

    /// Runs the letters of a running operation, stage by stage. Returns when to continue, if known.
    async fn run_stages(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        mut stage: StageCursor,
    ) -> Work<Option<Timestamp>> {
        loop {
            let next = self.next_ahead(machine, poller.queue, &mut poller.ahead, stage.from()).await?;
            match (poller.poll.step(machine, &stage, next.as_ref().map(|(item, _)| item)), next) {
                (PollStep::Inspect, Some((item, sequence))) => {
                    self.inspect(machine, poller, &mut stage, (&item, &sequence)).await?;
                }
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    self.advance(machine).await?;
                    let Some(next) = poller.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
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

    /// Decides the action on one letter and performs it.
    async fn inspect(
        &mut self,
        machine: &mut OperationMachine,
        poller: &mut Poller<'_>,
        stage: &mut StageCursor,
        (item, sequence): (&Pending, &SequenceId),
    ) -> Work<()> {
        let queue = poller.queue;
        let state = match poller.ahead.state(item.letter) {
            Some(known) => known,
            None => self.load_item(queue, machine, (item, sequence)).await?,
        };
        let Some(state) = state else {
            poller.poll.postponed(machine, stage, item);
            return Ok(());
        };
        match (rules::item_action(&machine.operation, item, &state.view(self.now())), &state.open) {
            (ItemAction::Try, Some(open)) => {
                let kind = LeaseKind::Operation(machine.operation.id);
                let claim = match poller.ahead.head(open) {
                    Some((head, fence)) => {
                        self.lease(queue, open, head, poller.claimant, kind, fence).await?
                    }
                    None => self.lease_for(queue, open, poller.claimant, kind).await?,
                };
                poller.poll.tried(machine, stage, item, claim);
            }
            (ItemAction::Act(act), _) => {
                self.act_on(queue, item.letter, act, &machine.actor()).await?;
                self.write_rows().await?;
                self.write_outcome(machine, item, Outcome::Ok).await?;
                poller.poll.acted(machine, stage, item);
                self.pace(machine, poller, (item, sequence)).await?;
            }
            (ItemAction::Postpone, _) => poller.poll.postponed(machine, stage, item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                let planned = match sequence.origin() {
                    // The letters behind it are in the sequence that it has left, if it had not left it before.
                    Some(_) => self.planned_sequence(machine.operation.plan, item.ordinal).await?,
                    None => None,
                };
                let planned = planned.as_ref().unwrap_or(sequence);
                if matches!(self.try_sequence(queue, planned).await?, Tried::Busy) {
                    poller.poll.postponed(machine, stage, item);
                    return Ok(());
                }
                self.write_outcome(machine, item, Outcome::SkippedChanged).await?;
                if poller.poll.skipped(machine, stage, item) {
                    self.unreserve(queue, planned, machine.operation.id)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the letters that an act lets run automatically the pace of the operation.
    async fn pace(
        &mut self,
        machine: &mut OperationMachine,
        poller: &Poller<'_>,
        (item, sequence): (&Pending, &SequenceId),
    ) -> Work<()> {
        let queue = poller.queue;
        let Some(open) = self.unit.sequence(queue, sequence).cloned() else { return Ok(()) };
        let Some(from) = poller.poll.released_from(machine, item, &open.row) else { return Ok(()) };
        let letters = self.released_letters(open.sid, from).await?;
        if let Some(row) = poller.poll.paced(machine, letters, &open.row) {
            self.unit.change_sequence(queue, sequence, None, SequenceChange::Put(row))?;
        }
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    async fn sweep(&mut self, machine: &mut OperationMachine, poller: &mut Poller<'_>) -> Work<()> {
        let (mut from, plan) = (0, machine.operation.plan);
        while let Some((item, sequence)) =
            self.next_pending(plan, poller.queue.qid, from, 1).await?.pop_front()
        {
            from = item.ordinal + 1;
            let state = self.load_item(poller.queue, machine, (&item, &sequence)).await?;
            // One that another transaction works on may just be settled.
            let tried =
                state.is_none_or(|state| rules::is_tried(&machine.operation, &state.view(self.now())));
            if poller.poll.swept(machine, tried) {
                self.write_outcome(machine, &item, Outcome::SkippedCancelled).await?;
            }
        }
        Ok(())
    }
}
