//! The connection to the group: clients, state, errors and polling.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{SourceError, SourceEvent};
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::coverage::Coverage;
use super::joining::Joining;
use super::missing_topics::MissingTopics;
use super::ownership::Proofs;
use super::topic_check::TopicCheck;
use super::unreadable::Unreadable;
use crate::client::assignment::{assign, partition, unassign};
use crate::client::callbacks::{Callbacks, Clients, Rebalance};
use crate::error::{ClientError, classify, config_error, is_retried_by_client, is_unknown_topic};
use crate::incarnations::SeenLogs;
use crate::lookup::{LookupPurpose, PendingLookup};
use crate::options::{KafkaOptions, OffsetReset};
use crate::owned_partition::{OwnedPartition, Stage};
use crate::positions::commit::PendingCommit;
use crate::record::RecordReader;
use crate::relay::Transactions;
use crate::state::KafkaState;
use crate::topology::Topology;

/// The maximum interval between polls of the clients.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One member of a Kafka consumer group. Dropping it without
/// [`close`](lazaret_core::source::Source::close) commits nothing.
pub(crate) struct Membership {
    /// The clients. `None` when the member is closed.
    pub(super) clients: Option<Clients>,
    /// The callbacks of the group member's client.
    pub(super) group: Callbacks,
    /// The callbacks of the fetching client.
    pub(super) fetcher: Callbacks,
    pub(super) wake: Arc<Notify>,
    pub(super) options: KafkaOptions,
    /// The retry topics, if there are any.
    pub(super) topology: Option<Arc<Topology>>,
    /// Set when positions are committed in transactions.
    pub(super) transactions: Option<Arc<Transactions>>,
    pub(super) reset: OffsetReset,
    pub(super) reader: RecordReader,
    pub(super) owned: Vec<OwnedPartition>,
    /// Events that are returned before any message.
    pub(super) events: VecDeque<SourceEvent>,
    pub(super) errors: VecDeque<SourceError>,
    pub(super) lookup: Option<Lookup>,
    /// The earliest time of the next lookup after a failed one.
    pub(super) lookup_retry_at: Option<Instant>,
    /// Partitions to rewind when no other lookup is in progress.
    pub(super) rewinds: Vec<Partition>,
    /// Partitions with a record below the delivered ones, each with the offset of that record.
    pub(super) truncations: Vec<(Partition, u64)>,
    /// The logs that the consumer has seen. `None` until the source knows whether an engine runs it.
    pub(super) seen: Option<SeenLogs>,
    pub(super) topic_check: TopicCheck,
    pub(super) coverage: Coverage,
    pub(super) revocation: Option<Revocation>,
    /// The wait for subscribed topics, while there is one.
    pub(super) missing: Option<MissingTopics>,
    /// Partitions that cannot be read.
    pub(super) unreadable: Unreadable,
    /// When an error was last reported.
    pub(super) failed_at: Option<Instant>,
    /// When both clients were last polled.
    polled_at: Instant,
    pub(super) pending_commit: Option<PendingCommit>,
    /// The proofs that this process is a member of its group.
    pub(super) proofs: Proofs,
    /// Whether the response to a commit said that the group expelled this member.
    pub(super) expelled: bool,
    /// The deadline for a commit's outcome, set while the engine does not block on the commit.
    pub(super) commit_deadline: Option<tokio::time::Instant>,
    /// The index of the partition that was last read. The next one is read next.
    pub(super) last_read: usize,
    /// Whether messages may be read. Everything else continues while they may not.
    pub(crate) may_read: bool,
    pub(super) joining: Joining,
    pub(super) joined: bool,
    pub(super) ended: bool,
    pub(super) metadata_limit: usize,
    state: watch::Sender<KafkaState>,
}

/// A lookup of start positions.
pub(super) struct Lookup {
    pub(super) purpose: LookupPurpose,
    /// The pending result. `None` if the lookup is not started yet.
    pub(super) pending: Option<PendingLookup>,
}

/// A revocation that waits until the engine has finished some partitions.
pub(super) struct Revocation {
    /// All partitions that the group revokes.
    pub(super) partitions: Vec<Partition>,
    /// The partitions that the engine has not released yet.
    pub(super) waiting: BTreeSet<Partition>,
    pub(super) deadline: Instant,
}

