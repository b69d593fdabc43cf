//! The database: its collections, and the few kinds of reads and writes that the store uses.
//!
//! Every write goes through [`Database::gate`], so that a test can interrupt the store between any two of them.

mod reads;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::raw::CStr;
use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, cstr, doc, rawdoc};
use futures_util::TryStreamExt;
use lazaret_core::store::{ErrorKind, Result, StoreError};
use mongodb::error::{Error, ErrorKind as Driver, WriteFailure};
use mongodb::options::{CollectionOptions, ReadConcern, ReturnDocument, SelectionCriteria, WriteConcern};
use mongodb::{Client, Collection, Namespace};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) use self::reads::{IDS, by_ids, count, find_one, first, get, list, list_fields, project};
use crate::calls::{Calls, Documents, LIMIT};
use crate::error::{DUPLICATE_KEY, corrupt, invalid, of_code, reading, writing};

/// Maximum size of a document, in bytes: that of every server.
const DOCUMENT_BYTES: usize = 16 << 20;
/// Maximum number of statements of one command. A server states its own limit, which is never lower.
const STATEMENTS: usize = 1000;
/// Maximum size of the statements of one command, in bytes. The command is one document, which ends at 16 MiB.
const COMMAND_BYTES: usize = 12 << 20;
/// The server knows no such command.
const COMMAND_NOT_FOUND: i32 = 59;
/// There is no such collection yet.
const NAMESPACE_NOT_FOUND: i32 = 26;
/// The connections for values: a stream's lease must be renewed however many letters wait.
const FOR_VALUES: usize = 2;
/// How long a call for a value may take. A primary that is gone without a word answers none, and a lease must be renewed with the next one
/// before it ends: it lasts 30 seconds by default. Longer than the daemon waits for a server.
const VALUE_LIMIT: Duration = Duration::from_secs(12);

/// The collections of a store.
pub(crate) struct Database {
    database: mongodb::Database,
    /// The connections for letters, and all that belongs to them.
    calls: Calls,
    /// One permit for each search at a time.
    searches: Semaphore,
    pub(crate) sequences: Documents,
    pub(crate) batches: Documents,
    pub(crate) letters: Documents,
    pub(crate) chunks: Documents,
    pub(crate) groups: Documents,
    pub(crate) grants: Documents,
    pub(crate) notes: Documents,
    pub(crate) plans: Documents,
    pub(crate) items: Documents,
    pub(crate) pauses: Documents,
    /// The queues whose ends are listed.
    pub(crate) watches: Documents,
    pub(crate) ends: Documents,
    pub(crate) values: Documents,
    pub(crate) audit: Documents,
    /// Counters, and the version of the format.
    pub(crate) meta: Documents,
    writes_left: AtomicUsize,
}

/// A write that is made only if the document still has a version; 0 if there is none yet.
pub(crate) struct Guarded {
    id: Bson,
    version: i64,
    document: RawDocumentBuf,
}

impl Guarded {
    /// The write of this document under this id, in place of the version.
    pub(crate) fn new(id: impl Into<Bson>, version: i64, document: &impl Serialize) -> Result<Self> {
        let (id, document) = (id.into(), encode(document)?);
        fits(&document)?;
        Ok(Self { id, version, document })
    }
}

impl Database {
    pub(crate) fn new(client: &Client, database: &str, letters: &str, connections: usize) -> Self {
        let database = client.database(database);
        let for_letters = connections.saturating_sub(FOR_VALUES).max(1);
        let calls = Calls::new(for_letters, LIMIT);
        let open = |name: &str| -> Collection<RawDocumentBuf> {
            let options = CollectionOptions::builder()
                .read_concern(ReadConcern::majority())
                .write_concern(WriteConcern::majority())
                .selection_criteria(SelectionCriteria::ReadPreference(
                    mongodb::options::ReadPreference::Primary,
                ))
                .build();
            database.collection_with_options(name, options)
        };
        let derived = |what: &str| Documents::new(open(&format!("{letters}_{what}")), calls.clone());
        Self {
            sequences: derived("sequences"),
            batches: derived("batches"),
            letters: Documents::new(open(letters), calls.clone()),
            chunks: derived("chunks"),
            groups: derived("groups"),
            grants: derived("grants"),
            notes: derived("notes"),
            plans: derived("plans"),
            items: derived("plan_items"),
            pauses: derived("pauses"),
            watches: derived("watches"),
            ends: derived("ends"),
            values: Documents::new(open(&format!("{letters}_values")), Calls::new(FOR_VALUES, VALUE_LIMIT)),
            audit: derived("audit"),
            meta: derived("meta"),
            writes_left: AtomicUsize::new(usize::MAX),
            searches: Semaphore::new((for_letters / 2).max(1)),
            calls,
            database,
        }
    }

