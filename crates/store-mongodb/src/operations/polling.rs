//! Handing out the letters of operations, and doing acts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::future;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Need, Pending, Poll, Serving, Swept,
};
use lazaret_core::store::{
    Action, Claim, Operation, OperationId, OperationMachine, Outcome, PayloadDigest, PolledWork, Result,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::{by_ids, project};
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::letter::Held;
use crate::documents::plan::Begun;
use crate::documents::sequence::{SequenceDoc, sequence_key};
use crate::indexes::is_above_zero;
use crate::leases::lease_head;
use crate::store::MongoStore;
use crate::values::uint;

/// Maximum number of letters without an outcome that are read at once, those in flight included (I7).
const PAGE: usize = 512;
/// How many letters the first page has beside twice as many as are asked for: most of those in flight.
const FIRST_PAGE: usize = 64;
/// Number of sequences that are loaded together at least.
const AT_ONCE: usize = 64;

/// Serves one operation: the parameters of the call.
struct Poller<'a> {
    store: &'a MongoStore,
    queue: &'a QueueName,
    owner: &'a str,
    lease: Duration,
    now: Timestamp,
    limit: usize,
    id: OperationId,
    plan: i64,
    /// Number of letters that were leased and are not deducted from the rate yet.
    unspent: u64,
}

/// The letters that were read ahead, and those of them that were leased.
#[derive(Default)]
struct Ahead {
    items: VecDeque<(Pending, SequenceId)>,
    /// The letters that were leased or are to be postponed, by ordinal.
    results: BTreeMap<u64, Leased>,
    /// Number of pages that were read.
    pages: usize,
    /// `true` if no letters follow the page.
    is_last: bool,
}

/// The result of the attempt to lease the sequence of a letter.
enum Leased {
    Tried(Box<Claim>),
    Postponed,
}

/// What became of a letter that was looked at alone.
enum Looked {
    Tried(Box<Claim>),
    Acted,
    Postponed,
    /// It has changed since the plan was frozen.
    Changed,
    /// It has its outcome by now: an interrupted call had left that to be written.
    Settled,
}

impl MongoStore {
    pub(crate) async fn poll(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let now = self.now().await?;
        // The one served longest ago comes first. All are read: none says of which queues its letters are, and a limit would leave out those
        // of this queue behind as many of others.
        let (pending, fields) = (doc! { "pending": is_above_zero() }, doc! { "operation.id": 1 });
        let sort = doc! { "servedAt": 1, "operation.id": 1 };
        let begun: Vec<Begun> = project(&self.db().plans, pending, fields, sort).await?;
        let mut poll = Poll::new(limit, now);
        let takes_turns = begun.len() > 1;
        for Begun { plan, operation } in begun {
            let id = OperationId(uint(operation.id));
            if self.next_pending(plan, queue, 0).await?.is_none() {
                continue;
            }
            let mut poller = Poller { store: self, queue, owner, lease, now, limit, id, plan, unspent: 0 };
            // The only operation needs no turn. One that begins later was never served, and comes first.
            if Box::pin(poller.serve(&mut poll)).await? > 0 && takes_turns {
                self.serve_plan(id, now).await?;
            }
        }
        Ok(poll.finish())
    }
}

