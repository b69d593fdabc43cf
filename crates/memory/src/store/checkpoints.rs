//! Positions by name.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, Reset, Result};

use super::MemoryStore;

impl MemoryStore {
    /// Changes a checkpoint, which is made if it is not there.
    fn change_checkpoint(&self, name: &str, change: impl FnOnce(&mut Checkpoint)) {
        let (mut state, _) = self.begin();
        change(state.checkpoints.entry(name.to_owned()).or_default());
    }
}

#[async_trait]
impl Checkpoints for MemoryStore {
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>> {
        Ok(self.begin().0.checkpoints.get(name).cloned())
    }

    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()> {
        self.change_checkpoint(name, |stored| *stored = checkpoint);
        Ok(())
    }

    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.change_checkpoint(name, |stored| {
            stored.processed = Some(anchor);
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        });
        Ok(())
    }

    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.change_checkpoint(name, |stored| {
            stored.seen = Some(anchor);
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        });
        Ok(())
    }

    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()> {
        self.change_checkpoint(name, |stored| stored.heartbeat = Some(at));
        Ok(())
    }

    async fn reset(&self, name: &str, reset: Reset) -> Result<()> {
        self.change_checkpoint(name, |stored| {
            let processed: Option<&Bytes> = stored.processed.as_ref().map(|anchor| &anchor.token);
            // Another token than the one found dead was written since: that place is good.
            if processed == reset.dead.as_ref() {
                stored.processed = None;
            }
            stored.heartbeat = reset.fresh.as_ref().map(|anchor| anchor.at);
            stored.seen = reset.fresh;
        });
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.begin().0.checkpoints.remove(name);
        Ok(())
    }
}
