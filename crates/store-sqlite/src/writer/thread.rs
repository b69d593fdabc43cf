//! The writer's thread: when a transaction begins, what makes it durable, and how it comes back when it is lost.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, watch};

use super::Ended;
use super::requests::{Loss, Order, Request};
use crate::error::{Fault, Work, kind_of};
use crate::hand_offs::{HandOffs, Notes};
use crate::inbox_source::Posts;
use crate::options::Options;
use crate::recorded::{Call, Repeatable};
use crate::redo::{self, End, Mark, RedoLog, Size};
use crate::rows::nanos;
use crate::schema;
use crate::step::Step;
use crate::write_cache::WriteCache;

/// How many requests are made durable together at most (I7).
const GROUP: usize = 256;
/// A transaction is committed when it holds so many letters, notes and posts, or so many bytes of them stand in the redo log (I7).
const OPEN_COUNT: usize = 4096;
const OPEN_BYTES: u64 = 8 << 20;
/// A group with so many of them or their bytes has a commit of its own: the redo log would save nothing.
const LARGE_COUNT: usize = OPEN_COUNT / 4;
const LARGE_BYTES: usize = 2 << 20;
/// A transaction is committed when nobody asks for anything for this part of the time that it may stay open.
const IDLE_PART: u32 = 20;
/// A transaction that others end before it has so many records was not worth its redo log.
const WORTH_RECORDS: u32 = 3;
/// For so many groups there is no redo log after it was not worth it, or has failed.
const REST: u32 = 64;
/// How often the write lock is tried while another process has it.
const LOCK_STEP: Duration = Duration::from_millis(1);

type Outcome<T> = std::result::Result<T, Loss>;

pub(super) struct Writer {
    path: PathBuf,
    options: Options,
    /// `None` after a commit that failed, until it is opened again.
    connection: Option<Connection>,
    cache: WriteCache,
    redo: Arc<RedoLog>,
    /// The transaction, if one has begun.
    open: Option<Open>,
    /// Whether a transaction was lost with letters that were answered, which only the redo log has now.
    is_behind: bool,
    /// The record under way, kept for its memory.
    record: Vec<u8>,
    /// For how many groups there will be no redo log.
    rest: u32,
    /// Whether somebody waits until the store is closed.
    is_closing: bool,
}

/// A transaction that has begun.
struct Open {
    end: End,
    /// What its records hold.
    size: Size,
    since: Instant,
    /// Whether the redo log may hold something of it.
    is_recorded: bool,
}

