//! Plans under way: their documents, the outcomes of their letters, and what sequences ask about them.

use bson::{Bson, Document, doc};
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AuditLine, ItemView, Pace, Pending};
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, OperationMachine, OperationsPage, Outcome, PayloadDigest,
    Plan, PlanId, Result, RolloutPolicy,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::{Guarded, count, find_one, first, get, list, project};
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::letter::Held;
use crate::documents::plan::{ItemDoc, PlanDoc};
use crate::error::maybe_done;
use crate::store::MongoStore;
use crate::values::{int, nanos, time, uint};

/// What a call decides about an operation: its machine, and what is left to do then.
pub(crate) struct PlanView {
    doc: PlanDoc,
    pub(crate) machine: OperationMachine,
    pub(crate) now: Timestamp,
    /// Letters that get an outcome by this call.
    written: Vec<Left>,
    lines: Vec<AuditLine>,
}

impl PlanView {
    pub(crate) const fn plan(&self) -> i64 {
        self.doc.id
    }

    /// The filter for letters without an outcome, in this range, except those of this call.
    fn pending_filter(&self, from: i64, to: i64) -> Document {
        let mut all =
            vec![doc! { "plan": self.doc.id, "outcome": null, "ordinal": { "$gte": from, "$lte": to } }];
        for left in &self.written {
            if let Left::Items { from, to, except, .. } = left {
                let outside = doc! { "ordinal": { "$not": { "$gte": from, "$lte": to } } };
                all.push(doc! { "$or": [outside, doc! { "letter": { "$in": except } }] });
            }
        }
        doc! { "$and": all }
    }
}

impl MongoStore {
    /// The plan of an operation, in which nothing is left to do.
    pub(crate) async fn plan_of(&self, id: OperationId) -> Result<Option<PlanDoc>> {
        loop {
            let filter = doc! { "operation.id": int(id.0) };
            let doc: Option<PlanDoc> = first(&self.db().plans, filter, Document::new()).await?;
            match doc {
                Some(doc) if doc.unfinished => self.carry_out_plan(doc).await?,
                doc => return Ok(doc),
            }
        }
    }

    async fn finished_plan(&self, id: PlanId) -> Result<Option<PlanDoc>> {
        loop {
            match get::<PlanDoc>(&self.db().plans, Bson::Int64(int(id.0))).await? {
                Some(doc) if doc.unfinished => self.carry_out_plan(doc).await?,
                doc => return Ok(doc.filter(|doc| !doc.is_hidden())),
            }
        }
    }

    /// Does what is left to do in a plan, and takes it out.
    async fn carry_out_plan(&self, mut doc: PlanDoc) -> Result<()> {
        for (place, left) in std::mem::take(&mut doc.left).into_iter().enumerate() {
            match left {
                Left::Items { from, to, except, outcome } => {
                    let filter = doc! {
                        "plan": doc.id,
                        "outcome": null,
                        "ordinal": { "$gte": from, "$lte": to },
                        "letter": { "$nin": except },
                    };
                    let update = doc! { "$set": { "outcome": outcome.as_str() } };
                    self.db().update(&self.db().items, filter, update).await?;
                }
                Left::Audit(line) => {
                    self.append_line(&format!("plan {}#{}#{place}", doc.id, doc.version), line).await?;
                }
                // Only sequences have these.
                _ => {}
            }
        }
        doc.unfinished = false;
        self.put_plan(&mut doc).await.map(drop)
    }

    pub(crate) async fn finish_plans(&self) -> Result<()> {
        let none = Document::new;
        let docs: Vec<PlanDoc> =
            project(&self.db().plans, doc! { "unfinished": true }, none(), none()).await?;
        for doc in docs {
            self.carry_out_plan(doc).await?;
        }
        Ok(())
    }

    pub(crate) async fn put_plan(&self, doc: &mut PlanDoc) -> Result<bool> {
        let version = doc.version;
        doc.version += 1;
        let write = Guarded::new(doc.id, version, doc)?;
        self.db().put(&self.db().plans, write).await
    }

