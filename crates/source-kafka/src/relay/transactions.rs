//! Relays messages and commits their positions in one transaction.
//!
//! A producer has one transaction at a time. A thread therefore runs transactions in sequence, each with
//! all records and commits queued in the meantime. All commits of the source go through this thread,
//! because two ways to commit would overwrite each other. If a record makes a transaction fail, all
//! commits are repeated in one transaction, and then each record in its own. A bad record therefore
//! delays only the other records, and no commit waits for records. Records and positions that are not
//! committed are repeated after a crash. Any other failure, such as a rebalance or another producer with
//! the same id, concerns all jobs alike, and becomes the outcome of all of them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lazaret_core::{Message, Partition};
use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tokio::sync::oneshot;

use super::offsets::{AssignedOffsets, OffsetsByPartition};
use crate::client::assignment::{add_offset, list_of};
use crate::client::callbacks::{Callbacks, Client};
use crate::positions::commit::{CommitOutcome, OffsetCommit, PendingCommit};
use crate::positions::settled::SettledOffsets;
use crate::transaction_hook::TransactionHook;

/// The timeout of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum number of records and commits in one transaction.
const BATCH: usize = 256;

/// A record to write, with the position that it settles.
#[derive(Clone)]
pub(super) struct RelayedRecord {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) headers: OwnedHeaders,
    pub(super) message: Arc<Message>,
    /// The partition and offset that are settled with the record. `None` for a claim check, whose
    /// message is already settled.
    pub(super) settles: Option<(Partition, u64)>,
}

/// The reason why a message was not relayed.
pub(super) enum NotRelayed {
    /// The partition of the message was revoked.
    Revoked,
    /// Nothing was written.
    NotDone(KafkaError),
    /// The outcome is unknown.
    MaybeDone(KafkaError),
}

/// Work for one transaction.
enum Job {
    Relay(Box<RelayedRecord>, oneshot::Sender<Result<u64, NotRelayed>>),
    Commit(Vec<OffsetCommit>, oneshot::Sender<Vec<CommitOutcome>>, Callbacks),
}

/// A handle of the thread that runs transactions.
pub(crate) struct Transactions {
    jobs: Mutex<Sender<Job>>,
    shared: Arc<Shared>,
}

struct Shared {
    offsets: AssignedOffsets,
    /// The group member whose positions are committed.
    group: Mutex<Weak<Client>>,
    /// The id of the store, for commit metadata.
    store: Mutex<Option<Arc<str>>>,
}

impl Transactions {
    /// Starts the thread. `config` has the transactional id.
    pub(super) fn start(config: ClientConfig, hook: TransactionHook) -> std::io::Result<Self> {
        let (jobs, received) = channel();
        let shared = Arc::new(Shared {
            offsets: AssignedOffsets::default(),
            group: Mutex::new(Weak::new()),
            store: Mutex::new(None),
        });
        let worker = Worker { config, hook, shared: shared.clone(), producer: None };
        let builder = thread::Builder::new().name("lazaret-kafka-transactions".to_owned());
        builder.spawn(move || worker.run(&received))?;
        Ok(Self { jobs: Mutex::new(jobs), shared })
    }

    /// Sets the group member whose positions are committed from now on, and the id of its store.
    pub(crate) fn set_group(&self, group: &Arc<Client>, store: Option<Arc<str>>) {
        *self.shared.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
        *self.shared.group.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(group);
    }

    pub(crate) fn offsets(&self) -> &AssignedOffsets {
        &self.shared.offsets
    }

    fn send(&self, job: Job) {
        // Without the thread, the job is dropped with its sender, and the receiver detects that.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
    }

    /// Relays a message. Returns the offset of the record.
    pub(super) async fn relay(&self, record: RelayedRecord) -> Result<u64, NotRelayed> {
        let (sender, outcome) = oneshot::channel();
        self.send(Job::Relay(Box::new(record), sender));
        outcome.await.unwrap_or(Err(NotRelayed::MaybeDone(KafkaError::Canceled)))
    }

    /// Starts a commit of positions.
    pub(crate) fn commit(&self, commits: Vec<OffsetCommit>, callbacks: Callbacks) -> PendingCommit {
        let (sender, pending) = oneshot::channel();
        self.send(Job::Commit(commits, sender, callbacks));
        pending
    }
}

/// A failed transaction.
struct TransactionError {
    error: KafkaError,
    maybe_done: bool,
    /// Whether the broker refused a record. Without that record, the others may be written.
    of_record: bool,
}

/// An error while a transaction is being filled.
enum FillError {
    /// An error of one of the records.
    Record(KafkaError),
    /// An error of the transaction.
    Transaction(KafkaError),
}

struct Worker {
    config: ClientConfig,
    hook: TransactionHook,
    shared: Arc<Shared>,
    producer: Option<FutureProducer>,
}

