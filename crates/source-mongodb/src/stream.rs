//! Opens change streams, and asks the server for times.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, Timestamp as ClusterTime, doc};
use futures_util::TryStreamExt;
use lazaret_core::Operation;
use mongodb::Client;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::{ChangeStreamOptions, ClientOptions, FullDocumentBeforeChangeType, FullDocumentType};

use crate::error::{ErrorClass, StreamError};
use crate::event::name_of;
use crate::options::{BeforeChange, FullDocument, MongoSourceOptions, Server};
use crate::position::{StreamPosition, next_time};

/// How long to wait for a server, unless the URI sets `serverSelectionTimeoutMS`.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Operations of the whole stream. They are always read, because they tell why a stream ends.
const LIFECYCLE: [Operation; 4] =
    [Operation::Drop, Operation::DropDatabase, Operation::Rename, Operation::Invalidate];

/// The number of entries at the end of the oplog among which the newest is, at least.
const LAST_WRITTEN: i64 = 64;

/// A connection to the server, with what to watch.
#[derive(Clone)]
pub(crate) struct Connection {
    client: Client,
    database: Option<String>,
    collection: Option<String>,
    pipeline: Vec<Document>,
    options: ChangeStreamOptions,
}

/// Where to open a stream.
pub(crate) enum OpenAt<'a> {
    Now,
    Position(&'a StreamPosition),
    /// Behind an invalidation.
    StartAfter(&'a StreamPosition),
}

impl Connection {
    pub(crate) async fn new(options: &MongoSourceOptions) -> Result<Self, StreamError> {
        let client = match &options.server {
            Server::Client(client) => client.clone(),
            Server::Uri(uri) => {
                let mut options = ClientOptions::parse(uri).await?;
                options.app_name.get_or_insert_with(|| "lazaret".to_owned());
                options.server_selection_timeout.get_or_insert(SERVER_TIMEOUT);
                Client::with_options(options)?
            }
        };
        Ok(Self {
            client,
            database: options.database.clone(),
            collection: options.collection.clone(),
            pipeline: pipeline(options),
            options: stream_options(options),
        })
    }

    pub(crate) async fn open(&self, at: OpenAt<'_>) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        let mut options = self.options.clone();
        match at {
            OpenAt::Now => {}
            OpenAt::Position(StreamPosition::After(token)) => {
                options.resume_after = Some(resume_token(token)?);
            }
            OpenAt::StartAfter(StreamPosition::After(token)) => {
                options.start_after = Some(resume_token(token)?);
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

    /// The cluster time from which on everything is new: behind the last operation. A server whose oplog cannot be read gives only the
    /// second of its clock, so events of that second that came before are delivered, too. Any other error is returned: the next attempt
    /// may find the exact time.
    pub(crate) async fn now(&self) -> Result<ClusterTime, StreamError> {
        let hello = self.hello().await?;
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

    /// The time of the last operation, as a primary or a router tells it with every answer. `None` from others: they may lag, or not
    /// tell it.
    pub(crate) async fn last_operation(&self) -> Result<Option<ClusterTime>, StreamError> {
        let hello = self.hello().await?;
        let is_primary = hello.get_bool("isWritablePrimary").unwrap_or(false);
        Ok(hello.get_timestamp("operationTime").ok().filter(|_| is_primary))
    }

    /// The time of the oldest entry of the oplog.
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

    /// The times of the oldest and the newest entry of the oplog.
    pub(crate) async fn oplog_window(&self) -> Result<Option<(ClusterTime, ClusterTime)>, StreamError> {
        let oldest = self.oplog_times(1, 1).await?.pop();
        Ok(oldest.zip(self.newest(&self.hello().await?).await?))
    }

    async fn hello(&self) -> Result<Document, StreamError> {
        Ok(self.client.database("admin").run_command(doc! { "hello": 1 }).await?)
    }

    /// The time of the last operation. A replica set tells it with every answer; other servers have it in the last entry of the oplog.
    async fn newest(&self, hello: &Document) -> Result<Option<ClusterTime>, StreamError> {
        match hello.get("operationTime") {
            Some(Bson::Timestamp(time)) => Ok(Some(*time)),
            // Not sorted by `ts`, which would read the whole oplog. Operations that run at once may be written in another order than
            // that of their times.
            _ => Ok(self.oplog_times(-1, LAST_WRITTEN).await?.into_iter().max()),
        }
    }

    /// The times of some entries of the oplog, from its beginning (1) or its end (-1).
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

/// The stages of the stream: the selected operations first, so that the server sends no others.
fn pipeline(options: &MongoSourceOptions) -> Vec<Document> {
    let mut stages = options.pipeline.clone();
    if !options.operations.is_empty() {
        let selected = options.operations.iter().copied().chain(LIFECYCLE);
        let mut names: Vec<_> = selected.filter_map(name_of).collect();
        names.sort_unstable();
        names.dedup();
        stages.insert(0, doc! { "$match": { "operationType": { "$in": names } } });
    }
    stages
}

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
        .comment(Bson::String(format!("lazaret:{}", options.stream)))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_operations_are_matched_on_the_server_with_those_that_end_a_stream() {
        let mut options = MongoSourceOptions::collection("mongodb://localhost", "shop", "orders");
        assert_eq!(pipeline(&options), []);
        options.operations = vec![Operation::Insert, Operation::Drop];
        options.pipeline = vec![doc! { "$unset": "fullDocument.secret" }];
        let names = ["drop", "dropDatabase", "insert", "invalidate", "rename"];
        let expected = [
            doc! { "$match": { "operationType": { "$in": names.to_vec() } } },
            doc! { "$unset": "fullDocument.secret" },
        ];
        assert_eq!(pipeline(&options), expected);
    }

    #[test]
    fn the_cursor_names_the_stream_on_the_server() {
        let options = MongoSourceOptions::collection("mongodb://localhost", "shop", "orders");
        assert_eq!(stream_options(&options).comment, Some("lazaret:orders".into()));
    }
}
