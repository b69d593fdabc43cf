//! The writer's thread: takes groups of requests, makes them durable, and responds.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use rusqlite::Connection;
use tokio::sync::{mpsc, watch};

use super::ExitStatus;
use super::requests::{Command, GroupFailure, Request};
use super::rewriting::{DueRewrite, RewriteFailure};
use super::transaction::{OPEN_COUNT, Transaction};
use super::waiting::{Next, receive_within};
use crate::options::Options;
use crate::redo::{self, Mark, RedoLog, Size};
use crate::schema;
use crate::write_cache::WriteCache;

/// Maximum number of requests in a group (I7).
const GROUP: usize = 256;
/// A group of this size is committed on its own: the redo log would save nothing.
const LARGE_COUNT: usize = OPEN_COUNT / 4;
const LARGE_BYTES: usize = 2 << 20;
/// A transaction is committed after an idle time of this fraction of its maximum duration.
const IDLE_FRACTION: u32 = 20;
/// Below this number of records, a transaction that was ended by other processes did not gain from its redo log.
const MIN_RECORDS: u32 = 3;
/// Number of groups without a redo log after it has failed, and after it did not gain many times in a row.
const COOLDOWN_GROUPS: u32 = 64;
/// Number of groups without a redo log after it did not gain once. It doubles each time: a question of another caller at the wrong
/// moment costs little, and calls that the redo log cannot record, between all others, cost one record in 64 groups.
const FIRST_COOLDOWN: u32 = 4;

pub(super) type Outcome<T> = std::result::Result<T, GroupFailure>;

