//! Configures and runs the adoption of one collection.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::redaction::TextRules;
use lazaret_core::source::SourceError;
use lazaret_core::store::{Checkpoints, LetterStore, Limits};
use lazaret_core::{QueueName, Sequencing};
use lazaret_source_mongodb::MongoSourceOptions;
use lazaret_source_mongodb::bson::RawDocumentBuf;
use lazaret_source_mongodb::driver::{Collection, Database};

use super::DEAD_LETTERS;
use super::collection::{DeadLetterCollection, DocumentCursor, by_stream};
use super::document::{Decoder, PENDING};
use super::preview::Preview;
use crate::error;
use crate::preview;
use crate::progress;
use crate::run::Run;
use crate::target::{Expiry, Target};

/// The progress of adopting a collection.
pub type Report = progress::Report<DocumentCursor>;

/// The error of an adoption of a collection that stopped before its end.
pub type AdoptError = error::AdoptError<DocumentCursor>;

type ProgressCallback = dyn Fn(&Report) + Send + Sync;

/// Reads FlowWarden's dead letters of one stream and turns them into letters of a consumer. See the
/// [module documentation](super).
#[derive(Clone)]
pub struct Adoption {
    options: MongoSourceOptions,
    collection: Collection<RawDocumentBuf>,
    stream: String,
    /// The watched database and collection, or `None` if unknown.
    namespace: Option<(String, String)>,
    statuses: BTreeSet<String>,
    target: Target,
    progress: Option<Arc<ProgressCallback>>,
}

impl Adoption {
    /// Creates an adoption of the dead letters of this FlowWarden stream, in the collection `_fw_dlq` of
    /// this database. The options are the options of the consumer that receives the letters, so that ids
    /// and keys are the same. The queue is named after the consumer's stream, see
    /// [`into_queue`](Self::into_queue). The letters expire when FlowWarden would delete them, see
    /// [`with_ttl`](Self::with_ttl).
    pub fn of(consumer: &MongoSourceOptions, database: &Database, stream: impl Into<String>) -> Self {
        let (queue, stream) = (consumer.stream.as_str(), stream.into());
        Self {
            collection: database.collection(DEAD_LETTERS),
            namespace: consumer.database.clone().zip(consumer.collection.clone()),
            statuses: [PENDING.to_owned()].into(),
            target: Target {
                group: Some(stream.clone()),
                expiry: Expiry::Theirs,
                ..Target::new(QueueName::of(queue, queue))
            },
            stream,
            options: consumer.clone(),
            progress: None,
        }
    }

    /// Reads this collection instead of `_fw_dlq`.
    #[must_use]
    pub fn from_collection(mut self, name: &str) -> Self {
        let database = self.collection.client().database(&self.collection.namespace().db);
        self.collection = database.collection(name);
        self
    }

    /// Sets the collection that the FlowWarden stream watches. Default: the consumer's collection.
    /// Required for a consumer that watches a whole database.
    #[must_use]
    pub fn watching(mut self, database: impl Into<String>, collection: impl Into<String>) -> Self {
        self.namespace = Some((database.into(), collection.into()));
        self
    }

    /// Also adopts documents with this status. Default: only `PENDING`.
    #[must_use]
    pub fn with_status(mut self, status: impl Into<String>) -> Self {
        self.statuses.insert(status.into());
        self
    }

    /// Sets the queue of the letters.
    #[must_use]
    pub fn into_queue(mut self, queue: QueueName) -> Self {
        self.target.queue = queue;
        self
    }

    /// Sets the limits of the queue.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.target.limits = limits;
        self
    }

    /// Sets the rules that redact texts of errors before they are stored.
    #[must_use]
    pub fn with_redaction(mut self, rules: TextRules) -> Self {
        self.target.redact = rules;
        self
    }

    /// Sets the sequencing of the consumer. Default: by key. A consumer with the strategy `unordered`
    /// needs [`Sequencing::Alone`].
    ///
    /// Letters join the consumer's sequences, so live changes of a document wait behind its letters, as
    /// behind any letter (I2). See [`in_separate_sequences`](Self::in_separate_sequences).
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.target.sequencing = sequencing;
        self
    }

    /// Puts the letters into separate sequences. They keep their order, and no live change waits behind
    /// them. FlowWarden continued past its dead letters, so later changes of their documents were
    /// already handled.
    #[must_use]
    pub fn in_separate_sequences(mut self) -> Self {
        self.target.separate_sequences = true;
        self
    }

    /// Sets the owner of the letters.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.target.owner = Some(owner.into());
        self
    }

    /// Lets the letters expire after this time, counted from now, or never with `None`. Default: when
    /// FlowWarden would delete them, or never if that time has passed.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.target.expiry = ttl.map_or(Expiry::Never, Expiry::After);
        self
    }

    /// Leaves payloads out of the letters. Such letters can be inspected and closed, but not replayed.
    #[must_use]
    pub fn without_payloads(mut self) -> Self {
        self.target.include_payload = false;
        self
    }

    /// Leaves backtraces out of the letters.
    #[must_use]
    pub fn without_backtraces(mut self) -> Self {
        self.target.include_backtrace = false;
        self
    }

    /// Sets how long temporary failures of the store are retried. Default: one minute.
    #[must_use]
    pub fn with_store_timeout(mut self, timeout: Duration) -> Self {
        self.target.store_timeout = timeout;
        self
    }

    /// Sets a callback for the progress. It is called after every batch that is durable.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    /// Returns the name of the checkpoint that holds the progress.
    pub fn checkpoint(&self) -> String {
        format!("adopt/{}/{}/{}", self.target.queue, self.collection.namespace(), self.stream)
    }

    /// Adopts the documents of the collection.
    ///
    /// # Errors
    /// When the collection cannot be read, the store fails, or the queue is full. The error holds the
    /// progress. The next run continues from there.
    pub async fn run<S: LetterStore + Checkpoints + ?Sized>(&self, store: &S) -> Result<Report, AdoptError> {
        let checkpoint = self.checkpoint();
        let mut source = self.source().map_err(|error| AdoptError::new(error, &Report::default()))?;
        let run = Run::resume(store, &self.target, &checkpoint).await?;
        let progress = |report: &Report| {
            if let Some(callback) = &self.progress {
                callback(report);
            }
        };
        run.read_all(&mut source, std::future::pending(), progress).await
    }

    /// Returns what [`run`](Self::run) would do. Nothing is written.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn preview<S: LetterStore + ?Sized>(&self, store: &S) -> Result<Preview, AdoptError> {
        let preview = async {
            let mut source = self.source()?;
            let streams = by_stream(&self.collection).await?;
            let (counts, unknown_at) =
                preview::preview(store, &self.target, &mut source, Default::default(), |_| ()).await?;
            Ok(Preview { counts, streams, unknown_at })
        };
        preview.await.map_err(|kind: error::AdoptErrorKind| AdoptError::new(kind, &Report::default()))
    }

    fn source(&self) -> Result<DeadLetterCollection, SourceError> {
        let Some(namespace) = self.namespace.clone() else {
            return Err(SourceError::permanent(
                "FlowWarden does not record the collection of an event, and the consumer watches several: name the collection that \
                 the stream of FlowWarden watches",
            ));
        };
        let (options, statuses) = (self.options.clone(), self.statuses.clone());
        Ok(DeadLetterCollection::new(&self.collection, Decoder { options, namespace, statuses }))
    }
}

impl fmt::Debug for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption")
            .field("options", &self.options)
            .field("collection", &self.collection.namespace())
            .field("stream", &self.stream)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}
