//! The contract for letters.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::incarnation::{Beginning, Incarnations};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::rules::{self, LeaseKind, LetterLookup};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Capabilities, Claim, Cleared, Counts, ErrorKind, Grant, HandOff, HeadsPage,
    Lease, LeaseUse, LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Result, Settled, Settlement,
    begin_incarnation, read_incarnations,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::maybe_done;
use crate::database::Deciding;

#[async_trait]
impl LetterStore for DocumentStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        partitions.iter().map(|partition| self.grant(queue, partition)).collect()
    }

    async fn horizons(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        let horizon = |partition: &Partition| {
            self.db.grants.get(&(queue.clone(), partition.clone()))?.value.row.horizon
        };
        Ok(partitions.iter().map(horizon).collect())
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        self.list_opened(queue, revision, limit)
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        // Which sequences had an item refused, and why.
        let mut refused: BTreeMap<SequenceId, ErrorKind> = BTreeMap::new();
        let answers = items.iter().map(|item| {
            let sequence = &item.letter.sequence;
            let placed = self.hand_off_one(queue, item, refused.get(sequence).copied(), limits);
            if let Err(error) = &placed {
                refused.entry(sequence.clone()).or_insert(error.kind());
            }
            placed
        });
        Ok(answers.collect())
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        self.catch_up()?;
        let state = |message| Ok(self.letter_doc(queue, LetterId::of(queue, message))?.map(|doc| doc.state));
        messages.iter().map(state).collect()
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        for note in notes {
            let key = (queue.clone(), note.partition.clone(), note.offset, note.message.clone());
            loop {
                let known = self.db.notes.get(&key);
                let is_late = known.as_ref().is_some_and(|known| known.value.attempts > note.attempts);
                let version = known.map_or(0, |known| known.version);
                if is_late || self.db.notes.put_if_version(&key, version, note.clone())? {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        Ok(self.db.notes.scan(.., |(of, partition, ..), note| {
            (of == queue && partitions.contains(partition)).then(|| note.clone())
        }))
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        let old = self.db.notes.scan(.., |key, _| {
            (key.0 == *queue && key.1 == *partition && key.2 <= up_to).then(|| key.clone())
        });
        for key in old {
            if let Some(note) = self.db.notes.get(&key) {
                self.db.notes.delete_if_version(&key, note.version)?;
            }
        }
        Ok(())
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        self.claim_due_now(queue, owner, lease, limit)
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        self.earliest_due(queue)
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        let now = self.clock.now();
        self.take(queue, sequence, owner, lease, LeaseKind::Replay, |row| !row.is_leased(now))
    }

    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        self.renew_lease(lease, duration, used_for)
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.release_lease(lease)
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.settle_head(lease, letter, &settlement, false)
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        self.settle_head(lease, letter, &settlement, true)
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        self.act_on(queue, letter, act, by)
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        Ok(match self.known(queue, letter)? {
            LetterLookup::Letter(letter) => Some(letter),
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
        self.list(queue, sequence, from, limit)
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        self.list_heads(queue, after, limit)
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        self.counts_of(queue)
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        self.clear_queue(queue, by)
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        loop {
            let mut stored = self.finish(&self.db.pauses, consumer)?.unwrap_or_default();
            let now = self.clock.now();
            let before = match paused {
                true => {
                    let pause = Pause { scope: scope.clone(), by: by.clone(), since: now };
                    stored.value.insert(scope.clone(), pause).is_some()
                }
                false => stored.value.remove(scope).is_some(),
            };
            let line = rules::pause_audit(consumer, scope, before, paused, by);
            let left = line.map(|line| self.audited(line, now)).into_iter().collect();
            let decided = Deciding { value: stored.value, left };
            if self.db.pauses.put_if_version(consumer, stored.version, decided)? {
                self.finish(&self.db.pauses, consumer).map_err(maybe_done)?;
                return Ok(before);
            }
        }
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let pauses = self.db.pauses.get(consumer).unwrap_or_default().value.value;
        Ok(pauses.into_values().collect())
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

    async fn capabilities(&self) -> Result<Capabilities> {
        // The documents live as long as the process, so nothing beyond the contract.
        Ok(Capabilities::default())
    }
}

impl DocumentStore {
    pub(crate) fn is_paused(&self, queue: &QueueName, sequence: &SequenceId) -> bool {
        let pauses = self.db.pauses.get(&queue.consumer().into());
        pauses.is_some_and(|stored| stored.value.value.contains_key(&PauseScope::Sequence(sequence.clone())))
    }
}
