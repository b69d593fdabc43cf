//! The options of a change stream source.

mod times;

use std::fmt;
use std::time::Duration;

use bson::Document;
use lazaret_core::source::SourceError;
use lazaret_core::{Operation, StreamName};
use mongodb::Client;
use mongodb::options::ConnectionString;

pub use self::times::{CheckpointOptions, LeaseOptions, RestartPolicy};
use crate::pipeline;
pub use crate::store_collections::StoreCollections;

/// The options of a [`MongoSource`](crate::MongoSource).
///
/// ```
/// use lazaret_source_mongodb::{FullDocument, MongoSourceOptions};
/// let options = MongoSourceOptions {
///     full_document: FullDocument::UpdateLookup,
///     ..MongoSourceOptions::collection("mongodb://127.0.0.1:27017", "shop", "orders")
/// };
/// assert_eq!(options.stream.as_str(), "orders");
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct MongoSourceOptions {
    /// The server.
    pub server: Server,
    /// The name of the stream. Messages carry it, and checkpoints and leases are stored under it.
    pub stream: StreamName,
    /// The database; `None` watches the whole deployment.
    pub database: Option<String>,
    /// The collection; `None` watches the whole database.
    pub collection: Option<String>,
    /// Stages that the server applies to the events. They must keep `_id`.
    pub pipeline: Vec<Document>,
    /// The full document of updates.
    pub full_document: FullDocument,
    /// The document before the change.
    pub full_document_before_change: BeforeChange,
    /// The operations to deliver; empty for all.
    pub operations: Vec<Operation>,
    /// Where to start.
    pub start: Start,
    /// What to do when the oplog no longer holds the events behind the checkpoint.
    pub on_history_lost: OnHistoryLost,
    /// What to do when the stream was invalidated, as by a drop of its collection.
    pub on_invalidate: OnInvalidate,
    /// When positions are written.
    pub checkpoint: CheckpointOptions,
    /// Which instances read the stream.
    pub deployment: Deployment,
    /// The times of the lease.
    pub lease: LeaseOptions,
    /// The name of this instance. A single leader gets a random one; all instances need one that survives restarts.
    pub instance: Option<String>,
    /// When a failed stream is opened again.
    pub restart: RestartPolicy,
    /// How long the server waits for an event before it answers with none.
    pub max_await: Duration,
    /// The number of events per request; the server's default when `None`.
    pub batch_size: Option<u32>,
    /// The collections of the stores that the consumer writes to. A stream that reads them would never end: they are left out.
    pub store_collections: Vec<StoreCollections>,
}

/// The server: by address, or a client that the application shares.
#[derive(Clone)]
pub enum Server {
    /// A connection string.
    Uri(String),
    /// A client of the application.
    Client(Client),
}

/// Without the connection string: it may hold a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(_) => f.write_str("Uri"),
            Self::Client(_) => f.write_str("Client"),
        }
    }
}

impl Server {
    /// The database that the address or the client names.
    pub fn default_database(&self) -> Option<String> {
        match self {
            Self::Uri(uri) => ConnectionString::parse(uri).ok()?.default_database,
            Self::Client(client) => client.default_database().map(|database| database.name().to_owned()),
        }
    }
}

/// The full document of update events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullDocument {
    /// No document for updates.
    #[default]
    Default,
    /// The document as it is when the event is read. It may be newer than the event, or missing.
    UpdateLookup,
    /// The document as the update left it, if the collection stores images.
    WhenAvailable,
    /// The same, and the stream fails without it.
    Required,
}

/// The document before the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BeforeChange {
    /// None.
    #[default]
    Off,
    /// If the collection stores images.
    WhenAvailable,
    /// The same, and the stream fails without it.
    Required,
}

/// Where a stream starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Behind the checkpoint; now if there is none.
    #[default]
    Resume,
    /// Now, at every start: the checkpoint is replaced, and what happened in between is skipped.
    Now,
    /// Behind the checkpoint; at the oldest entry of the oplog if there is none.
    OplogStart,
    /// Behind the checkpoint; at this cluster time if there is none.
    At(bson::Timestamp),
}

