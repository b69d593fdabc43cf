//! Freezing: which letters are in a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{self, Candidate, Freeze, later};
use lazaret_core::store::{
    Action, Actor, ErrorKind, PayloadDigest, Plan, PlanId, PlanRequest, Result, Selection, StoreError,
};
use lazaret_core::{Message, Position, QueueName, SequenceId, Timestamp};
use serde::Deserialize;

use crate::database::{IDS, by_ids, decode, encode, list, project};
use crate::documents::letter::LetterDoc;
use crate::documents::plan::{ItemDoc, PlanDoc};
use crate::error::reading;
use crate::search::whole;
use crate::store::MongoStore;
use crate::values::{nanos, time, uint};

/// How long the letters of a plan may take to be written.
pub(crate) const WRITTEN_WITHIN: Duration = Duration::from_secs(3600);

/// Number of letters of a plan that are written at once.
const PAGE: usize = 1000;
/// Number of named letters that are read at once. Each may have two parts of 1 MiB in its document.
const AT_ONCE: usize = 16;

/// The indexes of open letters, in order, by queue and sequence.
type OpenIndexes = BTreeMap<QueueName, BTreeMap<SequenceId, Vec<u64>>>;

/// What letters of a plan have in the place of their messages while it is frozen.
static NO_MESSAGE: LazyLock<Arc<Message>> =
    LazyLock::new(|| Arc::new(Message::new("", "", Position::new(0, 0))));

/// The letters that are selected, without what a plan does not need: `None` for each that was named and is not there.
#[derive(Default)]
struct Selected {
    letters: Vec<Option<Letter>>,
    /// The digests of the payloads of those that are not excluded by themselves.
    digests: BTreeMap<LetterId, PayloadDigest>,
}

/// A letter without its content (I7): a plan needs where it stands, and its state.
fn reduced(letter: Letter) -> Letter {
    let Letter { id, queue, sequence, index, state, enqueued_at, payload_left_out, .. } = letter;
    let message = NO_MESSAGE.clone();
    Letter { id, index, state, payload_left_out, ..Letter::new(queue, sequence, message, enqueued_at) }
}

impl MongoStore {
    pub(crate) async fn freeze_plan(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        self.catch_up().await?;
        let now = self.now().await?;
        self.forget_plans(now).await?;
        let in_operation = self.in_operations().await?;
        let Selected { letters, digests } = self.selected(request, &in_operation, now).await?;
        let candidates = letters.iter().map(|letter| {
            let letter = letter.as_ref()?;
            Some(Candidate { letter, in_operation: in_operation.contains(&letter.id) })
        });
        let mut freeze = Freeze::new(request, candidates);
        let included = letters.iter().flatten().filter(|letter| digests.contains_key(&letter.id));
        let indexes = self.open_indexes(included).await?;
        let of = |queue: &QueueName, sequence: &SequenceId| {
            let of_queue = indexes.get(queue).and_then(|sequences| sequences.get(sequence));
            of_queue.map(Vec::as_slice).unwrap_or_default()
        };
        if request.action == Action::Retry {
            freeze = freeze.without_gaps(|queue, sequence| of(queue, sequence).iter().copied());
        }
        if request.action != Action::Park {
            freeze = freeze.with_followers(|queue, sequence| of(queue, sequence).len() as u64);
        }
        let digest = |letter: &Letter| digests.get(&letter.id).copied().unwrap_or(PayloadDigest::of(None));
        // A plan that is refused uses up no number.
        let mut frozen = freeze.finish_with(PlanId(0), request, by, digest, now)?;
        let id = PlanId(self.db().count_up("plans", 1).await?);
        frozen.plan.id = id;
        // Nobody finds it before its letters are written, and the letters that a crash leaves are deleted with it.
        let mut doc = PlanDoc::hidden(&frozen.plan, later(now, WRITTEN_WITHIN));
        self.put_plan(&mut doc).await?;
        let mut ordinals = 0..;
        for page in frozen.items.chunks(PAGE) {
            let items = page.iter().zip(ordinals.by_ref());
            let items = items.map(|(item, ordinal)| encode(&ItemDoc::new(id, ordinal, item)));
            let items = items.collect::<Result<Vec<RawDocumentBuf>>>()?;
            self.db().insert_all(&self.db().items, &items).await?;
        }
        doc.show(&frozen.plan);
        if !self.put_plan(&mut doc).await? {
            let context = "the plan took too long to write, and was deleted: freeze it again";
            return Err(StoreError::not_done(ErrorKind::Unavailable, "freeze", context));
        }
        Ok(frozen.plan)
    }

