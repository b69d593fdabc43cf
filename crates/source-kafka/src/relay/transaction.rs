//! Passes messages on and commits their positions in one transaction.
//!
//! A producer has one transaction at a time, so a thread makes one after the other, each with all that has come meanwhile. All
//! commits of the source go the same way: two ways to commit would overwrite each other. Should a transaction with several
//! fail, each is tried by itself, so that one bad record costs the others nothing but time.

use std::fmt;
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

use super::ledger::{Ledger, Standing, Standings};
use crate::member::{Client, Member, add_offset, list_of};
use crate::membership::commit::{Committing, Offer, Outcome};

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// How many records and commits go into one transaction at most.
const BATCH: usize = 256;

/// A look into the middle of a transaction, for tests that want to end there.
#[derive(Clone, Default)]
pub(crate) struct Hook(pub(crate) Option<Arc<dyn Fn(&'static str) + Send + Sync>>);

impl Hook {
    fn at(&self, point: &'static str) {
        if let Some(hook) = &self.0 {
            hook(point);
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hook" } else { "no hook" })
    }
}

/// A record that is to be written, and the position that is settled with it.
#[derive(Clone)]
pub(super) struct Passed {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) headers: OwnedHeaders,
    pub(super) message: Arc<Message>,
    pub(super) from: Partition,
    pub(super) offset: u64,
}

/// Why a message was not passed on.
pub(super) enum Refused {
    /// The partition that it came from is not ours any more.
    Lost,
    /// Nothing was written.
    NotDone(KafkaError),
    /// Nobody knows.
    MaybeDone(KafkaError),
}

enum Job {
    Pass(Box<Passed>, oneshot::Sender<Result<u64, Refused>>),
    Commit(Vec<Offer>, oneshot::Sender<Vec<Outcome>>, Member),
}

/// The way to the thread that makes transactions.
pub(crate) struct Transactions {
    jobs: Mutex<Sender<Job>>,
    shared: Arc<Shared>,
}

struct Shared {
    ledger: Ledger,
    /// The member of the group for which positions are committed.
    group: Mutex<Weak<Client>>,
}

impl Transactions {
    /// Starts the thread. `config` has the transactional id.
    pub(super) fn start(config: ClientConfig, hook: Hook) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let shared = Arc::new(Shared { ledger: Ledger::default(), group: Mutex::new(Weak::new()) });
        let worker = Worker { config, hook, shared: shared.clone(), producer: None };
        let builder = thread::Builder::new().name("lazaret-kafka-transactions".to_owned());
        builder.spawn(move || worker.work(&inbox))?;
        Ok(Self { jobs: Mutex::new(jobs), shared })
    }

    /// Says for whom positions are committed from now on.
    pub(crate) fn serve(&self, group: &Arc<Client>) {
        *self.shared.group.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(group);
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    fn send(&self, job: Job) {
        // Without a thread the answer never comes, and that is an answer too.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
    }

    /// Passes a message on. Returns the offset of the record.
    pub(super) async fn pass(&self, passed: Passed) -> Result<u64, Refused> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Pass(Box::new(passed), answer));
        answered.await.unwrap_or(Err(Refused::MaybeDone(KafkaError::Canceled)))
    }

    /// Commits positions.
    pub(crate) fn commit(&self, offers: Vec<Offer>, member: Member) -> Committing {
        let (answer, committing) = oneshot::channel();
        self.send(Job::Commit(offers, answer, member));
        committing
    }
}

/// What went wrong with a transaction.
struct Failed {
    error: KafkaError,
    maybe_done: bool,
}

struct Worker {
    config: ClientConfig,
    hook: Hook,
    shared: Arc<Shared>,
    producer: Option<FutureProducer>,
}

impl Worker {
    fn work(mut self, inbox: &Receiver<Job>) {
        // What an earlier process of this id left open is ended here. Until then nobody can look up its positions.
        if let Err(error) = self.producer() {
            tracing::warn!(%error, "no transaction can be made yet");
        }
        while let Ok(first) = inbox.recv() {
            let more = inbox.try_iter().take(BATCH - 1);
            let jobs: Vec<Job> = std::iter::once(first).chain(more).collect();
            self.carry_out(jobs);
        }
    }

