//! Letters, read by id or in the order of their sequence.

use std::collections::BTreeMap;

use bson::{Document, RawDocumentBuf, doc};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::Result;
use lazaret_core::store::rules::{self, LetterLookup};
use lazaret_core::{QueueName, SequenceId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::commit::View;
use crate::database::{by_ids, decode, find_one, get, list_fields, project};
use crate::documents::chunks::{ChunksRef, join};
use crate::documents::letter::{Held, LetterDoc};
use crate::documents::sequence::{AHEAD, sequence_key};
use crate::search::whole;
use crate::store::MongoStore;
use crate::values::{int, uint};

/// How often a letter is read again whose chunks were replaced while it was read.
const READS: usize = 8;

/// The parts of a letter that say where it stands.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PlaceDoc {
    lazaret: Place,
}

/// Where a letter stands.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Place {
    index: i64,
    pub(crate) state: LetterState,
    pub(crate) stream: lazaret_core::StreamName,
    pub(crate) partition: i64,
    offset: i64,
}

impl Place {
    pub(crate) fn of(letter: &Letter) -> Self {
        let position = &letter.message.position;
        Self {
            index: int(letter.index),
            state: letter.state,
            stream: letter.message.stream.clone(),
            partition: position.partition_number().stored(),
            offset: int(position.offset),
        }
    }

    pub(crate) fn index(&self) -> u64 {
        uint(self.index)
    }

    pub(crate) fn offset(&self) -> u64 {
        uint(self.offset)
    }

    pub(crate) fn is_of_partition(&self, letter: &Letter) -> bool {
        let position = &letter.message.position;
        self.stream == letter.message.stream && self.partition == position.partition_number().stored()
    }
}

/// The parts of a letter that say whether it is known. The collection may hold documents of others.
#[derive(Deserialize)]
struct StateDoc {
    #[serde(rename = "_id", with = "crate::values::text")]
    id: LetterId,
    lazaret: Option<StateOf>,
}

#[derive(Deserialize)]
struct StateOf {
    queue: QueueName,
    state: LetterState,
}

fn open_of(queue: &QueueName, sequence: &SequenceId) -> Document {
    doc! { "lazaret.queue": queue.as_str(), "lazaret.sequence": sequence.as_str(), "lazaret.open": true }
}

