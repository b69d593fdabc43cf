//! Letters: hand-off, leases, settlement, acts and pauses.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::incarnation::{Beginning, Incarnations};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Capabilities, Claim, Cleared, Counts, Grant, HandOff, HeadsPage, Lease,
    LeaseUse, LetterStore, Limits, Occupancy, OpenedPage, Pause, PauseScope, Placed, Result, Settled,
    Settlement, begin_incarnation, read_incarnations,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId};

use crate::hand_offs::{HandOffs, Notes};
use crate::lease_calls::{ClaimDue, ClaimOne, Release, Renew};
use crate::letters::listing::Cursor;
use crate::occupancy;
use crate::pauses;
use crate::recorded::Repeatable;
use crate::settle_calls::{Settle, SettleAndContinue};
use crate::store::SqliteStore;
use crate::undecoded_claims::UndecodedClaim;

#[async_trait]
impl LetterStore for SqliteStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        let partitions = partitions.to_vec();
        self.change("assign", queue, move |queue| queue.assign(&partitions)).await
    }

    async fn horizons(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        let count = partitions.len();
        let partitions = partitions.to_vec();
        let horizons = self.list("horizons", queue, move |queue| queue.horizons(&partitions)).await?;
        Ok(horizons.unwrap_or_else(|| vec![None; count]))
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        let page = self.list("opened_since", queue, move |queue| queue.opened_since(revision, limit)).await?;
        Ok(page.unwrap_or(OpenedPage { sequences: Vec::new(), revision, more: false }))
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let call =
            HandOffs::new(queue.clone(), *limits, items).map_err(|fault| fault.into_error("hand_off"))?;
        let _admitted = self.admit("hand_off", call.to_write()).await?;
        self.record(call).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        let ids: Vec<LetterId> = messages.iter().map(|message| LetterId::of(queue, message)).collect();
        let states = self.list("lookup", queue, move |queue| queue.lookup(&ids)).await?;
        Ok(states.unwrap_or_else(|| vec![None; messages.len()]))
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        let call = Notes::new(queue.clone(), notes).map_err(|fault| fault.into_error("note_attempts"))?;
        self.record(call).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        let partitions = partitions.to_vec();
        let notes = self.list("attempt_notes", queue, move |queue| queue.attempt_notes(&partitions)).await?;
        Ok(notes.unwrap_or_default())
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        let partition = partition.clone();
        self.change("forget_attempts", queue, move |queue| queue.forget_attempts(&partition, up_to)).await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let claims = self.record(ClaimDue::new(queue, owner, lease, limit)).await?;
        UndecodedClaim::decode_all(claims, ClaimDue::OPERATION)
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        // Asked after each stored run.
        Ok(self.look("next_due", queue, |queue| queue.next_due()).await?.flatten())
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        let claim = self.record(ClaimOne::new(queue, sequence, owner, lease)).await?;
        claim.map(|claim| claim.decode(ClaimOne::OPERATION)).transpose()
    }

    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        self.record(Renew { lease: lease.clone(), duration, used_for }).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.record(Release { lease: lease.clone() }).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        let call = Settle::new(lease, letter, settlement).map_err(|fault| fault.into_error("settle"))?;
        self.record(call).await
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        let call = Settle::new(lease, letter, settlement).map_err(|fault| fault.into_error("settle"))?;
        self.record(SettleAndContinue(call)).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let by = by.clone();
        self.change("act", queue, move |queue| queue.act(letter, act, &by)).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        Ok(self.list("get", queue, move |queue| queue.get(letter)).await?.flatten())
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        let sequence = sequence.clone();
        let letters =
            self.list("sequence", queue, move |queue| queue.sequence(&sequence, from, limit)).await?;
        Ok(letters.unwrap_or_default())
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let after = after.map(Cursor::parse).transpose()?;
        let page = self.list("heads", queue, move |queue| queue.heads(after, limit)).await?;
        Ok(page.unwrap_or(HeadsPage { heads: Vec::new(), next: None }))
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        Ok(self.list("counts", queue, |queue| queue.counts()).await?.unwrap_or_default())
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        let sequence = sequence.clone();
        let size = self.list("sequence_size", queue, move |queue| queue.sequence_size(&sequence)).await?;
        Ok(size.unwrap_or_default())
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let by = by.clone();
        self.change("clear", queue, move |queue| queue.clear(&by)).await
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let (consumer, scope, by) = (consumer.clone(), scope.clone(), by.clone());
        self.write("set_pause", move |step| pauses::set_pause(step, &consumer, &scope, paused, &by)).await
    }

    async fn occupancy(&self) -> Result<Occupancy> {
        self.room().await
    }

    async fn place(&self) -> Result<Option<String>> {
        Ok(Some(occupancy::place(self.path())))
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Self::CAPABILITIES)
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let consumer = consumer.clone();
        self.ask("pauses", move |view| pauses::pauses(view.connection, &consumer)).await
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
}