impl Open {
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
            rest: 0,
            is_closing: false,
        }
    }

    /// Brings in what a dead process has left, and starts the thread, which says at its end how it ended.
    pub(super) fn start(mut self, waiting: mpsc::Receiver<Order>, end: watch::Sender<Ended>) -> Result<()> {
        self.recover().map_err(|loss| loss.error("open"))?;
        let run = move || _ = end.send_replace(Some(self.run(waiting)));
        let spawned = thread::Builder::new().name("lazaret-writer".into()).spawn(run);
        spawned.map(drop).map_err(|error| {
            StoreError::not_done(ErrorKind::Unavailable, "open", "no thread for the writer")
                .with_source(error)
        })
    }

    /// Runs the records that count. When their owner lives and is busy, it will see to them.
    fn recover(&mut self) -> Outcome<()> {
        let first = self.redo.first().map_err(|error| Loss::of(self.redo.trouble(&error)))?;
        let Some(connection) = self.connection.as_ref().filter(|_| first.is_some()) else { return Ok(()) };
        if first != Some(Mark::read(connection).map_err(Loss::of)?) {
            return Ok(());
        }
        match self.begin() {
            Ok(()) => self.commit(Certainty::NotDone),
            Err(loss) if loss.kind == ErrorKind::Unavailable => Ok(()),
            Err(loss) => Err(loss),
        }
    }

    fn run(mut self, mut waiting: mpsc::Receiver<Order>) -> Outcome<()> {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            match self.first(&mut waiting) {
                Next::Order(first) => group.extend(self.take(first, &mut waiting)),
                Next::Idle => self.catch_up(),
                Next::End => break,
            }
            while group.len() < GROUP
                && let Ok(next) = waiting.try_recv()
            {
                group.extend(self.take(next, &mut waiting));
            }
            if group.is_empty() {
                continue;
            }
            let loss = self.serve(&mut group).err();
            for request in group.drain(..) {
                request.answer(loss.as_ref());
            }
            self.look_after();
        }
        self.close()
    }

    /// The request of an order. From the order to close on, those in line are the last.
    fn take(&mut self, order: Order, waiting: &mut mpsc::Receiver<Order>) -> Option<Box<dyn Request>> {
        match order {
            Order::Do(request) => Some(request),
            Order::Close => {
                self.is_closing = true;
                waiting.close();
                None
            }
        }
    }

    /// The next order, or that none comes while something waits in the redo log.
    fn first(&self, waiting: &mut mpsc::Receiver<Order>) -> Next {
        let next = match &self.open {
            Some(_) => receive_within(waiting, self.options.redo_time / IDLE_PART),
            None if self.is_behind => receive_within(waiting, self.options.redo_time),
            None => Some(waiting.blocking_recv()),
        };
        next.map_or(Next::Idle, |next| next.map_or(Next::End, Next::Order))
    }

    /// Does what a group asks for and makes it durable.
    fn serve(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        self.begin()?;
        if let Err(loss) = self.work(group) {
            self.roll_back();
            return Err(loss);
        }
        let mut certainty = Certainty::NotDone;
        if self.is_worth_recording(group) {
            if self.append(group) {
                return Ok(());
            }
            // What failed may be there nevertheless, and would count.
            certainty = Certainty::MaybeDone;
            self.rest = REST;
        } else if self.open.as_ref().is_some_and(|open| open.is_recorded && open.end.number < WORTH_RECORDS) {
            self.rest = REST;
        }
        self.commit(certainty)
    }

    /// Begins a transaction if none is open. What counts in the redo log comes first.
    fn begin(&mut self) -> Outcome<()> {
        while self.open.is_none() {
            let begun = self.begin_once().and_then(|records| self.bring_in(&records));
            if let Err(loss) = begun {
                self.roll_back();
                // Nothing of the group that wants to begin has happened.
                return Err(Loss { certainty: Certainty::NotDone, ..loss });
            }
        }
        Ok(())
    }

    /// Begins a transaction; the records are those that count.
    fn begin_once(&mut self) -> Outcome<Vec<Vec<u8>>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options).map_err(|error| Loss::rolled_back(&error))?,
        };
        let connection = self.connection.insert(connection);
        lock(connection, &self.redo, self.options.busy_timeout).map_err(Loss::of)?;
        self.cache.begin(connection).map_err(Loss::of)?;
        let mark = Mark::read(connection).map_err(Loss::of)?;
        self.redo.saw(&mark);
        let records = self.redo.records(&mark).map_err(Loss::of)?;
        let end = End::start(mark);
        let is_recorded = !records.is_empty();
        self.is_behind = is_recorded;
        self.open = Some(Open { end, size: Size::default(), since: Instant::now(), is_recorded });
        Ok(records)
    }

    /// Runs records again and commits them. Their letters were promised, whatever limit the file has got since.
    fn bring_in(&mut self, records: &[Vec<u8>]) -> Outcome<()> {
        let (Some(connection), false) = (&self.connection, records.is_empty()) else { return Ok(()) };
        schema::limit_pages(connection, None).map_err(Loss::of)?;
        run_again(connection, &mut self.cache, records).map_err(Loss::of)?;
        self.commit(Certainty::NotDone)?;
        let Some(connection) = &self.connection else { return Ok(()) };
        schema::limit_pages(connection, self.options.max_pages).map_err(Loss::of)
    }

    fn work(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        for request in group {
            let has_savepoint = request.has_savepoint();
            if has_savepoint {
                execute(connection, "SAVEPOINT request").map_err(Loss::of)?;
            }
            let now = nanos(self.options.clock.now());
            let mut step = Step { connection, cache: &mut self.cache, now };
            match request.run(&mut step) {
                Ok(()) => self.cache.keep(connection).map_err(Loss::of)?,
                // A full disk and some others take the whole transaction with them, and so the whole group.
                Err(loss) if connection.is_autocommit() => return Err(loss),
                Err(loss) if !has_savepoint => return Err(loss.of_another()),
                Err(_) => {
                    self.cache.undo();
                    execute(connection, "ROLLBACK TO request").map_err(Loss::of)?;
                }
            }
            if has_savepoint {
                execute(connection, "RELEASE request").map_err(Loss::of)?;
            }
        }
        Ok(())
    }

    /// Whether the redo log makes this group durable, and the commit comes later.
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
        if self.rest > 0 && self.options.redo_from > 0 {
            self.rest -= 1;
            return false;
        }
        open.is_recorded || size.count >= self.options.redo_from
    }

    /// Appends what the group did to the redo log. Says whether it is durable there.
    fn append(&mut self, group: &[Box<dyn Request>]) -> bool {
        let Some(open) = &mut self.open else { return false };
        redo::empty_record(&mut self.record);
        for request in group {
            request.record(&mut self.record);
            open.size += request.record_size().unwrap_or_default();
        }
        open.is_recorded = true;
        self.redo.append(&mut open.end, &mut self.record).is_ok()
    }

    /// Commits the transaction if one is open; `before` is what is known when it fails before the commit itself.
    fn commit(&mut self, before: Certainty) -> Outcome<()> {
        let (Some(open), Some(connection)) = (&self.open, &self.connection) else { return Ok(()) };
        let prepared = self.cache.write(connection).and_then(|()| {
            Ok(if open.is_recorded { open.end.mark.pass(connection)? } else { open.end.mark })
        });
        let mark = match prepared {
            Ok(mark) => mark,
            Err(fault) => {
                self.roll_back();
                return Err(Loss { certainty: before, ..Loss::of(fault) });
            }
        };
        if let Err(error) = execute(connection, "COMMIT") {
            let context = format!("the commit failed: {error}");
            let loss = Loss { kind: kind_of(&error), certainty: Certainty::MaybeDone, context };
            self.connection = None;
            self.roll_back();
            return Err(loss);
        }
        self.open = None;
        self.redo.saw(&mark);
        Ok(())
    }

    /// Gives the transaction up, and with it what is known by heart.
    fn roll_back(&mut self) {
        self.is_behind |= self.open.take().is_some_and(|open| open.is_recorded);
        self.cache = WriteCache::default();
        // A transaction that cannot be rolled back is rolled back by closing its connection.
        self.connection = self
            .connection
            .take()
            .filter(|connection| connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok());
    }

    /// After the answers: commits what is large or wished for, and lets others in. What fails is tried again.
    fn look_after(&mut self) {
        let time = self.options.redo_time;
        if self.open.as_ref().is_some_and(|open| open.is_full(time) || self.redo.is_wished()) {
            _ = self.commit(Certainty::NotDone);
        }
        if self.open.is_none() {
            self.redo.let_others_in();
        }
    }

    /// When nobody asks for anything: brings what was answered into the database.
    fn catch_up(&mut self) {
        if self.begin().is_ok() {
            // If it fails, the letters are in the redo log.
            _ = self.commit(Certainty::NotDone);
        }
        self.redo.let_others_in();
    }

    /// Leaves everything in the database file, and nothing in the logs. Whatever fails, nothing that was answered is lost:
    /// it stands in one of the logs.
    fn close(mut self) -> Outcome<()> {
        // When nobody waits for it, it waits for nobody: whoever is busy with the file will see to the logs.
        if !self.is_closing {
            self.options.busy_timeout = Duration::ZERO;
        }
        // A commit that failed is made good from the redo log, if it can be.
        _ = self.commit(Certainty::NotDone);
        if !self.redo.is_empty() {
            self.begin()?;
            let cleared = self.redo.clear();
            self.roll_back();
            cleared.map_err(|error| Loss::of(self.redo.trouble(&error)))?;
        }
        if !self.is_closing {
            // SQLite itself empties its log when the last of all connections is closed.
            return Ok(());
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options).map_err(|error| Loss::rolled_back(&error))?,
        };
        connection.busy_timeout(self.options.busy_timeout).map_err(Loss::of)?;
        schema::fold_log(&connection).map_err(Loss::of)
    }
}