    /// Waits for the turn of a search, which may read many letters. There are half as many at once as calls for letters, in the order in
    /// which they came, so that they never keep the others waiting: the engine, health checks, single sequences.
    pub(crate) async fn turn_to_search(&self) -> Result<SemaphorePermit<'_>> {
        let turn = self.searches.acquire().await;
        turn.map_err(|_| StoreError::not_done(ErrorKind::Unavailable, "find", "the store is closed"))
    }

    /// The answer of the server to `hello`, which states its time. The first releases of 4.4 know it by its old name alone.
    pub(crate) async fn hello(&self) -> Result<Document> {
        let database = self.database.clone();
        // A stream's lease depends on the time, so it does not wait for letters either.
        let asked = self.values.call(|_| async move {
            match database.run_command(doc! { "hello": 1 }).await {
                Err(error) if code_of(&error) == Some(COMMAND_NOT_FOUND) => {
                    database.run_command(doc! { "isMaster": 1 }).await
                }
                answered => answered,
            }
        });
        asked.await.map_err(reading)
    }

    /// The indexes of a collection as the server states them: none if it is not there yet.
    pub(crate) async fn listed_indexes(&self, of: &Documents) -> Result<Vec<Document>> {
        let listed = self.database.run_cursor_command(doc! { "listIndexes": of.name() }).await;
        match listed {
            Ok(indexes) => indexes.try_collect().await.map_err(reading),
            Err(error) if code_of(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(Vec::new()),
            Err(error) => Err(reading(error)),
        }
    }

    /// All collections of the store, the largest first.
    pub(crate) const fn collections(&self) -> [&Documents; 15] {
        [
            &self.letters,
            &self.chunks,
            &self.sequences,
            &self.audit,
            &self.items,
            &self.groups,
            &self.values,
            &self.ends,
            &self.notes,
            &self.batches,
            &self.plans,
            &self.grants,
            &self.pauses,
            &self.watches,
            &self.meta,
        ]
    }

    /// What the server says about the size of a collection.
    pub(crate) async fn statistics(&self, of: &Documents) -> mongodb::error::Result<Document> {
        let (database, name) = (self.database.clone(), of.name().to_owned());
        of.call(|_| async move { database.run_command(doc! { "collStats": name }).await }).await
    }

    /// Interrupts the store after this many writes, as if the process had died there.
    #[cfg(test)]
    pub(crate) fn cut_after(&self, writes: usize) {
        self.writes_left.store(writes, Ordering::SeqCst);
    }

    /// How many writes are left before it is interrupted.
    #[cfg(test)]
    pub(crate) fn writes_left(&self) -> usize {
        self.writes_left.load(Ordering::SeqCst)
    }

    /// How many of these writes may be made: all of them, unless a test interrupts the store.
    fn gate(&self, writes: usize) -> usize {
        let take = |left: usize| (left != usize::MAX).then(|| left.saturating_sub(writes));
        let left = self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        left.unwrap_or(usize::MAX).min(writes)
    }

    /// Lets one write pass.
    pub(crate) fn pass(&self) -> Result<()> {
        if self.gate(1) == 1 { Ok(()) } else { Err(interrupted()) }
    }

    /// Writes a document if it still has its version. Returns whether it was written.
    pub(crate) async fn put(&self, into: &Documents, write: Guarded) -> Result<bool> {
        self.pass()?;
        let Guarded { id, version, document } = write;
        let known = (version != 0).then(|| doc! { "_id": id, "version": version });
        put_if(into, known, document).await
    }

    /// Writes documents that still have their versions, in few commands. Returns for each whether it was written. New ones are
    /// inserted. Of the others none is ever deleted: a document that has another version makes its upsert a duplicate, and that
    /// names the statement.
    pub(crate) async fn put_all(&self, into: &Documents, writes: Vec<Guarded>) -> Result<Vec<bool>> {
        if writes.len() <= 1 {
            let Some(write) = writes.into_iter().next() else { return Ok(Vec::new()) };
            return Ok(vec![self.put(into, write).await?]);
        }
        let mut written = vec![true; writes.len()];
        let (mut new, mut new_places) = (Vec::new(), Vec::new());
        let (mut updates, mut update_places) = (Vec::new(), Vec::new());
        for (place, Guarded { id, version, document }) in writes.into_iter().enumerate() {
            if version == 0 {
                new.push(document);
                new_places.push(place);
            } else {
                let filter = encode(&doc! { "_id": id, "version": version })?;
                updates.push(rawdoc! { "q": filter, "u": document, "upsert": true });
                update_places.push(place);
            }
        }
        for late in self.insert_all(into, &new).await? {
            written[new_places[late]] = false;
        }
        for late in self.update_all(into, &updates).await? {
            written[update_places[late]] = false;
        }
        Ok(written)
    }

    /// Runs update statements. Returns those whose upserts were refused as duplicates.
    pub(crate) async fn update_all(&self, of: &Documents, updates: &[RawDocumentBuf]) -> Result<Vec<usize>> {
        self.statements(of, cstr!("update"), cstr!("updates"), updates, false).await
    }

    /// Inserts documents. Returns those that were there.
    pub(crate) async fn insert_all(
        &self,
        into: &Documents,
        documents: &[RawDocumentBuf],
    ) -> Result<Vec<usize>> {
        documents.iter().try_for_each(fits)?;
        self.statements(into, cstr!("insert"), cstr!("documents"), documents, false).await
    }

    /// Inserts documents one after the other, up to the first one whose id is there. Returns whether all were inserted.
    pub(crate) async fn insert_in_order(
        &self,
        into: &Documents,
        documents: &[RawDocumentBuf],
    ) -> Result<bool> {
        documents.iter().try_for_each(fits)?;
        let refused = self.statements(into, cstr!("insert"), cstr!("documents"), documents, true).await?;
        Ok(refused.is_empty())
    }

    /// Runs the statements of one kind: each for itself, or up to the first one that is refused. Returns those that were refused as
    /// duplicates.
    async fn statements(
        &self,
        into: &Documents,
        command: &CStr,
        field: &CStr,
        statements: &[RawDocumentBuf],
        in_order: bool,
    ) -> Result<Vec<usize>> {
        let mut duplicates = Vec::new();
        let mut first = 0;
        while first < statements.len() && (duplicates.is_empty() || !in_order) {
            let asked = first_batch(&statements[first..]);
            let allowed = self.gate(asked);
            if allowed > 0 {
                let Namespace { coll, .. } = into.namespace();
                let mut batch = RawArrayBuf::new();
                statements[first..first + allowed].iter().for_each(|statement| batch.push(statement));
                let mut run = RawDocumentBuf::new();
                run.append(command, coll.as_str());
                run.append(field, batch);
                run.append(cstr!("ordered"), in_order);
                run.append(cstr!("writeConcern"), rawdoc! { "w": "majority" });
                let database = self.database.clone();
                let answer = self.calls.make(async move { database.run_raw_command(run).await });
                let answer = answer.await.map_err(writing)?;
                duplicates.extend(refused(&answer)?.into_iter().map(|index| first + index));
            }
            if allowed < asked {
                return Err(interrupted());
            }
            first += asked;
        }
        Ok(duplicates)
    }

    /// Updates documents, without a version.
    pub(crate) async fn update(&self, of: &Documents, filter: Document, update: Document) -> Result<()> {
        self.pass()?;
        let updated = of.call(|of| async move { of.update_many(filter, update).await });
        updated.await.map(drop).map_err(writing)
    }

    /// Deletes documents.
    pub(crate) async fn delete(&self, from: &Documents, filter: Document) -> Result<u64> {
        self.pass()?;
        let deleted = from.call(|from| async move { from.delete_many(filter).await });
        deleted.await.map(|deleted| deleted.deleted_count).map_err(writing)
    }

    /// Raises a counter and returns its new value. Values that are not used leave gaps, which mean nothing.
    pub(crate) async fn count_up(&self, counter: &str, by: u64) -> Result<u64> {
        self.pass()?;
        let raise = doc! { "$inc": { counter: crate::values::int(by) } };
        let raised = self.meta.call(|meta| async move {
            let raised = meta.find_one_and_update(doc! { "_id": "counters" }, raise).upsert(true);
            raised.return_document(ReturnDocument::After).await
        });
        let raised = raised.await.map_err(writing)?;
        let value = raised.and_then(|counters| counters.get_i64(counter).ok());
        value.map(crate::values::uint).ok_or_else(|| corrupt(format!("counter {counter} has no value")))
    }

    /// The value of a counter.
    pub(crate) async fn counter(&self, counter: &str) -> Result<u64> {
        let counters = find_one(&self.meta, doc! { "_id": "counters" }, Document::new()).await?;
        Ok(counters.and_then(|counters| counters.get_i64(counter).ok()).map_or(0, crate::values::uint))
    }
}