impl Membership {
    /// Starts to join the group. [`next`](lazaret_core::source::Source::next) reports the progress. The
    /// error names the invalid option.
    pub(crate) fn join(
        options: KafkaOptions,
        topology: Option<Arc<Topology>>,
        transactions: Option<Arc<Transactions>>,
    ) -> Result<Self, SourceError> {
        let reset = options.offset_reset()?;
        let wake = Arc::new(Notify::new());
        let lasts = options.membership_lasts(transactions.is_some());
        let group = Callbacks::of_member(options.reads_committed(), wake.clone(), lasts);
        let fetcher = Callbacks::new(options.reads_committed(), wake.clone());
        let clients = Clients {
            group: group.connect(&options.group_client()?)?,
            fetcher: fetcher.connect(&options.fetching_client()?)?,
        };
        if let Some(transactions) = &transactions {
            transactions.set_group(&clients.group, options.store.clone());
        }
        let member = Self {
            clients: Some(clients),
            group,
            fetcher,
            wake,
            reset,
            reader: RecordReader::new(&options),
            owned: Vec::new(),
            events: VecDeque::new(),
            errors: VecDeque::new(),
            lookup: None,
            lookup_retry_at: None,
            rewinds: Vec::new(),
            truncations: Vec::new(),
            seen: None,
            topic_check: TopicCheck::default(),
            coverage: Coverage::default(),
            revocation: None,
            missing: None,
            unreadable: Unreadable::default(),
            failed_at: None,
            polled_at: Instant::now(),
            pending_commit: None,
            proofs: Proofs::new(lasts),
            expelled: false,
            commit_deadline: None,
            last_read: 0,
            may_read: true,
            joining: Joining::new(),
            joined: false,
            ended: false,
            metadata_limit: options.metadata_limit,
            state: watch::Sender::new(KafkaState::Joining),
            options,
            topology,
            transactions,
        };
        member.subscribe().map_err(config_error)?;
        Ok(member)
    }

    /// Sets the registry for the incarnations of topics. Nothing is read before this call.
    pub(crate) fn know(&mut self, registry: Option<(Arc<dyn IncarnationRegistry>, Handle)>) {
        let mut seen = SeenLogs::new(self.options.may_start_fresh);
        if let Some((registry, runtime)) = registry {
            seen.attach(registry, runtime);
        }
        self.seen = Some(seen);
    }

    /// Returns the state, for monitoring.
    pub(crate) fn state(&self) -> watch::Receiver<KafkaState> {
        self.state.subscribe()
    }

    pub(super) fn subscribe(&self) -> Result<(), KafkaError> {
        let topics: Vec<&str> = self.subscribed().collect();
        self.clients.as_ref().map_or(Ok(()), |clients| clients.group.subscribe(&topics))
    }

    /// Returns the subscribed topics: the streams and their retry topics.
    pub(super) fn subscribed(&self) -> impl Iterator<Item = &str> {
        let retry_topics = self.topology.iter().flat_map(|topology| topology.retry_topics());
        self.options.topics.iter().map(String::as_str).chain(retry_topics)
    }

    /// Serves the events of the clients, except records. A client without events is still polled
    /// regularly, because the group expels a member that does not poll.
    pub(super) fn poll_clients(&mut self) {
        self.group.begin_poll();
        let is_due = self.polled_at.elapsed() >= POLL_INTERVAL;
        if is_due {
            self.polled_at = Instant::now();
        }
        for is_fetcher in [false, true] {
            let callbacks = if is_fetcher { &self.fetcher } else { &self.group };
            if !callbacks.take_pending() && !is_due {
                continue;
            }
            let Some(clients) = &self.clients else { return };
            let client = if is_fetcher { clients.fetcher.clone() } else { clients.group.clone() };
            let callbacks = callbacks.clone();
            loop {
                callbacks.take_served();
                match client.poll(Duration::ZERO) {
                    Some(Err(error)) => self.handle_error(error, &callbacks.take_reason()),
                    // Records arrive in the queues of their partitions. A record that arrives here is
                    // fetched again.
                    Some(Ok(record)) if is_fetcher => {
                        self.refetch(&partition(record.topic(), record.partition()));
                    }
                    // The group member's client fetches nothing. It may have fetched this record before
                    // it was paused.
                    Some(Ok(_)) => {}
                    None if callbacks.take_served() => {}
                    None => break,
                }
            }
        }
    }

    fn refetch(&mut self, partition: &Partition) {
        let is_read = |owned: &&OwnedPartition| {
            owned.stage == Stage::Reading && owned.partition.has_place_of(partition)
        };
        if let Some(partition) = self.owned.iter().find(is_read).map(|owned| owned.partition.clone()) {
            tracing::warn!(%partition, "record received outside of its queue, partition rewound");
            self.events.push_back(SourceEvent::Lost(vec![partition.clone()]));
            self.start_rewind(&[partition]);
        }
    }