    fn carry_out(&mut self, jobs: Vec<Job>) {
        let (ours, lost): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| match job {
            Job::Pass(passed, _) => self.shared.ledger.standing(&passed.from).is_some(),
            Job::Commit(..) => true,
        });
        for job in lost {
            answer(job, Err(Refused::Lost));
        }
        match self.attempt(&ours) {
            Ok(offsets) => {
                let mut offsets = offsets.into_iter();
                for job in ours {
                    let offset = if matches!(job, Job::Pass(..)) { offsets.next() } else { None };
                    answer(job, Ok(offset.unwrap_or_default()));
                }
            }
            Err(failed) if ours.len() > 1 && !failed.maybe_done => {
                ours.into_iter().for_each(|job| self.carry_out(vec![job]));
            }
            Err(Failed { error, maybe_done }) => {
                for job in ours {
                    let error = error.clone();
                    answer(
                        job,
                        Err(if maybe_done { Refused::MaybeDone(error) } else { Refused::NotDone(error) }),
                    );
                }
            }
        }
    }

    /// One transaction with all of it. Returns the offsets of the records.
    fn attempt(&mut self, jobs: &[Job]) -> Result<Vec<u64>, Failed> {
        let standings = self.standings(jobs);
        if standings.is_empty() {
            return Ok(Vec::new());
        }
        let not_done = |error| Failed { error, maybe_done: false };
        let producer = self.producer().map_err(not_done)?;
        if let Err(error) = producer.begin_transaction() {
            self.producer = None;
            return Err(not_done(error));
        }
        self.hook.at("begun");
        let filled = self.fill(&producer, jobs, &standings);
        let offsets = filled.map_err(|error| {
            self.abort(&producer);
            not_done(error)
        })?;
        self.end(&producer)?;
        self.hook.at("committed");
        self.shared.ledger.committed(standings);
        Ok(offsets)
    }

    /// How the partitions stand with all of it.
    fn standings(&self, jobs: &[Job]) -> Standings {
        let mut standings = Standings::new();
        let mut change = |partition: &Partition, change: &dyn Fn(&mut Standing)| {
            let known = standings.remove(partition).or_else(|| self.shared.ledger.standing(partition));
            if let Some((number, mut standing)) = known {
                change(&mut standing);
                standings.insert(partition.clone(), (number, standing));
            }
        };
        for job in jobs {
            match job {
                Job::Pass(passed, _) => {
                    change(&passed.from, &|standing| standing.settle([passed.offset..=passed.offset]));
                }
                Job::Commit(offers, ..) => {
                    for offer in offers {
                        change(&offer.partition, &|standing| {
                            standing.told(offer.offset, &offer.ranges, offer.limit);
                        });
                    }
                }
            }
        }
        standings
    }

    /// Writes the records and the positions into the transaction.
    fn fill(&self, producer: &FutureProducer, jobs: &[Job], standings: &Standings) -> KafkaResult<Vec<u64>> {
        let mut deliveries = Vec::new();
        for job in jobs {
            let Job::Pass(passed, _) = job else { continue };
            let record: FutureRecord<'_, [u8], [u8]> = FutureRecord {
                key: passed.message.key.as_deref(),
                payload: passed.message.payload.as_deref(),
                ..FutureRecord::to(&passed.topic).partition(passed.partition).headers(passed.headers.clone())
            };
            deliveries.push(producer.send_result(record).map_err(|(error, _)| error)?);
        }
        producer.flush(PATIENCE)?;
        let mut offsets = Vec::new();
        for delivery in deliveries {
            let delivered = delivery.now_or_never().and_then(Result::ok).ok_or(KafkaError::Canceled)?;
            offsets.push(delivered.map_err(|(error, _)| error)?.offset.unsigned_abs());
        }
        self.hook.at("produced");
        let mut list = list_of([]);
        for (partition, (_, standing)) in standings {
            add_offset(&mut list, partition, standing.offset, &standing.metadata(partition));
        }
        let group = self.shared.group.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let metadata = group.and_then(|group| group.group_metadata()).ok_or(KafkaError::Canceled)?;
        producer.send_offsets_to_transaction(&list, &metadata, PATIENCE)?;
        self.hook.at("offsets sent");
        Ok(offsets)
    }

    fn end(&mut self, producer: &FutureProducer) -> Result<(), Failed> {
        let until = Instant::now() + PATIENCE;
        loop {
            let error = match producer.commit_transaction(PATIENCE) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match &error {
                KafkaError::Transaction(why) if why.is_retriable() && Instant::now() < until => {}
                KafkaError::Transaction(why) if why.txn_requires_abort() => {
                    self.abort(producer);
                    return Err(Failed { error, maybe_done: false });
                }
                _ => {
                    // The next producer of this id ends what this one left open.
                    self.producer = None;
                    return Err(Failed { error, maybe_done: true });
                }
            }
        }
    }

    fn abort(&mut self, producer: &FutureProducer) {
        if let Err(error) = producer.abort_transaction(PATIENCE) {
            tracing::warn!(%error, "a transaction could not be aborted; another producer takes over");
            self.producer = None;
        }
    }

    fn producer(&mut self) -> KafkaResult<FutureProducer> {
        if let Some(producer) = &self.producer {
            return Ok(producer.clone());
        }
        let producer: FutureProducer = self.config.create()?;
        producer.init_transactions(PATIENCE)?;
        self.producer = Some(producer.clone());
        Ok(producer)
    }
}

fn answer(job: Job, result: Result<u64, Refused>) {
    // Nobody may be waiting any more.
    match job {
        Job::Pass(_, answer) => _ = answer.send(result),
        Job::Commit(offers, answer, member) => {
            let outcome = result.map(|_| ()).map_err(|refused| match refused {
                Refused::Lost => KafkaError::ConsumerCommit(Code::UnknownMemberId),
                Refused::NotDone(error) | Refused::MaybeDone(error) => {
                    error.rdkafka_error_code().map_or(error, KafkaError::ConsumerCommit)
                }
            });
            let _ = answer.send(vec![(offers, outcome)]);
            member.wake();
        }
    }
}
