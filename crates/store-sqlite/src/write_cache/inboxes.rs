//! Cached inboxes that are sources: every post and every commit changes their counters.

use std::collections::HashMap;

use lazaret_core::ConsumerName;
use rusqlite::{Connection, OptionalExtension, params};

use super::Cached;
use crate::error::Work;

/// The counters of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboxNumbers {
    pub(crate) log: i64,
    /// The position of the next message.
    pub(crate) next: i64,
    pub(crate) committed: Option<i64>,
    /// Messages that are not consumed, and their bytes.
    pub(crate) messages: i64,
    pub(crate) bytes: i64,
}

impl InboxNumbers {
    /// Reads an inbox; `None` before the first post.
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

/// The cached inboxes, one per consumer with an inbox.
#[derive(Default)]
pub(crate) struct Inboxes {
    known: HashMap<ConsumerName, Cached<InboxNumbers>>,
    /// The changes of the current request.
    new: HashMap<ConsumerName, InboxNumbers>,
}

impl Inboxes {
    /// Keeps the changes of the current request.
    pub(super) fn keep(&mut self) {
        for (consumer, numbers) in self.new.drain() {
            self.known.entry(consumer).or_insert(Cached { now: numbers, written: None }).now = numbers;
        }
    }

    /// Discards the changes of the current request.
    pub(super) fn undo(&mut self) {
        self.new.clear();
    }

    /// Forgets what is a copy of the file.
    pub(super) fn forget_copies(&mut self) {
        self.known.retain(|_, known| known.written != Some(known.now));
    }

    /// Writes the changes since the last time.
    pub(super) fn write(&mut self, connection: &Connection) -> Work<()> {
        for known in self.known.values_mut().filter(|known| known.written != Some(known.now)) {
            known.now.write(connection)?;
            known.written = Some(known.now);
        }
        Ok(())
    }

    /// The counters of an inbox, which is created if necessary.
    pub(crate) fn of(&mut self, connection: &Connection, consumer: &ConsumerName) -> Work<InboxNumbers> {
        if let Some(numbers) = self.new.get(consumer) {
            return Ok(*numbers);
        }
        if let Some(known) = self.known.get(consumer) {
            return Ok(known.now);
        }
        if let Some(numbers) = InboxNumbers::read(connection, consumer)? {
            self.known.insert(consumer.clone(), Cached { now: numbers, written: Some(numbers) });
            return Ok(numbers);
        }
        let mut insert = connection.prepare_cached("INSERT INTO inbox_logs (consumer) VALUES (?1)")?;
        insert.execute([consumer.as_str()])?;
        let log = connection.last_insert_rowid();
        let numbers = InboxNumbers { log, next: 0, committed: None, messages: 0, bytes: 0 };
        self.set(consumer, numbers);
        Ok(numbers)
    }

    pub(crate) fn set(&mut self, consumer: &ConsumerName, numbers: InboxNumbers) {
        self.new.insert(consumer.clone(), numbers);
    }
}
