//! The writer's thread: begins transactions, makes them durable, and recovers lost ones.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, watch};

use super::ExitStatus;
use super::requests::{Command, GroupFailure, Request};
use crate::error::{Fault, Work, kind_of};
use crate::hand_offs::{HandOffs, Notes};
use crate::inbox_source::Posts;
use crate::lease_calls::{ClaimDue, ClaimOne, PollWork, Release, Renew, Settle};
use crate::options::Options;
use crate::recorded::{Call, Repeatable};
use crate::redo::{self, End, Mark, RedoLog, Size};
use crate::rows::nanos;
use crate::schema;
use crate::step::Step;
use crate::write_cache::WriteCache;

/// Maximum number of requests in a group (I7).
const GROUP: usize = 256;
/// A transaction is committed at this number of letters, notes, posts, claims and settlements, or bytes of them in the redo log (I7).
const OPEN_COUNT: usize = 4096;
const OPEN_BYTES: u64 = 8 << 20;
/// A group of this size is committed on its own: the redo log would save nothing.
const LARGE_COUNT: usize = OPEN_COUNT / 4;
const LARGE_BYTES: usize = 2 << 20;
/// A transaction is committed after an idle time of this fraction of its maximum duration.
const IDLE_FRACTION: u32 = 20;
/// Below this number of records, a transaction that was ended by other processes did not gain from its redo log.
const MIN_RECORDS: u32 = 3;
/// Number of groups without a redo log after it did not gain, or has failed.
const COOLDOWN_GROUPS: u32 = 64;
/// Retry interval for the write lock while another process holds it.
const LOCK_RETRY: Duration = Duration::from_millis(1);

type Outcome<T> = std::result::Result<T, GroupFailure>;

pub(super) struct Writer {
    path: PathBuf,
    options: Options,
    /// `None` after a failed commit, until it is reopened.
    connection: Option<Connection>,
    cache: WriteCache,
    redo: Arc<RedoLog>,
    /// The open transaction, if any.
    open: Option<Transaction>,
    /// `true` if a transaction was lost with acknowledged letters, which are now only in the redo log.
    is_behind: bool,
    /// The current record, kept to reuse its buffer.
    record: Vec<u8>,
    /// Number of groups for which the redo log is disabled.
    cooldown: u32,
    /// `true` if a caller waits for the store to close.
    is_closing: bool,
}

/// An open transaction.
struct Transaction {
    end: End,
    /// The size of its records.
    size: Size,
    since: Instant,
    /// `true` if the redo log may hold records of it.
    is_recorded: bool,
    /// The number of rows that the connection had changed before.
    changes: u64,
}

impl Transaction {
    fn is_full(&self, time: Duration) -> bool {
        self.size.count >= OPEN_COUNT || self.end.bytes() >= OPEN_BYTES || self.since.elapsed() >= time
    }
}

impl Writer {
    pub(super) fn new(path: PathBuf, options: Options, connection: Connection, redo: Arc<RedoLog>) -> Self {
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
        let run = move || _ = end.send_replace(Some(self.run(waiting)));
        let spawned = thread::Builder::new().name("lazaret-writer".into()).spawn(run);
        spawned.map(drop).map_err(|error| {
            StoreError::not_done(ErrorKind::Unavailable, "open", "failed to start the writer thread")
                .with_source(error)
        })
    }

