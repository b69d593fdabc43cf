//! The checkpoints of an unreliable store.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, Reset, Result};

use super::Unreliable;

#[async_trait]
impl<S: Checkpoints> Checkpoints for Unreliable<S> {
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>> {
        self.call("load", self.inner.load(name)).await
    }

    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()> {
        self.call("save", self.inner.save(name, checkpoint)).await
    }

    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.call("save_processed", self.inner.save_processed(name, anchor, heartbeat)).await
    }

    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.call("save_seen", self.inner.save_seen(name, anchor, heartbeat)).await
    }

    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()> {
        self.call("save_heartbeat", self.inner.save_heartbeat(name, at)).await
    }

    async fn reset(&self, name: &str, reset: Reset) -> Result<()> {
        self.call("reset", self.inner.reset(name, reset)).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.call("delete", self.inner.delete(name)).await
    }
}
