//! The broker that holds failed messages, with the strategy `topics`: its retry topic is one more partition of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::relay::{Handover, Hop, Relay, RelayError, RelayErrorKind};
use lazaret_core::store::{Call, Certainty, StoreError};
use lazaret_core::{Letter, Message, MessageId};

use crate::connection::Connection;
use crate::world::World;

/// A message in the retry topic.
pub(crate) struct Relayed {
    pub(crate) component: usize,
    pub(crate) message: MessageId,
    pub(crate) attempts: u32,
    pub(crate) offset: u64,
}

/// The broker as one process reaches it.
pub(crate) struct BrokerConnection {
    pub(crate) world: Arc<World>,
    pub(crate) connection: Arc<Connection>,
}

impl BrokerConnection {
    async fn send(
        &self,
        operation: &'static str,
        letter: &Letter,
        effect: impl FnOnce(&World) + Send + 'static,
    ) -> Result<(), RelayError> {
        let world = self.world.clone();
        let write = async move {
            effect(&world);
            Ok(())
        };
        let sent = self.connection.send(Call::new(operation, true), write).await;
        sent.map_err(|error: StoreError| match error.certainty() {
            Certainty::NotDone => RelayError::not_done(RelayErrorKind::Temporary, "refused"),
            Certainty::MaybeDone => {
                // It may come back and be stored as well: each of the two has attempts of its own.
                self.world.relay_unanswered(letter);
                RelayError::maybe_done(RelayErrorKind::Temporary, "no answer")
            }
        })
    }
}

#[async_trait]
impl Relay for BrokerConnection {
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let (letter, same_failure) = (handover.letter.clone(), handover.same_failure);
        self.send("relay_retry", handover.letter, move |world| world.relayed(&letter, same_failure)).await
    }

    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let letter = handover.letter.clone();
        self.send("relay_dead", handover.letter, move |world| world.dead_in_topic(&letter)).await
    }
}

/// The messages of the retry topic as one process reads them: with their place in the topic, and copies marked.
#[derive(Default)]
pub(crate) struct Returns(BTreeSet<(String, u32)>);

impl Returns {
    /// The retry topic was assigned anew.
    pub(crate) fn assigned(&mut self) {
        self.0.clear();
    }

    /// Puts a message that returns where it belongs.
    pub(crate) fn returned(&mut self, message: &mut Message) {
        let Message { stream, position, hop: Some(hop), id, .. } = message else { return };
        std::mem::swap(stream, &mut hop.stream);
        std::mem::swap(position, &mut hop.position);
        hop.twin = !self.0.insert((format!("{}/{id}", hop.queue), hop.attempts));
    }
}

impl World {
    /// The number of the retry topic's partition, if there is one.
    pub(crate) fn retry_partition(&self) -> Option<u32> {
        self.plan.topics.then_some(self.plan.partitions)
    }

    fn component_of(&self, letter: &Letter) -> usize {
        self.queues.iter().position(|queue| *queue == letter.queue).unwrap_or_default()
    }

    /// The broker took a message that is to be tried again.
    fn relayed(&self, letter: &Letter, same_failure: u32) {
        let (Some(partition), Some(failure)) = (self.retry_partition(), letter.cause.clone()) else { return };
        let failed_at = letter.last_failed_at.unwrap_or(letter.enqueued_at);
        let hop = Hop {
            // Its place at first; the source puts it where it belongs.
            stream: letter.message.stream.clone(),
            position: letter.message.position.clone(),
            queue: letter.queue.clone(),
            attempts: letter.attempts,
            crashes: letter.crash_attempts,
            first_failed_at: letter.first_failed_at.unwrap_or(failed_at),
            last_failed_at: failed_at,
            failure,
            same_failure,
            due_at: letter.due_at.unwrap_or(failed_at),
            twin: false,
            conflict: false,
        };
        let message = Message { hop: Some(Box::new(hop)), ..(*letter.message).clone() };
        let position = self.log.push_with(partition, |_| message);
        self.trace(|| format!("{} was relayed after {} attempts", letter.message.id, letter.attempts));
        let (component, attempts) = (self.component_of(letter), letter.attempts);
        let relayed =
            Relayed { component, message: letter.message.id.clone(), attempts, offset: position.offset };
        self.history().relayed.push(relayed);
    }

    /// The broker took a message that is dead.
    fn dead_in_topic(&self, letter: &Letter) {
        self.trace(|| format!("{} is in the dead-letter topic", letter.message.id));
        let key = (self.component_of(letter), letter.message.id.clone());
        self.history().dead_in_topic.insert(key);
    }

    fn relay_unanswered(&self, letter: &Letter) {
        let key = (self.component_of(letter), letter.message.id.clone());
        self.history().records.entry(key).or_default().uncounted += self.plan.options.retry.max_attempts;
    }

    /// Returns `true` when the broker holds the message, or held it after more attempts than these.
    pub(crate) fn is_in_broker(&self, component: usize, id: &MessageId, after: Option<u32>) -> bool {
        let history = self.history();
        history.dead_in_topic.contains(&(component, id.clone()))
            || history.relayed.iter().any(|relayed| {
                relayed.component == component
                    && relayed.message == *id
                    && after.is_none_or(|attempts| relayed.attempts > attempts)
            })
    }

    /// I1: the messages of the retry topic up to a committed position are settled.
    pub(crate) fn check_retry_commit(&self, offset: u64) {
        let committed: Vec<(usize, MessageId, u32)> = {
            let history = self.history();
            let all = history.relayed.iter().filter(|relayed| relayed.offset <= offset);
            all.map(|relayed| (relayed.component, relayed.message.clone(), relayed.attempts)).collect()
        };
        for (component, id, attempts) in committed {
            let settled = {
                let history = self.history();
                let record = history.records.get(&(component, id.clone()));
                record.is_some_and(|record| record.handled_at.is_some() || record.acknowledged)
            };
            let letter = self.run(self.store.lookup(&self.queues[component], std::slice::from_ref(&id)));
            let has_letter = matches!(letter.unwrap_or_default().first(), Some(Some(_)));
            if !settled && !has_letter && !self.is_in_broker(component, &id, Some(attempts)) {
                let text = format!(
                    "{id} was committed in the retry topic after {attempts} attempts and is not settled"
                );
                self.violated("I1", &text);
            }
        }
    }
}