impl Worker {
    fn run(mut self, received: &Receiver<Job>) {
        // Aborts transactions that an earlier process with this id left open. Until then, its positions
        // cannot be looked up.
        if let Err(error) = self.producer() {
            tracing::warn!(%error, "transactional producer not initialised");
        }
        while let Ok(first) = received.recv() {
            let more = received.try_iter().take(BATCH - 1);
            let jobs: Vec<Job> = std::iter::once(first).chain(more).collect();
            self.execute(jobs);
        }
    }

    fn execute(&mut self, jobs: Vec<Job>) {
        let (owned, revoked): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| match job {
            Job::Relay(record, _) => {
                let settles = record.settles.as_ref();
                settles.is_none_or(|(partition, _)| self.shared.offsets.get(partition).is_some())
            }
            Job::Commit(..) => true,
        });
        for job in revoked {
            respond(job, Err(NotRelayed::Revoked));
        }
        match self.transact(&owned) {
            Ok(offsets) => {
                let mut offsets = offsets.into_iter();
                for job in owned {
                    let offset = if matches!(job, Job::Relay(..)) { offsets.next() } else { None };
                    respond(job, Ok(offset.unwrap_or_default()));
                }
            }
            Err(failed) if owned.len() > 1 && failed.of_record => {
                divide(owned).into_iter().for_each(|jobs| self.execute(jobs));
            }
            Err(TransactionError { error, maybe_done, .. }) => {
                for job in owned {
                    let error = error.clone();
                    respond(
                        job,
                        Err(if maybe_done {
                            NotRelayed::MaybeDone(error)
                        } else {
                            NotRelayed::NotDone(error)
                        }),
                    );
                }
            }
        }
    }

    /// Runs one transaction with all jobs. Returns the offsets of the records.
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<u64>, TransactionError> {
        let positions = self.positions(jobs);
        if positions.is_empty() && !jobs.iter().any(|job| matches!(job, Job::Relay(..))) {
            return Ok(Vec::new());
        }
        let not_done = |error| TransactionError { error, maybe_done: false, of_record: false };
        let producer = self.producer().map_err(not_done)?;
        if let Err(error) = producer.begin_transaction() {
            self.producer = None;
            return Err(not_done(error));
        }
        self.hook.call("begun");
        let filled = self.fill(&producer, jobs, &positions);
        let offsets = filled.map_err(|failed| {
            self.abort(&producer);
            match failed {
                FillError::Record(error) => TransactionError { of_record: true, ..not_done(error) },
                FillError::Transaction(error) => not_done(error),
            }
        })?;
        self.commit(&producer)?;
        self.hook.call("committed");
        self.shared.offsets.update(positions);
        Ok(offsets)
    }

    /// Returns the positions of the partitions after all jobs.
    fn positions(&self, jobs: &[Job]) -> OffsetsByPartition {
        let mut positions = OffsetsByPartition::new();
        let mut change = |partition: &Partition, change: &dyn Fn(&mut SettledOffsets)| {
            let known = positions.remove(partition).or_else(|| self.shared.offsets.get(partition));
            if let Some((number, mut settled)) = known {
                change(&mut settled);
                positions.insert(partition.clone(), (number, settled));
            }
        };
        for job in jobs {
            match job {
                Job::Relay(record, _) => {
                    if let Some((partition, offset)) = &record.settles {
                        change(partition, &|settled| settled.settle([*offset..=*offset]));
                    }
                }
                Job::Commit(commits, ..) => {
                    for commit in commits {
                        change(&commit.partition, &|settled| {
                            settled.add_commit(commit.offset, &commit.settled_beyond, commit.metadata_limit);
                        });
                    }
                }
            }
        }
        positions
    }

    /// Writes the records and the positions into the transaction.
    fn fill(
        &self,
        producer: &FutureProducer,
        jobs: &[Job],
        positions: &OffsetsByPartition,
    ) -> Result<Vec<u64>, FillError> {
        let mut deliveries = Vec::new();
        for job in jobs {
            let Job::Relay(relayed, _) = job else { continue };
            let record: FutureRecord<'_, [u8], [u8]> = FutureRecord {
                key: relayed.message.key.as_deref(),
                payload: relayed.message.payload.as_deref(),
                ..FutureRecord::to(&relayed.topic)
                    .partition(relayed.partition)
                    .headers(relayed.headers.clone())
            };
            deliveries.push(producer.send_result(record).map_err(|(error, _)| FillError::Record(error))?);
        }
        producer.flush(STEP_TIMEOUT).map_err(FillError::Transaction)?;
        let mut offsets = Vec::new();
        for delivery in deliveries {
            let delivered = delivery.now_or_never().and_then(Result::ok);
            let delivered = delivered.ok_or(FillError::Transaction(KafkaError::Canceled))?;
            let delivered = delivered.map_err(|(error, _)| match is_of_record(&error) {
                true => FillError::Record(error),
                false => FillError::Transaction(error),
            })?;
            offsets.push(delivered.offset.unsigned_abs());
        }
        self.hook.call("produced");
        if positions.is_empty() {
            return Ok(offsets);
        }
        let mut list = list_of([]);
        let store = self.shared.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (partition, (_, settled)) in positions {
            add_offset(&mut list, partition, settled.offset, &settled.metadata(partition, store.as_deref()));
        }
        let group = self.shared.group.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let metadata = group.and_then(|group| group.group_metadata());
        let metadata = metadata.ok_or(FillError::Transaction(KafkaError::Canceled))?;
        let sent = producer.send_offsets_to_transaction(&list, &metadata, STEP_TIMEOUT);
        sent.map_err(FillError::Transaction)?;
        self.hook.call("offsets sent");
        Ok(offsets)
    }

    fn commit(&mut self, producer: &FutureProducer) -> Result<(), TransactionError> {
        let until = Instant::now() + STEP_TIMEOUT;
        loop {
            let error = match producer.commit_transaction(STEP_TIMEOUT) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match &error {
                KafkaError::Transaction(cause) if cause.is_retriable() && Instant::now() < until => {}
                KafkaError::Transaction(cause) if cause.txn_requires_abort() => {
                    self.abort(producer);
                    return Err(TransactionError { error, maybe_done: false, of_record: false });
                }
                _ => {
                    // The next producer with this id aborts the transaction that this one left open.
                    self.producer = None;
                    return Err(TransactionError { error, maybe_done: true, of_record: false });
                }
            }
        }
    }

    fn abort(&mut self, producer: &FutureProducer) {
        if let Err(error) = producer.abort_transaction(STEP_TIMEOUT) {
            tracing::warn!(%error, "transaction not aborted, producer replaced");
            self.producer = None;
        }
    }

    fn producer(&mut self) -> KafkaResult<FutureProducer> {
        if let Some(producer) = &self.producer {
            return Ok(producer.clone());
        }
        let producer: FutureProducer = self.config.create()?;
        producer.init_transactions(STEP_TIMEOUT)?;
        self.producer = Some(producer.clone());
        Ok(producer)
    }
}

