//! Opens change streams, and requests times from the server.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, Timestamp as ClusterTime, doc};
use futures_util::TryStreamExt;
use lazaret_core::Operation;
use mongodb::Client;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::{ChangeStreamOptions, FullDocumentBeforeChangeType, FullDocumentType};

use crate::error::{ErrorClass, StreamError};
use crate::event::name_of;
use crate::options::{BeforeChange, FullDocument, MongoSourceOptions};
use crate::pipeline::let_pass;
use crate::position::{StreamPosition, next_time};
use crate::server::{check_images, connect, hello, last_operation, needs_images};
use crate::store_collections::excluded;

/// How long the server may take for its first answer, beyond the time that it waits for events.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Operations on the whole stream. They are always read, because they show why a stream ends.
const LIFECYCLE: [Operation; 4] =
    [Operation::Drop, Operation::DropDatabase, Operation::Rename, Operation::Invalidate];

/// The minimum number of entries at the end of the oplog that include the newest one.
const LAST_WRITTEN: i64 = 64;

/// A connection to the server, with the options that say what to watch. The source, a check and a
/// take-over all open their streams with it, so that they send the server the same request.
#[derive(Clone)]
pub(crate) struct Connection {
    client: Client,
    database: Option<String>,
    collection: Option<String>,
    pipeline: Vec<Document>,
    options: ChangeStreamOptions,
    needs_images: bool,
    answer_limit: Duration,
    excludes: bool,
}

