//! Adopts the dead letters that a team already has: reads a dead-letter topic and makes letters of a consumer of it.
//!
//! Frameworks write a failed message to a topic, with headers that say where it came from and why it failed. [`Adoption`]
//! reads such a topic and restores each message as it was: its id, stream, position, key, payload, headers and time. The
//! letters belong to one queue. They are looked at, grouped, replayed and closed like all others, and a replay goes to
//! the handler of that consumer alone.
//!
//! - **Idempotent** (I8): the id of a message is that of its id header or its original place. Copies of one message, in one
//!   topic or in several, make one letter, and adopting a topic again makes none.
//! - **Resumable**: progress is a checkpoint in the store, written after the letters are durable. Whoever dies at any point
//!   goes on from there.
//! - **Silent**: the topic is read without a group. Nothing is committed, and nobody who reads it notices.
//! - **In order** (I2): letters of one sequence stand in the order of their original offsets, wherever in the topic they stood.
//! - **Nothing vanishes** (I11): what is not known is counted and named, what is damaged is taken with a warning.
//!
//! ```no_run
//! use lazaret_core::store::{Checkpoints, LetterStore};
//! use lazaret_core::QueueName;
//! use lazaret_source_kafka::{KafkaOptions, adopt::{AdoptError, Adoption}};
//!
//! # async fn adopt(store: &(impl LetterStore + Checkpoints)) -> Result<(), AdoptError> {
//! // As the consumer reads its topics, so that ids are the same.
//! let consumer = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]).with_id_headers(["ce_id"]);
//! let report = Adoption::of(&consumer, "orders-dlt")
//!     .into_queue(QueueName::of("billing", "billing"))
//!     .only_group("billing")
//!     .on_progress(|report| println!("{} of {}", report.run.read, report.run.read + report.left))
//!     .run(store)
//!     .await?;
//! println!("{} adopted, {} not known", report.run.adopted, report.run.unknown);
//! # Ok(())
//! # }
//! ```
//!
//! - `family`: what the failure headers tell, whoever wrote them; `spring`, `connect`, `streams` and `original`: each who did.
//! - `values`, `java`: how they write numbers, times and exceptions.
//! - `letter`: makes letters.
//! - `topic`: reads the topic.
//! - `progress`: how far it has come.
//! - `run`: the way from the one to the other.

mod connect;
mod error;
mod family;
mod java;
mod letter;
mod original;
mod progress;
mod run;
mod spring;
mod streams;
mod topic;
mod values;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{Checkpoints, LetterStore, Limits};
use lazaret_core::{QueueName, Sequencing};

use crate::options::KafkaOptions;

pub(crate) use letter::ADOPTED_FROM;

pub use error::{AdoptError, AdoptTrouble};
pub use family::Family;
pub use progress::{Report, Tally};

/// How long the store may fail, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to do with records that have no failure headers that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Leave them where they are. They are counted, and the first of them are named in the report.
    #[default]
    LeaveOut,
    /// Take them as they stand, as messages of the dead-letter topic itself.
    Take,
}

/// Told how far it has come.
type Listener = dyn Fn(&Report) + Send + Sync;

/// Reads a dead-letter topic and makes letters of it. See the [module text](self).
#[derive(Clone)]
pub struct Adoption {
    options: KafkaOptions,
    queue: Option<QueueName>,
    limits: Limits,
    sequencing: Sequencing,
    apart: bool,
    group: Option<String>,
    unknown: Unknown,
    owner: Option<Arc<str>>,
    ttl: Option<Duration>,
    afresh: bool,
    patience: Duration,
    listener: Option<Arc<Listener>>,
}

impl Adoption {
    /// Reads this topic. The options are those of the consumer that shall get the letters: brokers, properties, and which
    /// headers give a message its id, its type and its correlation. Its group and topics do not matter.
    pub fn of(consumer: &KafkaOptions, topic: impl Into<String>) -> Self {
        let mut options = consumer.clone();
        options.topics = vec![topic.into()];
        // The client tells the end of each partition.
        options.read_to_end = true;
        Self {
            options,
            queue: None,
            limits: Limits::default(),
            sequencing: Sequencing::default(),
            apart: false,
            group: None,
            unknown: Unknown::default(),
            owner: None,
            ttl: None,
            afresh: false,
            patience: PATIENCE,
            listener: None,
        }
    }

    /// The same for this queue. Without one, the queue is named like the group of the consumer.
    #[must_use]
    pub fn into_queue(mut self, queue: QueueName) -> Self {
        self.queue = Some(queue);
        self
    }

    /// The same with the limits of that queue.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same with the sequencing of the consumer; by key unless given. A consumer with the strategy `unordered` has
    /// [`Sequencing::Alone`] here.
    ///
    /// Letters stand in the sequences of the consumer, so from now on live messages of a sequence wait behind the letters
    /// that were adopted into it, as behind every letter (I2). See [`apart`](Self::apart).
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.sequencing = sequencing;
        self
    }

    /// The same with letters that stand apart: in sequences of their own, in order among themselves, with no live message
    /// behind them. For a consumer that went on past its dead letters for long, and shall go on while they are looked at.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// The same, leaving out what names another group. Those that name none are taken.
    #[must_use]
    pub fn only_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The same with another way to treat records that have no failure headers that are known.
    #[must_use]
    pub fn with_unknown(mut self, unknown: Unknown) -> Self {
        self.unknown = unknown;
        self
    }

    /// The same with an owner for the letters.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The same with letters that expire after this time, counted from now. Without it they do not.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The same, reading the topic from its beginning, whatever was read before. What has a letter is found again.
    #[must_use]
    pub fn from_the_beginning(mut self) -> Self {
        self.afresh = true;
        self
    }

    /// The same with another patience: how long the store may fail before it stops; a minute unless given.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same, telling this how far it has come, after every batch that is durable.
    #[must_use]
    pub fn on_progress(mut self, listener: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The name of the checkpoint that holds the progress.
    pub fn checkpoint(&self) -> String {
        format!("adopt/{}/{}", self.queue(), self.options.topics[0])
    }

    fn queue(&self) -> QueueName {
        self.queue.clone().unwrap_or_else(|| QueueName::of(&self.options.group, &self.options.group))
    }

    /// Adopts everything up to the end of the topic as it is now.
    ///
    /// # Errors
    /// The error says why it stopped and how far it had come. Run again, it goes on from there.
    pub async fn run<S: LetterStore + Checkpoints + ?Sized>(&self, store: &S) -> Result<Report, AdoptError> {
        run::run(self, store, true, std::future::pending()).await
    }

    /// Adopts what is there and what comes, until `shutdown` ends.
    ///
    /// # Errors
    /// As [`run`](Self::run). Brokers that are away are waited for.
    pub async fn follow<S: LetterStore + Checkpoints + ?Sized>(
        &self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Report, AdoptError> {
        run::run(self, store, false, shutdown).await
    }
}

impl fmt::Debug for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption")
            .field("options", &self.options)
            .field("queue", &self.queue())
            .field("sequencing", &self.sequencing)
            .field("apart", &self.apart)
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}
