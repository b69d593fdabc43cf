//! Handles partitions that are assigned, revoked and rewound. Each rebalance is answered when its work
//! is done.

use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::{SourceError, SourceEvent};
use rdkafka::consumer::Consumer;
use tokio::sync::oneshot;

use super::session::{Lookup, Membership, POLL_INTERVAL, Revocation};
use crate::client::assignment::{add_offset, assign, list_of, unassign};
use crate::client::callbacks::{Clients, Rebalance};
use crate::error::{ClientError, classify, config_error, is_unknown_topic};
use crate::lookup::{self, LookupError, LookupPurpose, LookupRules};
use crate::owned_partition::{OwnedPartition, Stage};
use crate::start_position::{ResetPolicy, StartPosition};
use crate::store_check::StoreCheck;

/// The pause before a failed lookup is repeated.
const LOOKUP_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The maximum wait for the assignment that follows a revocation.
const FOLLOW_UP_TIMEOUT: Duration = Duration::from_millis(500);

impl Membership {
    /// Starts the next lookup, or repeats one that failed.
    pub(super) fn run_lookup(&mut self) {
        if self.lookup_retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.lookup_retry_at = None;
        if let Some(lookup) = &mut self.lookup {
            if lookup.pending.is_none()
                && let Some(clients) = self.clients.clone()
                && let Some(seen) = self.seen.clone()
            {
                let purpose = lookup.purpose.clone();
                let reset = ResetPolicy { streams: self.reset, topology: self.topology.clone() };
                let rules = LookupRules { reset, store: StoreCheck::new(&self.options), seen };
                lookup.pending = Some(lookup::start(clients, self.group.clone(), purpose, rules));
            }
            return;
        }
        while let Some((partition, offset)) = self.truncations.pop() {
            if self.find(&partition).is_some_and(|owned| owned.stage == Stage::Rewinding) {
                return self.start_lookup(LookupPurpose::Truncated(partition, offset));
            }
        }
        let wanted = std::mem::take(&mut self.rewinds);
        let owned = self.owned.iter().filter(|owned| wanted.contains(&owned.partition));
        let places: Vec<_> = owned.map(|owned| (owned.partition.clone(), owned.start)).collect();
        if !places.is_empty() {
            self.start_lookup(LookupPurpose::Rewind(places));
        }
    }

    fn start_lookup(&mut self, purpose: LookupPurpose) {
        self.lookup = Some(Lookup { purpose, pending: None });
        self.run_lookup();
    }

    /// Takes the result of the lookup if it has arrived.
    pub(super) fn take_lookup(&mut self) {
        let Some(pending) = self.lookup.as_mut().and_then(|lookup| lookup.pending.as_mut()) else { return };
        let result = match pending.try_recv() {
            Ok(result) => result,
            Err(oneshot::error::TryRecvError::Empty) => return,
            Err(oneshot::error::TryRecvError::Closed) => {
                Err(LookupError::Source(SourceError::temporary("failed to look up positions")))
            }
        };
        let Some(Lookup { purpose, .. }) = self.lookup.take() else { return };
        match (result, purpose) {
            (Ok(positions), LookupPurpose::Assign(partitions)) => {
                self.take_assignment(&partitions, positions);
            }
            (Ok(positions), LookupPurpose::Rewind(_) | LookupPurpose::Truncated(..)) => {
                self.finish_rewind(positions);
            }
            (Err(error), purpose) => self.lookup_failed(purpose, error),
        }
    }

    fn lookup_failed(&mut self, purpose: LookupPurpose, error: LookupError) {
        match error {
            LookupError::Source(error) => self.report(error),
            LookupError::Client(error) if is_unknown_topic(&error) => self.wait_for_topics(),
            LookupError::Client(error) => {
                let reason = error.to_string();
                // The client does not repeat a lookup.
                match classify(error, &reason, &self.options, false) {
                    ClientError::Reported(error) => self.report(error),
                    ClientError::Retried => {}
                }
            }
        }
        self.lookup_retry_at = Some(Instant::now() + LOOKUP_RETRY_DELAY);
        match purpose {
            // The group waits for this lookup.
            LookupPurpose::Assign(_) => self.lookup = Some(Lookup { purpose, pending: None }),
            // The group may revoke the partitions before the lookup is repeated.
            LookupPurpose::Rewind(places) => {
                self.rewinds.extend(places.into_iter().map(|(partition, _)| partition));
            }
            LookupPurpose::Truncated(partition, offset) => self.truncations.push((partition, offset)),
        }
    }

