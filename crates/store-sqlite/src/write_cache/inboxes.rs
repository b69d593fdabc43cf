//! Cached inboxes that are sources: every post and every commit changes their numbers.

use std::collections::HashMap;

use lazaret_core::ConsumerName;
use rusqlite::{Connection, OptionalExtension, params};

use super::Known;
use crate::error::Work;

/// The numbers of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboxNumbers {
    pub(crate) log: i64,
    /// The position of the message that comes next.
    pub(crate) next: i64,
    pub(crate) committed: Option<i64>,
    /// Messages that are not consumed, and their bytes.
    pub(crate) messages: i64,
    pub(crate) bytes: i64,
}

impl InboxNumbers {
    /// An inbox as the file has it; `None` while nothing was ever posted to it.
    pub(crate) fn read(connection: &Connection, consumer: &ConsumerName) -> Work<Option<Self>> {
        let mut select = connection.prepare_cached(
            "SELECT log, next, committed, messages, bytes FROM inbox_logs WHERE consumer = ?1",
        )?;
        let found = select.query_row([consumer.as_str()], |row| {
            Ok(Self {
                log: row.get(0)?,
                next: row.get(1)?,
                committed: row.get(2)?,
                messages: row.get(3)?,
                bytes: row.get(4)?,
            })
        });
        Ok(found.optional()?)
    }

    fn write(&self, connection: &Connection) -> Work<()> {
        let mut update = connection.prepare_cached(
            "UPDATE inbox_logs SET next = ?2, committed = ?3, messages = ?4, bytes = ?5 WHERE log = ?1",
        )?;
        update.execute(params![self.log, self.next, self.committed, self.messages, self.bytes])?;
        Ok(())
    }
}

/// The inboxes that are known. There are as many as consumers with one.
#[derive(Default)]
pub(crate) struct Inboxes {
    known: HashMap<ConsumerName, Known<InboxNumbers>>,
    /// What the current request has changed.
    new: HashMap<ConsumerName, InboxNumbers>,
}

impl Inboxes {
    /// Keeps what the current request has changed.
    pub(super) fn keep(&mut self) {
        for (consumer, facts) in self.new.drain() {
            self.known.entry(consumer).or_insert(Known { now: facts, written: None }).now = facts;
        }
    }

    /// Forgets what the current request has changed.
    pub(super) fn undo(&mut self) {
        self.new.clear();
    }

    /// Writes what has changed since the last time.
    pub(super) fn write(&mut self, connection: &Connection) -> Work<()> {
        for known in self.known.values_mut().filter(|known| known.written != Some(known.now)) {
            known.now.write(connection)?;
            known.written = Some(known.now);
        }
        Ok(())
    }

    /// The numbers of an inbox, which is made if it is not there.
    pub(crate) fn of(&mut self, connection: &Connection, consumer: &ConsumerName) -> Work<InboxNumbers> {
        if let Some(facts) = self.new.get(consumer) {
            return Ok(*facts);
        }
        if let Some(known) = self.known.get(consumer) {
            return Ok(known.now);
        }
        if let Some(facts) = InboxNumbers::read(connection, consumer)? {
            self.known.insert(consumer.clone(), Known { now: facts, written: Some(facts) });
            return Ok(facts);
        }
        let mut insert = connection.prepare_cached("INSERT INTO inbox_logs (consumer) VALUES (?1)")?;
        insert.execute([consumer.as_str()])?;
        let log = connection.last_insert_rowid();
        let facts = InboxNumbers { log, next: 0, committed: None, messages: 0, bytes: 0 };
        self.set(consumer, facts);
        Ok(facts)
    }

    pub(crate) fn set(&mut self, consumer: &ConsumerName, facts: InboxNumbers) {
        self.new.insert(consumer.clone(), facts);
    }
}