pub(super) struct Writer {
    pub(super) path: PathBuf,
    pub(super) options: Options,
    /// `None` after a failed commit, until it is reopened.
    pub(super) connection: Option<Connection>,
    pub(super) cache: WriteCache,
    pub(super) redo: Arc<RedoLog>,
    /// The open transaction, if any.
    pub(super) open: Option<Transaction>,
    /// `true` if a transaction was lost with acknowledged letters, which are now only in the redo log.
    pub(super) is_behind: bool,
    /// The current record, kept to reuse its buffer.
    record: Vec<u8>,
    /// Number of groups for which the redo log is disabled.
    cooldown: u32,
    /// Number of groups for which it is disabled when it does not gain the next time.
    next_cooldown: u32,
    /// The letters of the last groups that followed each other closely, and when the last one ended.
    recent: (usize, Option<Instant>),
    /// Number of groups that run with savepoints.
    pub(super) careful_groups: u32,
    /// The rewrite of the file that is due after an erasure.
    pub(super) due_rewrite: Option<DueRewrite>,
    pub(super) rewrite_failure: RewriteFailure,
    /// `true` if a caller waits for the store to close.
    is_closing: bool,
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        options: Options,
        connection: Connection,
        redo: Arc<RedoLog>,
        rewrite_failure: RewriteFailure,
    ) -> Self {
        Self {
            path,
            options,
            connection: Some(connection),
            cache: WriteCache::default(),
            redo,
            open: None,
            is_behind: false,
            record: Vec::new(),
            cooldown: 0,
            next_cooldown: FIRST_COOLDOWN,
            recent: (0, None),
            careful_groups: 0,
            due_rewrite: None,
            rewrite_failure,
            is_closing: false,
        }
    }

    /// Recovers the redo log, and starts the thread, which reports its result at its end.
    pub(super) fn start(
        mut self,
        waiting: mpsc::Receiver<Command>,
        end: watch::Sender<ExitStatus>,
    ) -> Result<()> {
        let is_recovered = self.recover().map_err(|failure| failure.error("open"))?;
        if is_recovered {
            self.renew_mark();
        }
        self.resume_rewrite();
        let run = move || _ = end.send_replace(Some(self.run(waiting)));
        let spawned = thread::Builder::new().name("lazaret-writer".into()).spawn(run);
        spawned.map(drop).map_err(|error| {
            StoreError::not_done(ErrorKind::Unavailable, "open", "failed to start the writer thread")
                .with_source(error)
        })
    }

    fn run(mut self, mut waiting: mpsc::Receiver<Command>) -> Outcome<()> {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            match self.first(&mut waiting) {
                Next::Command(first) => group.extend(self.accept(first, &mut waiting)),
                Next::Idle => self.idle(),
                Next::End => break,
            }
            while group.len() < GROUP
                && let Ok(next) = waiting.try_recv()
            {
                group.extend(self.accept(next, &mut waiting));
            }
            if group.is_empty() {
                continue;
            }
            let failure = self.serve(&mut group).err();
            for request in group.drain(..) {
                request.answer(failure.as_ref());
            }
            self.recent.1 = Some(Instant::now());
            self.maintain();
            self.rewrite_when_due();
        }
        self.close()
    }

    /// The request of a queue item. After the command to close, the queued ones are the last.
    fn accept(
        &mut self,
        command: Command,
        waiting: &mut mpsc::Receiver<Command>,
    ) -> Option<Box<dyn Request>> {
        match command {
            Command::Run(request) => Some(request),
            Command::Rewrite(reply) => {
                // The caller may have stopped waiting.
                _ = reply.send(self.rewrite());
                None
            }
            Command::MergeLogs(reply) => {
                _ = reply.send(self.merge_logs());
                None
            }
            Command::Close => {
                self.is_closing = true;
                waiting.close();
                None
            }
        }
    }

    /// The next queue item, or idleness while records are uncommitted or a rewrite is due.
    fn first(&self, waiting: &mut mpsc::Receiver<Command>) -> Next {
        let commit = match &self.open {
            Some(_) => Some(self.idle_time()),
            None => self.is_behind.then_some(self.options.redo_time),
        };
        let rewrite = self.due_rewrite.map(|due| due.left());
        let next = match commit.into_iter().chain(rewrite).min() {
            Some(time) => receive_within(waiting, time),
            None => Some(waiting.blocking_recv()),
        };
        next.map_or(Next::Idle, |next| next.map_or(Next::End, Next::Command))
    }

    /// The time without requests after which a transaction is committed.
    fn idle_time(&self) -> Duration {
        self.options.redo_time / IDLE_FRACTION
    }

    /// Runs a group and makes it durable.
    fn serve(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        self.begin()?;
        if let Err(failure) = self.work(group) {
            self.roll_back();
            return Err(failure);
        }
        let mut certainty = Certainty::NotDone;
        if self.is_worth_recording(group) {
            if self.append(group) {
                return Ok(());
            }
            // A failed append may have written a valid record.
            certainty = Certainty::MaybeDone;
            self.cooldown = COOLDOWN_GROUPS;
        } else {
            self.learn_from_end();
        }
        self.commit(certainty)
    }

    /// Before a commit that a group needs: the redo log pauses if it held too few records to gain.
    fn learn_from_end(&mut self) {
        let Some(records) = self.open.as_ref().filter(|open| open.is_recorded).map(|open| open.end.number)
        else {
            return;
        };
        if records >= MIN_RECORDS {
            self.next_cooldown = FIRST_COOLDOWN;
        } else {
            self.cooldown = self.next_cooldown;
            self.next_cooldown = (self.next_cooldown * 2).min(COOLDOWN_GROUPS);
        }
    }

    /// `true` if the redo log makes this group durable, and the commit follows later.
    fn is_worth_recording(&mut self, group: &[Box<dyn Request>]) -> bool {
        let Some(open) = &self.open else { return false };
        let mut size = Size::default();
        for request in group {
            let Some(more) = request.record_size() else { return false };
            size += more;
        }
        let is_recorded = open.is_recorded;
        let recent = self.count_recent(size.count);
        if size.count >= LARGE_COUNT || size.bytes >= LARGE_BYTES {
            return false;
        }
        if self.cooldown > 0 && self.options.redo_from > 0 {
            self.cooldown -= 1;
            return false;
        }
        is_recorded || (recent >= self.options.redo_from && size.count >= self.options.redo_from.min(1))
    }

    /// Counts the letters of a group and of those before it that it followed closely. One long sequence comes as many groups of one letter:
    /// the commits that the redo log saves are those of the groups to come.
    fn count_recent(&mut self, count: usize) -> usize {
        let idle = self.idle_time();
        let (recent, ended) = &mut self.recent;
        if ended.is_none_or(|ended| ended.elapsed() >= idle) {
            *recent = 0;
        }
        *recent = recent.saturating_add(count);
        *recent
    }

    /// Appends the group to the redo log. Returns `true` if it is durable there.
    fn append(&mut self, group: &[Box<dyn Request>]) -> bool {
        let Some(open) = &mut self.open else { return false };
        redo::empty_record(&mut self.record);
        for request in group {
            request.record(&mut self.record);
            open.size += request.record_size().unwrap_or_default();
        }
        // All calls were refused or only looked: nothing has changed.
        if redo::is_without_calls(&self.record) {
            return true;
        }
        open.is_recorded = true;
        self.redo.append(&mut open.end, &mut self.record).is_ok()
    }

    /// After the responses: commits a large or requested transaction, and yields the lock. Failures are retried.
    fn maintain(&mut self) {
        let time = self.options.redo_time;
        if self.open.as_ref().is_some_and(|open| open.is_full(time) || self.redo.is_lock_requested()) {
            _ = self.commit(Certainty::NotDone);
        }
        if self.open.is_none() {
            self.redo.yield_lock();
        }
    }

    /// When idle: commits acknowledged writes, and rewrites the file if that is due.
    fn idle(&mut self) {
        if self.open.is_some() || self.is_behind {
            self.catch_up();
        }
        self.rewrite_when_due();
    }

    /// Commits acknowledged writes to the database.
    fn catch_up(&mut self) {
        if self.begin().is_ok() {
            // If it fails, the letters are in the redo log.
            _ = self.commit(Certainty::NotDone);
        }
        self.redo.yield_lock();
    }

    /// Commits, and writes SQLite's log to the database, as far as other connections allow that without waiting. Returns the bytes that are
    /// free in the file; `None` if some of what is in the logs remains to be written.
    pub(super) fn merge_logs(&mut self) -> Outcome<Option<u64>> {
        self.commit(Certainty::NotDone)?;
        let Some(connection) = &self.connection else { return Ok(None) };
        // Records of a transaction that was lost, or of another process.
        let first = self.redo.first().map_err(|error| GroupFailure::of(self.redo.fault(&error)))?;
        if first.is_some() && first == Some(Mark::read(connection).map_err(GroupFailure::of)?) {
            return Ok(None);
        }
        schema::merge_wal(connection).map_err(GroupFailure::of)
    }

    /// Merges both logs into the database file. After a failure nothing acknowledged is lost:
    /// it is in one of the logs.
    fn close(mut self) -> Outcome<()> {
        // Without a waiting caller it does not wait for locks: the process that holds them will merge the logs.
        if !self.is_closing {
            self.options.busy_timeout = Duration::ZERO;
        }
        // A failed commit is recovered from the redo log, if possible.
        _ = self.commit(Certainty::NotDone);
        if !self.redo.is_empty() {
            self.begin()?;
            let cleared = self.redo.clear();
            self.roll_back();
            cleared.map_err(|error| GroupFailure::of(self.redo.fault(&error)))?;
        }
        if !self.is_closing {
            // SQLite itself empties its log when the last connection is closed.
            return Ok(());
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options)
                .map_err(|error| GroupFailure::rolled_back(&error))?,
        };
        connection.busy_timeout(self.options.busy_timeout).map_err(GroupFailure::of)?;
        schema::truncate_wal(&connection).map_err(GroupFailure::of)
    }
}
