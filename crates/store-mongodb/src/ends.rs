//! The letters of a watched queue that ended, until they were announced.
//!
//! An end is listed by the call that ended its letter, after the letter was written, and by nobody else twice: its id is that of the letter and
//! the decision. It has no number then. Numbers are given to those who read: the document of the list names the ends that get the next
//! ones, by compare-and-set, and then the numbers are written there. A page ends at the last number that was written, so that none
//! appears below one that was read, and all up to a number can be forgotten.
//!
//! Watching begins with a new period of the list. A call that asked before has written its letters before, so that they are found among the
//! letters that have ended; one that asks later lists its ends itself. An end that was forgotten keeps its document for an hour: a
//! slow call that lists it again changes nothing.

use std::collections::BTreeMap;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{End, EndsPage, Result, is_end};
use serde::Deserialize;

use crate::batches::IdDoc;
use crate::database::{Guarded, by_ids, count, decode, encode, get, list};
use crate::documents::end::{EndDoc, EndedDoc, WatchDoc};
use crate::documents::letter::LetterDoc;
use crate::error::reading;
use crate::store::MongoStore;
use crate::values::{date, int, uint};

/// Maximum number of ends that get their numbers, or are listed, at once.
const AT_ONCE: usize = 1000;

/// A letter, as far as a list of ends needs it.
#[derive(Deserialize)]
struct Candidate {
    #[serde(rename = "_id", with = "crate::values::text")]
    id: LetterId,
    lazaret: CandidateOf,
}

#[derive(Deserialize)]
struct CandidateOf {
    state: LetterState,
    attempts: u32,
    number: i64,
    decided: i64,
}

impl MongoStore {
    /// Lists ends, if their queue is watched. Their letters were written before.
    pub(crate) async fn list_ended(&self, queue: &QueueName, ends: Vec<EndedDoc>) -> Result<()> {
        let watch: Option<WatchDoc> = get(&self.db().watches, queue.as_str()).await?;
        match watch {
            Some(watch) if watch.active => self.insert_ends(queue, watch.period, ends).await,
            _ => Ok(()),
        }
    }

    /// Inserts ends that are not listed yet, in the order in which their letters arrived.
    async fn insert_ends(&self, queue: &QueueName, period: i64, mut ends: Vec<EndedDoc>) -> Result<()> {
        if ends.is_empty() {
            return Ok(());
        }
        ends.sort_by_key(|end| end.arrival);
        let count = ends.len() as u64;
        let first = int(self.db().count_up("ends", count).await? - count + 1);
        let ends = (first..).zip(ends).map(|(order, end)| encode(&end.listed(queue, period, order)));
        let ends = ends.collect::<Result<Vec<RawDocumentBuf>>>()?;
        self.db().insert_all(&self.db().ends, &ends).await.map(drop)
    }

    pub(crate) async fn watch(&self, queue: &QueueName) -> Result<()> {
        let period = loop {
            let mut watch = self.watch_of(queue).await?.unwrap_or_else(|| WatchDoc::new(queue));
            match (watch.active, watch.complete) {
                (true, true) => return Ok(()),
                // It was interrupted, or another call is about it.
                (true, false) => break watch.period,
                (false, _) => {}
            }
            (watch.active, watch.complete, watch.period) = (true, false, watch.period + 1);
            let period = watch.period;
            if self.put_watch(watch).await? {
                break period;
            }
        };
        self.catch_up().await?;
        self.list_known(queue, period).await?;
        while let Some(mut watch) = self.watch_of(queue).await? {
            let is_open = watch.active && watch.period == period && !watch.complete;
            watch.complete = true;
            if !is_open || self.put_watch(watch).await? {
                break;
            }
        }
        Ok(())
    }

    /// Lists the letters that have ended before, in the order in which they arrived.
    async fn list_known(&self, queue: &QueueName, period: i64) -> Result<()> {
        // The index has the letters of each state in this order.
        let states: Vec<&str> = LetterState::ALL
            .iter()
            .filter(|state| is_end(None, **state))
            .map(|state| state.as_str())
            .collect();
        let open = doc! {
            "lazaret.queue": queue.as_str(), "lazaret.state": { "$in": states }, "lazaret.number": { "$gt": 0_i64 },
        };
        let fields = doc! {
            "lazaret.state": 1, "lazaret.attempts": 1, "lazaret.number": 1, "lazaret.decided": 1,
        };
        let found = self.db().letters.rows(|letters| async move {
            letters.find(open).projection(fields).sort(doc! { "lazaret.number": 1 }).await
        });
        let mut found = found.await.map_err(reading)?;
        let mut ends = Vec::new();
        while let Some(found) = found.next().await.map_err(reading)? {
            let Candidate { id, lazaret: CandidateOf { state, attempts, number, decided } } = decode(found)?;
            if is_end(None, state) {
                ends.push(EndedDoc::new(id, state, attempts, number, decided));
            }
            if ends.len() == AT_ONCE {
                self.insert_ends(queue, period, std::mem::take(&mut ends)).await?;
            }
        }
        self.insert_ends(queue, period, ends).await
    }