    /// Takes over assigned partitions whose start is known. The other partitions do not exist.
    fn take_assignment(&mut self, partitions: &[Partition], positions: Vec<StartPosition>) {
        let Some(Clients { group, fetcher }) = self.clients.clone() else { return };
        self.drop_partitions(partitions);
        if let Err(error) = assign(&group, partitions) {
            // The group no longer waits for an answer, and will start another rebalance.
            tracing::warn!(%error, "assignment not accepted by the client");
            return;
        }
        let mut list = list_of([]);
        let mut assignments = Vec::new();
        let recreated = recreated(&positions);
        for position in positions {
            add_offset(&mut list, &position.partition, position.start, "");
            // The queue is created before the assignment, so that no record arrives in the common queue.
            let topology = self.topology.as_ref();
            let Some(owned) = OwnedPartition::new(&fetcher, &self.fetcher, position, topology) else {
                return self.report(SourceError::permanent("the client has no queue for a partition"));
            };
            assignments.push(owned.assignment(self.group.ownership()));
            self.owned.push(owned);
            self.track_offsets(self.owned.len() - 1);
        }
        if let Err(error) = fetcher.incremental_assign(&list) {
            let context = format!("the client does not fetch its partitions: {error}");
            return self.report(SourceError::permanent(context).with_source(error));
        }
        self.joined = true;
        self.ended = false;
        self.set_reading();
        self.topics_assigned();
        self.note_assignment();
        self.events.extend(recreated);
        if !assignments.is_empty() {
            self.events.push_back(SourceEvent::Assigned(assignments));
        }
    }

    /// Passes the settled offsets of a partition that starts or restarts to the transactions.
    pub(super) fn track_offsets(&self, index: usize) {
        if let (Some(transactions), Some(owned)) = (&self.transactions, self.owned.get(index)) {
            let settled = owned.settled_offsets(self.metadata_limit);
            transactions.offsets().assign(owned.partition.clone(), settled);
        }
    }

    /// Stops reading partitions.
    fn drop_partitions(&mut self, partitions: &[Partition]) {
        let is_dropped = |owned: &OwnedPartition| is_one_of(partitions, &owned.partition);
        let (dropped, kept) = self.owned.drain(..).partition(is_dropped);
        self.owned = kept;
        let dropped: Vec<OwnedPartition> = dropped;
        if let Some(transactions) = &self.transactions {
            dropped.iter().for_each(|owned| transactions.offsets().revoke(&owned.partition));
        }
        if let Some(clients) = self.clients.as_ref().filter(|_| !dropped.is_empty())
            && let Err(error) =
                clients.fetcher.incremental_unassign(&list_of(dropped.iter().map(|owned| &owned.partition)))
        {
            tracing::warn!(%error, "revoked partitions still fetched");
        }
    }

    fn finish_rewind(&mut self, positions: Vec<StartPosition>) {
        let mut assignments = Vec::new();
        let recreated = recreated(&positions);
        for position in positions {
            let index = self.owned.iter().position(|owned| owned.partition.has_place_of(&position.partition));
            let index = index.filter(|index| self.owned[*index].stage == Stage::Rewinding);
            if let Some(index) = index {
                self.owned[index].restart(position);
                self.track_offsets(index);
                assignments.push(self.owned[index].assignment(self.group.ownership()));
            }
        }
        self.ended = false;
        if !assignments.is_empty() {
            self.events.extend(recreated);
            self.events.push_back(SourceEvent::Assigned(assignments));
        }
    }

    /// Starts queued rebalances in sequence. Returns `true` if there was any.
    pub(super) fn take_rebalances(&mut self) -> bool {
        let mut any = false;
        while self.lookup.is_none()
            && self.revocation.is_none()
            && let Some(rebalance) = self.group.next_rebalance()
        {
            any = true;
            match rebalance {
                Rebalance::Assigned(partitions) if partitions.is_empty() => {
                    self.take_assignment(&[], Vec::new());
                }
                Rebalance::Assigned(partitions) => self.start_lookup(LookupPurpose::Assign(partitions)),
                Rebalance::Revoked { partitions, lost } => self.start_revocation(partitions, lost),
            }
        }
        any
    }

