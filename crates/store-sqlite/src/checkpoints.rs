//! Positions by name.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, Reset, Result};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Fault, Work};
use crate::rows::{nanos, time};
use crate::store::SqliteStore;

fn load(connection: &Connection, name: &str) -> Work<Option<Checkpoint>> {
    let mut select = connection.prepare_cached(
        "SELECT processed_token, processed_at, seen_token, seen_at, heartbeat, instance, metadata
         FROM checkpoints WHERE name = ?1",
    )?;
    let found = select.query_row([name], |row| {
        let anchor = |token: usize, at: usize| -> rusqlite::Result<Option<Anchor>> {
            let token: Option<Vec<u8>> = row.get(token)?;
            let at: Option<i64> = row.get(at)?;
            Ok(token.zip(at).map(|(token, at)| Anchor { token: token.into(), at: time(at) }))
        };
        let checkpoint = Checkpoint {
            processed: anchor(0, 1)?,
            seen: anchor(2, 3)?,
            heartbeat: row.get::<_, Option<i64>>(4)?.map(time),
            instance: row.get(5)?,
            metadata: Default::default(),
        };
        Ok((checkpoint, row.get::<_, String>(6)?))
    });
    let Some((mut checkpoint, metadata)) = found.optional()? else { return Ok(None) };
    checkpoint.metadata = serde_json::from_str(&metadata)
        .map_err(|error| Fault::Corrupt(format!("the metadata of checkpoint {name}: {error}")))?;
    Ok(Some(checkpoint))
}

fn save(connection: &Connection, name: &str, checkpoint: &Checkpoint) -> Work<()> {
    let metadata = serde_json::to_string(&checkpoint.metadata)
        .map_err(|error| Fault::Corrupt(format!("metadata that cannot be written: {error}")))?;
    let token = |anchor: &Option<Anchor>| anchor.as_ref().map(|anchor| anchor.token.to_vec());
    let at = |anchor: &Option<Anchor>| anchor.as_ref().map(|anchor| nanos(anchor.at));
    let mut replace = connection.prepare_cached(
        "INSERT OR REPLACE INTO checkpoints
         (name, processed_token, processed_at, seen_token, seen_at, heartbeat, instance, metadata)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    replace.execute(params![
        name,
        token(&checkpoint.processed),
        at(&checkpoint.processed),
        token(&checkpoint.seen),
        at(&checkpoint.seen),
        checkpoint.heartbeat.map(nanos),
        checkpoint.instance,
        metadata,
    ])?;
    Ok(())
}

impl SqliteStore {
    /// Changes a checkpoint, which is made if it is not there.
    async fn change_checkpoint(
        &self,
        operation: &'static str,
        name: &str,
        change: impl FnOnce(&mut Checkpoint) + Send + 'static,
    ) -> Result<()> {
        let name = name.to_owned();
        self.write(operation, move |step| {
            let mut checkpoint = load(step.connection, &name)?.unwrap_or_default();
            change(&mut checkpoint);
            save(step.connection, &name, &checkpoint)
        })
        .await
    }
}

#[async_trait]
impl Checkpoints for SqliteStore {
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>> {
        let name = name.to_owned();
        self.ask("load", move |view| load(view.connection, &name)).await
    }

    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()> {
        self.change_checkpoint("save", name, move |stored| *stored = checkpoint).await
    }

    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.change_checkpoint("save_processed", name, move |stored| {
            stored.processed = Some(anchor);
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        })
        .await
    }

    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        self.change_checkpoint("save_seen", name, move |stored| {
            stored.seen = Some(anchor);
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        })
        .await
    }

    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()> {
        self.change_checkpoint("save_heartbeat", name, move |stored| stored.heartbeat = Some(at)).await
    }

    async fn reset(&self, name: &str, reset: Reset) -> Result<()> {
        self.change_checkpoint("reset", name, move |stored| {
            let processed: Option<&Bytes> = stored.processed.as_ref().map(|anchor| &anchor.token);
            // Another token than the one found dead was written since: that place is good.
            if processed == reset.dead.as_ref() {
                stored.processed = None;
            }
            stored.heartbeat = reset.fresh.as_ref().map(|anchor| anchor.at);
            stored.seen = reset.fresh;
        })
        .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write("delete", move |step| {
            step.connection.prepare_cached("DELETE FROM checkpoints WHERE name = ?1")?.execute([name])?;
            Ok(())
        })
        .await
    }
}
