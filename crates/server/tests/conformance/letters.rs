//! Letters through the API: one, a sequence, acts, counts and pauses. Hand-offs, leases and settlements are the engine's.

use std::time::Duration;

use async_trait::async_trait;
use axum::http::Method;
use jiff::Timestamp;
use lazaret_api as api;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Claim, Cleared, Counts, ErrorKind, Grant, HandOff, HeadsPage, Lease,
    LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Result, Settled, Settlement, Store,
    StoreError,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId};

use crate::client::{Answered, encoded};
use crate::store::ThroughApi;
use crate::words::{self, if_there, refused};

impl<S: Store> ThroughApi<S> {
    /// A letter as the API shows it, which must be as it is stored. Its payload comes alone as well.
    pub(crate) async fn whole(&self, id: LetterId) -> Answered<Option<Letter>> {
        let Some(detail) = self.detail(id).await? else { return Ok(None) };
        let letter = words::letter(detail);
        let payload = if_there(self.api.bytes(&format!("/v1/letters/{id}/payload")).await)?;
        assert_eq!(payload, letter.message.payload);
        let stored = self.inner.get(&letter.queue, id).await.unwrap();
        assert_eq!(stored.as_ref(), Some(&letter), "the API shows what is stored");
        Ok(Some(letter))
    }

    async fn detail(&self, id: LetterId) -> Answered<Option<api::LetterDetail>> {
        if_there(self.api.get(&format!("/v1/letters/{id}"), &[]).await)
    }

    /// The letters that a list showed in short, whole.
    pub(crate) async fn all_whole(&self, shown: Vec<api::Letter>) -> Answered<Vec<Letter>> {
        let mut letters = Vec::with_capacity(shown.len());
        for shown in shown {
            let letter = self.whole(shown.id.parse().unwrap()).await?.expect("it was shown a moment ago");
            assert_eq!(api::Letter::from(&letter), shown);
            letters.push(letter);
        }
        Ok(letters)
    }

    /// Changes a letter, and gives it as it is then. The API names letters by their ids alone: who means one of a certain
    /// queue looks first.
    pub(crate) async fn change_letter(
        &self,
        (queue, id): (&QueueName, LetterId),
        (method, what): (Method, &str),
        by: &Actor,
        body: &(impl serde::Serialize + Sync),
    ) -> Result<Letter> {
        self.check_queue(queue, id).await?;
        let path = format!("/v1/letters/{id}/{what}");
        let answer = self.api.change((method, &path), by, body).await.map_err(refused("change"))?;
        Ok(self.all_whole(vec![answer.typed()]).await.map_err(refused("change"))?.remove(0))
    }

    /// Refuses a letter that is there, but in another queue.
    pub(crate) async fn check_queue(&self, queue: &QueueName, id: LetterId) -> Result<()> {
        match self.detail(id).await.map_err(refused("get"))? {
            Some(detail) if detail.letter.queue != queue.as_str() => {
                Err(StoreError::not_done(ErrorKind::NotFound, "get", format!("there is no {id} in {queue}")))
            }
            _ => Ok(()),
        }
    }

    /// A consumer, if it is known. Its sums are those of its queues, and its age goes by the clock of the suite.
    pub(crate) async fn consumer(&self, name: &str) -> Result<Option<api::Consumer>> {
        let path = format!("/v1/consumers/{}", encoded(name));
        let found = if_there(self.api.get(&path, &[]).await).map_err(refused("consumer"))?;
        Ok(found.inspect(|consumer| self.check_sums(consumer)))
    }