    /// Loads the plan of an operation, to decide about it.
    pub(crate) async fn load_plan(&self, id: OperationId) -> Result<Option<PlanView>> {
        let Some(doc) = self.plan_of(id).await? else { return Ok(None) };
        let Some(machine) = doc.machine() else { return Ok(None) };
        let now = self.now().await?;
        Ok(Some(PlanView { doc, machine, now, written: Vec::new(), lines: Vec::new() }))
    }

    /// Writes the decision about a plan. `false` if another call came between.
    pub(crate) async fn commit_plan(&self, view: PlanView) -> Result<bool> {
        let PlanView { mut doc, machine, now, written, lines } = view;
        doc.set_machine(&machine);
        doc.left = written;
        doc.left.extend(lines.into_iter().map(|line| Left::audit(line, now)));
        doc.unfinished = !doc.left.is_empty();
        if !self.put_plan(&mut doc).await? {
            return Ok(false);
        }
        if doc.unfinished {
            self.carry_out_plan(doc).await.map_err(maybe_done)?;
        }
        Ok(true)
    }

    /// Records when an operation was served.
    pub(crate) async fn serve_plan(&self, id: OperationId, now: Timestamp) -> Result<()> {
        while let Some(mut view) = self.load_plan(id).await? {
            view.doc.served_at = Some(nanos(now));
            if self.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Gives letters that have no outcome one, and counts them.
    pub(crate) async fn write_items(
        &self,
        view: &mut PlanView,
        ordinals: std::ops::RangeInclusive<u64>,
        except: Vec<LetterId>,
        outcome: Outcome,
        now: Timestamp,
    ) -> Result<u64> {
        let (from, to) = (int(*ordinals.start()), int(*ordinals.end()));
        let except: Vec<String> = except.iter().map(ToString::to_string).collect();
        let filter = doc! { "$and": [view.pending_filter(from, to), doc! { "letter": { "$nin": &except } }] };
        let letters = count(&self.db().items, filter, None).await?;
        if letters > 0 {
            view.written.push(Left::Items { from, to, except, outcome });
            view.machine.count(outcome, letters, now);
        }
        Ok(letters)
    }

    /// Moves an operation on as far as it goes.
    pub(crate) async fn advance(&self, view: &mut PlanView, now: Timestamp) -> Result<()> {
        let filter = view.pending_filter(0, i64::MAX);
        let pending: Option<ItemDoc> = first(&self.db().items, filter, doc! { "ordinal": 1 }).await?;
        view.lines.extend(view.machine.advance(pending.map(|item| uint(item.ordinal)), now));
        Ok(())
    }

    /// The next letter of a queue without an outcome, from this ordinal on, with its sequence.
    pub(crate) async fn next_pending(
        &self,
        plan: i64,
        queue: &QueueName,
        from: u64,
    ) -> Result<Option<(Pending, SequenceId)>> {
        let filter =
            doc! { "plan": plan, "queue": queue.as_str(), "outcome": null, "ordinal": { "$gte": int(from) } };
        let item: Option<ItemDoc> = first(&self.db().items, filter, doc! { "ordinal": 1 }).await?;
        item.map(|item| Ok((item.pending()?, item.sequence))).transpose()
    }

    pub(super) async fn pending_letter(&self, plan: i64, letter: LetterId) -> Result<Option<Pending>> {
        let filter = doc! { "plan": plan, "letter": letter.to_string(), "outcome": null };
        let item: Option<ItemDoc> = first(&self.db().items, filter, Document::new()).await?;
        item.map(|item| item.pending()).transpose()
    }

    /// Records the outcome of a letter, and of those behind it. A letter that has its outcome keeps it.
    pub(crate) async fn write_outcome(&self, outcome: &OutcomeDoc) -> Result<()> {
        let at = time(outcome.at);
        while let Some(mut view) = self.load_plan(outcome.operation()).await? {
            let Some(item) = self.pending_letter(view.plan(), outcome.letter).await? else { return Ok(()) };
            for (ordinals, outcome) in rules::item_outcomes(&item, outcome.outcome).outcomes {
                self.write_items(&mut view, ordinals, Vec::new(), outcome, at).await?;
            }
            view.machine.spend(u64::from(outcome.spend), at);
            view.machine.pace_released(outcome.released(), at);
            self.advance(&mut view, at).await?;
            if self.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Whether an operation goes on with the letters behind this one.
    pub(crate) async fn continues(
        &self,
        id: OperationId,
        letter: LetterId,
        outcome: Outcome,
    ) -> Result<bool> {
        let Some(doc) = self.plan_of(id).await?.filter(|doc| doc.live) else { return Ok(false) };
        let item = self.pending_letter(doc.id, letter).await?;
        Ok(item.is_some_and(|item| rules::item_outcomes(&item, outcome).continues))
    }

    /// The pace of letters that an operation lets run automatically. The outcome that is left behind deducts them from its rate.
    pub(crate) async fn pace(&self, id: OperationId, letters: u64, now: Timestamp) -> Result<Option<Pace>> {
        let machine = self.plan_of(id).await?.and_then(|doc| doc.machine());
        Ok(machine.and_then(|mut machine| machine.pace_released(letters, now)))
    }

    pub(crate) async fn is_over(&self, id: OperationId) -> Result<bool> {
        Ok(!self.plan_of(id).await?.is_some_and(|doc| doc.live))
    }

    /// Whether an operation still keeps a sequence for itself: as long as it has letters of it before it.
    pub(crate) async fn keeps(
        &self,
        id: OperationId,
        queue: &QueueName,
        sequence: &SequenceId,
    ) -> Result<bool> {
        let filter = doc! { "operation.id": int(id.0) };
        let doc: Option<PlanDoc> = first(&self.db().plans, filter, Document::new()).await?;
        let Some(doc) = doc.filter(|doc| doc.live) else { return Ok(false) };
        let filter = doc! {
            "plan": doc.id, "queue": queue.as_str(), "sequence": sequence.as_str(), "outcome": null,
        };
        Ok(find_one(&self.db().items, filter, doc! { "_id": 1 }).await?.is_some())
    }

    /// Whether an operation that was begun before this one, and is not over, has this letter still before it.
    pub(super) async fn is_in_earlier(&self, letter: LetterId, id: OperationId) -> Result<bool> {
        let filter = doc! { "letter": letter.to_string(), "outcome": null };
        let items: Vec<ItemDoc> = project(&self.db().items, filter, Document::new(), Document::new()).await?;
        let plans: Vec<Bson> = items.iter().map(|item| Bson::Int64(item.plan)).collect();
        if plans.is_empty() {
            return Ok(false);
        }
        let filter = doc! { "_id": { "$in": plans }, "live": true, "operation.id": { "$lt": int(id.0) } };
        Ok(find_one(&self.db().plans, filter, doc! { "_id": 1 }).await?.is_some())
    }

    /// A letter of an operation as the rules see it: `ask` them.
    pub(crate) async fn ask<T>(
        &self,
        view: &View,
        letter: Option<&Held>,
        operation: OperationId,
        ask: impl FnOnce(&ItemView<'_>) -> T,
    ) -> Result<T> {
        let letter = letter.map(|held| &held.letter);
        let in_earlier = match letter {
            Some(letter) => self.is_in_earlier(letter.id, operation).await?,
            None => false,
        };
        let digest = PayloadDigest::of(letter.and_then(|letter| letter.message.payload.as_deref()));
        Ok(ask(&ItemView { letter, digest, row: view.row.as_ref(), in_earlier, now: view.now }))
    }

    /// The letters that are being tried for an operation.
    pub(crate) async fn tried(&self, operation: &Operation) -> Result<Vec<LetterId>> {
        let mut tried = Vec::new();
        for mut view in self.leased_for(operation.id).await? {
            let Some(held) = self.first_open(&mut view, 1).await?.into_iter().next() else { continue };
            let is_tried = |item: &ItemView<'_>| rules::is_tried(operation, item);
            if self.ask(&view, Some(&held), operation.id, is_tried).await? {
                tried.push(held.letter.id);
            }
        }
        Ok(tried)
    }

    pub(crate) async fn list_items(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.catch_up().await?;
        // The letters of a plan are written before it is visible.
        if self.plan_by_id(plan).await?.is_none() {
            return Ok(Vec::new());
        }
        let filter = doc! { "plan": int(plan.0), "ordinal": { "$gte": int(from) } };
        let items: Vec<ItemDoc> = list(&self.db().items, filter, doc! { "ordinal": 1 }, limit).await?;
        items.iter().map(ItemDoc::to_item).collect()
    }

    pub(crate) async fn plan_by_id(&self, id: PlanId) -> Result<Option<Plan>> {
        let doc: Option<PlanDoc> = get(&self.db().plans, Bson::Int64(int(id.0))).await?;
        Ok(doc.filter(|doc| !doc.is_hidden()).map(|doc| doc.plan()))
    }

    pub(crate) async fn list_drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let now = self.now().await?;
        let before = before.map_or(i64::MAX, |before| int(before.0));
        let filter = doc! {
            "operation": null, "expiresAt": { "$gt": nanos(now) }, "_id": { "$lt": before }, "hash": { "$ne": "" },
        };
        let docs: Vec<PlanDoc> = list(&self.db().plans, filter, doc! { "_id": -1 }, limit).await?;
        Ok(docs.iter().map(PlanDoc::plan).collect())
    }

    pub(crate) async fn begin_plan(
        &self,
        plan: PlanId,
        rollout: &RolloutPolicy,
        by: &Actor,
    ) -> Result<Operation> {
        loop {
            let doc = self.finished_plan(plan).await?;
            let now = self.now().await?;
            let carried_out = doc.as_ref().is_some_and(|doc| doc.operation.is_some());
            let frozen = doc.as_ref().map(PlanDoc::plan);
            let begin =
                |id| OperationMachine::begin_plan((plan, frozen.as_ref()), carried_out, id, rollout, by, now);
            // A refusal uses up no number.
            begin(OperationId(0))?;
            let Some(mut doc) = doc else { continue };
            let machine = begin(OperationId(self.db().count_up("operations", 1).await?))?;
            doc.set_machine(&machine);
            doc.left = vec![Left::audit(machine.operation.audit(by, "begin", None), now)];
            doc.unfinished = true;
            if self.put_plan(&mut doc).await? {
                self.carry_out_plan(doc).await.map_err(maybe_done)?;
                return Ok(machine.operation);
            }
        }
    }

    pub(crate) async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: usize,
    ) -> Result<OperationsPage> {
        self.catch_up().await?;
        let limit = limit.max(1);
        let before = before.map_or(i64::MAX, |before| int(before.0));
        let filter = doc! { "operation.id": { "$lt": before } };
        let docs: Vec<PlanDoc> =
            list(&self.db().plans, filter, doc! { "operation.id": -1 }, limit + 1).await?;
        let mut operations: Vec<Operation> =
            docs.iter().filter_map(PlanDoc::machine).map(|machine| machine.operation).collect();
        let more = operations.len() > limit;
        operations.truncate(limit);
        let next = operations.last().filter(|_| more).map(|last| last.id);
        Ok(OperationsPage { operations, next })
    }

    pub(crate) async fn list_under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        self.catch_up().await?;
        if limit == 0 {
            return Ok(Vec::new());
        }
        let docs: Vec<PlanDoc> =
            list(&self.db().plans, doc! { "live": true }, doc! { "operation.id": -1 }, limit).await?;
        Ok(docs.iter().filter_map(PlanDoc::machine).map(|machine| machine.operation).collect())
    }

    pub(crate) async fn command_operation(
        &self,
        id: OperationId,
        command: Command,
        by: &Actor,
    ) -> Result<Operation> {
        self.catch_up().await?;
        loop {
            let Some(mut view) = self.load_plan(id).await? else {
                return OperationMachine::found(None, id).map(|machine| machine.operation);
            };
            let now = view.now;
            let line = view.machine.command(command, by, now)?;
            view.lines.push(line);
            if view.machine.operation.state.is_over() {
                // All but those that are being tried.
                let tried = self.tried(&view.machine.operation).await?;
                self.write_items(&mut view, 0..=u64::MAX, tried, Outcome::SkippedCancelled, now).await?;
            }
            let operation = view.machine.operation.clone();
            if self.commit_plan(view).await? {
                return Ok(operation);
            }
        }
    }
}
