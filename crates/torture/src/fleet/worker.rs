//! One process of the fleet: the consumer, on PostgreSQL, with Kafka or the inbox as its source, and a clock of its own.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Attempt;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::{Store, store_id};
use lazaret_core::{Clock, Message, Timestamp};
use lazaret_engine::{Builder, Consumer, Event, Options};
use lazaret_flight_recorder::{MappedRecorder, Options as RecorderOptions};
use lazaret_kafka_testkit::Topic;
use lazaret_source_kafka::KafkaSource;
use lazaret_store_postgres::{InboxOptions, PostgresStore, PostgresStoreOptions};
use tokio_util::sync::CancellationToken;

use super::{Files, Plant, Stream};
use crate::journal::{Entry, Journal};
use crate::plan::{CONSUMER, MAX_ATTEMPTS, Plan};
use crate::worker::{follow, note_ownership, plain_options};

/// How long leases of sequences and of the inbox last.
pub const LEASE: Duration = Duration::from_secs(4);
/// How often a process looks whether it is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The header with the id of a message.
pub(super) const ID_HEADER: &str = "id";

/// A process of the fleet.
#[derive(Clone, Debug)]
pub struct Member {
    /// The messages.
    pub plan: Plan,
    /// Its place in the fleet, which a restarted process takes over.
    pub place: u32,
    /// Its number, which no other process has.
    pub process: u32,
    /// By how many seconds its clock is ahead.
    pub skew_seconds: i64,
    /// Where messages come from.
    pub stream: Stream,
    /// The store.
    pub dsn: String,
    /// A fault, which the checks must find.
    pub plant: Option<Plant>,
}

/// A clock that is wrong.
struct SkewedClock(i64);

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + jiff::SignedDuration::from_secs(self.0)
    }
}

/// The delays between attempts. Exact, and much longer than a due time could be early by chance.
pub(super) fn retry() -> RetryPolicy {
    RetryPolicy {
        max_attempts: MAX_ATTEMPTS,
        // Some wait in memory, others in the store.
        hold: Duration::from_millis(60),
        initial_delay: Duration::from_millis(40),
        max_delay: Duration::from_millis(200),
        jitter: 0.0,
        ..RetryPolicy::default()
    }
}

fn options(member: &Member) -> Options {
    Options {
        concurrency: 16,
        window: 128,
        retry: retry(),
        commit_interval: Duration::from_millis(50),
        lease: LEASE,
        refresh: Duration::from_millis(250),
        drain_deadline: Duration::from_secs(5),
        instance: format!("place-{}", member.place),
        ..plain_options()
    }
}

/// Opens the store. A server that is away is an error, as it is for a daemon.
pub(super) async fn open_store(dsn: &str) -> Result<PostgresStore, lazaret_core::store::StoreError> {
    let options = PostgresStoreOptions {
        max_connections: 8,
        acquire_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(10),
        ..PostgresStoreOptions::default()
    };
    PostgresStore::connect(dsn, options).await
}

/// The inbox of the run.
pub(super) fn inbox_options(instance: &str) -> InboxOptions {
    InboxOptions {
        lease: LEASE,
        poll: Duration::from_millis(250),
        batch: 64,
        instance: instance.to_owned(),
        ..InboxOptions::default()
    }
}

impl Member {
    /// Consumes until the run is over or the process is killed. Returns `false` if the store is not there yet.
    ///
    /// # Errors
    /// When the consumer ends by itself.
    pub async fn work(self, folder: &Path) -> Result<bool, Box<dyn Error>> {
        let files = Files::in_folder(folder);
        let journal = Arc::new(Journal::open(&files.journal(), self.process)?);
        let Ok(store) = open_store(&self.dsn).await else { return Ok(false) };
        let Ok(id) = store_id(&store, "fleet").await else { return Ok(false) };
        let recorder = MappedRecorder::open(files.recorder(self.place), RecorderOptions::default())?;
        journal.write(Entry::Start)?;
        let (plan, noted, owned) = (self.plan, journal.clone(), journal.clone());
        let builder = self.read(Consumer::builder(CONSUMER), &store, &id)?;
        let store: Arc<dyn Store> = match self.plant {
            None => Arc::new(store),
            Some(plant) => plant.in_store(store),
        };
        let consumer = builder
            .store(store)
            .clock(Arc::new(SkewedClock(self.skew_seconds)))
            .handler(move |message: Message, Attempt(attempt)| follow(plan, noted.clone(), message, attempt))
            .observer(move |event: &Event<'_>| note_ownership(&owned, event))
            .options(Options { flight_recorder: Some(Arc::new(recorder)), ..options(&self) })
            .build()?;
        let stop = CancellationToken::new();
        let mut run = tokio::spawn(consumer.run(stop.clone()));
        loop {
            tokio::select! {
                ended = &mut run => {
                    ended??;
                    return if stop.is_cancelled() { Ok(true) } else { Err("the consumer ended by itself".into()) };
                }
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    if files.stop().exists() {
                        stop.cancel();
                    }
                }
            }
        }
    }

    /// Sets the source.
    fn read(
        &self,
        builder: Builder,
        store: &PostgresStore,
        store_id: &str,
    ) -> Result<Builder, Box<dyn Error>> {
        Ok(match &self.stream {
            Stream::Kafka { brokers, topic } => {
                let options = Topic::existing(brokers.clone(), topic).options();
                let options = options.with_id_headers([ID_HEADER]).with_store(store_id);
                builder.source(KafkaSource::open(options)?)
            }
            Stream::Inbox => {
                let instance = format!("place-{}", self.place);
                builder.source(store.inbox_log(CONSUMER, inbox_options(&instance)).source())
            }
        })
    }
}