/// Divides jobs whose transaction failed because of a record. All commits come first, then each record.
fn divide(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let (commits, records): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().partition(|job| matches!(job, Job::Commit(..)));
    let commits = (!commits.is_empty()).then_some(commits);
    commits.into_iter().chain(records.into_iter().map(|job| vec![job])).collect()
}

/// Returns `true` if a broker refused one record, and not the producer or its transaction.
fn is_of_record(error: &KafkaError) -> bool {
    let of_producer = [
        Code::Fatal,
        Code::Fenced,
        Code::ProducerFenced,
        Code::InvalidProducerEpoch,
        Code::InvalidTransactionalState,
        Code::PurgeQueue,
        Code::PurgeInflight,
    ];
    !error.rdkafka_error_code().is_some_and(|code| of_producer.contains(&code))
}

/// Sends the outcome of a job. The receiver may have been dropped.
fn respond(job: Job, result: Result<u64, NotRelayed>) {
    match job {
        Job::Relay(_, sender) => _ = sender.send(result),
        Job::Commit(commits, sender, callbacks) => {
            let outcome = result.map(|_| ()).map_err(|reason| match reason {
                NotRelayed::Revoked => KafkaError::ConsumerCommit(Code::UnknownMemberId),
                NotRelayed::NotDone(error) | NotRelayed::MaybeDone(error) => {
                    error.rdkafka_error_code().map_or(error, KafkaError::ConsumerCommit)
                }
            });
            let _ = sender.send(vec![(commits, outcome)]);
            callbacks.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;

    use super::*;

    #[test]
    fn commits_do_not_wait_for_records_that_are_written_one_by_one() {
        // Records and positions that are not committed are repeated after a crash.
        let record = |topic: &str| {
            let message = Arc::new(Message::new("m", "orders", Position::new(0, 0)));
            let headers = OwnedHeaders::new();
            let record =
                RelayedRecord { topic: topic.to_owned(), partition: 0, headers, message, settles: None };
            Job::Relay(Box::new(record), oneshot::channel().0)
        };
        let commit = || Job::Commit(Vec::new(), oneshot::channel().0, Callbacks::new(true, Arc::default()));
        let name = |job: &Job| match job {
            Job::Relay(record, _) => record.topic.clone(),
            Job::Commit(..) => "commit".to_owned(),
        };
        let names = |jobs| {
            divide(jobs).iter().map(|jobs| jobs.iter().map(name).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        assert_eq!(
            names(vec![record("a"), commit(), record("b"), commit()]),
            [vec!["commit", "commit"], vec!["a"], vec!["b"]]
        );
        assert_eq!(names(vec![record("a"), record("b")]), [["a"], ["b"]]);
    }

    #[test]
    fn a_lost_producer_is_not_the_fault_of_a_record() {
        let is_of_record = |code| is_of_record(&KafkaError::MessageProduction(code));
        assert!(is_of_record(Code::MessageSizeTooLarge) && is_of_record(Code::TopicAuthorizationFailed));
        assert!(!is_of_record(Code::ProducerFenced) && !is_of_record(Code::PurgeQueue));
    }
}
