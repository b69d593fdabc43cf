//! Reading what is stored. Each way has an index.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::letter::{Letter, LetterState};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Counts, ErrorKind, Group, GroupId, GroupsPage, GroupsRequest, HeadsPage, LettersPage, OpenedPage,
    QueueSummary, Result, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::database::{decode, find_one, first, get, list, project};
use crate::documents::group::GroupDoc;
use crate::documents::letter::LetterDoc;
use crate::documents::sequence::SequenceDoc;
use crate::error::reading;
use crate::group_expiry::Expiries;
use crate::store::MongoStore;
use crate::values::{int, time, uint};

/// How many letters a page of a search reads at most (I7).
const READ_PER_PAGE: usize = 2000;

/// Number of heads that one query asks for.
const HEADS: usize = 100;

/// A position in a list: a number, and a name that keeps equals apart.
fn cursor(text: Option<&str>, operation: &'static str) -> Result<Option<(i64, String)>> {
    let parse = |text: &str| {
        let (number, name) = text.split_once('/')?;
        number.parse().ok().map(|number| (number, name.to_owned()))
    };
    text.map(|text| parse(text).ok_or_else(|| not_a_cursor(text, operation))).transpose()
}

fn not_a_cursor(text: &str, operation: &'static str) -> StoreError {
    let context = format!("{text:?} is not a cursor of this store");
    StoreError::not_done(ErrorKind::Invalid, operation, context)
}

/// Cuts a list that has one entry more than the page, if there are more.
fn cut<T>(list: &mut Vec<T>, limit: usize) -> bool {
    let more = list.len() > limit.max(1);
    list.truncate(limit.max(1));
    more
}