/// What comes next.
enum Next {
    Order(Order),
    Idle,
    End,
}

/// Takes the write lock. Whoever has it learns that somebody waits.
fn lock(connection: &Connection, redo: &RedoLog, patience: Duration) -> std::result::Result<(), Fault> {
    let started = Instant::now();
    connection.busy_timeout(Duration::ZERO)?;
    let mut wish = None;
    let begun = loop {
        match execute(connection, "BEGIN IMMEDIATE") {
            Err(error) if is_busy(&error) && started.elapsed() < patience => {
                // Without it, the wait is only longer.
                wish = wish.or_else(|| redo.wish().ok());
                thread::sleep(LOCK_STEP);
            }
            begun => break begun,
        }
    };
    drop(wish);
    connection.busy_timeout(patience)?;
    Ok(begun?)
}

/// Runs the calls of records as they ran the first time.
fn run_again(connection: &Connection, cache: &mut WriteCache, records: &[Vec<u8>]) -> Work<()> {
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

/// Wakes a thread that waits for a request.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next value, or that nobody sends any more; `None` when the time is over before.
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

/// Runs a call again. The kinds of calls belong to the version of the log.
fn run_call(call: &Call<'_>, step: &mut Step<'_>) -> Work<()> {
    match call.kind {
        HandOffs::KIND => call.run_as::<HandOffs>(step),
        Notes::KIND => call.run_as::<Notes>(step),
        Posts::KIND => call.run_as::<Posts>(step),
        kind => Err(Fault::Corrupt(format!("the redo log has a call of the unknown kind {kind}"))),
    }
}
