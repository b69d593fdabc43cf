//! Migration to version 4: moves checkpoints, locks and the duplicate filter from tables of their own to key-value
//! pairs.

use lazaret_core::store::{Anchor, Checkpoint, LockState, dedupe_claim, dedupe_key};
use lazaret_core::{MessageId, QueueName};
use rusqlite::{Connection, Row, params};

use crate::error::{Fault, Work};
use crate::rows::{time, unsigned};

pub(super) fn fill(connection: &Connection) -> Work<()> {
    checkpoints(connection)?;
    locks(connection)?;
    handled(connection)?;
    connection.execute_batch("DROP TABLE checkpoints; DROP TABLE locks; DROP TABLE inbox;")?;
    Ok(())
}

fn insert(connection: &Connection, key: (&str, &str), value: &[u8], expires_at: Option<i64>) -> Work<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO key_values (space, name, value, version, expires_at) VALUES (?1, ?2, ?3, 1, ?4)",
    )?;
    insert.execute(params![key.0, key.1, value, expires_at])?;
    Ok(())
}

fn anchor(row: &Row<'_>, token: usize) -> Work<Option<Anchor>> {
    let (bytes, at): (Option<Vec<u8>>, Option<i64>) = (row.get(token)?, row.get(token + 1)?);
    Ok(bytes.zip(at).map(|(bytes, at)| Anchor { token: bytes.into(), at: time(at) }))
}

fn checkpoints(connection: &Connection) -> Work<()> {
    let mut select = connection.prepare(
        "SELECT name, processed_token, processed_at, seen_token, seen_at, heartbeat, instance, metadata
         FROM checkpoints",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let metadata: String = row.get(7)?;
        let checkpoint = Checkpoint {
            processed: anchor(row, 1)?,
            seen: anchor(row, 3)?,
            heartbeat: row.get::<_, Option<i64>>(5)?.map(time),
            instance: row.get(6)?,
            metadata: serde_json::from_str(&metadata).map_err(|error| {
                Fault::Corrupt(format!("failed to decode the metadata of checkpoint {name}: {error}"))
            })?,
        };
        insert(connection, ("checkpoint", &name), &checkpoint.to_value()?, None)?;
    }
    Ok(())
}

fn locks(connection: &Connection) -> Work<()> {
    let mut select = connection.prepare("SELECT name, owner, fence, acquired_at, expires_at FROM locks")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let lock = LockState {
            name: row.get(0)?,
            owner: row.get(1)?,
            fence: unsigned(row.get(2)?)?,
            acquired_at: time(row.get(3)?),
            expires_at: time(row.get(4)?),
        };
        insert(connection, ("lock", &lock.name), &lock.to_value()?, None)?;
    }
    Ok(())
}

fn handled(connection: &Connection) -> Work<()> {
    let mut select =
        connection.prepare("SELECT queues.name, message, owner, until FROM inbox JOIN queues USING (qid)")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (queue, message): (String, String) = (row.get(0)?, row.get(1)?);
        let key = dedupe_key(&QueueName::from(queue), &MessageId::from(message));
        let owner: Option<String> = row.get(2)?;
        let value = owner.map_or_else(Default::default, |owner| dedupe_claim(&owner));
        insert(connection, ("dedupe", &key), &value, Some(row.get(3)?))?;
    }
    Ok(())
}
