//! Configures and runs the adoption of one topic.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{Checkpoints, LetterStore, Limits};
use lazaret_core::{QueueName, Sequencing};
use lazaret_source_kafka::{KafkaOptions, MessageDecoder};

use super::decode::{Decoder, UnknownRecords};
use super::preview::{Preview, Summary};
use super::topic::{DeadLetterTopic, Offsets};
use crate::error::{self, AdoptErrorKind};
use crate::preview;
use crate::progress;
use crate::run::Run;
use crate::source::Content;
use crate::target::{Expiry, Target};

/// The progress of adopting a topic.
pub type Report = progress::Report<Offsets>;

/// The error of an adoption of a topic that stopped before its end.
pub type AdoptError = error::AdoptError<Offsets>;

type ProgressCallback = dyn Fn(&Report) + Send + Sync;

/// Reads a dead-letter topic and turns its records into letters of a consumer. See the
/// [module documentation](super).
#[derive(Clone)]
pub struct Adoption {
    options: KafkaOptions,
    topic: String,
    target: Target,
    unknown: UnknownRecords,
    from_beginning: bool,
    progress: Option<Arc<ProgressCallback>>,
}

impl Adoption {
    /// Creates an adoption of this topic. The options are the options of the consumer that receives the
    /// letters: brokers, properties, and the headers that hold the id, the type and the correlation of a
    /// message. The topics in the options are not read. The queue is named after the consumer's group,
    /// see [`into_queue`](Self::into_queue).
    pub fn of(consumer: &KafkaOptions, topic: impl Into<String>) -> Self {
        Self {
            options: consumer.clone(),
            topic: topic.into(),
            target: Target::new(QueueName::of(consumer.group(), consumer.group())),
            unknown: UnknownRecords::default(),
            from_beginning: false,
            progress: None,
        }
    }

    /// Sets the queue of the letters.
    #[must_use]
    pub fn into_queue(mut self, queue: QueueName) -> Self {
        self.target.queue = queue;
        self
    }

    /// Sets the queue of the letters together with how they are stored there.
    #[must_use]
    pub fn into_target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Sets the limits of the queue.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.target.limits = limits;
        self
    }

    /// Sets the sequencing of the consumer. Default: by key. A consumer with the strategy `unordered`
    /// needs [`Sequencing::Alone`].
    ///
    /// Letters join the consumer's sequences, so live messages wait behind the letters adopted into
    /// their sequence, as behind any letter (I2). See
    /// [`in_separate_sequences`](Self::in_separate_sequences).
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.target.sequencing = sequencing;
        self
    }

    /// Puts the letters into separate sequences. They keep their order, and no live message waits behind
    /// them. Use this for a consumer that continued past its dead letters, and keeps running while they
    /// are triaged.
    #[must_use]
    pub fn in_separate_sequences(mut self) -> Self {
        self.target.separate_sequences = true;
        self
    }

    /// Skips dead letters of other groups. Dead letters without a group are adopted.
    #[must_use]
    pub fn only_group(mut self, group: impl Into<String>) -> Self {
        self.target.group = Some(group.into());
        self
    }

    /// Sets how records without known failure headers are treated. Default: they are skipped.
    #[must_use]
    pub fn with_unknown(mut self, unknown: UnknownRecords) -> Self {
        self.unknown = unknown;
        self
    }

    /// Sets the owner of the letters.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.target.owner = Some(owner.into());
        self
    }

    /// Lets the letters expire after this time, counted from now. Default: they do not expire.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.target.expiry = Expiry::After(ttl);
        self
    }

    /// Ignores the checkpoint and reads the topic from its beginning. Letters that were already adopted
    /// are recognised.
    #[must_use]
    pub fn from_the_beginning(mut self) -> Self {
        self.from_beginning = true;
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
        format!("adopt/{}/{}", self.target.queue, self.topic)
    }

    /// Adopts everything up to the current end of the topic.
    ///
    /// # Errors
    /// When the topic cannot be read, the store fails, or the queue is full. The error holds the
    /// progress. The next run continues from there.
    pub async fn run<S: LetterStore + Checkpoints + ?Sized>(&self, store: &S) -> Result<Report, AdoptError> {
        self.adopt(store, true, std::future::pending()).await
    }

    /// Adopts everything up to the current end of the topic, or until `shutdown` completes.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn run_until<S: LetterStore + Checkpoints + ?Sized>(
        &self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Report, AdoptError> {
        self.adopt(store, true, shutdown).await
    }

    /// Adopts existing and new dead letters until `shutdown` completes.
    ///
    /// # Errors
    /// As for [`run`](Self::run), except that unreachable brokers are retried.
    pub async fn follow<S: LetterStore + Checkpoints + ?Sized>(
        &self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Report, AdoptError> {
        self.adopt(store, false, shutdown).await
    }

    async fn adopt<S: LetterStore + Checkpoints + ?Sized>(
        &self,
        store: &S,
        bounded: bool,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Report, AdoptError> {
        let checkpoint = self.checkpoint();
        let mut run = Run::resume(store, &self.target, &checkpoint).await?;
        if self.from_beginning {
            run.restart();
        }
        let mut topic = self.source(bounded);
        let progress = |report: &Report| {
            if let Some(callback) = &self.progress {
                callback(report);
            }
        };
        run.read_all(&mut topic, shutdown, progress).await
    }

    /// Returns what [`run`](Self::run) would do. Nothing is written.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn preview<S: LetterStore + Checkpoints + ?Sized>(
        &self,
        store: &S,
    ) -> Result<Preview, AdoptError> {
        let preview = async {
            let loaded = store.load(&self.checkpoint()).await.map_err(AdoptErrorKind::Store)?;
            let start = match self.from_beginning {
                true => Offsets::default(),
                false => Report::from_checkpoint(loaded.as_ref()).next,
            };
            let (mut topic, mut summary) = (self.source(true), Summary::default());
            let observe = |content: &Content| summary.add(content);
            let (counts, unknown_at) =
                preview::preview(store, &self.target, &mut topic, start, observe).await?;
            Ok(summary.into_preview(counts, unknown_at))
        };
        preview.await.map_err(|kind: AdoptErrorKind| AdoptError::new(kind, &Report::default()))
    }

    fn source(&self, bounded: bool) -> DeadLetterTopic {
        DeadLetterTopic {
            options: self.options.clone(),
            topic: self.topic.clone(),
            bounded,
            decoder: Decoder { messages: MessageDecoder::new(&self.options), unknown: self.unknown },
            reader: None,
        }
    }
}

impl fmt::Debug for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption")
            .field("options", &self.options)
            .field("topic", &self.topic)
            .field("target", &self.target)
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}