/// The position at which to open a stream.
pub(crate) enum OpenAt<'a> {
    Now,
    Position(&'a StreamPosition),
    /// After an invalidation.
    StartAfter(&'a StreamPosition),
}

impl Connection {
    pub(crate) async fn new(options: &MongoSourceOptions) -> Result<Self, StreamError> {
        let source = connect(&options.server).await?;
        let excluded = excluded(options, &source).await?;
        Ok(Self {
            client: source.client,
            database: options.database.clone(),
            collection: options.collection.clone(),
            excludes: !excluded.is_empty(),
            pipeline: pipeline(options, excluded),
            options: stream_options(options),
            needs_images: needs_images(options),
            answer_limit: options.max_await + ANSWER_LIMIT,
        })
    }

    /// Returns `true` if events of a Lazaret store are excluded.
    pub(crate) const fn excludes(&self) -> bool {
        self.excludes
    }

    pub(crate) async fn open(&self, at: OpenAt<'_>) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        if self.needs_images {
            check_images(&hello(&self.client).await?)?;
        }
        let mut options = self.options.clone();
        // The server does not resume at an invalidation.
        let is_invalidation = match &at {
            OpenAt::Now => false,
            OpenAt::Position(position) => position.is_invalidation(),
            OpenAt::StartAfter(_) => true,
        };
        match at {
            OpenAt::Now => {}
            OpenAt::Position(StreamPosition::After(token))
            | OpenAt::StartAfter(StreamPosition::After(token)) => {
                let token = Some(resume_token(token)?);
                match is_invalidation {
                    true => options.start_after = token,
                    false => options.resume_after = token,
                }
            }
            OpenAt::Position(StreamPosition::At(time)) | OpenAt::StartAfter(StreamPosition::At(time)) => {
                options.start_at_operation_time = Some(*time);
            }
        }
        let pipeline = self.pipeline.clone();
        let stream = match (&self.database, &self.collection) {
            (Some(database), Some(collection)) => {
                let collection = self.client.database(database).collection::<Document>(collection);
                collection.watch().pipeline(pipeline).with_options(options).await?.with_type()
            }
            (Some(database), None) => {
                let database = self.client.database(database);
                database.watch().pipeline(pipeline).with_options(options).await?.with_type()
            }
            (None, _) => self.client.watch().pipeline(pipeline).with_options(options).await?.with_type(),
        };
        Ok(stream)
    }

    /// Opens the stream, and reads until the server has sent an event or certified a position. The
    /// server may check the position only at the first request. An event that it cannot send is also an
    /// error then.
    pub(crate) async fn probe(&self, at: OpenAt<'_>) -> Result<(), StreamError> {
        let mut stream = self.open(at).await?;
        let answer = tokio::time::timeout(self.answer_limit, stream.next_if_any()).await;
        let late = |_| StreamError::new(ErrorClass::Network, "the server did not answer");
        answer.map_err(late)??;
        Ok(())
    }

    /// Returns the cluster time after the last operation, from which on everything is new. A server
    /// whose oplog cannot be read reports only the second of its clock. Earlier events of that second
    /// are then delivered as well. Any other error is returned, because the next attempt may find the
    /// exact time.
    pub(crate) async fn now(&self) -> Result<ClusterTime, StreamError> {
        let hello = hello(&self.client).await?;
        match self.newest(&hello).await {
            Ok(Some(newest)) => return Ok(next_time(newest)),
            Ok(None) => {}
            Err(error) if error.class.is_oplog_unreadable() => {}
            Err(error) => return Err(error),
        }
        match hello.get_datetime("localTime") {
            Ok(time) => {
                let time = u32::try_from(time.timestamp_millis() / 1000).unwrap_or(u32::MAX);
                Ok(ClusterTime { time, increment: 0 })
            }
            Err(_) => Err(StreamError::new(ErrorClass::Fatal, "the server does not tell its time")),
        }
    }

    /// Returns the time of the last operation of a primary or a router.
    pub(crate) async fn last_operation(&self) -> Result<Option<ClusterTime>, StreamError> {
        Ok(last_operation(&hello(&self.client).await?))
    }

    /// Returns the time of the oldest entry of the oplog.
    pub(crate) async fn oplog_start(&self) -> Result<ClusterTime, StreamError> {
        let entries = self.oplog_times(1, 1).await.map_err(|mut error| {
            error.detail = format!("the oldest entry of `local.oplog.rs` was not read: {}", error.detail);
            error
        })?;
        entries
            .first()
            .copied()
            .ok_or_else(|| StreamError::new(ErrorClass::NotAReplicaSet, "the oplog is empty"))
    }

    /// Returns the times of the oldest and the newest entry of the oplog.
    pub(crate) async fn oplog_window(&self) -> Result<Option<(ClusterTime, ClusterTime)>, StreamError> {
        let oldest = self.oplog_times(1, 1).await?.pop();
        Ok(oldest.zip(self.newest(&hello(&self.client).await?).await?))
    }

    /// Returns the time of the last operation. A replica set reports it with every answer. Other servers
    /// have it in the last entry of the oplog.
    async fn newest(&self, hello: &Document) -> Result<Option<ClusterTime>, StreamError> {
        match hello.get("operationTime") {
            Some(Bson::Timestamp(time)) => Ok(Some(*time)),
            // Not sorted by `ts`, because that would read the whole oplog. Concurrent operations may be
            // written in a different order than their times.
            _ => Ok(self.oplog_times(-1, LAST_WRITTEN).await?.into_iter().max()),
        }
    }

    /// Returns the times of some entries of the oplog, from its beginning (1) or its end (-1).
    async fn oplog_times(&self, order: i32, limit: i64) -> Result<Vec<ClusterTime>, StreamError> {
        let oplog = self.client.database("local").collection::<Document>("oplog.rs");
        let entries = oplog
            .find(doc! {})
            .sort(doc! { "$natural": order })
            .limit(limit)
            .projection(doc! { "ts": 1 })
            .await?;
        let entries: Vec<Document> = entries.try_collect().await?;
        Ok(entries.iter().filter_map(|entry| entry.get_timestamp("ts").ok()).collect())
    }
}

fn resume_token(token: &Document) -> Result<ResumeToken, StreamError> {
    bson::deserialize_from_bson(Bson::Document(token.clone()))
        .map_err(|error| StreamError::new(ErrorClass::TokenRefused, error.to_string()))
}

/// Returns the stages of the stream: first a filter of the source, so that the server sends only
/// selected events, then the user's stages. The filter contains the name of the stream, for people who
/// look at the server's cursors.
fn pipeline(options: &MongoSourceOptions, excluded: Vec<Document>) -> Vec<Document> {
    let mut filter = doc! { "$comment": format!("lazaret:{}", options.stream) };
    if !options.operations.is_empty() {
        let selected = options.operations.iter().copied().chain(LIFECYCLE);
        let mut names: Vec<_> = selected.filter_map(name_of).collect();
        names.sort_unstable();
        names.dedup();
        filter.insert("operationType", doc! { "$in": names });
    }
    if !excluded.is_empty() {
        filter.insert("$nor", excluded);
    }
    let mut stages = vec![doc! { "$match": filter }];
    stages.extend(let_pass(&options.pipeline));
    stages
}

