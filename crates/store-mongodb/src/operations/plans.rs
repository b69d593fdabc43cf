//! Plans under way: their documents, the outcomes of their letters, and what sequences ask about them.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use futures_util::future;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AuditLine, ItemView, Pending};
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, OperationMachine, OperationsPage, Outcome, PayloadDigest,
    Plan, PlanId, Result, RolloutPolicy,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::{Guarded, IDS, count, encode, find_one, first, get, list, project};
use crate::documents::left::Left;
use crate::documents::letter::Held;
use crate::documents::plan::{ItemDoc, PlanDoc};
use crate::error::{corrupt, maybe_done, reading};
use crate::store::MongoStore;
use crate::values::{int, nanos, uint};

/// What a call decides about an operation: its machine, and what is left to do then.
pub(crate) struct PlanView {
    doc: PlanDoc,
    pub(crate) machine: OperationMachine,
    pub(crate) now: Timestamp,
    /// Ranges of letters that get an outcome by this call.
    written: Vec<Left>,
    /// Single letters that get one, by their ordinals.
    outcomes: Vec<(i64, Outcome)>,
    lines: Vec<AuditLine>,
}

impl PlanView {
    /// The view of a plan in which nothing is left to do; `None` without an operation.
    pub(crate) fn new(doc: PlanDoc, now: Timestamp) -> Option<Self> {
        let machine = doc.machine()?;
        Some(Self { doc, machine, now, written: Vec::new(), outcomes: Vec::new(), lines: Vec::new() })
    }

    pub(crate) const fn plan(&self) -> i64 {
        self.doc.id
    }

    /// Gives a letter that has no outcome one, and counts it.
    pub(crate) fn write_item(&mut self, ordinal: u64, outcome: Outcome, at: Timestamp) {
        self.outcomes.push((int(ordinal), outcome));
        self.machine.count(outcome, 1, at);
    }

    /// Whether this call gives a letter an outcome.
    pub(crate) fn has_outcome(&self, ordinal: u64) -> bool {
        let ordinal = int(ordinal);
        let is_within =
            |left: &Left| matches!(left, Left::Items { from, to, .. } if (*from..=*to).contains(&ordinal));
        self.outcomes.iter().any(|(of, _)| *of == ordinal) || self.written.iter().any(is_within)
    }

    /// Whether the stage of the operation has letters without an outcome, as far as the counters tell. Then it does not matter which is the
    /// first of them.
    fn is_within_stage(&self) -> bool {
        let operation = &self.machine.operation;
        let counted = operation.letters.saturating_sub(self.machine.pending());
        counted < operation.rollout.allowance(operation.stage, operation.letters)
    }

    /// The filter for letters without an outcome, in this range, except those of this call.
    fn pending_filter(&self, from: i64, to: i64) -> Document {
        let mut all =
            vec![doc! { "plan": self.doc.id, "outcome": null, "ordinal": { "$gte": from, "$lte": to } }];
        if !self.outcomes.is_empty() {
            let ordinals: Vec<i64> = self.outcomes.iter().map(|(ordinal, _)| *ordinal).collect();
            all.push(doc! { "ordinal": { "$nin": ordinals } });
        }
        for left in &self.written {
            if let Left::Items { from, to, except, .. } = left {
                let outside = doc! { "ordinal": { "$not": { "$gte": from, "$lte": to } } };
                all.push(doc! { "$or": [outside, doc! { "letter": { "$in": except } }] });
            }
        }
        doc! { "$and": all }
    }
}

/// The name of a plan among the documents with decisions under way. Ids of sequences begin with a number and a colon.
fn under_way_key(plan: i64) -> String {
    format!("plan {plan}")
}

impl MongoStore {
    /// The plan of an operation, in which nothing is left to do.
    pub(crate) async fn plan_of(&self, id: OperationId) -> Result<Option<PlanDoc>> {
        loop {
            let filter = doc! { "operation.id": int(id.0) };
            let doc: Option<PlanDoc> = first(&self.db().plans, filter, Document::new()).await?;
            match doc {
                Some(doc) if doc.unfinished => self.carry_out_left_of(doc).await?,
                doc => return Ok(doc),
            }
        }
    }

    async fn finished_plan(&self, id: PlanId) -> Result<Option<PlanDoc>> {
        loop {
            match get::<PlanDoc>(&self.db().plans, Bson::Int64(int(id.0))).await? {
                Some(doc) if doc.unfinished => self.carry_out_left_of(doc).await?,
                doc => return Ok(doc.filter(|doc| !doc.is_hidden())),
            }
        }
    }

    /// Does what others have left to do in a plan, or waits until they have done it: those of this process are at it.
    async fn carry_out_left_of(&self, doc: PlanDoc) -> Result<()> {
        if self.under_way().wait_for(&[&under_way_key(doc.id)]).await {
            return Ok(());
        }
        self.carry_out_plan(doc).await
    }