    /// The letters that are selected. They are read one after the other, and reduced to what a plan needs.
    async fn selected(
        &self,
        request: &PlanRequest,
        in_operation: &BTreeSet<LetterId>,
        now: Timestamp,
    ) -> Result<Selected> {
        let mut selected = Selected::default();
        let mut add = |letter: Option<Letter>| {
            let letter = letter.map(|letter| {
                let candidate =
                    Candidate { letter: &letter, in_operation: in_operation.contains(&letter.id) };
                if rules::exclusion(&candidate, request).is_none() {
                    let digest = PayloadDigest::of(letter.message.payload.as_deref());
                    selected.digests.insert(letter.id, digest);
                }
                reduced(letter)
            });
            selected.letters.push(letter);
        };
        match &request.selection {
            Selection::Query(query) => {
                let _turn = self.db().turn_to_search().await?;
                let Some(filter) = self.letters_to_match(query).await? else { return Ok(selected) };
                let found = self
                    .db()
                    .letters
                    .rows(|letters| async move { letters.find(filter).projection(whole()).await });
                let mut found = found.await.map_err(reading)?;
                while let Some(document) = found.next().await.map_err(reading)? {
                    let held = self.hydrate(decode::<LetterDoc>(document)?).await?;
                    let letter = held.map(|held| held.letter).filter(|letter| query.matches(letter, now));
                    letter.into_iter().for_each(|letter| add(Some(letter)));
                }
            }
            Selection::Letters(letters) => {
                let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
                let letters: Vec<_> = letters.into_iter().collect();
                for some in letters.chunks(AT_ONCE) {
                    let mut found = self.letters_by_ids(some.iter().map(|(_, id)| *id)).await?;
                    for (queue, id) in some {
                        // The same id may be named in another queue, too.
                        let is_of_queue = found.get(id).is_some_and(|doc| doc.lazaret.queue == *queue);
                        let held = match is_of_queue.then(|| found.remove(id)).flatten() {
                            Some(doc) => self.hydrate(doc).await?,
                            None => None,
                        };
                        add(held.map(|held| held.letter));
                    }
                }
            }
        }
        Ok(selected)
    }

    /// These letters. The collection may hold documents of others.
    async fn letters_by_ids(
        &self,
        ids: impl Iterator<Item = LetterId>,
    ) -> Result<BTreeMap<LetterId, LetterDoc>> {
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        let found: Vec<RawDocumentBuf> = by_ids(&self.db().letters, &ids, doc! { "lazaret": 1 }).await?;
        let own = found.into_iter().filter(|document| document.get_document("lazaret").is_ok());
        own.map(|document| decode::<LetterDoc>(document).map(|doc| (doc.id, doc))).collect()
    }

    /// The letters that operations which are not over have still before them.
    async fn in_operations(&self) -> Result<BTreeSet<LetterId>> {
        #[derive(Deserialize)]
        struct LetterOf {
            #[serde(with = "crate::values::text")]
            letter: LetterId,
        }
        let none = Document::new;
        let live: Vec<PlanDoc> = project(&self.db().plans, doc! { "live": true }, none(), none()).await?;
        let mut letters = BTreeSet::new();
        for plan in live {
            let filter = doc! { "plan": plan.id, "outcome": null };
            let found = self.db().items.rows(|items| async move {
                items.find(filter).projection(doc! { "_id": 0, "letter": 1 }).await
            });
            let mut found = found.await.map_err(reading)?;
            while let Some(item) = found.next().await.map_err(reading)? {
                letters.insert(decode::<LetterOf>(item)?.letter);
            }
        }
        Ok(letters)
    }

    /// The indexes of the open letters of the sequences of these letters, in order.
    async fn open_indexes(&self, letters: impl Iterator<Item = &Letter>) -> Result<OpenIndexes> {
        #[derive(Deserialize)]
        struct IndexDoc {
            lazaret: IndexOf,
        }
        #[derive(Deserialize)]
        struct IndexOf {
            sequence: SequenceId,
            index: i64,
        }
        let mut sequences: BTreeMap<&QueueName, BTreeSet<&SequenceId>> = BTreeMap::new();
        for letter in letters {
            sequences.entry(&letter.queue).or_default().insert(&letter.sequence);
        }
        let mut indexes = OpenIndexes::new();
        for (queue, sequences) in sequences {
            let of_queue = indexes.entry(queue.clone()).or_default();
            let sequences: Vec<&str> = sequences.into_iter().map(SequenceId::as_str).collect();
            for some in sequences.chunks(IDS) {
                let filter = doc! {
                    "lazaret.queue": queue.as_str(), "lazaret.sequence": { "$in": some }, "lazaret.open": true,
                };
                let fields = doc! { "_id": 0, "lazaret.sequence": 1, "lazaret.index": 1 };
                let found = self
                    .db()
                    .letters
                    .rows(|letters| async move { letters.find(filter).projection(fields).await });
                let mut found = found.await.map_err(reading)?;
                while let Some(document) = found.next().await.map_err(reading)? {
                    let IndexDoc { lazaret: IndexOf { sequence, index } } = decode(document)?;
                    of_queue.entry(sequence).or_default().push(uint(index));
                }
            }
            of_queue.values_mut().for_each(|indexes| indexes.sort_unstable());
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