    pub(crate) fn check_sums(&self, consumer: &api::Consumer) {
        let shown = [
            (consumer.retrying, LetterState::Retrying),
            (consumer.dead, LetterState::Dead),
            (consumer.parked, LetterState::Parked),
            (consumer.quarantined, LetterState::Quarantined),
            (consumer.waiting, LetterState::Waiting),
        ];
        let queues: Vec<_> = consumer.queues.iter().map(words::queue).collect();
        for (letters, state) in shown {
            let sum: u64 = queues.iter().map(|queue| queue.counts.of(state)).sum();
            assert_eq!(letters, sum, "{state:?} letters of {}", consumer.name);
        }
        let oldest = queues.iter().filter_map(|queue| queue.oldest).min();
        let age = oldest.map(|oldest| self.clock.now().duration_since(oldest).as_secs_f64());
        assert_eq!(consumer.oldest_age_seconds, age);
    }

    async fn sequence_page(&self, queue: &QueueName, sequence: &SequenceId) -> Result<api::Sequence> {
        let params =
            [("queue", Some(queue.as_str())), ("sequence", Some(sequence.as_str())), ("limit", Some("1"))];
        let page: api::Sequence =
            self.api.get("/v1/sequences", &params).await.map_err(refused("sequence"))?;
        assert_eq!((page.queue.as_str(), page.sequence.as_str()), (queue.as_str(), sequence.as_str()));
        Ok(page)
    }
}

#[async_trait]
impl<S: Store> LetterStore for ThroughApi<S> {
    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let request = api::ActRequest { reason: Some(by.why.clone()) };
        self.change_letter((queue, letter), (Method::POST, act.as_str()), by, &request).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        let found = self.whole(letter).await.map_err(refused("get"))?;
        Ok(found.filter(|letter| letter.queue == *queue))
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        let params = [("queue", Some(queue.as_str())), ("sequence", Some(sequence.as_str()))];
        let wanted = |letter: &api::Letter| letter.index >= from;
        let walked = self.api.walk::<api::Sequence>("/v1/sequences", &params, limit, wanted).await;
        let (shown, _) = walked.map_err(refused("sequence"))?;
        self.all_whole(shown).await.map_err(refused("sequence"))
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        let consumer = self.consumer(queue.consumer()).await?;
        let queues = consumer.map(|consumer| consumer.queues).unwrap_or_default();
        let found = queues.iter().map(words::queue).find(|summary| summary.queue == *queue);
        Ok(found.map(|summary| summary.counts).unwrap_or_default())
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        Ok(self.sequence_page(queue, sequence).await?.size)
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let was = self.pauses(consumer).await?.iter().any(|pause| pause.scope == *scope);
        let verb = if paused { "pause" } else { "resume" };
        let path = format!("/v1/consumers/{}/{verb}", encoded(consumer.as_str()));
        let request = words::pause_request(scope, by);
        let answer =
            self.api.change((Method::POST, &path), by, &request).await.map_err(refused("set_pause"))?;
        if paused {
            let told = words::pause(answer.typed());
            assert_eq!((&told.scope, &told.by), (scope, by));
        } else {
            assert_eq!(answer.typed::<api::ResumeAnswer>().resumed, was);
        }
        Ok(was)
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let consumer = self.consumer(consumer.as_str()).await?;
        let pauses = consumer.map(|consumer| consumer.pauses).unwrap_or_default();
        Ok(pauses.into_iter().map(words::pause).collect())
    }

    // What follows is the engine's, or the library's: the API has no words for it.

    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        self.inner.assign(queue, partitions).await
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        self.inner.opened_since(queue, revision, limit).await
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        self.inner.hand_off(queue, limits, items).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        self.inner.lookup(queue, messages).await
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.inner.note_attempts(queue, notes).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        self.inner.attempt_notes(queue, partitions).await
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        self.inner.forget_attempts(queue, partition, up_to).await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        self.inner.claim_due(queue, owner, lease, limit).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        self.inner.next_due(queue).await
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        self.inner.claim(queue, sequence, owner, lease).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<Lease> {
        self.inner.renew(lease, duration).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.inner.release(lease).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.inner.settle(lease, letter, settlement).await
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        self.inner.heads(queue, after, limit).await
    }

    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        self.inner.is_full(queue, sequence, limits).await
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        self.inner.clear(queue, by).await
    }
}
