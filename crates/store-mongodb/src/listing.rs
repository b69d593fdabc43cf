//! Reading what is stored. Each way has an index.

use bson::{Document, doc};
use lazaret_core::letter::Letter;
use lazaret_core::store::{
    ErrorKind, Group, GroupId, GroupsPage, GroupsRequest, HeadsPage, OpenedPage, Result, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};
use serde::Deserialize;

use crate::database::{get, list, list_fields, project};
use crate::documents::group::GroupDoc;
use crate::documents::letter::LetterDoc;
use crate::documents::sequence::SequenceDoc;
use crate::group_expiry::Expiries;
use crate::search::whole;
use crate::store::MongoStore;
use crate::values::{int, uint};

/// Number of heads that one query asks for.
const HEADS: usize = 100;

/// A sequence that was opened, and its revision.
#[derive(Deserialize)]
struct OpenedDoc {
    sequence: SequenceId,
    revision: i64,
}

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

    pub(crate) async fn list_heads(
        &self,
        queue: &QueueName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<HeadsPage> {
        let after = cursor(after, "heads")?;
        self.catch_up().await?;
        let filter = match after {
            None => doc! { "queue": queue.as_str(), "open": true },
            // Each way for itself, so that the server reads both from where they begin.
            Some((touched, sequence)) => {
                let of = doc! { "queue": queue.as_str(), "open": true };
                let (mut later, mut same) = (of.clone(), of);
                later.insert("touched", doc! { "$gt": touched });
                same.extend(doc! { "touched": touched, "sequence": { "$gt": sequence } });
                doc! { "$or": [later, same] }
            }
        };
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
            Some(doc! {
                "lazaret.queue": queue.as_str(), "lazaret.sequence": doc.sequence.as_str(), "lazaret.open": true,
                "lazaret.index": index,
            })
        });
        let places: Vec<Document> = places.collect();
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let letters: Vec<LetterDoc> =
            project(&self.db().letters, doc! { "$or": places }, whole(), Document::new()).await?;
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
        // The index has all of these.
        let fields = doc! { "_id": 0, "sequence": 1, "revision": 1 };
        let mut docs: Vec<OpenedDoc> =
            list_fields(&self.db().sequences, filter, fields, sort, limit.max(1) + 1).await?;
        let more = cut(&mut docs, limit);
        let of_last = docs.last().map(|doc| uint(doc.revision));
        let revision = of_last.filter(|_| more).unwrap_or(last);
        Ok(OpenedPage { sequences: docs.into_iter().map(|doc| doc.sequence).collect(), revision, more })
    }

    pub(crate) async fn list_groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let after = cursor(request.after.as_deref(), "groups")?;
        self.catch_up().await?;
        let now = self.now().await?;
        let of = |open: Document| {
            let mut filter = doc! { "row": { "$ne": null }, "open": open };
            if let Some(queue) = &request.queue {
                filter.insert("queue", queue.as_str());
            }
            filter
        };
        let least = if request.closed { i64::MIN } else { 1 };
        let filter = match after {
            None => of(doc! { "$gte": least }),
            // Each way for itself, so that the server reads both from where they begin.
            Some((open, id)) => {
                let mut same = of(doc! { "$eq": open });
                same.insert("_id", doc! { "$gt": id });
                doc! { "$or": [of(doc! { "$gte": least, "$lt": open }), same] }
            }
        };
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
        let oldest = self.oldest_of_group(&doc.queue, &doc.fingerprint.to_string()).await?;
        let next_expiry = expiries.next_of(self, doc).await?;
        Ok(Some(row.to_row().to_group(doc.group_id(), oldest, next_expiry, now)))
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