impl MongoStore {
    /// The open letters of a sequence, at one moment.
    pub(crate) async fn list_sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        loop {
            let view = self.load(queue, sequence).await?;
            let letters = match &view.row {
                Some(_) => self.open_from(&view, from, limit).await,
                None => Ok(Vec::new()),
            };
            if let Some(letters) = self.commit(view, letters).await? {
                return Ok(letters.into_iter().map(|held| held.letter).collect());
            }
        }
    }

    pub(crate) async fn size_of_sequence(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        let view = self.load(queue, sequence).await?;
        Ok(view.row.map_or(0, |row| row.count))
    }

    pub(crate) async fn counts_of(&self, queue: &QueueName) -> Result<Counts> {
        self.catch_up().await?;
        let summed = self.summed(doc! { "queue": queue.as_str() }).await?;
        Ok(summed.into_iter().next().map_or_else(Counts::default, |(_, counts)| counts))
    }

    /// The counts of queues: the sum over their sequences.
    async fn summed(&self, filter: Document) -> Result<Vec<(QueueName, Counts)>> {
        let mut group = doc! {
            "_id": "$queue",
            "sequences": { "$sum": { "$cond": ["$open", 1_i64, 0_i64] } },
        };
        for state in 0..9 {
            let count = doc! { "$sum": { "$arrayElemAt": ["$byState", state] } };
            group.insert(format!("s{state}"), count);
        }
        let stages = [doc! { "$match": filter }, doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }];
        let found = self.db().sequences.call(|sequences| async move {
            sequences.aggregate(stages).await?.try_collect::<Vec<Document>>().await
        });
        let found = found.await.map_err(reading)?;
        let number = |document: &Document, name: &str| match document.get(name) {
            Some(Bson::Int64(number)) => uint(*number),
            Some(Bson::Int32(number)) => uint((*number).into()),
            Some(Bson::Double(number)) => *number as u64,
            _ => 0,
        };
        let counts = |document: Document| {
            let by_state = std::array::from_fn(|state| number(&document, &format!("s{state}")));
            let queue = QueueName::from(document.get_str("_id").unwrap_or_default());
            (queue, Counts { sequences: number(&document, "sequences"), by_state })
        };
        Ok(found.into_iter().map(counts).collect())
    }

    pub(crate) async fn list_heads(
        &self,
        queue: &QueueName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<HeadsPage> {
        let after = cursor(after, "heads")?;
        self.catch_up().await?;
        let mut filter = doc! { "queue": queue.as_str(), "open": true };
        if let Some((touched, sequence)) = after {
            let behind = doc! { "touched": touched, "sequence": { "$gt": sequence } };
            filter.insert("$or", [doc! { "touched": { "$gt": touched } }, behind]);
        }
        let sort = doc! { "touched": 1, "sequence": 1 };
        let mut docs: Vec<SequenceDoc> = list(&self.db().sequences, filter, sort, limit.max(1) + 1).await?;
        let more = cut(&mut docs, limit);
        let last = docs.last().filter(|_| more);
        let next = last.map(|doc| format!("{}/{}", doc.touched.unwrap_or_default(), doc.sequence));
        let mut heads = Vec::with_capacity(docs.len());
        for docs in docs.chunks(HEADS) {
            heads.extend(self.heads_of(queue, docs).await?);
        }
        Ok(HeadsPage { heads, next })
    }

    /// The letters at the heads of these sequences, in their order.
    async fn heads_of(&self, queue: &QueueName, docs: &[SequenceDoc]) -> Result<Vec<Letter>> {
        let places = docs.iter().filter_map(|doc| {
            let index = doc.row.as_ref()?.index;
            Some(doc! { "lazaret.sequence": doc.sequence.as_str(), "lazaret.index": index })
        });
        let places: Vec<Document> = places.collect();
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let filter = doc! { "lazaret.queue": queue.as_str(), "lazaret.open": true, "$or": places };
        let letters: Vec<LetterDoc> =
            project(&self.db().letters, filter, Document::new(), Document::new()).await?;
        let letters = self.hydrate_all(letters).await?;
        let mut heads: Vec<Letter> = letters.into_iter().map(|held| held.letter).collect();
        heads.sort_by_key(|head| docs.iter().position(|doc| doc.sequence == head.sequence));
        for head in &mut heads {
            let row = docs.iter().find(|doc| doc.sequence == head.sequence).and_then(SequenceDoc::row);
            row.iter().for_each(|row| row.head.date(head));
        }
        Ok(heads)
    }

    /// The sequences that were opened after a revision. Its end is read before interrupted calls are finished: a sequence that
    /// gets an earlier revision has it by then, or gets a later one.
    pub(crate) async fn list_opened(
        &self,
        queue: &QueueName,
        revision: u64,
        limit: usize,
    ) -> Result<OpenedPage> {
        let last = self.db().counter("revision").await?.max(revision);
        self.catch_up().await?;
        let filter = doc! {
            "queue": queue.as_str(),
            "open": true,
            "revision": { "$gt": int(revision), "$lte": int(last) },
        };
        let sort = doc! { "revision": 1 };
        let mut docs: Vec<SequenceDoc> = list(&self.db().sequences, filter, sort, limit.max(1) + 1).await?;
        let more = cut(&mut docs, limit);
        let of_last = docs.last().and_then(|doc| doc.revision).map(uint);
        let revision = of_last.filter(|_| more).unwrap_or(last);
        Ok(OpenedPage { sequences: docs.into_iter().map(|doc| doc.sequence).collect(), revision, more })
    }

    pub(crate) async fn search(
        &self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Result<LettersPage> {
        let number = |text: &str| text.parse().ok().filter(|number: &u64| number.to_string() == text);
        let before = match after {
            Some(text) => number(text).ok_or_else(|| not_a_cursor(text, "find"))?,
            None => u64::MAX,
        };
        let _turn = self.db().turn_to_search().await?;
        self.catch_up().await?;
        let now = self.now().await?;
        let mut filter = doc! { "lazaret.number": { "$ne": null, "$lt": int(before) } };
        if query.is_about_open() {
            filter.insert("lazaret.open", true);
        }
        let found = self.db().letters.rows(|letters| async move {
            let found = letters.find(filter).sort(doc! { "lazaret.number": -1 });
            found.limit(int(READ_PER_PAGE as u64)).await
        });
        let mut found = found.await.map_err(reading)?;
        let (mut letters, mut read, mut last) = (Vec::new(), 0, before);
        while let Some(document) = found.next().await.map_err(reading)? {
            let doc: LetterDoc = decode(document)?;
            (read, last) = (read + 1, doc.lazaret.number.map_or(last, uint));
            let letter = self.hydrate(doc).await?.map(|held| held.letter);
            letters.extend(letter.filter(|letter| query.matches(letter, now)));
            if letters.len() == limit.max(1) || read == READ_PER_PAGE {
                let mut filter = doc! { "lazaret.number": { "$ne": null, "$lt": int(last) } };
                if query.is_about_open() {
                    filter.insert("lazaret.open", true);
                }
                let more = find_one(&self.db().letters, filter, doc! { "_id": 1 }).await?.is_some();
                return Ok(LettersPage { letters, next: more.then(|| last.to_string()) });
            }
        }
        Ok(LettersPage { letters, next: None })
    }

    pub(crate) async fn list_groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let after = cursor(request.after.as_deref(), "groups")?;
        self.catch_up().await?;
        let now = self.now().await?;
        let mut filter = doc! { "row": { "$ne": null } };
        if let Some(queue) = &request.queue {
            filter.insert("queue", queue.as_str());
        }
        let mut conditions = Vec::new();
        if !request.closed {
            conditions.push(doc! { "open": { "$gt": 0_i64 } });
        }
        if let Some((open, id)) = after {
            let behind = doc! { "open": open, "_id": { "$gt": id } };
            conditions.push(doc! { "$or": [doc! { "open": { "$lt": open } }, behind] });
        }
        if !conditions.is_empty() {
            filter.insert("$and", conditions);
        }
        let sort = doc! { "open": -1, "_id": 1 };
        let mut docs: Vec<GroupDoc> = list(&self.db().groups, filter, sort, request.limit.max(1) + 1).await?;
        let more = cut(&mut docs, request.limit);
        let next = docs.last().filter(|_| more).map(|doc| format!("{}/{}", doc.open, doc.id));
        let mut groups = Vec::with_capacity(docs.len());
        let mut expiries = Expiries::default();
        for doc in docs {
            groups.extend(self.to_group(&doc, &mut expiries, now).await?);
        }
        Ok(GroupsPage { groups, next })
    }

    pub(crate) async fn group_of(&self, id: &GroupId) -> Result<Option<Group>> {
        self.catch_up().await?;
        let now = self.now().await?;
        match get::<GroupDoc>(&self.db().groups, id.to_string()).await? {
            Some(doc) => self.to_group(&doc, &mut Expiries::default(), now).await,
            None => Ok(None),
        }
    }

    async fn to_group(
        &self,
        doc: &GroupDoc,
        expiries: &mut Expiries,
        now: Timestamp,
    ) -> Result<Option<Group>> {
        let Some(row) = &doc.row else { return Ok(None) };
        let group = doc! { "lazaret.group": doc.fingerprint.to_string() };
        let oldest = self.oldest(&doc.queue, group).await?;
        let next_expiry = expiries.next_of(self, doc).await?;
        Ok(Some(row.to_row().to_group(doc.group_id(), oldest, next_expiry, now)))
    }

    /// When the oldest open letter of these was taken in.
    async fn oldest(&self, queue: &QueueName, mut filter: Document) -> Result<Option<Timestamp>> {
        filter.insert("lazaret.queue", queue.as_str());
        filter.insert("lazaret.open", true);
        let oldest: Option<LetterDoc> =
            first(&self.db().letters, filter, doc! { "lazaret.enqueued": 1 }).await?;
        Ok(oldest.map(|doc| time(doc.lazaret.enqueued)))
    }

    pub(crate) async fn summaries(&self) -> Result<Vec<QueueSummary>> {
        self.catch_up().await?;
        let mut summaries = Vec::new();
        // A sequence that was interrupted before its first letter has never held one.
        for (queue, counts) in self.summed(doc! { "takenIn": { "$gt": 0_i64 } }).await? {
            let oldest = self.oldest(&queue, Document::new()).await?;
            let next_expiry = self.next_expiry(&queue).await?;
            summaries.push(QueueSummary { queue, counts, oldest, next_expiry });
        }
        Ok(summaries)
    }

    /// When the next open letter of a queue expires. Letters that wait do not.
    async fn next_expiry(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let filter = doc! {
            "lazaret.queue": queue.as_str(),
            "lazaret.open": true,
            "lazaret.expires": { "$ne": null },
            "lazaret.state": { "$ne": LetterState::Waiting.as_str() },
        };
        let next: Option<LetterDoc> =
            first(&self.db().letters, filter, doc! { "lazaret.expires": 1 }).await?;
        Ok(next.and_then(|doc| doc.lazaret.expires).map(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_other_texts_are_refused() {
        assert_eq!(cursor(Some("-5/a/b"), "heads").unwrap(), Some((-5, "a/b".to_owned())));
        assert_eq!(cursor(None, "heads").unwrap(), None);
        for text in ["", "x", "5", "x/5"] {
            assert_eq!(cursor(Some(text), "heads").unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
    }
}
