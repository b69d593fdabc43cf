//! The collection of FlowWarden's dead letters as a source of foreign dead letters.
//!
//! The collection is read in the order of the resume tokens, which is the order of the events.
//! Operations of a transaction share a cluster time, so the hand-off order determines the order of their
//! letters. Documents without a token come first. Ids do not reflect age, so new documents may appear
//! anywhere. Each run therefore reads everything. Only a run that was interrupted continues after the
//! last document.

use async_trait::async_trait;
use lazaret_core::source::SourceError;
use lazaret_source_mongodb::bson::raw::RawBsonRef;
use lazaret_source_mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use lazaret_source_mongodb::driver::error::Error as DriverError;
use lazaret_source_mongodb::driver::options::{ReadConcern, ReadPreference, SelectionCriteria};
use lazaret_source_mongodb::driver::{Collection, Cursor as DriverCursor};
use serde::{Deserialize, Serialize};

use super::document::Decoder;
use super::preview::StreamCount;
use super::read_error;
use crate::source::{Cursor, DeadLetterSource, Found};

/// The maximum number of documents read at once, and the maximum of their bytes (I7).
const BATCH: usize = 256;
const BATCH_BYTES: usize = 8 << 20;
/// The maximum number of streams and statuses that are counted separately (I7).
const GROUPS: i32 = 100;
const TOKEN: &str = "resumeToken._data";

/// The position up to which a collection was read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DocumentCursor {
    /// The number of documents read.
    read: u64,
    /// The place of the last document read.
    after: Option<DocumentPlace>,
    /// Whether the collection was read to its end. The next run then starts over, because new documents
    /// may appear anywhere.
    ended: bool,
}

/// The place of a document in reading order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DocumentPlace {
    token: Option<String>,
    id: Bson,
}

/// The number of a document, and the place of the document before it.
#[derive(Clone, Debug)]
pub struct NumberedPlace {
    number: u64,
    after: Option<DocumentPlace>,
}

impl Cursor for DocumentCursor {
    type Place = NumberedPlace;

    fn move_back_to(&mut self, place: &NumberedPlace) {
        if self.is_past(place) {
            *self = Self { read: place.number, after: place.after.clone(), ended: false };
        }
    }

    fn is_past(&self, place: &NumberedPlace) -> bool {
        self.ended || place.number < self.read
    }
}

impl DocumentCursor {
    /// Returns the filter that selects unread documents, without letters of Lazaret's store. Comparisons
    /// apply within one type. Documents with types that FlowWarden does not write may therefore be read
    /// again, but none is missed.
    fn filter(&self) -> Document {
        let mut filter = doc! { "lazaret": { "$exists": false } };
        if let Some(DocumentPlace { token, id }) = &self.after {
            let read = match token {
                None => vec![doc! { TOKEN: Bson::Null, "_id": { "$lte": id } }],
                Some(token) => vec![
                    doc! { TOKEN: Bson::Null },
                    doc! { TOKEN: { "$lt": token } },
                    doc! { TOKEN: token, "_id": { "$lte": id } },
                ],
            };
            filter.insert("$nor", read);
        }
        filter
    }
}

impl DocumentPlace {
    fn of(raw: &RawDocument) -> Self {
        let token = raw.get_document("resumeToken").ok().and_then(|token| token.get_str("_data").ok());
        let id = raw.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        Self { token: token.map(str::to_owned), id: id.unwrap_or(Bson::Null) }
    }
}

/// Reads the collection.
pub(super) struct DeadLetterCollection {
    collection: Documents,
    decoder: Decoder,
    reading: Option<DriverCursor<RawDocumentBuf>>,
    cursor: DocumentCursor,
    remaining: u64,
}

impl DeadLetterCollection {
    pub(super) fn new(collection: &Documents, decoder: Decoder) -> Self {
        let collection = collection.clone();
        Self { collection, decoder, reading: None, cursor: DocumentCursor::default(), remaining: 0 }
    }

    /// Reads one document. Returns `None` at the end.
    async fn next(&mut self) -> Result<Option<RawDocumentBuf>, SourceError> {
        let Some(reading) = &mut self.reading else { return Ok(None) };
        match reading.advance().await {
            Ok(true) => Ok(Some(reading.current().to_owned())),
            Ok(false) => Ok(None),
            Err(error) => Err(failed(&self.collection)(error)),
        }
    }
}

type Documents = Collection<RawDocumentBuf>;

fn failed(of: &Documents) -> impl Fn(DriverError) -> SourceError {
    let name = of.namespace().to_string();
    move |error| read_error(&name, error)
}

/// Rejects a collection that does not exist. It would read as empty, which would hide a wrong name.
async fn check_exists(collection: &Documents) -> Result<(), SourceError> {
    let database = collection.client().database(&collection.namespace().db);
    // Listing collections needs a right that reading does not.
    let Ok(names) = database.list_collection_names().await else { return Ok(()) };
    if names.iter().any(|name| name == collection.name()) {
        return Ok(());
    }
    let mut like: Vec<&str> = names.iter().map(String::as_str).filter(|name| name.contains("dlq")).collect();
    like.sort_unstable();
    let others = match like.is_empty() {
        true => String::new(),
        false => format!("; there is {}", like.join(", ")),
    };
    Err(SourceError::permanent(format!(
        "the collection {} does not exist; check the names of the database and the collection{others}",
        collection.namespace()
    )))
}