    fn start_revocation(&mut self, partitions: Vec<Partition>, lost: bool) {
        let owned = self.owned.iter_mut().filter(|owned| is_one_of(&partitions, &owned.partition));
        let owned: Vec<Partition> = owned
            .map(|owned| {
                owned.stage = Stage::Revoking;
                owned.partition.clone()
            })
            .collect();
        if lost || owned.is_empty() {
            return self.finish_revocation(&partitions, owned);
        }
        let deadline = Instant::now() + self.options.max_poll_interval() / 4 * 3;
        let waiting = owned.iter().cloned().collect();
        self.revocation = Some(Revocation { partitions, waiting, deadline });
        self.events.push_back(SourceEvent::Revoking(owned));
    }

    /// Records that the engine released partitions, and answers the revocation when it released all of them.
    pub(super) async fn release(&mut self, partitions: &[Partition]) {
        let Some(revocation) = &mut self.revocation else { return };
        partitions.iter().for_each(|partition| {
            revocation.waiting.remove(partition);
        });
        if revocation.waiting.is_empty()
            && let Some(revocation) = self.revocation.take()
        {
            self.finish_revocation(&revocation.partitions, Vec::new());
            self.await_follow_up().await;
        }
    }

    /// Gives partitions back to the group. `lost` holds the partitions that the engine has not released.
    fn finish_revocation(&mut self, partitions: &[Partition], lost: Vec<Partition>) {
        self.drop_partitions(partitions);
        if !lost.is_empty() {
            self.events.push_back(SourceEvent::Lost(lost));
        }
        self.unassign(partitions);
    }

    fn unassign(&self, partitions: &[Partition]) {
        if let Some(clients) = &self.clients
            && let Err(error) = unassign(&clients.group, partitions)
        {
            tracing::warn!(%error, "partitions not given back to the group");
        }
        self.set_reading();
    }

    /// Waits briefly for the rebalance that follows a revocation. This member joins again only after it
    /// has answered that rebalance, even if it gets nothing. Only then do others get the partitions that
    /// it gave back.
    async fn await_follow_up(&mut self) {
        let until = Instant::now() + FOLLOW_UP_TIMEOUT;
        while self.lookup.is_none() && Instant::now() < until {
            self.poll_clients();
            if self.take_rebalances() {
                return;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Ends a revocation that the engine did not finish in time, before the group expels this member.
    pub(super) fn expire_revocation(&mut self) {
        let expired = self.revocation.take_if(|revocation| Instant::now() >= revocation.deadline);
        if let Some(Revocation { partitions, waiting, .. }) = expired {
            tracing::warn!("partitions not released in time, uncommitted messages will be redelivered");
            self.finish_revocation(&partitions, waiting.into_iter().collect());
        }
    }

    /// Joins again after the group expelled this member. All its partitions are lost.
    pub(super) fn rejoin(&mut self) {
        self.lose_membership();
        let owned: Vec<Partition> = self.owned.iter().map(|owned| owned.partition.clone()).collect();
        let revoked = self.revocation.take().map(|revocation| revocation.partitions).unwrap_or_default();
        self.lookup.take_if(|lookup| !matches!(lookup.purpose, LookupPurpose::Assign(_)));
        self.rewinds.clear();
        self.truncations.clear();
        self.drop_partitions(&owned);
        if !owned.is_empty() {
            self.events.push_back(SourceEvent::Lost(owned));
        }
        if !revoked.is_empty() {
            self.unassign(&revoked);
        }
        if let Some(clients) = &self.clients {
            clients.group.unsubscribe();
        }
        if let Err(error) = self.subscribe() {
            self.report(config_error(error));
        }
    }
}

/// Returns `true` if the group regards this partition as one of these. The group does not know incarnations.
fn is_one_of(partitions: &[Partition], partition: &Partition) -> bool {
    partitions.iter().any(|one| one.has_place_of(partition))
}

/// Returns the event for partitions whose streams began a new incarnation.
fn recreated(positions: &[StartPosition]) -> Option<SourceEvent> {
    let is_new = |position: &&StartPosition| position.recreated && position.partition.incarnation > 0;
    let partitions: Vec<Partition> = positions.iter().filter(is_new).map(|p| p.partition.clone()).collect();
    (!partitions.is_empty()).then_some(SourceEvent::Recreated(partitions))
}
