//! Reads the rows of an outbox up to the horizon, and waits for more.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::Message;
use lazaret_core::message::PartitionNumber;
use tokio::time::Instant;
use tokio_postgres::Row;

use crate::context::{Batch, Context, Leadership};
use crate::error::OutboxError;
use crate::horizon::{Horizon, Observation};
use crate::options::Ack;
use crate::row;
use crate::session::Session;

/// The minimum time between two reads of the sequence, so that announcements of a busy service are
/// handled together.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// The first and the maximum delay between checks of transactions that are waited for. Commits are
/// announced, but rollbacks are not.
const WAITING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The first delay between reads of an idle sequence. The option `poll` is the maximum.
const IDLE: Duration = Duration::from_millis(50);
/// The target size of a batch (I7).
const BATCH_BYTES: usize = 4 << 20;
/// The number of rows in the first batch, whose size is unknown.
const FIRST_ROWS: i64 = 64;
/// The interval of checks for rows at or below the position, as a multiple of the option `poll`. No such
/// row should exist.
const LEFT_BEHIND: u32 = 30;
/// The time after which a transaction that rows wait for is logged, and the interval at which the log
/// entry is repeated.
const SLOW_TRANSACTION: Duration = Duration::from_secs(10);

pub(crate) struct Reader {
    context: Context,
    session: Arc<Session>,
    generation: u64,
    partition: PartitionNumber,
    /// The id up to which rows were read.
    read_up_to: i64,
    horizon: Horizon,
    /// The number of rows in the next batch.
    rows: i64,
    /// When rows began to wait for transactions, or when that was last logged.
    waiting_since: Option<Instant>,
    /// The acknowledged position.
    position: Arc<AtomicI64>,
    /// When it was last checked that no row is at or below the position.
    looked_back: Instant,
}

impl Reader {
    /// Creates a reader of the rows after this id.
    pub(crate) fn new(context: Context, leadership: Leadership, after: i64) -> Self {
        let Leadership { session, generation, partition, position, .. } = leadership;
        let rows = FIRST_ROWS.min(context.options.batch_rows.into());
        let horizon = Horizon::new(after);
        Self {
            context,
            session,
            generation,
            partition,
            read_up_to: after,
            horizon,
            rows,
            waiting_since: None,
            position,
            looked_back: Instant::now(),
        }
    }

