//! Pauses, with author, reason and start.

use lazaret_core::store::rules::{self, SequenceChange, SequenceRow};
use lazaret_core::store::{Actor, Pause, PauseScope, Result};
use lazaret_core::{ConsumerName, QueueName, SequenceId};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::Work;
use crate::store::{PostgresStore, Queue};
use crate::transaction::{CLOCK, Transaction};
use crate::values::{Columns, from_json, key_of, lock_key, nanos, text, to_json};

/// A pause of a sequence and its opening exclude each other: one that is opened sees the pause, or the pause sees it.
const LOCK_SHARED: &str = "SELECT pg_advisory_xact_lock_shared($1)";
const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
pub(crate) const PAUSED: &str = "SELECT hash FROM pauses WHERE consumer = $1 AND hash = ANY($2)";
const DELETE: &str = "DELETE FROM pauses WHERE consumer = $1 AND hash = $2 RETURNING 1";
const INSERT: &str = "INSERT INTO pauses (consumer, hash, scope, who, via, why, since)
    VALUES ($1, $2, $3::text::json, $4, $5, $6, $7)";
const QUEUES: &str = "SELECT qid, name FROM queues WHERE consumer = $1 ORDER BY qid";
const ALL: &str = "SELECT scope::text, who, via, why, since FROM pauses WHERE consumer = $1";

/// The key of the lock for the pauses of a consumer.
pub(crate) fn pauses_lock(schema: &str, consumer: &str) -> i64 {
    lock_key(&["lazaret pauses", schema, consumer])
}

fn scope_key(scope: &PauseScope) -> Work<Uuid> {
    Ok(key_of(&[&to_json(scope, "a pause scope")?]))
}

/// The key of the pause of a sequence.
pub(crate) fn sequence_pause(sequence: &SequenceId) -> Work<Uuid> {
    scope_key(&PauseScope::Sequence(sequence.clone()))
}

impl Transaction<'_> {
    pub(crate) async fn set_pause(
        &mut self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Work<bool> {
        let (lock, of) = (pauses_lock(self.store.schema(), consumer.as_str()), text(consumer.as_str()));
        let key = scope_key(scope)?;
        let [_, deleted, clock] =
            self.query_all([(LOCK, &[&lock]), (DELETE, &[&of, &key]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        if paused {
            let json = to_json(scope, "a pause scope")?;
            let (who, via, why, since) = (text(&by.who), text(&by.via), text(&by.why), nanos(self.now()));
            self.query(INSERT, &[&of, &key, &json, &who, &via, &why, &since]).await?;
        }
        if let PauseScope::Sequence(sequence) = scope {
            self.mark_sequence(&of, sequence, paused).await?;
        }
        let before = !deleted.is_empty();
        self.unit.audit.extend(rules::pause_audit(consumer, scope, before, paused, by));
        Ok(before)
    }

    /// Marks a sequence as paused or resumed in every queue of the consumer.
    async fn mark_sequence(&mut self, consumer: &str, sequence: &SequenceId, paused: bool) -> Work<()> {
        for row in self.query(QUEUES, &[&consumer]).await? {
            let mut c = Columns::of(&row);
            let queue = Queue { qid: c.get()?, name: QueueName::from(c.text()?) };
            if let Some(open) = self.sequence(&queue, sequence).await? {
                let row = SequenceRow { paused, ..open.row };
                self.unit.change_sequence(&queue, sequence, None, SequenceChange::Put(row))?;
            }
        }
        Ok(())
    }

    /// `true` if a sequence is paused, open or not. It is not paused or resumed before the transaction ends.
    pub(crate) async fn is_paused(&self, queue: &Queue, sequence: &SequenceId) -> Work<bool> {
        let (lock, of) =
            (pauses_lock(self.store.schema(), queue.name.consumer()), text(queue.name.consumer()));
        let key = vec![sequence_pause(sequence)?];
        let [_, rows] = self.query_all([(LOCK_SHARED, &[&lock]), (PAUSED, &[&of, &key])]).await?;
        Ok(!rows.is_empty())
    }
}

impl PostgresStore {
    pub(crate) async fn list_pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let rows = self.ask("pauses", ALL, &[&text(consumer.as_str())]).await?;
        let read = |row: &Row| -> Work<Pause> {
            let mut c = Columns::of(row);
            let scope = from_json(&c.get::<String>()?, "a pause scope")?;
            let by = Actor { who: c.text()?, via: c.text()?, why: c.text()? };
            Ok(Pause { scope, by, since: c.time()? })
        };
        let pauses: Work<Vec<Pause>> = rows.iter().map(read).collect();
        let mut pauses = pauses.map_err(|fault| fault.into_error("pauses"))?;
        pauses.sort_by(|one, other| one.scope.cmp(&other.scope));
        Ok(pauses)
    }
}