/// What to do when the oplog no longer holds the events behind the checkpoint, or all that the server has is before it: then it was restored
/// or set up anew, and what is read begins a new [incarnation](lazaret_core::incarnation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHistoryLost {
    /// Fails, and keeps the checkpoint.
    #[default]
    Fail,
    /// Goes on with what happens from now. The events in between are skipped.
    FromNow,
    /// Goes on with the oldest entry of the oplog. Only what is gone is skipped; events may come again.
    FromOplogStart,
}

/// What to do when the stream was invalidated: its collection was dropped or renamed, or its database dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalidate {
    /// Fails when all events before it are settled.
    #[default]
    Stop,
    /// Goes on behind the invalidation, with what is created under the same name, in a new [incarnation](lazaret_core::incarnation).
    /// Nothing is skipped.
    StartAfter,
}

/// Which instances read a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deployment {
    /// One at a time. The others take over when its lease ends.
    #[default]
    SingleLeader,
    /// Each instance reads all events, with a checkpoint of its own. Each needs its own queue: its own consumer name, or its
    /// own store.
    AllInstances,
}

impl MongoSourceOptions {
    /// The default options for a collection. The stream has the name of the collection.
    pub fn collection(uri: impl Into<String>, database: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        let mut options = Self::deployment(uri, name.clone());
        (options.database, options.collection) = (Some(database.into()), Some(name));
        options
    }

    /// The default options for a database. The stream has the name of the database.
    pub fn database(uri: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        let mut options = Self::deployment(uri, name.clone());
        options.database = Some(name);
        options
    }

    /// The default options for a whole deployment, with a stream of this name.
    pub fn deployment(uri: impl Into<String>, stream: impl Into<StreamName>) -> Self {
        Self {
            server: Server::Uri(uri.into()),
            stream: stream.into(),
            database: None,
            collection: None,
            pipeline: Vec::new(),
            full_document: FullDocument::default(),
            full_document_before_change: BeforeChange::default(),
            operations: Vec::new(),
            start: Start::default(),
            on_history_lost: OnHistoryLost::default(),
            on_invalidate: OnInvalidate::default(),
            checkpoint: CheckpointOptions::default(),
            deployment: Deployment::default(),
            lease: LeaseOptions::default(),
            instance: None,
            restart: RestartPolicy::default(),
            max_await: Duration::from_secs(1),
            batch_size: None,
            store_collections: Vec::new(),
        }
    }

    /// The name under which the checkpoint and the lease are stored.
    pub fn checkpoint_name(&self) -> String {
        match (self.deployment, &self.instance) {
            (Deployment::AllInstances, Some(instance)) => format!("{}@{instance}", self.stream),
            _ => self.stream.to_string(),
        }
    }

    /// Checks the options without a connection.
    ///
    /// # Errors
    /// When a value is impossible, or the pipeline removes or changes the resume token.
    pub fn validate(&self) -> Result<(), SourceError> {
        self.check().map_err(|why| SourceError::permanent(format!("change stream {}: {why}", self.stream)))
    }

    /// Returns what is probably a mistake in the pipeline, although it can be used.
    ///
    /// ```
    /// use lazaret_source_mongodb::MongoSourceOptions;
    /// use lazaret_source_mongodb::bson::doc;
    ///
    /// let mut options = MongoSourceOptions::collection("mongodb://127.0.0.1", "shop", "orders");
    /// options.pipeline = vec![doc! { "$match": { "fullDocument.status": "paid" } }];
    /// assert_eq!(options.warning(), None);
    /// options.pipeline.insert(0, doc! { "$unset": "operationType" });
    /// assert!(options.warning().unwrap().contains("invalidate"));
    /// ```
    pub fn warning(&self) -> Option<String> {
        let found = pipeline::obstacle(&self.pipeline)?;
        Some(format!(
            "stage {} of the pipeline (`{}`) drops `invalidate` events, because stage {} removes `operationType`: a drop or rename ends \
             the stream without a word, and `on-invalidate: start-after` has no effect; filter first",
            found.number, found.stage, found.behind
        ))
    }

