//! Which messages were handled, for a while.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::store::{Dedupe, DedupeClaim, Result};
use lazaret_core::{MessageId, QueueName};
use rusqlite::{OptionalExtension, params};

use crate::error::Work;
use crate::rows::later;
use crate::step::Step;
use crate::store::SqliteStore;

/// How many entries that have ended are removed with each call. More than a call adds, so they never pile up (I7).
const PRUNE: i64 = 16;

fn prune(step: &Step<'_>) -> Work<()> {
    let mut delete = step.connection.prepare_cached(
        "DELETE FROM inbox WHERE iid IN (SELECT iid FROM inbox WHERE until <= ?1 ORDER BY until LIMIT ?2)",
    )?;
    delete.execute([step.now, PRUNE])?;
    Ok(())
}

/// Who is handling a message, `None` inside when it was handled; nothing when the entry has ended.
fn entry(step: &Step<'_>, qid: i64, id: &MessageId) -> Work<Option<Option<String>>> {
    let mut select = step
        .connection
        .prepare_cached("SELECT owner FROM inbox WHERE qid = ?1 AND message = ?2 AND until > ?3")?;
    Ok(select.query_row(params![qid, id.as_str(), step.now], |row| row.get(0)).optional()?)
}

fn put(step: &Step<'_>, qid: i64, id: &MessageId, owner: Option<&str>, until: i64) -> Work<()> {
    let mut upsert = step.connection.prepare_cached(
        "INSERT INTO inbox (qid, message, owner, until) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (qid, message) DO UPDATE SET owner = excluded.owner, until = excluded.until",
    )?;
    upsert.execute(params![qid, id.as_str(), owner, until])?;
    Ok(())
}

#[async_trait]
impl Dedupe for SqliteStore {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim> {
        let (queue, id, owner) = (queue.clone(), id.clone(), owner.to_owned());
        self.write("claim", move |step| {
            let qid = step.cache.queue(step.connection, &queue)?.qid;
            prune(step)?;
            match entry(step, qid, &id)? {
                Some(None) => return Ok(DedupeClaim::Done),
                Some(Some(other)) if other != owner => return Ok(DedupeClaim::InFlight),
                _ => {}
            }
            put(step, qid, &id, Some(&owner), later(step.now, lease))?;
            Ok(DedupeClaim::Claimed)
        })
        .await
    }

    /// Whoever says it: the effect has happened, even if the claim was lost in the meantime.
    async fn done(&self, queue: &QueueName, id: &MessageId, _owner: &str, window: Duration) -> Result<()> {
        let (queue, id) = (queue.clone(), id.clone());
        self.write("done", move |step| {
            let qid = step.cache.queue(step.connection, &queue)?.qid;
            put(step, qid, &id, None, later(step.now, window))?;
            prune(step)
        })
        .await
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()> {
        let (queue, id, owner) = (queue.clone(), id.clone(), owner.to_owned());
        self.write("abandon", move |step| {
            let qid = step.cache.queue(step.connection, &queue)?.qid;
            let mut delete = step
                .connection
                .prepare_cached("DELETE FROM inbox WHERE qid = ?1 AND message = ?2 AND owner = ?3")?;
            delete.execute(params![qid, id.as_str(), owner])?;
            prune(step)
        })
        .await
    }
}
