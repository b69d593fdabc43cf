//! Inboxes whose messages are encrypted.
//!
//! A value of a message with an id is bound to the consumer and to that id. Messages without an id get theirs from the store, after they are
//! encrypted: their values are bound to the consumer alone.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Backlog, Commit, Ingest, NewMessage, Posted, Source, SourceError, SourceEvent};
use lazaret_core::store::{self, Certainty};
use lazaret_core::{Message, MessageId, Partition};

use crate::content::{Closed, Content, Opener, Place, PostSealer, Unreadable};
use crate::error::NotOpened;
use crate::key::DataKey;
use crate::key_ring::KeyRing;

/// An inbox that encrypts messages before it passes them on. With a ring [without keys](KeyRing::without_keys) it passes them on as they are,
/// and refuses them from the time when another instance encrypts.
pub struct SealedInbox<I> {
    inner: I,
    consumer: String,
    keys: Arc<KeyRing>,
}

impl<I: Ingest> SealedInbox<I> {
    /// Encrypts what is posted to the inbox of this consumer.
    pub fn new(inner: I, consumer: impl Into<String>, keys: Arc<KeyRing>) -> Self {
        Self { inner, consumer: consumer.into(), keys }
    }

    fn sealed(&self, key: &DataKey, mut message: NewMessage) -> NewMessage {
        // As the inbox stores it, and as the message is read.
        let id = message.id.clone().map(MessageId::given);
        let place = Place::post(&self.consumer, id.as_ref().map(MessageId::as_str));
        let sealer = PostSealer { key, place, is_repeatable: id.is_some() };
        sealer.seal(&mut message.payload, &mut message.headers, &mut message.undecodable);
        message
    }

    /// Whether a message with the id of another one is the same, encrypted under an earlier key.
    async fn posted_before(&self, message: &NewMessage) -> store::Result<Option<Posted>> {
        let keys = self.keys.current();
        for key in keys.earlier() {
            let answer = self.inner.post(vec![self.sealed(key, message.clone())]).await?.pop();
            if let Some(answer) = answer.filter(|answer| !matches!(answer, Posted::Conflict { .. })) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl<I: Ingest> Ingest for SealedInbox<I> {
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        if self.keys.is_without_keys() {
            let plain = self.keys.require_plain().await;
            plain.map_err(|error| NotOpened::Keys(error).during("post", Certainty::NotDone))?;
            return self.inner.post(messages).await;
        }
        let keys = self.keys.current();
        let sealed = messages.iter().map(|message| self.sealed(keys.active(), message.clone())).collect();
        let mut answers = self.inner.post(sealed).await?;
        for (answer, message) in answers.iter_mut().zip(&messages) {
            if matches!(answer, Posted::Conflict { .. })
                && let Some(known) = self.posted_before(message).await?
            {
                *answer = known;
            }
        }
        Ok(answers)
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        self.inner.backlog().await
    }
}

/// A source that decrypts the messages of an inbox. It delivers no message whose key it lacks: it fails, and holds its position.
pub struct SealedSource<S> {
    inner: S,
    consumer: String,
    keys: Arc<KeyRing>,
    /// Messages that were read and are not decrypted yet, because the keys could not be read.
    waiting: Option<Vec<Message>>,
    /// `true` while the only partition of the inbox is paused.
    is_paused: bool,
}

impl<S: Source> SealedSource<S> {
    /// Decrypts what the source of this consumer's inbox delivers.
    pub fn new(inner: S, consumer: impl Into<String>, keys: Arc<KeyRing>) -> Self {
        Self { inner, consumer: consumer.into(), keys, waiting: None, is_paused: false }
    }
}

impl<S> SealedSource<S> {
    /// Whether messages of these partitions wait.
    fn waits_for(&self, partitions: &[Partition]) -> bool {
        let messages = self.waiting.as_deref().unwrap_or_default();
        messages.iter().any(|message| partitions.contains(&message.partition()))
    }

    /// Forgets messages that are delivered again.
    fn forget(&mut self, partitions: &[Partition]) {
        if self.waits_for(partitions) {
            self.waiting = None;
        }
    }
}

/// The messages of a batch.
struct Batch<'a> {
    consumer: &'a str,
    messages: &'a mut [Message],
}

impl Content for Batch<'_> {
    fn open(&mut self, with: &mut Opener<'_>) {
        for message in &mut *self.messages {
            let id = message.id.clone();
            let has_own_id = id != MessageId::of_position(&message.position);
            let place = Place::post(self.consumer, has_own_id.then(|| id.as_str()));
            for (field, why) in with.message(&place, message) {
                match why {
                    // It is dead-lettered as it is, and the next one goes on.
                    Closed::Forged => {
                        message.undecodable =
                            Some("the message was changed in the inbox: it cannot be decrypted".into());
                    }
                    Closed::NoKey(_) => {
                        let owner = format!("message {id} in the inbox");
                        with.unreadable.push(Unreadable { letter: None, owner, field: field.as_str(), why });
                    }
                }
            }
        }
    }
}

#[async_trait]
impl<S: Source> Source for SealedSource<S> {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        self.inner.attach(registry);
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.waiting.is_none() || self.is_paused {
            match self.inner.next().await? {
                SourceEvent::Messages(messages) => self.waiting.get_or_insert_default().extend(messages),
                other => {
                    self.is_paused &= !matches!(other, SourceEvent::Assigned(_));
                    return Ok(other);
                }
            }
        }
        // Kept as it was read until it is decrypted: the call may be cancelled while the keys are read.
        let mut messages = self.waiting.clone().unwrap_or_default();
        let mut batch = Batch { consumer: &self.consumer, messages: &mut messages };
        let not_opened = match self.keys.open_content(&mut batch).await {
            Ok(unreadable) => unreadable.into_iter().next().map(NotOpened::Unreadable),
            Err(error) => Some(NotOpened::Keys(error)),
        };
        if let Some(error) = not_opened {
            return Err(SourceError::from(error.during("next", Certainty::NotDone)));
        }
        self.waiting = None;
        Ok(SourceEvent::Messages(messages))
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.inner.commit(commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.inner.begin_commit(commits)
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.is_paused |= self.waits_for(partitions);
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.is_paused &= !self.waits_for(partitions);
        self.inner.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.forget(partitions);
        self.inner.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.forget(partitions);
        self.inner.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.inner.close().await
    }

    fn lag(&self) -> Option<u64> {
        self.inner.lag()
    }
}
