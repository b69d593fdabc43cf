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
use crate::key_ring::{DataKeys, KeyRing};

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

    /// Recognizes messages that are stored under earlier keys: under another key, the same message has other bytes, and is a conflict.
    ///
    /// All messages with known ids are posted again under each earlier key, also those that match already: how long a call takes does not
    /// tell how many of them match.
    async fn compare_with_earlier(
        &self,
        keys: &DataKeys,
        messages: &[NewMessage],
        answers: &mut [Posted],
    ) -> store::Result<()> {
        let is_known = |answer: &Posted| matches!(answer, Posted::Known { .. } | Posted::Conflict { .. });
        let known: Vec<usize> = (0..answers.len()).filter(|index| is_known(&answers[*index])).collect();
        if known.is_empty() {
            return Ok(());
        }
        for key in keys.earlier() {
            let again = known.iter().map(|index| self.sealed(key, messages[*index].clone())).collect();
            for (index, answer) in known.iter().zip(self.inner.post(again).await?) {
                let is_other = matches!(answers[*index], Posted::Conflict { .. });
                if is_other && matches!(answer, Posted::Known { .. } | Posted::Taken { .. }) {
                    answers[*index] = answer;
                }
            }
        }
        Ok(())
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
        self.compare_with_earlier(&keys, &messages, &mut answers).await?;
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