/// Returns the options of the stream. The driver writes all of them into `$changeStream`, including
/// `comment`, and servers refuse unknown fields. Only options that every version from 4.4 on knows are
/// set, and images where the server supports them.
fn stream_options(options: &MongoSourceOptions) -> ChangeStreamOptions {
    let full_document = match options.full_document {
        FullDocument::Default => None,
        FullDocument::UpdateLookup => Some(FullDocumentType::UpdateLookup),
        FullDocument::WhenAvailable => Some(FullDocumentType::WhenAvailable),
        FullDocument::Required => Some(FullDocumentType::Required),
    };
    let before = match options.full_document_before_change {
        BeforeChange::Off => None,
        BeforeChange::WhenAvailable => Some(FullDocumentBeforeChangeType::WhenAvailable),
        BeforeChange::Required => Some(FullDocumentBeforeChangeType::Required),
    };
    ChangeStreamOptions::builder()
        .full_document(full_document)
        .full_document_before_change(before)
        .max_await_time(options.max_await)
        .batch_size(options.batch_size)
        .build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::options::StoreCollections;

    fn orders() -> MongoSourceOptions {
        MongoSourceOptions::collection("mongodb://localhost", "shop", "orders")
    }

    #[test]
    fn selected_operations_are_matched_on_the_server_with_those_that_end_a_stream() {
        let options = MongoSourceOptions {
            operations: vec![Operation::Insert, Operation::Drop],
            pipeline: vec![doc! { "$unset": "fullDocument.secret" }],
            ..orders()
        };
        let names = ["drop", "dropDatabase", "insert", "invalidate", "rename"];
        let filter = doc! { "$comment": "lazaret:orders", "operationType": { "$in": names.to_vec() } };
        let expected = [doc! { "$match": filter }, doc! { "$unset": "fullDocument.secret" }];
        assert_eq!(pipeline(&options, vec![]), expected);
    }

    #[test]
    fn the_filter_names_the_stream_and_leaves_out_the_store() {
        assert_eq!(
            pipeline(&orders(), vec![]),
            [doc! { "$match": { "$comment": "lazaret:orders" } }],
            "the server shows it with the cursor"
        );
        let own = doc! { "ns.db": "lazaret", "ns.coll": { "$regex": "^letters(_|$)" } };
        assert_eq!(
            pipeline(&orders(), vec![own.clone()]),
            [doc! { "$match": { "$comment": "lazaret:orders", "$nor": [own] } }]
        );
    }

    #[test]
    fn the_server_gets_no_option_that_an_old_one_refuses() {
        let options = MongoSourceOptions {
            full_document: FullDocument::UpdateLookup,
            batch_size: Some(7),
            ..MongoSourceOptions::deployment("mongodb://localhost", "all")
        };
        // As in the driver, everything written is in `$changeStream`.
        let written = bson::serialize_to_document(&stream_options(&options)).unwrap();
        let fields: BTreeSet<_> = written.keys().map(String::as_str).collect();
        assert_eq!(fields, BTreeSet::from(["fullDocument"]));
        let plain = MongoSourceOptions { full_document: FullDocument::Default, ..options };
        let written = bson::serialize_to_document(&stream_options(&plain)).unwrap();
        assert_eq!(written, doc! {});
    }

    #[tokio::test]
    async fn a_stream_of_a_collection_of_the_store_is_refused() {
        let server = crate::options::Server::Uri("mongodb://127.0.0.1:1".into());
        let store = StoreCollections { server, database: "shop".into(), collection: "orders".into() };
        let options = MongoSourceOptions {
            store_collections: vec![store],
            ..MongoSourceOptions::collection("mongodb://127.0.0.1:1", "shop", "orders_audit")
        };
        let error = Connection::new(&options).await.err().unwrap();
        assert_eq!(error.class, ErrorClass::Fatal);
        assert!(error.to_string().contains("shop.orders_audit belongs to the store"), "{error}");
    }
}
