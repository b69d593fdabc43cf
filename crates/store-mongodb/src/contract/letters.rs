//! The contract for letters.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::incarnation::{Beginning, Incarnations};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::rules::LetterLookup;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Capabilities, Claim, Cleared, Counts, Grant, HandOff, HeadsPage, Lease,
    LeaseUse, LetterStore, Limits, Occupancy, OpenedPage, Pause, PauseScope, Placed, Result, Settled,
    Settlement, begin_incarnation, read_incarnations,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId, Timestamp};

use crate::store::MongoStore;

#[async_trait]
impl LetterStore for MongoStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        let mut grants = Vec::with_capacity(partitions.len());
        for partition in partitions {
            grants.push(self.grant(queue, partition).await?);
        }
        Ok(grants)
    }

    async fn horizons(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        let grants = self.grants(queue, partitions.iter().cloned().collect()).await?;
        let horizon = |partition: &Partition| grants.get(partition).and_then(|grant| grant.row().horizon);
        Ok(partitions.iter().map(horizon).collect())
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        self.list_opened(queue, revision, limit).await
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        self.take_in(queue, limits, items).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        self.catch_up().await?;
        let ids: Vec<LetterId> = messages.iter().map(|message| LetterId::of(queue, message)).collect();
        let states = self.states_of(queue, ids.iter().copied()).await?;
        Ok(ids.iter().map(|id| states.get(id).copied()).collect())
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.write_notes(queue, notes).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        self.read_notes(queue, partitions).await
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        self.delete_notes(queue, partition, up_to).await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        self.claim_due_now(queue, owner, lease, limit).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        self.earliest_due(queue).await
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        self.claim_sequence(queue, sequence, owner, lease).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        self.renew_lease(lease, duration, used_for).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.release_lease(lease).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.settle_head(lease, letter, settlement, false).await
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        self.settle_head(lease, letter, settlement, true).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        self.act_on(queue, letter, act, by).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        Ok(match self.known(queue, letter).await? {
            LetterLookup::Letter(held) => Some(held.letter),
            LetterLookup::Purged(_) | LetterLookup::Absent => None,
        })
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        self.list_sequence(queue, sequence, from, limit).await
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        self.list_heads(queue, after, limit).await
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        self.counts_of(queue).await
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        self.pause_scope(consumer, scope, paused, by).await
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        self.pauses_of(consumer).await
    }

    async fn incarnations(&self, consumer: &ConsumerName) -> Result<Incarnations> {
        read_incarnations(self, consumer).await
    }

    async fn begin_incarnation(
        &self,
        consumer: &ConsumerName,
        beginning: &Beginning,
    ) -> Result<Incarnations> {
        begin_incarnation(self, consumer, beginning).await
    }

    async fn server_time(&self) -> Result<Option<Timestamp>> {
        match self.has_server_clock() {
            false => Ok(None),
            true => self.now().await.map(Some),
        }
    }

    async fn occupancy(&self) -> Result<Occupancy> {
        self.measure().await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Self::CAPABILITIES)
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        self.size_of_sequence(queue, sequence).await
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        self.clear_queue(queue, by).await
    }
}