/// Counts the documents of each stream and status.
pub(super) async fn by_stream(collection: &Documents) -> Result<Vec<StreamCount>, SourceError> {
    let stages = [
        doc! { "$match": DocumentCursor::default().filter() },
        doc! { "$group": { "_id": { "stream": "$streamName", "status": "$status" }, "documents": { "$sum": 1 } } },
        doc! { "$sort": { "_id.stream": 1, "_id.status": 1 } },
        doc! { "$limit": GROUPS },
    ];
    let mut groups = collection.aggregate(stages).await.map_err(failed(collection))?;
    let mut counts = Vec::new();
    while groups.advance().await.map_err(failed(collection))? {
        let group = groups.current();
        let of = |name: &str| Some(group.get_document("_id").ok()?.get_str(name).ok()?.to_owned());
        let documents = group.get("documents").ok().flatten().and_then(|number| match number {
            RawBsonRef::Int32(number) => u64::try_from(number).ok(),
            RawBsonRef::Int64(number) => u64::try_from(number).ok(),
            _ => None,
        });
        counts.push(StreamCount {
            stream: of("stream"),
            status: of("status"),
            documents: documents.unwrap_or_default(),
        });
    }
    Ok(counts)
}

#[async_trait]
impl DeadLetterSource for DeadLetterCollection {
    type Cursor = DocumentCursor;

    async fn open(&mut self, cursor: DocumentCursor) -> Result<(), SourceError> {
        let cursor = if cursor.ended { DocumentCursor::default() } else { cursor };
        check_exists(&self.collection).await?;
        let filter = cursor.filter();
        let counted = self.collection.count_documents(filter.clone()).await;
        self.remaining = counted.map_err(failed(&self.collection))?;
        let batch = u32::try_from(BATCH).unwrap_or(u32::MAX);
        let found = self
            .collection
            .find(filter)
            .sort(doc! { TOKEN: 1, "_id": 1 })
            .allow_disk_use(true)
            .batch_size(batch)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        self.reading = Some(found.await.map_err(failed(&self.collection))?);
        self.cursor = cursor;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<Found<NumberedPlace>>, SourceError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < BATCH && bytes < BATCH_BYTES {
            let Some(raw) = self.next().await? else {
                (self.reading, self.cursor.ended) = (None, true);
                break;
            };
            bytes += raw.as_bytes().len();
            let own = DocumentPlace::of(&raw);
            let place = NumberedPlace { number: self.cursor.read, after: self.cursor.after.clone() };
            let id = match &own.id {
                Bson::String(id) => id.clone(),
                other => other.to_string(),
            };
            let address = format!("{}/{id}", self.collection.namespace());
            found.push(Found { place, address, content: self.decoder.decode(&raw) });
            self.cursor = DocumentCursor { read: self.cursor.read + 1, after: Some(own), ended: false };
            self.remaining = self.remaining.saturating_sub(1);
        }
        Ok(found)
    }

    fn cursor(&self) -> DocumentCursor {
        self.cursor.clone()
    }

    fn remaining(&self) -> u64 {
        self.remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(token: Option<&str>, id: &str) -> DocumentPlace {
        DocumentPlace { token: token.map(str::to_owned), id: id.into() }
    }

    fn behind(read: u64, token: Option<&str>, id: &str) -> DocumentCursor {
        DocumentCursor { read, after: Some(place(token, id)), ended: false }
    }

    #[test]
    fn a_cursor_moves_back_to_the_first_document_that_is_not_durable() {
        let numbered = |number, after: &str| NumberedPlace { number, after: Some(place(None, after)) };
        let mut cursor = behind(9, None, "i");
        assert!(cursor.is_past(&numbered(8, "h")) && !cursor.is_past(&numbered(9, "i")));
        cursor.move_back_to(&numbered(5, "e"));
        cursor.move_back_to(&numbered(7, "g"));
        assert_eq!(cursor, behind(5, None, "e"));
    }

    #[test]
    fn a_pass_that_ended_is_behind_everything_and_moves_back_all_the_same() {
        // I1: the letters of the last batch may not be durable.
        let ended = DocumentCursor { ended: true, ..behind(5, None, "d") };
        let (first, last) = (
            NumberedPlace { number: 0, after: None },
            NumberedPlace { number: 4, after: Some(place(None, "c")) },
        );
        assert!(ended.is_past(&first) && ended.is_past(&last));
        let mut cursor = ended.clone();
        cursor.move_back_to(&last);
        assert_eq!(cursor, behind(4, None, "c"));
        assert!(!cursor.is_past(&last));
        let mut cursor = ended;
        cursor.move_back_to(&first);
        cursor.move_back_to(&last);
        assert_eq!(cursor, DocumentCursor::default(), "from the beginning");
        assert!(!cursor.is_past(&first) && !cursor.is_past(&last));
    }

    #[test]
    fn a_cursor_is_stored_as_json() {
        let cursor = behind(2, Some("82AB"), "b6f9");
        let json = serde_json::to_string(&cursor).unwrap();
        assert_eq!(serde_json::from_str::<DocumentCursor>(&json).unwrap(), cursor);
    }

    #[test]
    fn what_was_read_is_left_out_and_letters_of_lazaret_always() {
        let begin = DocumentCursor::default().filter();
        assert_eq!(begin, doc! { "lazaret": { "$exists": false } });
        let cursor = behind(2, Some("82AB"), "b");
        assert_eq!(cursor.filter().get_array("$nor").unwrap().len(), 3);
    }
}
