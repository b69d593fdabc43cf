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
    /// The database. `None` watches the whole deployment.
    pub database: Option<String>,
    /// The collection. `None` watches the whole database.
    pub collection: Option<String>,
    /// Stages that the server applies to the events. They must keep `_id`.
    pub pipeline: Vec<Document>,
    /// The full-document mode for updates.
    pub full_document: FullDocument,
    /// The mode for the document before the change.
    pub full_document_before_change: BeforeChange,
    /// The operations to deliver. If empty, all are delivered.
    pub operations: Vec<Operation>,
    /// The start position.
    pub start: Start,
    /// The action when the oplog no longer holds the events after the checkpoint.
    pub on_history_lost: OnHistoryLost,
    /// The action when the stream is invalidated, for example by a drop of its collection.
    pub on_invalidate: OnInvalidate,
    /// When positions are written.
    pub checkpoint: CheckpointOptions,
    /// Which instances read the stream.
    pub deployment: Deployment,
    /// The timing of the lease.
    pub lease: LeaseOptions,
    /// The name of this instance. A single leader gets a random one by default. With all instances, each
    /// one needs a name that survives restarts.
    pub instance: Option<String>,
    /// The schedule for reopening a failed stream.
    pub restart: RestartPolicy,
    /// How long the server waits for an event before it answers without one.
    pub max_await: Duration,
    /// The number of events per request. `None` uses the server's default.
    pub batch_size: Option<u32>,
    /// The collections of the stores that the consumer writes to. They are excluded, because a stream
    /// that reads them would never end.
    pub store_collections: Vec<StoreCollections>,
}

/// The server, by address or as a client that the application shares.
#[derive(Clone)]
pub enum Server {
    /// A connection string.
    Uri(String),
    /// A client of the application.
    Client(Client),
}

/// Omits the connection string, which may contain a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(_) => f.write_str("Uri"),
            Self::Client(_) => f.write_str("Client"),
        }
    }
}

impl Server {
    /// Returns the database that the address or the client names.
    pub fn default_database(&self) -> Option<String> {
        match self {
            Self::Uri(uri) => ConnectionString::parse(uri).ok()?.default_database,
            Self::Client(client) => client.default_database().map(|database| database.name().to_owned()),
        }
    }
}

/// The full-document mode for update events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullDocument {
    /// Updates have no document.
    #[default]
    Default,
    /// The document at the time when the event is read. It may be newer than the event, or missing.
    UpdateLookup,
    /// The document as the update left it, if the collection stores images.
    WhenAvailable,
    /// The document as the update left it. The stream fails without it.
    Required,
}

/// The mode for the document before the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BeforeChange {
    /// No document.
    #[default]
    Off,
    /// The document, if the collection stores images.
    WhenAvailable,
    /// The document. The stream fails without it.
    Required,
}

/// The start position of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// After the checkpoint, or now if there is none.
    #[default]
    Resume,
    /// Now, at every start. The checkpoint is replaced, and events in between are skipped.
    Now,
    /// After the checkpoint, or at the oldest entry of the oplog if there is none.
    OplogStart,
    /// After the checkpoint, or at this cluster time if there is none.
    At(bson::Timestamp),
}

/// The action when the oplog no longer holds the events after the checkpoint, or when everything on the
/// server is before the checkpoint. In the latter case, the server was restored or set up again, and
/// reading begins a new [incarnation](lazaret_core::incarnation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHistoryLost {
    /// Fails, and keeps the checkpoint.
    #[default]
    Fail,
    /// Continues with events from now on. The events in between are skipped.
    FromNow,
    /// Continues with the oldest entry of the oplog. Only events that are gone are skipped, and events
    /// may be repeated.
    FromOplogStart,
}

/// The action when the stream is invalidated because its collection was dropped or renamed, or its
/// database dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalidate {
    /// Fails when all events before the invalidation are settled.
    #[default]
    Stop,
    /// Continues after the invalidation with what is created under the same name, in a new
    /// [incarnation](lazaret_core::incarnation). Nothing is skipped.
    StartAfter,
}

/// The instances that read a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deployment {
    /// One instance at a time. The others take over when its lease ends.
    #[default]
    SingleLeader,
    /// Every instance reads all events, with its own checkpoint. Each needs its own queue, through its
    /// own consumer name or its own store.
    AllInstances,
}

impl MongoSourceOptions {
    /// Creates default options for a collection. The stream has the name of the collection.
    pub fn collection(uri: impl Into<String>, database: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        let mut options = Self::deployment(uri, name.clone());
        (options.database, options.collection) = (Some(database.into()), Some(name));
        options
    }

    /// Creates default options for a database. The stream has the name of the database.
    pub fn database(uri: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        let mut options = Self::deployment(uri, name.clone());
        options.database = Some(name);
        options
    }

    /// Creates default options for a whole deployment, with a stream of this name.
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

    /// Returns the name under which the checkpoint and the lease are stored.
    pub fn checkpoint_name(&self) -> String {
        match (self.deployment, &self.instance) {
            (Deployment::AllInstances, Some(instance)) => format!("{}@{instance}", self.stream),
            _ => self.stream.to_string(),
        }
    }

    /// Checks the options without a connection.
    ///
    /// # Errors
    /// When a value is invalid, or the pipeline removes or changes the resume token.
    pub fn validate(&self) -> Result<(), SourceError> {
        self.check().map_err(|why| SourceError::permanent(format!("change stream {}: {why}", self.stream)))
    }

    /// Returns a description of a probable mistake in the pipeline, although the pipeline can be used.
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