impl Poller<'_> {
    /// Moves the operation on, and returns it as it stands then.
    async fn advanced(&self) -> Result<Option<OperationMachine>> {
        while let Some(mut view) = self.store.load_plan(self.id).await? {
            let before = view.machine.clone();
            self.store.advance(&mut view, self.now).await?;
            let machine = view.machine.clone();
            if machine == before || self.store.commit_plan(view).await? {
                return Ok(Some(machine));
            }
        }
        Ok(None)
    }

    /// Changes the machine of the operation.
    async fn with_machine(&self, change: impl Fn(&mut OperationMachine) + Send) -> Result<()> {
        while let Some(mut view) = self.store.load_plan(self.id).await? {
            change(&mut view.machine);
            if self.store.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Serves the operation as far as it can proceed now. Returns the number of letters tried or acted upon. The document of the
    /// plan decides what is counted; the machine in memory follows it.
    async fn serve(&mut self, poll: &mut Poll) -> Result<usize> {
        let Some(view) = self.store.load_plan(self.id).await? else { return Ok(0) };
        let mut serving = Serving::new(poll, view.machine);
        let (mut ahead, mut planned) = (Ahead::default(), None);
        loop {
            match serving.next() {
                Need::Advance => {
                    self.record_rest(&mut serving, std::mem::take(&mut ahead)).await?;
                    let Some(machine) = self.advanced().await? else { return Ok(serving.given()) };
                    serving.machine = machine;
                    serving.advanced();
                }
                Need::Pending(from) => {
                    let next = Box::pin(self.next_item(&serving, from, &mut ahead)).await?;
                    let (item, sequence) = next.unzip();
                    planned = sequence;
                    match item.and_then(|item| Some((item, ahead.results.remove(&item.ordinal)?))) {
                        Some((item, result)) => self.record(&mut serving, &item, result),
                        None => serving.pending(item),
                    }
                }
                Need::Item(item) => self.inspect(&mut serving, &item, &mut planned).await?,
                Need::Pace(_) => self.pace(&mut serving, planned.as_ref()).await?,
                Need::Sweep => serving.swept(self.sweep().await?),
                Need::Left => {
                    self.record_rest(&mut serving, std::mem::take(&mut ahead)).await?;
                    serving.left(self.store.next_pending(self.plan, self.queue, 0).await?.is_some());
                }
                Need::Done => return Ok(serving.given()),
            }
        }
    }

    /// The next letter of the queue without an outcome. For a replay, the sequences of those that are to be tried are leased together.
    async fn next_item(
        &self,
        serving: &Serving<'_>,
        from: u64,
        ahead: &mut Ahead,
    ) -> Result<Option<(Pending, SequenceId)>> {
        if serving.machine.operation.action != Action::Retry {
            return self.store.next_pending(self.plan, self.queue, from).await;
        }
        loop {
            while ahead.items.front().is_some_and(|(item, _)| item.ordinal < from) {
                ahead.items.pop_front();
            }
            if !ahead.items.is_empty() || ahead.is_last {
                return Ok(ahead.items.front().cloned());
            }
            let page = if ahead.pages == 0 { 2 * self.limit + FIRST_PAGE } else { PAGE };
            let page = page.min(PAGE);
            let items = self.store.pending_page(self.plan, self.queue, from, page).await?;
            ahead.pages += 1;
            ahead.is_last = items.len() < page;
            ahead.items = items.into();
            self.lease_ahead(&serving.machine, ahead, serving.room()).await?;
        }
    }

    /// Leases the sequences of the first letters of a page that are to be tried, at most so many, and notes those that are to be postponed.
    /// Whatever else is to be done is left to [`inspect`](Self::inspect).
    async fn lease_ahead(&self, machine: &OperationMachine, ahead: &mut Ahead, room: usize) -> Result<()> {
        let (operation, allowance) = (&machine.operation, machine.allowance());
        let (mut from, mut first) = (0, Vec::new());
        for (item, sequence) in &ahead.items {
            // Letters behind one that is tried or postponed wait for it.
            if item.ordinal >= from && item.ordinal < allowance {
                from = item.last + 1;
                first.push((*item, sequence.clone()));
            }
        }
        let mut first = VecDeque::from(first);
        let mut room = room;
        while room > 0 && !first.is_empty() {
            let some: Vec<(Pending, SequenceId)> =
                first.drain(..first.len().min(AT_ONCE.max(room))).collect();
            let leased = self.lease_some(operation, some, room).await?;
            room -= leased.iter().filter(|(_, result)| matches!(result, Leased::Tried(_))).count();
            ahead.results.extend(leased);
        }
        Ok(())
    }

    /// The results for letters of different sequences, by ordinal: those that were leased, at most `room`, and those that are postponed.
    async fn lease_some(
        &self,
        operation: &Operation,
        items: Vec<(Pending, SequenceId)>,
        room: usize,
    ) -> Result<Vec<(u64, Leased)>> {
        let mut results = Vec::new();
        let mut free = Vec::new();
        for (item, sequence) in items {
            // Its settlement is under way here.
            if self.store.under_way().has(&sequence_key(self.queue, &sequence)) {
                results.push((item.ordinal, Leased::Postponed));
            } else {
                free.push((item, sequence));
            }
        }
        let ids: Vec<String> = free.iter().map(|(_, sequence)| sequence_key(self.queue, sequence)).collect();
        let (docs, paused) = future::try_join(
            by_ids::<SequenceDoc>(&self.store.db().sequences, &ids, Document::new()),
            self.store.paused_sequences(self.queue),
        )
        .await?;
        // Another process may be at it. If there is nothing else to do, it is finished when it is looked at alone.
        let (unfinished, docs): (Vec<_>, Vec<_>) = docs.into_iter().partition(|doc| doc.unfinished);
        let unfinished: BTreeSet<SequenceId> = unfinished.into_iter().map(|doc| doc.sequence).collect();
        let docs = self.store.finished_docs(self.queue, docs).await?;
        let mut views = self.store.views(self.queue, docs, &paused).await?;
        let (mut chosen, mut busy) = (Vec::new(), Vec::new());
        for (item, sequence) in free {
            if unfinished.contains(&sequence) {
                busy.push((item.ordinal, Leased::Postponed));
            }
            let Some(view) = views.get(&sequence) else { continue };
            // Any other letter than the head is looked at alone.
            let id = item.letter.to_string();
            let row =
                view.row.as_ref().filter(|_| view.doc.ahead.first().is_some_and(|(_, head)| *head == id));
            match row {
                Some(row) if row.is_leased(view.now) || row.paused => {
                    results.push((item.ordinal, Leased::Postponed));
                }
                Some(_) => chosen.push((item, sequence)),
                None => {}
            }
        }
        chosen.truncate(room);
        let chosen_sequences: BTreeSet<&SequenceId> = chosen.iter().map(|(_, sequence)| sequence).collect();
        views.retain(|sequence, _| chosen_sequences.contains(sequence));
        let mut heads = self.store.first_open_of(&mut views, 1).await?;
        let letters: Vec<LetterId> = chosen.iter().map(|(item, _)| item.letter).collect();
        let planned = self.store.operation_letters(operation.id, &letters).await?;
        let mut claims = BTreeMap::new();
        for (item, sequence) in chosen {
            let head = heads.remove(&sequence).and_then(|heads| heads.into_iter().next());
            // One that has its outcome by now is looked at alone.
            let head = head.filter(|head| head.letter.id == item.letter && planned.is_pending(item.letter));
            let (Some(head), Some(view)) = (head, views.get_mut(&sequence)) else { continue };
            let asked = ItemView {
                letter: Some(&head.letter),
                digest: PayloadDigest::of(head.letter.message.payload.as_deref()),
                row: view.row.as_ref(),
                in_earlier: planned.is_in_earlier(item.letter),
                now: view.now,
            };
            if rules::item_action(operation, &item, &asked) == ItemAction::Try {
                let kind = LeaseKind::Operation(operation.id);
                let claim = lease_head(view, head, self.owner, self.lease, kind);
                claims.extend(claim.map(|claim| (sequence, (item.ordinal, claim))));
            }
        }
        let late = self.store.decide_all(views).await?;
        claims.retain(|sequence, _| !late.contains(sequence));
        if !claims.is_empty() && self.store.is_over(operation.id).await? {
            for (ordinal, claim) in std::mem::take(&mut claims).into_values() {
                self.store.release_lease(&claim.lease).await?;
                results.push((ordinal, Leased::Postponed));
            }
        }
        if !claims.is_empty() {
            results.extend(busy);
        }
        let leased = claims.into_values().map(|(ordinal, claim)| (ordinal, Leased::Tried(Box::new(claim))));
        results.extend(leased);
        Ok(results)
    }

    /// Records what became of a letter that was read ahead.
    fn record(&mut self, serving: &mut Serving<'_>, item: &Pending, result: Leased) {
        match result {
            Leased::Tried(claim) => {
                serving.tried(item, *claim);
                self.unspent += 1;
            }
            Leased::Postponed => serving.postponed(item),
        }
    }

    /// Records the rest of what was leased ahead: nobody else finds it before the leases end. Then deducts all that was leased from the
    /// rate.
    async fn record_rest(&mut self, serving: &mut Serving<'_>, ahead: Ahead) -> Result<()> {
        for result in ahead.results.into_values() {
            if let Leased::Tried(claim) = result {
                serving.tried_ahead(*claim);
                self.unspent += 1;
            }
        }
        let (spent, now) = (std::mem::take(&mut self.unspent), self.now);
        if spent > 0 && serving.machine.has_rate() {
            self.with_machine(|machine| machine.spend(spent, now)).await?;
        }
        Ok(())
    }

    /// Performs the action on one letter. `planned` is its sequence at the freeze, and its current one afterwards.
    async fn inspect(
        &mut self,
        serving: &mut Serving<'_>,
        item: &Pending,
        planned: &mut Option<SequenceId>,
    ) -> Result<()> {
        let Some(sequence) = planned else { return Ok(()) };
        let looked = loop {
            let mut view = self.store.load(self.queue, sequence).await?;
            let held = self.store.letter_of(&view, item.letter).await?;
            if let Some(held) = &held
                && held.letter.state.is_open()
                && held.letter.sequence != *sequence
            {
                // It left the sequence that it had at the freeze.
                *sequence = held.letter.sequence.clone();
                continue;
            }
            let looked = self.decide(serving, item, held, &mut view).await;
            if let Some(looked) = self.store.commit(view, looked).await? {
                break looked;
            }
        };
        let looked = match looked {
            Looked::Tried(claim) if self.store.is_over(self.id).await? => {
                self.store.release_lease(&claim.lease).await?;
                Looked::Postponed
            }
            looked => looked,
        };
        match looked {
            Looked::Tried(claim) => self.record(serving, item, Leased::Tried(claim)),
            Looked::Acted => serving.acted(item),
            Looked::Postponed => serving.postponed(item),
            Looked::Settled => serving.passed(item),
            Looked::Changed => {
                self.write_outcome(item, Outcome::SkippedChanged).await?;
                serving.skipped(item);
            }
        }
        Ok(())
    }

    /// Writes the outcome of one letter, if it has none.
    async fn write_outcome(&self, item: &Pending, outcome: Outcome) -> Result<()> {
        while let Some(mut view) = self.store.load_plan(self.id).await? {
            let ordinals = item.ordinal..=item.ordinal;
            self.store.write_items(&mut view, ordinals, Vec::new(), outcome, self.now).await?;
            if self.store.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Decides about one letter, and leases its sequence or acts on it, in one write on the version that the rule was asked about.
    /// With two, another call could come between: the lease would be that of another letter, or a letter would be skipped that
    /// has become the head meanwhile.
    async fn decide(
        &self,
        serving: &Serving<'_>,
        item: &Pending,
        held: Option<Held>,
        view: &mut View,
    ) -> Result<Looked> {
        let operation = &serving.machine.operation;
        let planned = self.store.operation_letters(operation.id, &[item.letter]).await?;
        if !planned.is_pending(item.letter) {
            return Ok(Looked::Settled);
        }
        let letter = held.as_ref().map(|held| &held.letter);
        let asked = ItemView {
            letter,
            digest: PayloadDigest::of(letter.and_then(|letter| letter.message.payload.as_deref())),
            row: view.row.as_ref(),
            in_earlier: planned.is_in_earlier(item.letter),
            now: view.now,
        };
        match (serving.action(item, &asked), held) {
            (ItemAction::Try, Some(held)) => {
                let kind = LeaseKind::Operation(operation.id);
                let taken = lease_head(view, held, self.owner, self.lease, kind);
                Ok(taken.map_or(Looked::Postponed, |claim| Looked::Tried(Box::new(claim))))
            }
            (ItemAction::Act(act), Some(held)) => {
                let by = serving.machine.actor();
                let next = self.store.next_of(view, held.letter.index).await?;
                let effects = rules::act(act, &held.letter, view.row.as_ref(), next, &by, view.now)?;
                view.apply(held, effects)?;
                let outcome = OutcomeDoc::new(operation.id, item.letter, Outcome::Ok, self.now);
                view.leave(Left::Outcome(outcome.spending()));
                Ok(Looked::Acted)
            }
            (ItemAction::Postpone, _) => Ok(Looked::Postponed),
            (ItemAction::Skip | ItemAction::Try | ItemAction::Act(_), _) => Ok(Looked::Changed),
        }
    }

    /// Applies the rate of the operation to the letters that its act has released.
    async fn pace(&self, serving: &mut Serving<'_>, sequence: Option<&SequenceId>) -> Result<()> {
        let Some(sequence) = sequence else { return Ok(()) };
        let paced = loop {
            let mut view = self.store.load(self.queue, sequence).await?;
            let paced = self.decide_pace(serving, &mut view).await;
            if let Some(paced) = self.store.commit(view, paced).await? {
                break paced;
            }
        };
        if paced > 0 {
            let now = self.now;
            self.with_machine(|machine| _ = machine.pace_released(paced, now)).await?;
        }
        serving.paced(paced);
        Ok(())
    }

    async fn decide_pace(&self, serving: &Serving<'_>, view: &mut View) -> Result<u64> {
        let Some(row) = view.row.clone() else { return Ok(0) };
        let Some(from) = serving.released_from(&row) else { return Ok(0) };
        let letters = self.store.released_letters(view, from).await?;
        let Some((row, letters)) = serving.pace(letters, &row) else { return Ok(0) };
        view.put(Some(row));
        Ok(letters)
    }

    /// Skips the letters of a cancelled operation whose leases were lost.
    async fn sweep(&self) -> Result<Swept> {
        let Some(before) = self.store.load_plan(self.id).await? else { return Ok(Swept::default()) };
        let before = before.machine.operation;
        let (after, tried) = self.store.skip_rest(&before).await?;
        Ok(Swept {
            skipped: after.skipped.saturating_sub(before.skipped),
            more: false,
            in_flight: !tried.is_empty(),
        })
    }
}