    /// Does what is left to do in a plan, and takes it out.
    async fn carry_out_plan(&self, mut doc: PlanDoc) -> Result<()> {
        let mut lines = Vec::new();
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
                Left::Outcomes(outcomes) => self.write_ordinals(doc.id, &outcomes).await?,
                Left::Audit(line) => lines.push((format!("plan {}#{}#{place}", doc.id, doc.version), line)),
                // Only sequences have these.
                _ => {}
            }
        }
        self.append_lines(lines).await?;
        doc.unfinished = false;
        self.put_plan(&mut doc).await.map(drop)
    }

    /// Writes the outcomes of letters that have none, with one statement for each outcome and some letters. Each names the plan, which is the
    /// shard key: a statement for several shards can miss a document that moves.
    async fn write_ordinals(&self, plan: i64, outcomes: &[(i64, Outcome)]) -> Result<()> {
        let mut updates = Vec::new();
        for outcome in Outcome::ALL {
            let of_outcome = outcomes.iter().filter(|(_, of)| *of == outcome);
            let ordinals: Vec<i64> = of_outcome.map(|(ordinal, _)| *ordinal).collect();
            for ordinals in ordinals.chunks(IDS) {
                let filter = doc! { "plan": plan, "outcome": null, "ordinal": { "$in": ordinals } };
                let update = doc! { "$set": { "outcome": outcome.as_str() } };
                updates.push(rawdoc! { "q": encode(&filter)?, "u": encode(&update)?, "multi": true });
            }
        }
        self.db().update_all(&self.db().items, &updates).await.map(drop)
    }

    pub(crate) async fn finish_plans(&self) -> Result<()> {
        let none = Document::new;
        let docs: Vec<PlanDoc> =
            project(&self.db().plans, doc! { "unfinished": true }, none(), none()).await?;
        for doc in docs {
            self.carry_out_left_of(doc).await?;
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
        Ok(PlanView::new(doc, self.now().await?))
    }

    /// Writes the decision about a plan. `false` if another call came between.
    pub(crate) async fn commit_plan(&self, view: PlanView) -> Result<bool> {
        let PlanView { mut doc, machine, now, written, outcomes, lines } = view;
        doc.set_machine(&machine);
        doc.left = written;
        if !outcomes.is_empty() {
            doc.left.push(Left::Outcomes(outcomes));
        }
        doc.left.extend(lines.into_iter().map(|line| Left::audit(line, now)));
        doc.unfinished = !doc.left.is_empty();
        let under_way = self.under_way().begin(vec![under_way_key(doc.id)]);
        if !self.put_plan(&mut doc).await? {
            return Ok(false);
        }
        if doc.unfinished {
            self.carry_out_plan(doc).await.map_err(maybe_done)?;
        }
        drop(under_way);
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
        let pending = if view.is_within_stage() {
            Some(0)
        } else {
            let filter = view.pending_filter(0, i64::MAX);
            let pending: Option<ItemDoc> = first(&self.db().items, filter, doc! { "ordinal": 1 }).await?;
            pending.map(|item| uint(item.ordinal))
        };
        view.lines.extend(view.machine.advance(pending, now));
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

    /// The next letters of a queue without an outcome, from this ordinal on, with their sequences.
    pub(super) async fn pending_page(
        &self,
        plan: i64,
        queue: &QueueName,
        from: u64,
        limit: usize,
    ) -> Result<Vec<(Pending, SequenceId)>> {
        let filter =
            doc! { "plan": plan, "queue": queue.as_str(), "outcome": null, "ordinal": { "$gte": int(from) } };
        let items: Vec<ItemDoc> = list(&self.db().items, filter, doc! { "ordinal": 1 }, limit).await?;
        items.into_iter().map(|item| Ok((item.pending()?, item.sequence))).collect()
    }

    /// Those of these letters that have no outcome in a plan.
    pub(super) async fn pending_letters(
        &self,
        plan: i64,
        letters: &[LetterId],
    ) -> Result<BTreeMap<LetterId, Pending>> {
        let items = self.pending_items(letters).await?;
        let of_plan = items.into_iter().filter(|item| item.plan == plan);
        of_plan.map(|item| Ok((item.letter, item.pending()?))).collect()
    }

    /// These letters in all plans in which they have no outcome.
    pub(super) async fn pending_items(&self, letters: &[LetterId]) -> Result<Vec<ItemDoc>> {
        let reads = letters.chunks(IDS).map(|letters| {
            let letters: Vec<String> = letters.iter().map(ToString::to_string).collect();
            let filter = doc! { "letter": { "$in": letters }, "outcome": null };
            project(&self.db().items, filter, Document::new(), Document::new())
        });
        let found: Vec<Vec<ItemDoc>> = future::try_join_all(reads).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Removes what tells the payload of a letter that is erased from the plans that have it.
    pub(crate) async fn erase_digests(&self, letter: LetterId) -> Result<()> {
        let of_letter = doc! { "letter": letter.to_string() };
        let items: Vec<ItemDoc> =
            project(&self.db().items, of_letter, Document::new(), Document::new()).await?;
        for ItemDoc { plan, ordinal, .. } in items {
            let none = doc! { "$set": { "digest": PayloadDigest::of(None).to_string() } };
            let filter = doc! { "plan": plan, "ordinal": ordinal };
            self.db().update(&self.db().items, filter, none).await?;
            while let Some(mut doc) = self.finished_plan(PlanId(uint(plan))).await? {
                if !doc.erase_hash() || self.put_plan(&mut doc).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn is_over(&self, id: OperationId) -> Result<bool> {
        Ok(!self.plan_of(id).await?.is_some_and(|doc| doc.live))
    }

    /// Which of these sequences of a queue their operations still keep for themselves: as long as they have letters of them before them.
    pub(crate) async fn kept(
        &self,
        queue: &QueueName,
        reserved: BTreeMap<OperationId, Vec<&SequenceId>>,
    ) -> Result<BTreeSet<SequenceId>> {
        let mut kept = BTreeSet::new();
        for (id, sequences) in reserved {
            let filter = doc! { "operation.id": int(id.0), "live": true };
            let Some(found) = find_one(&self.db().plans, filter, doc! { "_id": 1 }).await? else { continue };
            let plan = found.get_i64("_id").map_err(|error| corrupt(error.to_string()))?;
            for sequences in sequences.chunks(IDS) {
                let names: Vec<&str> = sequences.iter().map(|sequence| sequence.as_str()).collect();
                let filter = doc! {
                    "plan": plan, "queue": queue.as_str(), "sequence": { "$in": names }, "outcome": null,
                };
                let found =
                    self.db().items.call(|items| async move { items.distinct("sequence", filter).await });
                let found = found.await.map_err(reading)?;
                kept.extend(found.iter().filter_map(Bson::as_str).map(SequenceId::from));
            }
        }
        Ok(kept)
    }

    /// Whether an operation still keeps a sequence for itself.
    pub(crate) async fn keeps(
        &self,
        id: OperationId,
        queue: &QueueName,
        sequence: &SequenceId,
    ) -> Result<bool> {
        let kept = self.kept(queue, BTreeMap::from([(id, vec![sequence])])).await?;
        Ok(!kept.is_empty())
    }

    /// Which of these letters, in all plans in which they have no outcome, operations that were begun before this one have still before
    /// them.
    pub(super) async fn in_earlier(&self, items: &[ItemDoc], id: OperationId) -> Result<BTreeSet<LetterId>> {
        let plans: BTreeSet<i64> = items.iter().map(|item| item.plan).collect();
        if plans.is_empty() {
            return Ok(BTreeSet::new());
        }
        let plans: Vec<i64> = plans.into_iter().collect();
        let filter = doc! { "_id": { "$in": plans }, "live": true, "operation.id": { "$lt": int(id.0) } };
        let found: Vec<RawDocumentBuf> =
            project(&self.db().plans, filter, doc! { "_id": 1 }, Document::new()).await?;
        let earlier: BTreeSet<i64> = found.iter().filter_map(|plan| plan.get_i64("_id").ok()).collect();
        Ok(items.iter().filter(|item| earlier.contains(&item.plan)).map(|item| item.letter).collect())
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
            Some(letter) => {
                let items = self.pending_items(&[letter.id]).await?;
                !self.in_earlier(&items, operation).await?.is_empty()
            }
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
            let operation = view.machine.operation.clone();
            if self.commit_plan(view).await? {
                return match operation.state.is_over() {
                    true => Ok(self.skip_rest(&operation).await.map_err(maybe_done)?.0),
                    false => Ok(operation),
                };
            }
        }
    }

    /// Skips the letters of an operation that a person has ended, except those that are being tried. Returns the operation, and these
    /// letters.
    ///
    /// The order matters. Nobody leases a letter for the operation any more without looking at it again, so a letter that has no lease
    /// now was settled before, or is not tried. The outcomes of settlements that came before are written next, and the plan is read
    /// after them.
    pub(super) async fn skip_rest(&self, ended: &Operation) -> Result<(Operation, Vec<LetterId>)> {
        loop {
            let tried = self.tried(ended).await?;
            self.catch_up().await?;
            let Some(mut view) = self.load_plan(ended.id).await? else { return Ok((ended.clone(), tried)) };
            let now = view.now;
            self.write_items(&mut view, 0..=u64::MAX, tried.clone(), Outcome::SkippedCancelled, now).await?;
            let operation = view.machine.operation.clone();
            if view.written.is_empty() || self.commit_plan(view).await? {
                return Ok((operation, tried));
            }
        }
    }
}