    /// Marks partitions for a rewind to their committed offsets.
    pub(super) fn start_rewind(&mut self, partitions: &[Partition]) {
        for owned in self.owned.iter_mut().filter(|owned| partitions.contains(&owned.partition)) {
            if owned.stage == Stage::Reading {
                owned.stage = Stage::Rewinding;
                self.rewinds.push(owned.partition.clone());
            }
        }
    }

    pub(super) fn handle_error(&mut self, error: KafkaError, reason: &str) {
        if is_unknown_topic(&error) {
            // The topic may exist again, with other records at the next offsets.
            self.topic_check.suspect();
        }
        if is_unknown_topic(&error) && !error.rdkafka_error_code().is_some_and(is_retried_by_client) {
            return self.wait_for_topics();
        }
        match classify(error, reason, &self.options, !self.owned.is_empty()) {
            ClientError::Retried => tracing::debug!(reason, "client error retried by the client"),
            ClientError::Reported(error) => self.report(error),
        }
    }

    /// Queues an error for the engine.
    pub(super) fn report(&mut self, error: SourceError) {
        self.state.send_replace(KafkaState::Error(error.to_string()));
        self.failed_at = Some(Instant::now());
        // The client repeats its errors. Each is queued only once.
        let is_queued = self.errors.iter().any(|queued| queued.to_string() == error.to_string());
        if !is_queued {
            self.errors.push_back(error);
        }
    }

    /// Sets the state to joining, unless there is already an assignment.
    pub(super) fn set_joining(&self) {
        match self.joined {
            true => self.set_reading(),
            false => _ = self.state.send_replace(KafkaState::Joining),
        }
    }

    /// Sets the state to reading, unless a partition cannot be read.
    pub(super) fn set_reading(&self) {
        let reading = match self.unreadable_reason() {
            Some(reason) => KafkaState::Error(reason),
            None => KafkaState::Reading(self.owned.len()),
        };
        self.state.send_if_modified(|state| {
            let changed = *state != reading;
            *state = reading;
            changed
        });
    }

    pub(super) fn has_error(&self) -> bool {
        matches!(*self.state.borrow(), KafkaState::Error(_))
    }

    pub(super) fn find(&mut self, partition: &Partition) -> Option<&mut OwnedPartition> {
        self.owned.iter_mut().find(|owned| owned.partition == *partition)
    }

    /// Leaves the group in a separate thread, because the client waits for the brokers. The receiver
    /// resolves when it is done.
    pub(super) fn leave(&mut self) -> Option<oneshot::Receiver<()>> {
        let Clients { group, fetcher } = self.clients.take()?;
        self.group.close();
        self.fetcher.close();
        // The client waits for the response to each rebalance.
        let assigned = self.lookup.take().and_then(|lookup| match lookup.purpose {
            LookupPurpose::Assign(partitions) => Some(Rebalance::Assigned(partitions)),
            LookupPurpose::Rewind(_) | LookupPurpose::Truncated(..) => None,
        });
        let revocation = self.revocation.take();
        let revoked =
            revocation.map(|Revocation { partitions, .. }| Rebalance::Revoked { partitions, lost: false });
        let queued = std::iter::from_fn(|| self.group.next_rebalance());
        let rebalances: Vec<Rebalance> = assigned.into_iter().chain(revoked).chain(queued).collect();
        let owned = std::mem::take(&mut self.owned);
        self.state.send_replace(KafkaState::Closed);
        let (sender, left) = oneshot::channel();
        let leave = move || {
            for rebalance in rebalances {
                let answered = match &rebalance {
                    Rebalance::Assigned(partitions) => assign(&group, partitions),
                    Rebalance::Revoked { partitions, .. } => unassign(&group, partitions),
                };
                if let Err(error) = answered {
                    tracing::debug!(%error, "rebalance not answered while leaving the group");
                }
            }
            drop(group);
            drop(owned);
            drop(fetcher);
            // The receiver may have been dropped.
            let _ = sender.send(());
        };
        let started = thread::Builder::new().name("lazaret-kafka-leave".to_owned()).spawn(leave);
        started.is_ok().then_some(left)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaOptions { group, topics, .. } = &self.options;
        f.debug_struct("Membership").field("group", group).field("topics", topics).finish_non_exhaustive()
    }
}