/// How many of these statements one command takes.
fn first_batch(statements: &[RawDocumentBuf]) -> usize {
    let mut bytes = 0;
    let fits = |statement: &&RawDocumentBuf| {
        bytes += statement.as_bytes().len();
        bytes <= COMMAND_BYTES
    };
    statements.iter().take(STATEMENTS).take_while(fits).count().max(1)
}

/// Writes a document in place of the one that fits, or inserts it if there is to be none. Returns whether it was written.
pub(crate) async fn put_if(
    into: &Documents,
    known: Option<Document>,
    document: RawDocumentBuf,
) -> Result<bool> {
    let written = into.call(|into| async move {
        match known {
            Some(known) => into.replace_one(known, document).await.map(|done| done.matched_count == 1),
            None => into.insert_one(document).await.map(|_| true),
        }
    });
    match written.await {
        Err(error) if is_duplicate(&error) => Ok(false),
        written => written.map_err(writing),
    }
}

/// A document as a value.
pub(crate) fn decode<T: DeserializeOwned>(document: RawDocumentBuf) -> Result<T> {
    bson::deserialize_from_slice(document.as_bytes())
        .map_err(|error| corrupt(format!("failed to decode: {error}")))
}

/// A value as a document.
pub(crate) fn encode(value: &impl Serialize) -> Result<RawDocumentBuf> {
    bson::serialize_to_raw_document_buf(value).map_err(|error| invalid(error.to_string()))
}

