//! Leases and settlements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AfterSettle, LeaseKind, LetterView, SequenceRow, SettleView};
use lazaret_core::store::{
    Certainty, Claim, ErrorKind, Lease, LeaseUse, OperationId, Outcome, Result, Settled, Settlement,
    StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};
use uuid::Uuid;

use crate::commit::View;
use crate::database::{list, project};
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::letter::Held;
use crate::documents::sequence::SequenceDoc;
use crate::due::{free_by, free_order};
use crate::error::maybe_done;
use crate::operations::OperationLetters;
use crate::store::MongoStore;
use crate::together::{Line, Work, done_together, repeated};
use crate::values::{int, nanos, time, uint};

/// Number of sequences that a look for due ones reads at once.
const PAGE: usize = 100;
/// Number of sequences that a look for the next due time reads first.
const FIRST: usize = 8;
/// How many times as many sequences as it may claim a call reads while others claim, too.
const SPREAD: usize = 4;
/// After how many claims without a race others are not expected any more.
const REMEMBERED_RACES: usize = 16;

fn is_due(row: &SequenceRow, now: Timestamp) -> bool {
    let schedule = row.schedule();
    schedule.due.or(schedule.busy).is_some_and(|at| at <= now)
}

impl MongoStore {
    pub(crate) async fn claim_sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        loop {
            let mut view = self.load(queue, sequence).await?;
            let claim = if view.row.as_ref().is_some_and(|row| !row.is_leased(view.now)) {
                let head = self.first_open(&mut view, 1).await?.into_iter().next();
                Ok(head.and_then(|head| lease_head(&mut view, head, owner, lease, LeaseKind::Replay)))
            } else {
                Ok(None)
            };
            if let Some(claim) = self.commit(view, claim).await? {
                return Ok(claim);
            }
        }
    }

    pub(crate) async fn claim_due_now(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let now = self.now().await?;
        if self.clock_went_back(queue, now) {
            self.clamp_rows(queue, lease, now).await?;
        }
        let mut claims = Vec::new();
        if limit == 0 {
            return Ok(claims);
        }
        let paused = self.paused_sequences(queue).await?;
        let (mut behind, mut others_claim): (Option<(i64, SequenceId)>, _) =
            (None, self.races().expects_others());
        loop {
            // Others that claim at the same time read the same sequences. With some more of them, each begins elsewhere.
            let page = if others_claim { PAGE.max(limit.saturating_mul(SPREAD)) } else { PAGE.max(limit) };
            let free = free_by(queue, nanos(now), behind.as_ref().map(|(at, sequence)| (*at, sequence)));
            let docs: Vec<SequenceDoc> = list(&self.db().sequences, free, free_order(), page).await?;
            let read = docs.len();
            let last = docs.last().and_then(|last| Some((last.free_at?, last.sequence.clone())));
            let unpaused = docs.into_iter().filter(|doc| !paused.contains(&doc.sequence)).collect();
            let room = limit - claims.len();
            let (claimed, late) =
                Box::pin(self.claim_of(queue, unpaused, (owner, lease), room, others_claim)).await?;
            claims.extend(claimed);
            others_claim = late > 0;
            self.races().note(others_claim);
            if claims.len() >= limit || read < page && late == 0 {
                return Ok(claims);
            }
            // Those that were claimed are not free any more; the others are paused or kept by an operation. Where others were faster, there may
            // be some that nobody has tried.
            behind = last.filter(|_| late == 0);
        }
    }

    /// Claims those of these sequences that are due, at most `room`, by one command. Returns the claims, and for how many of them another
    /// call was faster.
    async fn claim_of(
        &self,
        queue: &QueueName,
        docs: Vec<SequenceDoc>,
        (owner, lease): (&str, Duration),
        room: usize,
        anywhere: bool,
    ) -> Result<(Vec<Claim>, usize)> {
        let docs = self.finished_docs(queue, docs).await?;
        let views = self.views(queue, docs, &BTreeSet::new()).await?;
        let is_due = |view: &View| view.row.as_ref().is_some_and(|row| is_due(row, view.now));
        let mut due: Vec<(SequenceId, View)> = views.into_iter().filter(|(_, view)| is_due(view)).collect();
        due.sort_by_cached_key(|(sequence, view)| {
            (view.row.as_ref().and_then(|row| row.head.due), sequence.clone())
        });
        if anywhere && due.len() > room {
            let from = Uuid::new_v4().as_u128() % (due.len() - room + 1) as u128;
            due.drain(..usize::try_from(from).unwrap_or_default());
        }
        due.truncate(room);
        let order: Vec<SequenceId> = due.iter().map(|(sequence, _)| sequence.clone()).collect();
        let mut views: BTreeMap<SequenceId, View> = due.into_iter().collect();
        let mut heads = self.first_open_of(&mut views, 1).await?;
        let mut claims = BTreeMap::new();
        for (sequence, view) in &mut views {
            let head = heads.remove(sequence).and_then(|letters| letters.into_iter().next());
            let claim = head.and_then(|head| lease_head(view, head, owner, lease, LeaseKind::Due));
            claims.extend(claim.map(|claim| (sequence.clone(), claim)));
        }
        let late = self.decide_all(views).await?;
        claims.retain(|sequence, _| !late.contains(sequence));
        let claims = order.iter().filter_map(|sequence| claims.remove(sequence)).collect();
        Ok((claims, late.len()))
    }

    /// Rows that a clock that was set back would keep leased or waiting for too long.
    async fn clamp_rows(&self, queue: &QueueName, lease: Duration, now: Timestamp) -> Result<()> {
        let ahead = doc! { "queue": queue.as_str(), "open": true, "latest": { "$gt": nanos(now) } };
        let docs: Vec<SequenceDoc> =
            project(&self.db().sequences, ahead, Document::new(), Document::new()).await?;
        for doc in docs {
            loop {
                let mut view = self.load(queue, &doc.sequence).await?;
                let clamped = self.clamp(&mut view, lease).await;
                if self.commit(view, clamped).await?.is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn clamp(&self, view: &mut View, lease: Duration) -> Result<()> {
        let Some(before) = view.row.clone() else { return Ok(()) };
        let Some(row) = rules::clamp_row(&before, lease, view.now) else { return Ok(()) };
        // Its head has another due time then, and so has the letter.
        if row.head != before.head
            && let Some(mut held) = self.first_open(view, 1).await?.into_iter().next()
        {
            row.head.date(&mut held.letter);
            held.letter.last_touched_at = view.now;
            view.write_letter(&held, false)?;
        }
        view.put(Some(row));
        Ok(())
    }

    pub(crate) async fn earliest_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let paused = self.paused_sequences(queue).await?;
        // The first one is the answer, unless it is paused or kept by an operation.
        let (mut page, mut last) = (FIRST, None);
        loop {
            let mut free = self.free_sequences(queue, i64::MAX, last.as_ref(), page).await?;
            let more = free.len() == page;
            let end = free.pop();
            for free in free.iter().chain(&end) {
                let is_kept = match free.reserved() {
                    Some(operation) => {
                        self.keeps(OperationId(uint(operation)), queue, &free.sequence).await?
                    }
                    None => false,
                };
                if !is_kept && !paused.contains(&free.sequence) {
                    return Ok(Some(time(free.free_at)));
                }
            }
            if !more {
                return Ok(None);
            }
            (page, last) = (PAGE, end);
        }
    }

    pub(crate) async fn renew_lease(
        &self,
        lease: &Lease,
        duration: Duration,
        used_for: LeaseUse,
    ) -> Result<Lease> {
        loop {
            let mut view = self.load(&lease.queue, &lease.sequence).await?;
            let renewed = rules::renew(view.row.as_ref(), lease, duration, used_for, view.now);
            let renewed = renewed.map(|(row, lease)| {
                view.put(Some(row));
                lease
            });
            if let Some(lease) = self.commit(view, renewed).await? {
                return Ok(lease);
            }
        }
    }

    pub(crate) async fn release_lease(&self, lease: &Lease) -> Result<()> {
        loop {
            let mut view = self.load(&lease.queue, &lease.sequence).await?;
            if let Some((row, operation)) = rules::release(view.row.as_ref(), lease) {
                view.put(Some(row));
                // The turn of its letter comes again, unless the operation is over.
                if let Some(operation) = operation
                    && self.is_over(operation).await?
                    && let Some(head) = self.first_open(&mut view, 1).await?.first()
                {
                    let outcome = Outcome::SkippedCancelled;
                    let outcome = OutcomeDoc::new(operation, head.letter.id, outcome, view.now);
                    view.leave(Left::Outcome(outcome));
                }
            }
            if self.commit(view, Ok(())).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Settles the head of a leased sequence, together with those of other callers. `take_next`: an operation takes the letter behind, if
    /// it may.
    pub(crate) async fn settle_head(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
        take_next: bool,
    ) -> Result<Settled> {
        let item = SettleItem { lease: lease.clone(), letter, settlement, take_next };
        done_together::<Settlements>(self, item).await
    }

    /// Settles letters of different sequences of a queue.
    async fn settle_all(&self, items: &[SettleItem]) -> Vec<Result<Settled>> {
        let mut answers: Vec<Option<Result<Settled>>> = items.iter().map(|_| None).collect();
        let mut at_once = items.len();
        loop {
            let unanswered = (0..items.len()).filter(|place| answers[*place].is_none());
            let round: Vec<usize> = unanswered.take(at_once).collect();
            if round.is_empty() {
                break;
            }
            let asked: Vec<&SettleItem> = round.iter().map(|place| &items[*place]).collect();
            match Box::pin(self.settle_round(&asked)).await {
                Ok(settled) => {
                    for (place, answer) in round.into_iter().zip(settled) {
                        answers[place] = answer;
                    }
                }
                // What one letter causes must not fail the others.
                Err(error)
                    if round.len() > 1
                        && error.certainty() == Certainty::NotDone
                        && error.kind() != ErrorKind::Unavailable =>
                {
                    at_once = 1;
                }
                Err(error) => {
                    round.into_iter().for_each(|place| answers[place] = Some(Err(repeated(&error))));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// One round. `None` for each settlement that is to be taken again: another call decided about its sequence meanwhile.
    async fn settle_round(&self, items: &[&SettleItem]) -> Result<Vec<Option<Result<Settled>>>> {
        let Some(queue) = items.first().map(|first| &first.lease.queue) else { return Ok(Vec::new()) };
        // 1. The views: the rows, the letters at the heads, the letters behind them, and the operations.
        let sequences = items.iter().map(|item| item.lease.sequence.clone()).collect();
        let mut views = self.load_all(queue, &sequences).await?;
        let mut letters = self.first_open_of(&mut views, 2).await?;
        let operations = self.operations_of(&views, &letters).await?;
        // 2. The rule, and its effects.
        let mut answers = Vec::with_capacity(items.len());
        let mut taken_for = BTreeMap::new();
        for item in items {
            let sequence = &item.lease.sequence;
            let letters = letters.remove(sequence).unwrap_or_default();
            let Some(view) = views.get_mut(sequence) else {
                answers.push(None);
                continue;
            };
            let leased_for = view.row.as_ref().and_then(|row| row.lease.as_ref()?.kind.operation());
            let settled = self.decide_settlement(view, letters, item, &operations).await;
            match (&settled, leased_for) {
                (Err(_), _) => view.refuse(),
                (Ok(Settled::Next(_)), Some(operation)) => {
                    taken_for.insert(sequence, operation);
                }
                _ => {}
            }
            answers.push(Some(settled));
        }
        // 3. One command for all sequences, and what is left to do then.
        let late = self.decide_all(views).await?;
        let is_late = |item: &SettleItem| late.contains(&item.lease.sequence);
        let taken = items.iter().zip(&mut answers).filter(|(item, _)| !is_late(item));
        self.give_back(taken, &taken_for).await.map_err(maybe_done)?;
        let in_time = |(item, answer): (&&SettleItem, _)| if is_late(item) { None } else { answer };
        Ok(items.iter().zip(answers).map(in_time).collect())
    }

    /// Gives back the letters that were taken for operations which a person has ended meanwhile: they are skipped. Whoever ends an
    /// operation looks for its leases afterwards, so one of the two sees the other.
    async fn give_back<'a>(
        &self,
        answers: impl Iterator<Item = (&'a &'a SettleItem, &'a mut Option<Result<Settled>>)>,
        taken_for: &BTreeMap<&SequenceId, OperationId>,
    ) -> Result<()> {
        let mut over: BTreeMap<OperationId, bool> = BTreeMap::new();
        for (item, answer) in answers {
            let Some(operation) = taken_for.get(&item.lease.sequence) else { continue };
            let is_over = match over.get(operation) {
                Some(is_over) => *is_over,
                None => self.is_over(*operation).await?,
            };
            over.insert(*operation, is_over);
            if is_over {
                self.release_lease(&item.lease).await?;
                *answer = Some(Ok(Settled::Blocked));
            }
        }
        Ok(())
    }

    /// The operations for which these sequences are leased, with the letters at their heads and behind these.
    async fn operations_of(
        &self,
        views: &BTreeMap<SequenceId, View>,
        letters: &BTreeMap<SequenceId, Vec<Held>>,
    ) -> Result<BTreeMap<OperationId, OperationLetters>> {
        let mut of: BTreeMap<OperationId, Vec<LetterId>> = BTreeMap::new();
        for (sequence, view) in views {
            let lease = view.row.as_ref().and_then(|row| row.lease.as_ref());
            if let Some(operation) = lease.and_then(|lease| lease.kind.operation()) {
                let letters = letters.get(sequence).into_iter().flatten().map(|held| held.letter.id);
                of.entry(operation).or_default().extend(letters);
            }
        }
        let mut operations = BTreeMap::new();
        for (operation, letters) in of {
            operations.insert(operation, self.operation_letters(operation, &letters).await?);
        }
        Ok(operations)
    }

    async fn decide_settlement(
        &self,
        view: &mut View,
        letters: Vec<Held>,
        item: &SettleItem,
        operations: &BTreeMap<OperationId, OperationLetters>,
    ) -> Result<Settled> {
        let SettleItem { lease, letter: id, settlement, take_next } = item;
        let (id, mut letters) = (*id, letters.into_iter());
        let (head, mut behind) = (letters.next(), letters.next());
        let asked = SettleView {
            row: view.row.as_ref(),
            head: head.as_ref().map(|head| LetterView::of(&head.letter)),
            next: behind.as_ref().map(|next| LetterView::of(&next.letter)),
            now: view.now,
        };
        let mut settle = rules::settle(&asked, lease, id, settlement.clone())?;
        let mut outcome = None;
        if let Some((operation, of_letter)) = settle.outcome
            && let Some(state) = operations.get(&operation)
        {
            let continues = state.continues(id, of_letter);
            settle.effects.reserve(continues.then_some(operation));
            let takes = match (settle.untaken(), &behind) {
                (Some(row), Some(next)) if *take_next && continues => {
                    self.takes_next(state, id, next, row, view.now).await?
                }
                _ => false,
            };
            if takes {
                settle.take_next();
            }
            let released = match settle.released_from() {
                // The head leaves the sequence by this settlement.
                Some(from) if state.has_rate() => self.released_letters(view, from).await?,
                _ => 0,
            };
            let pace = state.pace(released, view.now);
            if let Some(pace) = pace {
                settle.effects.pace(pace, view.now);
            }
            let released = pace.map_or(0, |pace| pace.left);
            outcome = Some(OutcomeDoc::new(operation, id, of_letter, view.now).releasing(released));
        }
        let head = head.ok_or_else(|| missing(id))?;
        view.apply(head, settle.effects)?;
        if let (Some(row), Some(behind)) = (&view.row, &mut behind) {
            row.head.date(&mut behind.letter);
        }
        if let Some(outcome) = outcome {
            view.leave(Left::Outcome(outcome));
        }
        Ok(match settle.after {
            AfterSettle::Next => Settled::Next(Box::new(behind.ok_or_else(|| missing(id))?.letter)),
            AfterSettle::Closed => Settled::Closed,
            AfterSettle::Blocked => Settled::Blocked,
            AfterSettle::Requeued => Settled::Requeued,
        })
    }

    /// The sequences that are leased for an operation now, with the letters at their heads.
    pub(crate) async fn leased_for(&self, operation: OperationId) -> Result<Vec<View>> {
        let filter = doc! { "row.lease.operation": int(operation.0) };
        let docs: Vec<SequenceDoc> =
            project(&self.db().sequences, filter, Document::new(), Document::new()).await?;
        let mut views = Vec::new();
        for doc in docs {
            views.push(self.load(&doc.queue, &doc.sequence).await?);
        }
        views.retain(|view| view.row.as_ref().is_some_and(|row| row.operation(view.now) == Some(operation)));
        Ok(views)
    }
}

/// Leases the sequence of a view, which is open.
pub(crate) fn lease_head(
    view: &mut View,
    head: Held,
    owner: &str,
    lease: Duration,
    kind: LeaseKind,
) -> Option<Claim> {
    let row = view.row.clone()?;
    let mut head = head.letter;
    view.doc.fence += 1;
    let (interrupted, lost) = (row.was_interrupted(view.now), row.was_lost(view.now));
    let row = row.claimed(owner, lease, kind, uint(view.doc.fence), view.now);
    row.head.date(&mut head);
    let lease = row.lease_of(&view.doc.queue, &view.doc.sequence);
    view.put(Some(row));
    lease.map(|lease| Claim { lease, head, interrupted, lost })
}

/// The settlement of one caller.
pub(crate) struct SettleItem {
    lease: Lease,
    letter: LetterId,
    settlement: Settlement,
    take_next: bool,
}

#[cfg(test)]
impl SettleItem {
    /// A settlement in this sequence.
    pub(crate) fn test(queue: &QueueName, sequence: &SequenceId) -> Self {
        let (queue, sequence) = (queue.clone(), sequence.clone());
        let letter = LetterId::of(&queue, &"m".into());
        let lease = Lease { queue, sequence, owner: "w".into(), fence: 1, until: Timestamp::UNIX_EPOCH };
        Self { lease, letter, settlement: Settlement::Resolve(None), take_next: false }
    }

    pub(crate) const fn sequence(&self) -> &SequenceId {
        &self.lease.sequence
    }
}

/// Settlements of many callers, of different sequences of a queue.
pub(crate) struct Settlements;

impl Work for Settlements {
    type Item = SettleItem;
    type Answer = Settled;
    type Kind = QueueName;
    type Key = SequenceId;

    const MOST: usize = 256;
    const WORKERS: usize = 2;

    fn line(store: &MongoStore) -> &Line<Self> {
        &store.lines().settlements
    }

    fn kind(item: &SettleItem) -> QueueName {
        item.lease.queue.clone()
    }

    fn key(item: &SettleItem) -> Option<SequenceId> {
        Some(item.lease.sequence.clone())
    }

    async fn run(store: &MongoStore, items: Vec<SettleItem>) -> Vec<Result<Settled>> {
        store.settle_all(&items).await
    }
}

/// Whether other processes claim the same sequences at the same time.
#[derive(Default)]
pub(crate) struct Races {
    left: AtomicUsize,
}

impl Races {
    /// Whether a call shortly before had lost sequences to others.
    fn expects_others(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Notes whether others were faster.
    fn note(&self, lost: bool) {
        if lost {
            self.left.store(REMEMBERED_RACES, Ordering::Relaxed);
        } else {
            let next = |left: usize| left.checked_sub(1);
            // It was 0 before.
            _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        }
    }
}

fn missing(id: LetterId) -> StoreError {
    StoreError::not_done(ErrorKind::Corrupt, "settle", format!("a letter at or behind {id} is missing"))
}