impl MongoStore {
    /// The documents of the open letters of a sequence from this index on, in order.
    pub(crate) async fn open_docs(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<LetterDoc>> {
        let mut filter = open_of(queue, sequence);
        filter.insert("lazaret.index", doc! { "$gte": int(from) });
        list_fields(&self.db().letters, filter, whole(), doc! { "lazaret.index": 1 }, limit).await
    }

    /// Where the open letters of a sequence stand, in order.
    pub(crate) async fn places(&self, queue: &QueueName, sequence: &SequenceId) -> Result<Vec<Place>> {
        let fields = doc! {
            "lazaret.index": 1, "lazaret.state": 1, "lazaret.stream": 1, "lazaret.partition": 1, "lazaret.offset": 1,
        };
        let sort = doc! { "lazaret.index": 1 };
        let places: Vec<PlaceDoc> =
            project(&self.db().letters, open_of(queue, sequence), fields, sort).await?;
        Ok(places.into_iter().map(|place| place.lazaret).collect())
    }

    /// The open letters of a view from this index on.
    pub(crate) async fn open_from(&self, view: &View, from: u64, limit: usize) -> Result<Vec<Held>> {
        self.hydrate_all(self.open_docs(&view.doc.queue, &view.doc.sequence, from, limit).await?).await
    }

    /// The first open letters of a view. They are read by their ids.
    pub(crate) async fn first_open(&self, view: &mut View, limit: usize) -> Result<Vec<Held>> {
        let Some(row) = &view.row else { return Ok(Vec::new()) };
        let wanted = limit.min(usize::try_from(row.count).unwrap_or(usize::MAX));
        if view.doc.ahead.len() < wanted {
            let (queue, sequence) = (view.doc.queue.clone(), view.doc.sequence.clone());
            let docs = self.open_docs(&queue, &sequence, 0, AHEAD).await?;
            view.doc.ahead = docs.iter().map(|doc| (doc.lazaret.index, doc.id.to_string())).collect();
            return self.hydrate_all(docs.into_iter().take(limit).collect()).await;
        }
        let ids: Vec<&str> = view.doc.ahead.iter().take(limit).map(|(_, id)| id.as_str()).collect();
        let filter = doc! { "_id": { "$in": ids } };
        let mut docs: Vec<LetterDoc> = project(&self.db().letters, filter, whole(), Document::new()).await?;
        docs.sort_by_key(|doc| doc.lazaret.index);
        self.hydrate_all(docs).await
    }

    /// The first open letters of each of these views. They are read by their ids, those of all views together.
    pub(crate) async fn first_open_of(
        &self,
        views: &mut BTreeMap<SequenceId, View>,
        limit: usize,
    ) -> Result<BTreeMap<SequenceId, Vec<Held>>> {
        let (mut letters, mut ids) = (BTreeMap::new(), Vec::new());
        for (sequence, view) in views {
            let count = view.row.as_ref().map_or(0, |row| row.count);
            let wanted = limit.min(usize::try_from(count).unwrap_or(usize::MAX));
            if view.doc.ahead.len() < wanted {
                letters.insert(sequence.clone(), self.first_open(view, limit).await?);
            } else {
                ids.extend(view.doc.ahead.iter().take(wanted).map(|(_, id)| id.clone()));
            }
        }
        let docs: Vec<LetterDoc> = by_ids(&self.db().letters, &ids, Document::new()).await?;
        for held in self.hydrate_all(docs).await? {
            letters.entry(held.letter.sequence.clone()).or_default().push(held);
        }
        letters.values_mut().for_each(|letters| letters.sort_by_key(|held| held.letter.index));
        Ok(letters)
    }

    /// The letter behind the one with this index.
    pub(crate) async fn next_of(&self, view: &View, index: u64) -> Result<Option<rules::Head>> {
        let next = self.open_docs(&view.doc.queue, &view.doc.sequence, index + 1, 1).await?;
        Ok(next.first().map(|next| next.view().head(view.now)))
    }

    /// Number of letters that run automatically from this index on.
    pub(crate) async fn released_letters(&self, view: &View, from: u64) -> Result<u64> {
        let places = self.places(&view.doc.queue, &view.doc.sequence).await?;
        let from = places.iter().filter(|place| place.index() >= from).map(|place| place.state);
        Ok(rules::released_letters(from))
    }

    /// Letters with their parts. Those that were purged are left out.
    pub(crate) async fn hydrate_all(&self, docs: Vec<LetterDoc>) -> Result<Vec<Held>> {
        let mut letters = Vec::with_capacity(docs.len());
        for doc in docs {
            letters.extend(self.hydrate(doc).await?);
        }
        Ok(letters)
    }

    /// A letter with its parts; `None` when it was purged. Chunks that are missing may have been replaced since the letter was
    /// read: then the letter names others.
    pub(crate) async fn hydrate(&self, mut doc: LetterDoc) -> Result<Option<Held>> {
        for read in 1.. {
            if doc.is_purged() {
                return Ok(None);
            }
            let parts = self.parts(&doc).await;
            match parts {
                Ok((message, details)) => return Held::load(doc, message, details).map(Some),
                Err(error) if read == READS => return Err(error),
                Err(_) => {
                    let Some(again) = get(&self.db().letters, doc.id.to_string()).await? else {
                        return Ok(None);
                    };
                    doc = again;
                }
            }
        }
        Ok(None)
    }

    async fn parts<M, D>(&self, doc: &LetterDoc) -> Result<(Option<M>, Option<D>)>
    where
        M: DeserializeOwned,
        D: DeserializeOwned,
    {
        let message = self.joined(doc.lazaret.message_chunks.as_ref()).await?;
        Ok((message, self.joined(doc.lazaret.details_chunks.as_ref()).await?))
    }

    async fn joined<T: DeserializeOwned>(&self, stored: Option<&ChunksRef>) -> Result<Option<T>> {
        let Some(stored) = stored else { return Ok(None) };
        let filter = doc! { "claim": &stored.claim };
        let chunks: Vec<RawDocumentBuf> =
            project(&self.db().chunks, filter, Document::new(), doc! { "number": 1 }).await?;
        join(stored, &chunks).map(Some)
    }

    /// The states of those of these letters that this queue has, or had.
    pub(crate) async fn states_of(
        &self,
        queue: &QueueName,
        ids: impl Iterator<Item = LetterId>,
    ) -> Result<BTreeMap<LetterId, LetterState>> {
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        let fields = doc! { "lazaret.queue": 1, "lazaret.state": 1 };
        let found: Vec<StateDoc> = by_ids(&self.db().letters, &ids, fields).await?;
        let of_queue = found.into_iter().filter_map(|StateDoc { id, lazaret }| {
            lazaret.filter(|kept| kept.queue == *queue).map(|kept| (id, kept.state))
        });
        Ok(of_queue.collect())
    }

    /// The document of a letter, of this queue.
    pub(crate) async fn letter_doc(&self, queue: &QueueName, id: LetterId) -> Result<Option<LetterDoc>> {
        let found: Option<LetterDoc> = self.letter_by_id(id).await?;
        Ok(found.filter(|doc| doc.lazaret.queue == *queue))
    }

    /// The document under this id, if it is a letter of Lazaret: the collection may hold those of others.
    async fn letter_by_id(&self, id: LetterId) -> Result<Option<LetterDoc>> {
        let filter = doc! { "_id": id.to_string(), "lazaret.queue": { "$exists": true } };
        let found = find_one(&self.db().letters, filter, whole()).await?;
        found.map(decode).transpose()
    }

    /// The letter that a view names. Consistent with the view, or the decision fails.
    pub(crate) async fn letter_of(&self, view: &View, id: LetterId) -> Result<Option<Held>> {
        match self.letter_doc(&view.doc.queue, id).await? {
            Some(doc) => self.hydrate(doc).await,
            None => Ok(None),
        }
    }

    /// What is known under the id of a letter, with all that was decided about it.
    pub(crate) async fn known(&self, queue: &QueueName, id: LetterId) -> Result<LetterLookup<Held>> {
        let doc = match self.letter_doc(queue, id).await? {
            Some(doc) => {
                self.finish(&sequence_key(queue, &doc.lazaret.sequence)).await?;
                self.letter_doc(queue, id).await?
            }
            // A call that was interrupted may have decided about it, and not written it.
            None => {
                self.catch_up().await?;
                self.letter_doc(queue, id).await?
            }
        };
        let Some(doc) = doc else { return Ok(LetterLookup::Absent) };
        let state = doc.lazaret.state;
        Ok(self.hydrate(doc).await?.map_or(LetterLookup::Purged(state), LetterLookup::Letter))
    }
}