    fn check(&self) -> Result<(), String> {
        pipeline::check(&self.pipeline).map_err(|error| error.to_string())?;
        let refuse = |wrong: bool, why: &str| if wrong { Err(why.to_owned()) } else { Ok(()) };
        refuse(self.stream.as_str().is_empty(), "the stream needs a name")?;
        refuse(
            self.collection.is_some() && self.database.is_none(),
            "a collection is watched in a database; name it",
        )?;
        refuse(
            self.collection.as_deref() == Some("") || self.database.as_deref() == Some(""),
            "the name of the database or collection is empty",
        )?;
        refuse(self.checkpoint.every == 0, "`checkpoint.every` is 0, expected at least 1")?;
        refuse(self.checkpoint.interval.is_zero(), "`checkpoint.interval` is 0, expected a duration")?;
        refuse(self.operations.contains(&Operation::Other), "`other` is not an operation to select")?;
        refuse(self.max_await.is_zero(), "`max_await` is 0, expected a duration")?;
        let LeaseOptions { ttl, renew, margin, standby } = self.lease;
        refuse(renew.is_zero() || standby.is_zero(), "the intervals of the lease must not be 0")?;
        refuse(
            renew + margin >= ttl,
            "the lease must last longer than the renewal interval and the margin together",
        )?;
        let restart = &self.restart;
        refuse(
            !restart.multiplier.is_finite() || restart.multiplier < 1.0,
            "`restart.multiplier` must be at least 1",
        )?;
        refuse(restart.initial_delay.is_zero(), "`restart.initial_delay` is 0, expected a duration")?;
        refuse(
            restart.initial_delay > restart.max_delay,
            "`restart.initial_delay` is longer than `restart.max_delay`",
        )?;
        refuse(
            self.deployment == Deployment::AllInstances && self.instance.as_deref().is_none_or(str::is_empty),
            "a stream that all instances read needs a name for each instance that survives restarts: set `instance`",
        )
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn options() -> MongoSourceOptions {
        MongoSourceOptions::collection("mongodb://localhost", "shop", "orders")
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let options = options();
        assert!(options.validate().is_ok());
        assert_eq!(options.start, Start::Resume);
        assert_eq!(options.on_history_lost, OnHistoryLost::Fail);
        assert_eq!(options.deployment, Deployment::SingleLeader);
        assert_eq!((options.checkpoint.every, options.checkpoint.interval.as_secs()), (1, 5));
        assert_eq!(options.checkpoint.idle_heartbeat.as_secs(), 300);
    }

    #[test]
    fn impossible_options_are_refused() {
        type Change = fn(&mut MongoSourceOptions);
        let wrong: [(&str, Change); 9] = [
            ("`_id`", |o| o.pipeline = vec![doc! { "$unset": "_id" }]),
            ("in a database", |o| o.database = None),
            ("is empty", |o| o.collection = Some(String::new())),
            ("at least 1", |o| o.checkpoint.every = 0),
            ("longer than", |o| o.lease.renew = o.lease.ttl),
            ("multiplier", |o| o.restart.multiplier = 0.5),
            ("`restart.max_delay`", |o| o.restart.max_delay = Duration::ZERO),
            ("survives restarts", |o| o.deployment = Deployment::AllInstances),
            ("not an operation", |o| o.operations = vec![Operation::Other]),
        ];
        for (text, change) in wrong {
            let mut options = options();
            change(&mut options);
            let error = options.validate().unwrap_err();
            assert!(error.to_string().contains(text) && !error.is_temporary(), "{error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let options = MongoSourceOptions::database("mongodb://user:secret@host", "shop");
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn all_instances_keep_a_checkpoint_each() {
        let mut options = options();
        assert_eq!(options.checkpoint_name(), "orders");
        (options.deployment, options.instance) = (Deployment::AllInstances, Some("a".into()));
        assert_eq!(options.checkpoint_name(), "orders@a");
    }
}
