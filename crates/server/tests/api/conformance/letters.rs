//! Letters through the API: one, a sequence, acts, counts and pauses. Hand-offs, leases and settlements go to the store.

use axum::http::Method;
use lazaret_api as api;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{Act, Actor, Counts, ErrorKind, Pause, PauseScope, Result, Store, StoreError};
use lazaret_core::{ConsumerName, QueueName, SequenceId};

use crate::conformance::client::{Answered, encoded};
use crate::conformance::store::ThroughApi;
use crate::conformance::words::{self, if_there, refused};

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

impl<S: Store> ThroughApi<S> {
    pub(crate) async fn act_over_http(
        &self,
        queue: &QueueName,
        letter: LetterId,
        act: Act,
        by: &Actor,
    ) -> Result<Letter> {
        let request = api::ActRequest { reason: Some(by.why.clone()) };
        self.change_letter((queue, letter), (Method::POST, act.as_str()), by, &request).await
    }

    pub(crate) async fn get_over_http(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        let found = self.whole(letter).await.map_err(refused("get"))?;
        Ok(found.filter(|letter| letter.queue == *queue))
    }

    pub(crate) async fn sequence_over_http(
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

    pub(crate) async fn counts_over_http(&self, queue: &QueueName) -> Result<Counts> {
        let consumer = self.consumer(queue.consumer()).await?;
        let queues = consumer.map(|consumer| consumer.queues).unwrap_or_default();
        let found = queues.iter().map(words::queue).find(|summary| summary.queue == *queue);
        Ok(found.map(|summary| summary.counts).unwrap_or_default())
    }

    pub(crate) async fn sequence_size_over_http(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
    ) -> Result<u64> {
        Ok(self.sequence_page(queue, sequence).await?.size)
    }

    pub(crate) async fn set_pause_over_http(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let was = self.inner.pauses(consumer).await?.iter().any(|pause| pause.scope == *scope);
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

    pub(crate) async fn pauses_over_http(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let consumer = self.consumer(consumer.as_str()).await?;
        let pauses = consumer.map(|consumer| consumer.pauses).unwrap_or_default();
        Ok(pauses.into_iter().map(words::pause).collect())
    }
}
