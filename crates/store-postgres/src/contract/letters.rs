//! The contract for letters.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::incarnation::{Beginning, Incarnations};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Capabilities, Changes, Claim, Cleared, Counts, Grant, HandOff, HeadsPage, Lease,
    LeaseUse, LetterStore, Limits, Occupancy, OpenedPage, Pause, PauseScope, Placed, Result, Settled,
    Settlement, Topic, begin_incarnation, read_incarnations,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId, Timestamp};

use crate::leases::{Claimant, SettleItem};
use crate::listing::Cursor;
use crate::store::PostgresStore;
use crate::transaction::transaction;

#[async_trait]
impl LetterStore for PostgresStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        let queue = self.queue("assign", queue).await?;
        Ok(transaction!(self, "assign", |tx| tx.assign(&queue, partitions)))
    }

    async fn horizons(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        match self.find_queue("horizons", queue).await? {
            Some(queue) => self.read_horizons(&queue, partitions).await,
            None => Ok(vec![None; partitions.len()]),
        }
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        match self.find_queue("opened_since", queue).await? {
            Some(queue) => self.list_opened(&queue, revision, limit).await,
            None => Ok(OpenedPage { sequences: Vec::new(), revision, more: false }),
        }
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let queue = self.queue("hand_off", queue).await?;
        let placed = transaction!(self, "hand_off", |tx| tx.hand_off_all(&queue, limits, &items));
        // Whoever scheduled a later retry runs it.
        let now = Timestamp::now();
        let is_due = |item: &HandOff| {
            item.letter.state == LetterState::Retrying && item.letter.due_at.is_none_or(|due| due <= now)
        };
        if items.iter().any(is_due) {
            self.publish(Topic::Due(queue.name));
        }
        Ok(placed)
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        let ids: Vec<LetterId> = messages.iter().map(|message| LetterId::of(queue, message)).collect();
        match self.find_queue("lookup", queue).await? {
            Some(queue) => self.states_of(&queue, &ids).await,
            None => Ok(vec![None; messages.len()]),
        }
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        let queue = self.queue("note_attempts", queue).await?;
        self.write_notes(&queue, &notes).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        match self.find_queue("attempt_notes", queue).await? {
            Some(queue) => self.read_notes(&queue, partitions).await,
            None => Ok(Vec::new()),
        }
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        match self.find_queue("forget_attempts", queue).await? {
            Some(queue) => self.forget_notes(&queue, partition, up_to).await,
            None => Ok(()),
        }
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let queue = self.queue("claim_due", queue).await?;
        Ok(transaction!(self, "claim_due", |tx| tx.claim_due(&queue, Claimant { owner, lease }, limit)))
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        match self.find_queue("next_due", queue).await? {
            Some(queue) => self.earliest_due(&queue).await,
            None => Ok(None),
        }
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        let queue = self.queue("claim", queue).await?;
        Ok(transaction!(self, "claim", |tx| tx.claim(&queue, sequence, Claimant { owner, lease })))
    }

    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        let queue = self.queue("renew", &lease.queue).await?;
        Ok(transaction!(self, "renew", |tx| tx.renew(&queue, lease, duration, used_for)))
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let queue = self.queue("release", &lease.queue).await?;
        transaction!(self, "release", |tx| tx.release(&queue, lease));
        // Whoever releases it has a reason not to run it now.
        self.publish_to_others(Topic::Due(queue.name));
        Ok(())
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        let queue = self.queue("settle", &lease.queue).await?;
        let item = SettleItem { lease: lease.clone(), letter, settlement, take_next: false };
        self.settle_together(queue, item).await
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        let queue = self.queue("settle", &lease.queue).await?;
        let item = SettleItem { lease: lease.clone(), letter, settlement, take_next: true };
        self.settle_together(queue, item).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let queue = self.queue("act", queue).await?;
        let done = transaction!(self, "act", |tx| tx.act(&queue, letter, act, by));
        self.publish(Topic::Due(queue.name));
        Ok(done)
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        match self.find_queue("get", queue).await? {
            Some(queue) => self.letter_by_id(&queue, letter).await,
            None => Ok(None),
        }
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        match self.find_queue("sequence", queue).await? {
            Some(queue) => self.letters_of(&queue, sequence, from, limit).await,
            None => Ok(Vec::new()),
        }
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let after = after.map(Cursor::parse).transpose()?;
        match self.find_queue("heads", queue).await? {
            Some(queue) => self.list_heads(&queue, after, limit).await,
            None => Ok(HeadsPage { heads: Vec::new(), next: None }),
        }
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        match self.find_queue("counts", queue).await? {
            Some(queue) => self.count_queue(&queue).await,
            None => Ok(Counts::default()),
        }
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        match self.find_queue("sequence_size", queue).await? {
            Some(queue) => self.size_of(&queue, sequence).await,
            None => Ok(0),
        }
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let queue = self.queue("clear", queue).await?;
        self.clear_queue(&queue, by).await
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let before = transaction!(self, "set_pause", |tx| tx.set_pause(consumer, scope, paused, by));
        self.publish(Topic::Pauses(consumer.clone()));
        Ok(before)
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        self.list_pauses(consumer).await
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
        match self.given_clock() {
            Some(_) => Ok(None),
            None => self.now("server_time").await.map(Some),
        }
    }

    async fn occupancy(&self) -> Result<Occupancy> {
        self.measure().await
    }

    fn changes(&self, topics: Vec<Topic>) -> Changes {
        self.subscribe(topics)
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Self::CAPABILITIES)
    }
}