    /// Repeats valid records. `false` if their owner is alive and busy: it will commit them.
    fn recover(&mut self) -> Outcome<bool> {
        let first = self.redo.first().map_err(|error| GroupFailure::of(self.redo.fault(&error)))?;
        let Some(connection) = self.connection.as_ref().filter(|_| first.is_some()) else { return Ok(true) };
        if first != Some(Mark::read(connection).map_err(GroupFailure::of)?) {
            return Ok(true);
        }
        match self.begin() {
            Ok(()) => self.commit(Certainty::NotDone).map(|()| true),
            Err(failure) if failure.kind == ErrorKind::Unavailable => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Gives the file the mark of this opening. Without it the last one stays, under which generations are unique, too: so
    /// neither a full disk nor another process that holds the lock keeps a store from opening.
    fn renew_mark(&mut self) {
        if self.begin().is_err() {
            return;
        }
        let renewed = self.connection.as_ref().is_none_or(|connection| Mark::renew(connection).is_ok());
        if !renewed {
            return self.roll_back();
        }
        if let (Some(open), Some(Ok(mark))) = (&mut self.open, self.connection.as_ref().map(Mark::read)) {
            open.end = End::start(mark);
        }
        _ = self.commit(Certainty::NotDone);
    }

    fn run(mut self, mut waiting: mpsc::Receiver<Command>) -> Outcome<()> {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            match self.first(&mut waiting) {
                Next::Command(first) => group.extend(self.accept(first, &mut waiting)),
                Next::Idle => self.catch_up(),
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
            self.maintain();
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
            Command::Close => {
                self.is_closing = true;
                waiting.close();
                None
            }
        }
    }

    /// The next queue item, or idleness while records are uncommitted.
    fn first(&self, waiting: &mut mpsc::Receiver<Command>) -> Next {
        let next = match &self.open {
            Some(_) => receive_within(waiting, self.options.redo_time / IDLE_FRACTION),
            None if self.is_behind => receive_within(waiting, self.options.redo_time),
            None => Some(waiting.blocking_recv()),
        };
        next.map_or(Next::Idle, |next| next.map_or(Next::End, Next::Command))
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
        } else if self.open.as_ref().is_some_and(|open| open.is_recorded && open.end.number < MIN_RECORDS) {
            self.cooldown = COOLDOWN_GROUPS;
        }
        self.commit(certainty)
    }

    /// Begins a transaction if none is open, after recovery of valid records.
    fn begin(&mut self) -> Outcome<()> {
        while self.open.is_none() {
            let begin = self.begin_once().and_then(|records| self.recover_records(&records));
            if let Err(failure) = begin {
                self.roll_back();
                // Nothing of the new group has happened.
                return Err(GroupFailure { certainty: Certainty::NotDone, ..failure });
            }
        }
        Ok(())
    }

    /// Begins a transaction; returns the valid records.
    fn begin_once(&mut self) -> Outcome<Vec<Vec<u8>>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options)
                .map_err(|error| GroupFailure::rolled_back(&error))?,
        };
        let connection = self.connection.insert(connection);
        lock(connection, &self.redo, self.options.busy_timeout).map_err(GroupFailure::of)?;
        self.cache.begin(connection).map_err(GroupFailure::of)?;
        let mark = Mark::read(connection).map_err(GroupFailure::of)?;
        self.redo.observe(&mark);
        let records = self.redo.records(&mark).map_err(GroupFailure::of)?;
        let end = End::start(mark);
        let is_recorded = !records.is_empty();
        self.is_behind = is_recorded;
        let changes = connection.total_changes();
        let since = Instant::now();
        self.open = Some(Transaction { end, size: Size::default(), since, is_recorded, changes });
        Ok(records)
    }

    /// Repeats records and commits them. They were acknowledged, so the limit of the file does not apply.
    fn recover_records(&mut self, records: &[Vec<u8>]) -> Outcome<()> {
        let (Some(connection), false) = (&self.connection, records.is_empty()) else { return Ok(()) };
        schema::limit_pages(connection, None).map_err(GroupFailure::of)?;
        repeat_calls(connection, &mut self.cache, records).map_err(GroupFailure::of)?;
        self.commit(Certainty::NotDone)?;
        let Some(connection) = &self.connection else { return Ok(()) };
        schema::limit_pages(connection, self.options.max_pages).map_err(GroupFailure::of)
    }

    fn work(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        for request in group {
            let has_savepoint = request.has_savepoint();
            if has_savepoint {
                execute(connection, "SAVEPOINT request").map_err(GroupFailure::of)?;
            }
            let now = nanos(self.options.clock.now());
            let mut step = Step { connection, cache: &mut self.cache, now };
            match request.run(&mut step) {
                Ok(()) => self.cache.keep(connection).map_err(GroupFailure::of)?,
                // A full disk and some other errors roll back the whole transaction, and so the whole group.
                Err(failure) if connection.is_autocommit() => return Err(failure),
                Err(failure) if !has_savepoint => return Err(failure.for_others()),
                Err(_) => {
                    self.cache.undo();
                    execute(connection, "ROLLBACK TO request").map_err(GroupFailure::of)?;
                }
            }
            if has_savepoint {
                execute(connection, "RELEASE request").map_err(GroupFailure::of)?;
            }
        }
        Ok(())
    }

    /// `true` if the redo log makes this group durable, and the commit follows later.
    fn is_worth_recording(&mut self, group: &[Box<dyn Request>]) -> bool {
        let Some(open) = &self.open else { return false };
        let mut size = Size::default();
        for request in group {
            let Some(more) = request.record_size() else { return false };
            size += more;
        }
        if size.count >= LARGE_COUNT || size.bytes >= LARGE_BYTES {
            return false;
        }
        if self.cooldown > 0 && self.options.redo_from > 0 {
            self.cooldown -= 1;
            return false;
        }
        open.is_recorded || size.count >= self.options.redo_from
    }

    /// Appends the group to the redo log. Returns `true` if it is durable there.
    fn append(&mut self, group: &[Box<dyn Request>]) -> bool {
        let Some(open) = &mut self.open else { return false };
        redo::empty_record(&mut self.record);
        for request in group {
            request.record(&mut self.record);
            open.size += request.record_size().unwrap_or_default();
        }
        // All calls were refused: nothing has changed.
        if redo::is_without_calls(&self.record) {
            return true;
        }
        open.is_recorded = true;
        self.redo.append(&mut open.end, &mut self.record).is_ok()
    }

    /// Commits the open transaction, if any; `before` is the certainty of an error before the commit itself.
    fn commit(&mut self, before: Certainty) -> Outcome<()> {
        let (Some(open), Some(connection)) = (&self.open, &self.connection) else { return Ok(()) };
        let prepared = self.cache.write(connection).and_then(|()| {
            // Also without records: a mark stands for one state, so that a log fits no copy of another one.
            let has_changed = open.is_recorded || connection.total_changes() != open.changes;
            Ok(if has_changed { open.end.mark.invalidate(connection)? } else { open.end.mark })
        });
        let mark = match prepared {
            Ok(mark) => mark,
            Err(fault) => {
                self.roll_back();
                return Err(GroupFailure { certainty: before, ..GroupFailure::of(fault) });
            }
        };
        if let Err(error) = execute(connection, "COMMIT") {
            let context = format!("commit failed: {error}");
            let failure = GroupFailure { kind: kind_of(&error), certainty: Certainty::MaybeDone, context };
            self.connection = None;
            self.roll_back();
            return Err(failure);
        }
        self.open = None;
        self.cache.committed();
        self.redo.observe(&mark);
        Ok(())
    }

    /// Rolls back the transaction, and clears the cache.
    fn roll_back(&mut self) {
        self.is_behind |= self.open.take().is_some_and(|open| open.is_recorded);
        self.cache.roll_back();
        // If the rollback fails, closing the connection rolls back.
        self.connection = self
            .connection
            .take()
            .filter(|connection| connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok());
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

    /// When idle: commits acknowledged writes to the database.
    fn catch_up(&mut self) {
        if self.begin().is_ok() {
            // If it fails, the letters are in the redo log.
            _ = self.commit(Certainty::NotDone);
        }
        self.redo.yield_lock();
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

/// The next event of the queue.
enum Next {
    Command(Command),
    Idle,
    End,
}

/// Takes the write lock, and requests it from its owner while it waits.
fn lock(connection: &Connection, redo: &RedoLog, timeout: Duration) -> std::result::Result<(), Fault> {
    let started = Instant::now();
    connection.busy_timeout(Duration::ZERO)?;
    let mut request = None;
    let begin = loop {
        match execute(connection, "BEGIN IMMEDIATE") {
            Err(error) if is_busy(&error) && started.elapsed() < timeout => {
                // Without the request, the wait is only longer.
                request = request.or_else(|| redo.request_lock().ok());
                thread::sleep(LOCK_RETRY);
            }
            begin => break begin,
        }
    };
    drop(request);
    connection.busy_timeout(timeout)?;
    Ok(begin?)
}

/// Repeats the calls of records.
fn repeat_calls(connection: &Connection, cache: &mut WriteCache, records: &[Vec<u8>]) -> Work<()> {
    for record in records {
        for call in Call::all(record)? {
            let mut step = Step { connection, cache: &mut *cache, now: call.now };
            run_call(&call, &mut step)?;
            cache.keep(connection)?;
        }
    }
    Ok(())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// Unparks a thread that waits for a request.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next value, or the end of the channel; `None` after the timeout.
fn receive_within<T>(waiting: &mut mpsc::Receiver<T>, time: Duration) -> Option<Option<T>> {
    let until = Instant::now() + time;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut next = pin!(waiting.recv());
    loop {
        if let Poll::Ready(next) = next.as_mut().poll(&mut context) {
            return Some(next);
        }
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        thread::park_timeout(left);
    }
}

/// Repeats a call. The kinds of calls belong to the version of the log.
fn run_call(call: &Call<'_>, step: &mut Step<'_>) -> Work<()> {
    match call.kind {
        HandOffs::KIND => call.run_as::<HandOffs>(step),
        Notes::KIND => call.run_as::<Notes>(step),
        Posts::KIND => call.run_as::<Posts>(step),
        ClaimDue::KIND => call.run_as::<ClaimDue>(step),
        ClaimOne::KIND => call.run_as::<ClaimOne>(step),
        Renew::KIND => call.run_as::<Renew>(step),
        Release::KIND => call.run_as::<Release>(step),
        Settle::KIND => call.run_as::<Settle>(step),
        PollWork::KIND => call.run_as::<PollWork>(step),
        kind => Err(Fault::Corrupt(format!("unknown kind {kind} of a call in the redo log"))),
    }
}