/// Refuses a document that no server stores, before anything of the same call is written.
fn fits(document: &RawDocumentBuf) -> Result<()> {
    let size = document.as_bytes().len();
    if size <= DOCUMENT_BYTES {
        return Ok(());
    }
    let id = document.get("_id").ok().flatten().map(|id| format!("{id:?}")).unwrap_or_default();
    let id: String = id.chars().take(200).collect();
    Err(invalid(format!(
        "the document with the id {id} would have {size} bytes, and MongoDB stores {DOCUMENT_BYTES} at most"
    )))
}

fn interrupted() -> StoreError {
    StoreError::not_done(ErrorKind::Unavailable, "write", "the connection was cut")
}

/// The code of a command that was refused.
fn code_of(error: &Error) -> Option<i32> {
    match &*error.kind {
        Driver::Command(command) => Some(command.code),
        _ => None,
    }
}

fn is_duplicate(error: &Error) -> bool {
    match &*error.kind {
        Driver::Write(WriteFailure::WriteError(write)) => write.code == DUPLICATE_KEY,
        Driver::Command(command) => command.code == DUPLICATE_KEY,
        _ => false,
    }
}

/// The statements that were refused as duplicates, from the answer to a command. Any other error is one.
fn refused(answer: &Document) -> Result<Vec<usize>> {
    let mut duplicates = Vec::new();
    let errors = answer.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    for error in errors.iter().filter_map(Bson::as_document) {
        let code = error.get_i32("code").unwrap_or_default();
        let index = error.get_i32("index").ok().and_then(|index| usize::try_from(index).ok());
        match index {
            Some(index) if code == DUPLICATE_KEY => duplicates.push(index),
            _ => {
                let context = error.get_str("errmsg").unwrap_or("a statement was refused").to_owned();
                // Others of the same command may have been applied.
                let error = of_code(code, context);
                return Err(StoreError::maybe(error.kind(), "write", error.context()));
            }
        }
    }
    if let Ok(error) = answer.get_document("writeConcernError") {
        let context = format!("the write concern was not met: {error}");
        return Err(StoreError::maybe(ErrorKind::Unavailable, "write", context));
    }
    Ok(duplicates)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use lazaret_core::store::Certainty;

    use super::*;

    #[tokio::test]
    async fn a_value_does_not_wait_for_letters() {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let database = Database::new(&client, "shop", "letters", 5);
        let mut waiting: Vec<_> = (0..20)
            .map(|_| {
                Box::pin(database.letters.call(|_| std::future::pending::<mongodb::error::Result<()>>()))
            })
            .collect();
        assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
        // The lease of a stream is such a value.
        database.values.call(|_| async { Ok(()) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn calls_for_values_without_an_answer_leave_time_for_another_within_a_lease() {
        let (values, began) = (Calls::new(FOR_VALUES, VALUE_LIMIT), tokio::time::Instant::now());
        let lost = (0..FOR_VALUES).map(|_| values.make::<()>(std::future::pending()));
        assert!(futures_util::future::join_all(lost).await.iter().all(|lost| lost.is_err()));
        values.make(async { Ok(()) }).await.unwrap();
        // The default lease is renewed after 8 seconds, and given up 5 seconds before its end.
        assert!(began.elapsed() < Duration::from_secs(30 - 8 - 5));
    }

    #[tokio::test]
    async fn searches_leave_half_of_the_calls_to_others() {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let database = Database::new(&client, "shop", "letters", 10);
        let mut turns = Vec::new();
        while let Some(turn) = database.turn_to_search().now_or_never() {
            turns.push(turn.unwrap());
        }
        assert_eq!(turns.len(), 4, "of 8 calls for letters");
        drop(turns.pop());
        assert!(database.turn_to_search().now_or_never().is_some());
    }

    #[test]
    fn a_document_that_no_server_stores_is_refused_before_it_is_sent() {
        let bytes =
            |size: usize| bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![7; size] };
        let guarded = |size| Guarded::new("k", 1, &doc! { "_id": "k", "left": bytes(size) });
        assert!(guarded(DOCUMENT_BYTES - 100).is_ok());
        let refused = guarded(DOCUMENT_BYTES).err().unwrap();
        assert_eq!((refused.kind(), refused.certainty()), (ErrorKind::Invalid, Certainty::NotDone));
        assert!(refused.context().contains("\"k\"") && refused.context().contains("16777216"), "{refused}");
    }

    #[test]
    fn duplicates_are_named_and_other_errors_are_errors() {
        let error = |index: i32, code: i32| doc! { "index": index, "code": code, "errmsg": "no" };
        let duplicates = doc! { "n": 1, "writeErrors": [error(0, 11_000), error(2, 11_000)] };
        assert_eq!(refused(&duplicates).unwrap(), [0, 2]);
        assert_eq!(refused(&doc! { "n": 3 }).unwrap(), [] as [usize; 0]);
        let other = refused(&doc! { "writeErrors": [error(0, 11_000), error(1, 17_419)] }).unwrap_err();
        assert_eq!((other.kind(), other.certainty()), (ErrorKind::Invalid, Certainty::MaybeDone));
        let unmet = refused(&doc! { "n": 1, "writeConcernError": { "code": 64 } }).unwrap_err();
        assert_eq!((unmet.kind(), unmet.certainty()), (ErrorKind::Unavailable, Certainty::MaybeDone));
    }
}
