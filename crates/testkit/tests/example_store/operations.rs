//! Plans and operations: one document for each plan, with its letters, their outcomes and the state of its operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{self, Candidate, Freeze, ItemView, Pending, SequenceRow, later};
use lazaret_core::store::{
    Action, Actor, Command, Item, Operation, OperationId, OperationMachine, Operations, OperationsPage,
    Outcome, PayloadDigest, Plan, PlanId, PlanRequest, PolledWork, Result, RolloutPolicy, Selection,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::{View, maybe_done};
use crate::database::{Deciding, ItemOutcome, Left, PlanDoc};
use crate::documents::Stored;

impl PlanDoc {
    fn pending(&self, ordinal: usize) -> Option<Pending> {
        let item = self.items.get(ordinal).filter(|_| self.outcomes[ordinal].is_none())?;
        let rules::FrozenItem { last, letter, state, digest, .. } = *item;
        Some(Pending { ordinal: ordinal as u64, last, letter, state, digest: Some(digest) })
    }

    /// The letters without an outcome, with their queues.
    pub(crate) fn all_pending(&self) -> impl Iterator<Item = (&QueueName, Pending)> {
        (0..self.items.len()).filter_map(|ordinal| Some((&self.items[ordinal].queue, self.pending(ordinal)?)))
    }

    /// The next letter of this queue without an outcome, from this ordinal on.
    pub(crate) fn next_pending(&self, queue: &QueueName, from: u64) -> Option<Pending> {
        self.all_pending().find(|(of, item)| *of == queue && item.ordinal >= from).map(|(_, item)| item)
    }

    fn pending_letter(&self, letter: LetterId) -> Option<Pending> {
        self.all_pending().map(|(_, item)| item).find(|item| item.letter == letter)
    }

    /// Writes down what became of letters that have no outcome, and counts it.
    pub(crate) fn write(
        &mut self,
        ordinals: std::ops::RangeInclusive<u64>,
        outcome: Outcome,
        now: Timestamp,
    ) {
        let mut written = 0;
        for (ordinal, open) in (0_u64..).zip(&mut self.outcomes) {
            if open.is_none() && ordinals.contains(&ordinal) {
                (*open, written) = (Some(outcome), written + 1);
            }
        }
        if let Some(machine) = &mut self.machine {
            machine.count(outcome, written, now);
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| !machine.operation.state.is_over())
    }
}

impl DocumentStore {
    /// The plan of an operation. One that was cut off before it began is no operation.
    pub(crate) fn plan_of(&self, id: OperationId) -> Result<Option<Stored<PlanDoc>>> {
        let Some(plan) = self.db.operations.get(&id) else { return Ok(None) };
        let doc = self.finish(&self.db.plans, &plan.value)?;
        Ok(doc.filter(|doc| doc.value.machine.as_ref().is_some_and(|machine| machine.operation.id == id)))
    }

    /// Changes the plan of an operation until no other call came between. `change` returns what is left to do, too.
    pub(crate) fn change_plan<T>(
        &self,
        id: OperationId,
        mut change: impl FnMut(&mut PlanDoc, Timestamp) -> Result<(T, Vec<Left>)>,
    ) -> Result<Option<T>> {
        loop {
            let Some(Stored { version, value: mut doc }) = self.plan_of(id)? else { return Ok(None) };
            let (answer, left) = change(&mut doc, self.clock.now())?;
            let plan = doc.plan.id;
            if self.db.plans.put_if_version(&plan, version, Deciding { value: doc, left })? {
                self.finish(&self.db.plans, &plan).map_err(maybe_done)?;
                return Ok(Some(answer));
            }
        }
    }

    /// Removes what tells the payload of a letter that is erased from the plans that have it.
    pub(crate) fn erase_digests(&self, letter: LetterId) -> Result<()> {
        let plans = self
            .db
            .plans
            .scan(.., |id, doc| doc.value.items.iter().any(|item| item.letter == letter).then_some(*id));
        for id in plans {
            while let Some(Stored { version, value: mut doc }) = self.finish(&self.db.plans, &id)? {
                for item in doc.items.iter_mut().filter(|item| item.letter == letter) {
                    item.digest = PayloadDigest::of(None);
                }
                doc.plan.hash = Plan::erased_hash(id);
                if self.db.plans.put_if_version(&id, version, Deciding { value: doc, left: Vec::new() })? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Moves an operation on as far as it goes.
    pub(crate) fn advance(&self, doc: &mut PlanDoc, now: Timestamp) -> Vec<Left> {
        let pending = doc.all_pending().next().map(|(_, item)| item.ordinal);
        let line = doc.machine.as_mut().and_then(|machine| machine.advance(pending, now));
        line.map(|line| self.audited(line, now)).into_iter().collect()
    }

    /// Writes down what became of a letter, and of those behind it. A letter that has its outcome keeps it.
    pub(crate) fn write_outcome(&self, left: &ItemOutcome) -> Result<()> {
        let ItemOutcome { operation, letter, outcome, spend, released, at } = *left;
        let written = self.change_plan(operation, |doc, _| {
            let Some(item) = doc.pending_letter(letter) else { return Ok(((), Vec::new())) };
            for (ordinals, outcome) in rules::item_outcomes(&item, outcome).outcomes {
                doc.write(ordinals, outcome, at);
            }
            if let Some(machine) = doc.machine.as_mut() {
                machine.spend(u64::from(spend), at);
                machine.pace_released(released, at);
            }
            Ok(((), self.advance(doc, at)))
        });
        written.map(drop)
    }

    /// Whether an operation goes on with the letters behind this one.
    pub(crate) fn continues(&self, id: OperationId, letter: LetterId, outcome: Outcome) -> bool {
        let doc = self.plan_of(id).ok().flatten().filter(|doc| doc.value.is_live());
        let item = doc.and_then(|doc| doc.value.pending_letter(letter));
        item.is_some_and(|item| rules::item_outcomes(&item, outcome).continues)
    }

    /// Whether an operation takes the letter that becomes the head of its sequence when another one succeeds. It does not if it has a rate:
    /// what is deducted from that stands in the document of the plan, and settlements of other sequences may ask at once.
    pub(crate) fn takes_next(
        &self,
        id: OperationId,
        succeeded: LetterId,
        next: &Letter,
        row: &SequenceRow,
        now: Timestamp,
    ) -> bool {
        let Some(mut doc) = self.plan_of(id).ok().flatten().map(|stored| stored.value) else { return false };
        let (settled, item) = (doc.pending_letter(succeeded), doc.pending_letter(next.id));
        let (Some(settled), Some(item)) = (settled, item) else { return false };
        // As the operation stands when the outcome is written, which comes after the decision about the sequence.
        doc.write(settled.ordinal..=settled.ordinal, Outcome::Ok, now);
        let _ = self.advance(&mut doc, now);
        let Some(mut machine) = doc.machine.filter(|machine| !machine.has_rate()) else { return false };
        let digest = PayloadDigest::of(next.message.payload.as_deref());
        let in_earlier = self.is_in_earlier(next.id, id);
        let asked = ItemView { letter: Some(next), digest, row: Some(row), in_earlier, now };
        rules::takes_next(&mut machine, &item, &asked)
    }

    /// The pace of letters that an operation lets run automatically. The outcome that is left behind deducts them from its rate.
    pub(crate) fn pace(&self, id: OperationId, letters: u64, now: Timestamp) -> Option<rules::Pace> {
        let doc = self.plan_of(id).ok().flatten()?;
        doc.value.machine?.pace_released(letters, now)
    }

    pub(crate) fn is_over(&self, id: OperationId) -> bool {
        !self.plan_of(id).ok().flatten().is_some_and(|doc| doc.value.is_live())
    }

    /// Whether an operation still keeps a sequence for itself: as long as it has letters of it before it.
    pub(crate) fn keeps(&self, id: OperationId, queue: &QueueName, sequence: &SequenceId) -> bool {
        let Some(plan) = self.db.operations.get(&id).and_then(|plan| self.db.plans.get(&plan.value)) else {
            return false;
        };
        let doc = plan.value.value;
        let of_sequence = |item: &rules::FrozenItem| item.queue == *queue && item.sequence == *sequence;
        doc.is_live() && doc.all_pending().any(|(_, item)| of_sequence(&doc.items[item.ordinal as usize]))
    }

    /// Whether an operation that was begun before this one, and is not over, has this letter still before it.
    fn is_in_earlier(&self, letter: LetterId, id: OperationId) -> bool {
        let holds = self.db.plans.scan(.., |_, doc| {
            let begun = doc.value.machine.as_ref().map(|machine| machine.operation.id);
            let earlier = doc.value.is_live() && begun.is_some_and(|begun| begun < id);
            (earlier && doc.value.pending_letter(letter).is_some()).then_some(())
        });
        !holds.is_empty()
    }

    /// Whether a letter is in flight for an operation.
    pub(crate) fn is_tried(&self, queue: &QueueName, item: &Pending, operation: &Operation) -> Result<bool> {
        let Some(doc) = self.letter_doc(queue, item.letter)? else { return Ok(false) };
        self.change(queue, &doc.sequence, |view| {
            let letter = view.letter(item.letter);
            Ok((rules::is_tried(operation, &self.item_view(view, letter.as_ref(), operation.id)), None))
        })
    }

    /// A letter of an operation as the rules see it.
    pub(crate) fn item_view<'a>(
        &self,
        view: &'a View<'_>,
        letter: Option<&'a Letter>,
        operation: OperationId,
    ) -> ItemView<'a> {
        let payload = letter.and_then(|letter| letter.message.payload.as_deref());
        ItemView {
            letter,
            digest: PayloadDigest::of(payload),
            row: view.doc.row.as_ref(),
            in_earlier: letter.is_some_and(|letter| self.is_in_earlier(letter.id, operation)),
            now: view.now,
        }
    }

    /// Skips the letters of an operation that is over, but those that are being tried.
    pub(crate) fn skip_untried(&self, doc: &mut PlanDoc, mut skip: impl FnMut(bool) -> bool) -> Result<()> {
        let Some(operation) = doc.machine.as_ref().map(|machine| machine.operation.clone()) else {
            return Ok(());
        };
        let pending: Vec<_> = doc.all_pending().map(|(queue, item)| (queue.clone(), item)).collect();
        for (queue, item) in pending {
            if skip(self.is_tried(&queue, &item, &operation)?) {
                doc.outcomes[item.ordinal as usize] = Some(Outcome::SkippedCancelled);
            }
        }
        Ok(())
    }

    /// The letters that are selected; `None` for each that was named and is not there.
    fn selected(&self, selection: &Selection, now: Timestamp) -> Vec<Option<Letter>> {
        match selection {
            Selection::Query(query) => self.db.letters.scan(.., |_, doc| {
                doc.letter
                    .as_ref()
                    .filter(|letter| query.matches(letter, now))
                    .map(|letter| Some(letter.clone()))
            }),
            Selection::Letters(letters) => {
                let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
                letters.into_iter().map(|key| self.db.letters.get(key)?.value.letter).collect()
            }
        }
    }

    /// Forgets some plans that nobody can carry out any more.
    fn forget_plans(&self, now: Timestamp) -> Result<()> {
        let mut old = self.db.plans.scan(.., |id, doc| {
            let PlanDoc { plan, machine, .. } = &doc.value;
            let is_old = machine.is_none() && later(plan.expires_at, Plan::RETENTION) <= now;
            is_old.then_some((plan.expires_at, *id))
        });
        old.sort_unstable();
        for (_, id) in old.into_iter().take(Plan::DELETED_PER_FREEZE) {
            if let Some(stored) = self.db.plans.get(&id) {
                self.db.plans.delete_if_version(&id, stored.version)?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Operations for DocumentStore {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        self.catch_up()?;
        let now = self.clock.now();
        self.forget_plans(now)?;
        let selected = self.selected(&request.selection, now);
        let candidates = selected.iter().map(|letter| {
            let letter = letter.as_ref()?;
            Some(Candidate { letter, in_operation: self.is_in_earlier(letter.id, OperationId(u64::MAX)) })
        });
        let mut freeze = Freeze::new(request, candidates);
        if request.action == Action::Retry {
            freeze = freeze.without_gaps(|queue, sequence| {
                let doc = self.db.sequences.get(&(queue.clone(), sequence.clone())).unwrap_or_default();
                Arc::unwrap_or_clone(doc.value.value.letters).into_keys()
            });
        }
        if request.action != Action::Park {
            freeze = freeze.with_followers(|queue, sequence| {
                let doc = self.db.sequences.get(&(queue.clone(), sequence.clone())).unwrap_or_default();
                doc.value.value.letters.len() as u64
            });
        }
        let mut frozen = freeze.finish(PlanId(0), request, by, now)?;
        loop {
            // No number is given twice, also when the last plan was forgotten.
            let id = PlanId(self.db.connection.next_version());
            frozen.plan.id = id;
            let doc = PlanDoc {
                plan: frozen.plan.clone(),
                items: frozen.items.clone(),
                outcomes: vec![None; frozen.items.len()],
                machine: None,
                served_at: None,
            };
            if self.db.plans.put_if_version(&id, 0, Deciding { value: doc, left: Vec::new() })? {
                return Ok(frozen.plan);
            }
        }
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        Ok(self.db.plans.get(&id).map(|stored| stored.value.value.plan))
    }

    async fn drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        let now = self.clock.now();
        let drafts = self.db.plans.scan(..before.unwrap_or(PlanId(u64::MAX)), |_, stored| {
            let doc = &stored.value;
            (doc.machine.is_none() && !doc.plan.is_expired(now)).then(|| doc.plan.clone())
        });
        Ok(drafts.into_iter().rev().take(limit).collect())
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.catch_up()?;
        let Some(stored) = self.db.plans.get(&plan) else { return Ok(Vec::new()) };
        let PlanDoc { items, outcomes, .. } = stored.value.value;
        let items = (0..).zip(items.into_iter().zip(outcomes)).map(|(ordinal, (item, outcome))| Item {
            ordinal,
            queue: item.queue,
            sequence: item.sequence,
            letter: item.letter,
            digest: Some(item.digest),
            outcome,
        });
        Ok(items.filter(|item| item.ordinal >= from).take(limit).collect())
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        loop {
            let now = self.clock.now();
            let stored = self.finish(&self.db.plans, &plan)?;
            let carried_out = stored.as_ref().is_some_and(|stored| stored.value.machine.is_some());
            let frozen = stored.as_ref().map(|stored| &stored.value.plan);
            let id = OperationId(self.db.operations.last_key().map_or(1, |last| last.0 + 1));
            let machine = OperationMachine::begin_plan((plan, frozen), carried_out, id, rollout, by, now)?;
            let operation = machine.operation.clone();
            let Some(stored) = stored else { continue };
            // The name first: one without an operation means nothing, an operation without a name would be lost.
            if !self.db.operations.put_if_version(&id, 0, plan)? {
                continue;
            }
            let value = PlanDoc { machine: Some(machine), ..stored.value };
            let left = vec![self.audited(operation.audit(by, "begin", None), now)];
            if self.db.plans.put_if_version(&plan, stored.version, Deciding { value, left })? {
                self.finish(&self.db.plans, &plan).map_err(maybe_done)?;
                return Ok(operation);
            }
        }
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        self.catch_up()?;
        let ids = self.db.operations.scan(..before.unwrap_or(OperationId(u64::MAX)), |id, _| Some(*id));
        let mut operations = Vec::new();
        for id in ids.into_iter().rev() {
            let machine = self.plan_of(id)?.and_then(|doc| doc.value.machine);
            operations.extend(machine.map(|machine| machine.operation));
        }
        let more = operations.len() > limit.max(1);
        operations.truncate(limit.max(1));
        let next = operations.last().filter(|_| more).map(|last| last.id);
        Ok(OperationsPage { operations, next })
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        self.catch_up()?;
        let commanded = self.change_plan(id, |doc, now| {
            let mut machine = OperationMachine::found(doc.machine.clone(), id)?;
            let line = machine.command(command, by, now)?;
            doc.machine = Some(machine.clone());
            if machine.operation.state.is_over() {
                self.skip_untried(doc, |tried| {
                    machine.count(Outcome::SkippedCancelled, u64::from(!tried), now);
                    !tried
                })?;
                doc.machine = Some(machine.clone());
            }
            Ok((machine.operation, vec![self.audited(line, now)]))
        })?;
        commanded.map_or_else(|| OperationMachine::found(None, id).map(|machine| machine.operation), Ok)
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.poll(queue, owner, lease, limit)
    }
}
