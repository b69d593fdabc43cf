//! The duplicate filter as one process reaches it, and the check that no message is handled twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::store::{Call, Dedupe, DedupeClaim, Result};
use lazaret_core::{Message, MessageId, QueueName};

use crate::connection::Connection;
use crate::world::World;

/// How long handled messages are remembered: longer than any run.
pub(crate) const WINDOW: Duration = Duration::from_secs(1_000_000);

/// The duplicate filter behind a faulty connection.
pub(crate) struct FilterConnection {
    pub(crate) world: Arc<World>,
    pub(crate) connection: Arc<Connection>,
}

#[async_trait]
impl Dedupe for FilterConnection {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim> {
        let (world, queue, id) = (self.world.clone(), queue.clone(), id.clone());
        let owner = owner.to_owned();
        let effect = async move {
            let answer = world.filter.claim(&queue, &id, &owner, lease).await?;
            if answer == DedupeClaim::Claimed {
                world.claimed(&queue, &id);
            }
            Ok(answer)
        };
        self.connection.send(Call::new("dedupe_claim", true), effect).await
    }

    async fn done(&self, queue: &QueueName, id: &MessageId, owner: &str, window: Duration) -> Result<()> {
        let (world, queue, id) = (self.world.clone(), queue.clone(), id.clone());
        let owner = owner.to_owned();
        let effect = async move {
            world.filter.done(&queue, &id, &owner, window).await?;
            world.marked(&queue, &id);
            Ok(())
        };
        self.connection.send(Call::new("dedupe_done", true), effect).await
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()> {
        let (filter, queue, id) = (self.world.filter.clone(), queue.clone(), id.clone());
        let owner = owner.to_owned();
        let effect = async move { filter.abandon(&queue, &id, &owner).await };
        self.connection.send(Call::new("dedupe_abandon", true), effect).await
    }
}

impl World {
    /// The filter has given a claim of this message, which it must not if it is marked. A mark may come late, while the next
    /// attempt has its claim already.
    fn claimed(&self, queue: &QueueName, id: &MessageId) {
        let component = self.queues.iter().position(|known| known == queue).unwrap_or_default();
        if self.history().marked.contains(&(component, id.clone())) {
            self.violated("dedupe", &format!("{id} is marked as handled and was claimed again"));
        }
    }

    /// The filter has marked this message as handled.
    fn marked(&self, queue: &QueueName, id: &MessageId) {
        self.trace(|| format!("{id} was marked as handled in {queue}"));
        if let Some(component) = self.queues.iter().position(|known| known == queue) {
            self.history().marked.insert((component, id.clone()));
        }
    }

    /// With the duplicate filter, no message runs twice at once, and none that is marked as handled.
    pub(crate) fn check_duplicate(&self, component: usize, message: &Message) {
        if !self.plan.dedupe {
            return;
        }
        let name = self.name(message);
        let (beside, marked, handled_in) = {
            let history = self.history();
            let is_same = |running: &&crate::history::Running| {
                running.component == component && running.message == name
            };
            let beside = history.running.iter().find(is_same).map(|running| running.process);
            let marked = history.marked.contains(&(component, message.dedupe_id()));
            let record = history.records.get(&(component, name.clone()));
            (beside, marked, record.and_then(|record| record.handled_in))
        };
        if let Some(process) = beside {
            self.violated("dedupe", &format!("{name} starts while process {process} handles it"));
        }
        if let Some(process) = handled_in.filter(|_| !marked) {
            self.violated("dedupe", &format!("{name} starts although process {process} handled it"));
        }
    }
}