    pub(crate) async fn unwatch(&self, queue: &QueueName) -> Result<()> {
        while let Some(mut watch) = self.watch_of(queue).await?.filter(|watch| watch.active) {
            (watch.active, watch.complete) = (false, false);
            let period = watch.period;
            if self.put_watch(watch).await? {
                let listed = doc! {
                    "queue": queue.as_str(), "period": { "$lte": period }, "forgottenAt": { "$exists": false },
                };
                self.forget(listed).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn forget_up_to(&self, queue: &QueueName, number: u64) -> Result<()> {
        self.forget(doc! { "queue": queue.as_str(), "number": { "$lte": int(number) } }).await
    }

    /// Takes ends out of the list. The server deletes their documents later.
    async fn forget(&self, ends: Document) -> Result<()> {
        let now = date(self.now().await?);
        let forgotten = doc! { "forgottenAt": now, "waiting": false };
        let update = doc! { "$set": forgotten, "$unset": { "number": "" } };
        self.db().update(&self.db().ends, ends, update).await
    }

    pub(crate) async fn page_of_ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        self.catch_up().await?;
        loop {
            let Some(watch) = self.watch_of(queue).await?.filter(|watch| watch.active) else {
                return Ok(EndsPage::default());
            };
            let behind = watch.numbered_after(int(after));
            let page: Vec<EndDoc> = match limit {
                0 => Vec::new(),
                limit => list(&self.db().ends, behind, doc! { "number": 1 }, limit).await?,
            };
            let waiting = count(&self.db().ends, watch.waiting(), None).await?;
            if page.len() < limit && waiting > 0 {
                self.give_numbers(watch).await?;
                continue;
            }
            let last = page.last().and_then(|end| end.number).unwrap_or_else(|| int(after));
            let left = waiting + count(&self.db().ends, watch.numbered_after(last), None).await?;
            return Ok(EndsPage { ends: self.with_letters(queue, page).await?, left });
        }
    }

    /// Ends with their letters as they are now. A letter can end more than once.
    async fn with_letters(&self, queue: &QueueName, ends: Vec<EndDoc>) -> Result<Vec<End>> {
        let ids: Vec<String> = ends.iter().map(|end| end.letter.to_string()).collect();
        let docs: Vec<LetterDoc> = by_ids(&self.db().letters, &ids, Document::new()).await?;
        let of_queue = docs.into_iter().filter(|doc| doc.lazaret.queue == *queue).collect();
        let letters = self.hydrate_all(of_queue).await?.into_iter().map(|held| (held.letter.id, held.letter));
        let letters: BTreeMap<LetterId, Letter> = letters.collect();
        let with_letter = |end: EndDoc| End {
            number: uint(end.number.unwrap_or_default()),
            id: end.letter,
            state: end.state,
            attempts: end.attempts,
            letter: letters.get(&end.letter).cloned(),
        };
        Ok(ends.into_iter().map(with_letter).collect())
    }

    /// The list of a queue, in which all numbers that were given are written.
    async fn watch_of(&self, queue: &QueueName) -> Result<Option<WatchDoc>> {
        loop {
            let watch: Option<WatchDoc> = get(&self.db().watches, queue.as_str()).await?;
            match watch {
                Some(watch) if !watch.numbering.is_empty() => self.write_numbers(watch).await?,
                watch => return Ok(watch),
            }
        }
    }

    /// Gives the next numbers to ends that have none, unless another call has changed the list.
    async fn give_numbers(&self, mut watch: WatchDoc) -> Result<()> {
        let waiting: Vec<IdDoc> =
            list(&self.db().ends, watch.waiting(), doc! { "order": 1, "_id": 1 }, AT_ONCE).await?;
        watch.last += int(waiting.len() as u64);
        watch.numbering = waiting.into_iter().map(|end| end.id).collect();
        self.put_watch(watch).await.map(drop)
    }

    /// Writes the numbers that were given last. An end that has its number, or was forgotten, does not wait for one.
    async fn write_numbers(&self, mut watch: WatchDoc) -> Result<()> {
        let numbering = std::mem::take(&mut watch.numbering);
        let first = watch.last - int(numbering.len() as u64) + 1;
        let number = |(number, id): (i64, &String)| {
            let waiting = rawdoc! { "_id": id.as_str(), "waiting": true };
            let numbered = rawdoc! { "$set": { "number": number, "waiting": false } };
            rawdoc! { "q": waiting, "u": numbered }
        };
        let updates: Vec<RawDocumentBuf> = (first..).zip(&numbering).map(number).collect();
        self.db().update_all(&self.db().ends, &updates).await?;
        self.put_watch(watch).await.map(drop)
    }

    /// Writes the list, if it still has its version. Returns whether it was written.
    async fn put_watch(&self, mut watch: WatchDoc) -> Result<bool> {
        let version = watch.version;
        watch.version += 1;
        let write = Guarded::new(watch.queue.as_str(), version, &watch)?;
        self.db().put(&self.db().watches, write).await
    }
}
