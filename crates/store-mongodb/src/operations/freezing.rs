//! Freezing: which letters are in a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bson::{Bson, Document, doc};
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{Candidate, Freeze, later};
use lazaret_core::store::{
    Action, Actor, ErrorKind, Plan, PlanId, PlanRequest, Result, Selection, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::database::{decode, encode, list, project};
use crate::documents::letter::LetterDoc;
use crate::documents::plan::{ItemDoc, PlanDoc};
use crate::error::reading;
use crate::store::MongoStore;
use crate::values::{nanos, time};

/// How long the letters of a plan may take to be written.
pub(crate) const WRITTEN_WITHIN: Duration = Duration::from_secs(3600);

impl MongoStore {
    pub(crate) async fn freeze_plan(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        self.catch_up().await?;
        let now = self.now().await?;
        self.forget_plans(now).await?;
        let selected = self.selected(&request.selection, now).await?;
        let in_operation = self.in_operations().await?;
        let candidates = selected.iter().map(|letter| {
            let letter = letter.as_ref()?;
            Some(Candidate { letter, in_operation: in_operation.contains(&letter.id) })
        });
        let mut freeze = Freeze::new(request, candidates);
        let indexes = self.open_indexes(selected.iter().flatten()).await?;
        let of = |queue: &QueueName, sequence: &SequenceId| {
            indexes.get(&(queue.clone(), sequence.clone())).cloned().unwrap_or_default()
        };
        if request.action == Action::Retry {
            freeze = freeze.without_gaps(|queue, sequence| of(queue, sequence).into_iter());
        }
        if request.action != Action::Park {
            freeze = freeze.with_followers(|queue, sequence| of(queue, sequence).len() as u64);
        }
        // A plan that is refused uses up no number.
        let mut frozen = freeze.finish(PlanId(0), request, by, now)?;
        let id = PlanId(self.db().count_up("plans", 1).await?);
        frozen.plan.id = id;
        // Nobody finds it before its letters are written, and the letters that a crash leaves are deleted with it.
        let mut doc = PlanDoc::hidden(&frozen.plan, later(now, WRITTEN_WITHIN));
        self.put_plan(&mut doc).await?;
        let mut items = Vec::with_capacity(frozen.items.len());
        for (ordinal, item) in frozen.items.iter().enumerate() {
            items.push(encode(&ItemDoc::new(id, ordinal, item))?);
        }
        self.db().insert_all(&self.db().items, &items).await?;
        doc.show(&frozen.plan);
        if !self.put_plan(&mut doc).await? {
            let context = "the plan took too long to write, and was deleted: freeze it again";
            return Err(StoreError::not_done(ErrorKind::Unavailable, "freeze", context));
        }
        Ok(frozen.plan)
    }

    /// The letters that are selected; `None` for each that was named and is not there.
    async fn selected(&self, selection: &Selection, now: Timestamp) -> Result<Vec<Option<Letter>>> {
        let mut selected = Vec::new();
        match selection {
            Selection::Query(query) => {
                let mut filter = doc! { "lazaret.number": { "$ne": null } };
                if query.is_about_open() {
                    filter.insert("lazaret.open", true);
                }
                let _turn = self.db().turn_to_search().await?;
                let found = self.db().letters.rows(|letters| async move { letters.find(filter).await });
                let mut found = found.await.map_err(reading)?;
                while let Some(document) = found.next().await.map_err(reading)? {
                    let held = self.hydrate(decode::<LetterDoc>(document)?).await?;
                    let letter = held.map(|held| held.letter).filter(|letter| query.matches(letter, now));
                    selected.extend(letter.map(Some));
                }
            }
            Selection::Letters(letters) => {
                let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
                for (queue, id) in letters {
                    let held = match self.letter_doc(queue, *id).await? {
                        Some(doc) => self.hydrate(doc).await?,
                        None => None,
                    };
                    selected.push(held.map(|held| held.letter));
                }
            }
        }
        Ok(selected)
    }

    /// The letters that operations which are not over have still before them.
    async fn in_operations(&self) -> Result<BTreeSet<LetterId>> {
        let none = Document::new;
        let live: Vec<PlanDoc> = project(&self.db().plans, doc! { "live": true }, none(), none()).await?;
        if live.is_empty() {
            return Ok(BTreeSet::new());
        }
        let plans: Vec<Bson> = live.iter().map(|doc| Bson::Int64(doc.id)).collect();
        let filter = doc! { "plan": { "$in": plans }, "outcome": null };
        let items: Vec<ItemDoc> = project(&self.db().items, filter, none(), none()).await?;
        Ok(items.into_iter().map(|item| item.letter).collect())
    }

    /// The indexes of the open letters of the sequences of these letters, in order.
    async fn open_indexes(
        &self,
        letters: impl Iterator<Item = &Letter>,
    ) -> Result<BTreeMap<(QueueName, SequenceId), Vec<u64>>> {
        let sequences: BTreeSet<_> =
            letters.map(|letter| (letter.queue.clone(), letter.sequence.clone())).collect();
        let mut indexes = BTreeMap::new();
        for (queue, sequence) in sequences {
            let places = self.places(&queue, &sequence).await?;
            indexes.insert((queue, sequence), places.iter().map(|place| place.index()).collect());
        }
        Ok(indexes)
    }

    /// Deletes some plans that nobody can carry out any more. A plan is hidden first, and deleted last: what a crash leaves is found again.
    async fn forget_plans(&self, now: Timestamp) -> Result<()> {
        let filter = doc! { "operation": null, "expiresAt": { "$lte": nanos(now) } };
        let sort = doc! { "expiresAt": 1 };
        let old: Vec<PlanDoc> = list(&self.db().plans, filter, sort, Plan::DELETED_PER_FREEZE).await?;
        for mut doc in old {
            if later(time(doc.expires_at), Plan::RETENTION) > now {
                break;
            }
            doc.hide();
            if self.put_plan(&mut doc).await? {
                self.db().delete(&self.db().items, doc! { "plan": doc.id }).await?;
                self.db().delete(&self.db().plans, doc! { "_id": doc.id, "version": doc.version }).await?;
            }
        }
        Ok(())
    }
}