    /// Reads until an error.
    pub(crate) async fn run(mut self) -> OutboxError {
        match self.read().await {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }

    async fn read(&mut self) -> Result<Infallible, OutboxError> {
        let (mut delay, mut was_waiting) = (IDLE, false);
        loop {
            let looked = Instant::now();
            let last = self.session.last_id().await?;
            self.check_not_set_back(last)?;
            self.check_not_replaced()?;
            self.check_nothing_is_left_behind().await?;
            if self.horizon.needs_observation(last) {
                self.observe(last).await?;
            }
            self.report(last);
            let is_waiting = self.horizon.needs_observation(last);
            let (first, longest) = match is_waiting {
                true => WAITING,
                false => (IDLE, self.context.options.poll.min(self.context.options.heartbeat())),
            };
            if self.deliver().await? || is_waiting != was_waiting {
                delay = first;
            }
            was_waiting = is_waiting;
            tokio::select! {
                () = self.context.announced.notified() => {
                    delay = first;
                    tokio::time::sleep_until(looked + MIN_INTERVAL).await;
                }
                () = tokio::time::sleep(delay.min(longest)) => delay = (delay * 2).min(longest),
            }
        }
    }

    /// Checks that the sequence was not set back. Rows with ids that were already read would be skipped.
    /// The next leader decides how to continue (I1). Writers may have caught up by then.
    fn check_not_set_back(&self, last: i64) -> Result<(), OutboxError> {
        match last >= self.read_up_to {
            true => Ok(()),
            false => Err(OutboxError::Replaced(format!(
                "the last id that was drawn is {last}, but rows up to {} were read",
                self.read_up_to
            ))),
        }
    }

    /// Checks that no acknowledgement found a delivered row replaced by another row with its id.
    fn check_not_replaced(&self) -> Result<(), OutboxError> {
        match self.session.is_replaced() {
            true => {
                Err(OutboxError::Replaced("other rows have the ids of rows that were delivered".to_owned()))
            }
            false => Ok(()),
        }
    }

    /// Checks that there is no row at or below the position. Settled rows are deleted, so such a row was
    /// never delivered (I1).
    async fn check_nothing_is_left_behind(&mut self) -> Result<(), OutboxError> {
        let options = &self.context.options;
        let position = self.position.load(Ordering::Relaxed);
        if options.ack != Ack::Delete || self.looked_back.elapsed() < options.poll * LEFT_BEHIND {
            return Ok(());
        }
        self.looked_back = Instant::now();
        match self.session.first_up_to(position).await? {
            None => Ok(()),
            Some(id) => {
                Err(OutboxError::passing(format!("the row {id} is at or below the position {position}")))
            }
        }
    }

    /// Observes the transactions that have drawn an id. The horizon depends on the order of the
    /// statements: the last id was read before them, and rows are read after them.
    async fn observe(&mut self, last: i64) -> Result<(), OutboxError> {
        let writers = self.session.writers().await?;
        let (log_end, log_flushed) = self.session.log_ends().await?;
        let names: BTreeSet<String> = writers.keys().cloned().collect();
        self.horizon.observe(Observation { last, writers: names, log_end, log_flushed });
        let waits_for: Vec<i32> = self
            .horizon
            .waits_for()
            .map(|writer| writers.get(writer).copied().flatten().unwrap_or(0))
            .collect();
        self.warn(&waits_for);
        self.context.status.send_if_modified(|status| {
            let is_new = status.waits_for != waits_for;
            status.waits_for = waits_for;
            is_new
        });
        Ok(())
    }

    /// Logs transactions that delay rows for a long time.
    fn warn(&mut self, waits_for: &[i32]) {
        let since = match self.waiting_since {
            _ if waits_for.is_empty() => {
                self.waiting_since = None;
                return;
            }
            None => *self.waiting_since.insert(Instant::now()),
            Some(since) => since,
        };
        if since.elapsed() >= SLOW_TRANSACTION {
            self.waiting_since = Some(Instant::now());
            let stream = &self.context.options.stream;
            tracing::warn!(%stream, sessions = ?waits_for, "outbox rows waiting for open transactions");
        }
    }

    /// Delivers the final rows that were not read yet. Returns `true` if there were any.
    async fn deliver(&mut self) -> Result<bool, OutboxError> {
        let last_final = self.horizon.last_final();
        let mut is_any = false;
        while self.read_up_to < last_final {
            let limit = self.rows;
            let rows = self.session.read(self.read_up_to, last_final, limit).await?;
            let is_all = rows.len() < usize::try_from(limit).unwrap_or(usize::MAX);
            let last_row = rows.last().map(row::id).filter(|_| !is_all);
            if !rows.is_empty() {
                is_any = true;
                let versions = rows.iter().map(row::version).collect();
                let messages = self.messages(&rows);
                drop(rows);
                self.send(messages, versions).await?;
            }
            self.read_up_to = last_row.unwrap_or(last_final);
            self.context.status.send_modify(|status| status.read_up_to = u64::try_from(self.read_up_to).ok());
        }
        Ok(is_any)
    }

    /// Returns the messages of rows. Their size decides how many rows are read next.
    fn messages(&mut self, rows: &[Row]) -> Vec<Message> {
        let options = &self.context.options;
        let messages: Vec<Message> = rows
            .iter()
            .map(|row| row::message(row, self.session.table.is_json, &options.stream, self.partition))
            .collect();
        let bytes: usize =
            messages.iter().map(|message| message.payload_len() + message.headers.byte_size()).sum();
        let fitting = BATCH_BYTES.saturating_mul(messages.len()) / bytes.max(1);
        self.rows = i64::try_from(fitting).unwrap_or(i64::MAX).clamp(1, options.batch_rows.into());
        self.context.status.send_modify(|status| status.rows += messages.len() as u64);
        messages
    }

    /// Waits until the source takes the messages. In the meantime, heartbeats show the server that the
    /// session is alive.
    async fn send(&self, messages: Vec<Message>, versions: Vec<i64>) -> Result<(), OutboxError> {
        let permit = loop {
            tokio::select! {
                permit = self.context.batches.reserve() => break permit,
                () = tokio::time::sleep(self.context.options.heartbeat()) => self.session.beat().await?,
            }
        };
        // Without a source, nobody waits for the messages.
        if let Ok(permit) = permit {
            permit.send(Batch { generation: self.generation, messages, versions });
        }
        Ok(())
    }

    fn report(&self, last: i64) {
        self.context.status.send_modify(|status| {
            status.last_id = u64::try_from(last).ok();
            status.answered_at = Some(Timestamp::now());
        });
    }
}
