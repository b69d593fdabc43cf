//! The store: connecting, the pool, and the numbers of queues.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
use lazaret_core::store::rules::ClockWatch;
use lazaret_core::store::{Capabilities, Changes, ErrorKind, ExpiryClock, Result, StoreError, Topic};
use lazaret_core::{Clock, QueueName, SystemClock, Timestamp};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Row};

use crate::connector::Connector;
use crate::dsn::Dsn;
use crate::error::{Fault, Work, of_commit, of_pool, spoils_connection};
use crate::group_notes::GroupNotes;
use crate::hosts::PoolConnect;
use crate::migrations;
use crate::notifications::Notifications;
use crate::options::PostgresStoreOptions;
use crate::settlements::Settlements;
use crate::tls::Tls;
use crate::transaction::CLOCK;
use crate::values::{text, time};

/// A queue and its number.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) qid: i64,
    pub(crate) name: QueueName,
}

/// A store in PostgreSQL. Clones share it.
///
/// Closed letters keep their row, and purged ones their id and state: a redelivered message whose letter was closed must be
/// recognized (I8).
///
/// Numbers end at 2^63: a message with a larger offset is refused as `Invalid`. Times have nanosecond precision between 1677 and 2262;
/// other times of a letter saturate. See the [crate documentation](crate) for an example.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    /// One connection more, for reads of values while all others are in use. It is opened when it is first needed.
    kept: Pool,
    /// One permit for each connection that calls which may examine many letters use at once.
    scans: Semaphore,
    acquire_timeout: Duration,
    notifications: Notifications,
    schema: String,
    clock: Option<Arc<dyn Clock>>,
    expiry: ExpiryClock,
    /// The numbers of queues that are known. They never change.
    queues: Mutex<HashMap<QueueName, i64>>,
    watches: Mutex<BTreeMap<QueueName, ClockWatch>>,
    settlements: Settlements,
    group_notes: GroupNotes,
}

impl PostgresStore {
    /// The capabilities of every store of this kind, known before one is opened.
    pub const CAPABILITIES: Capabilities = {
        let mut capabilities = Capabilities::NONE;
        (capabilities.durable, capabilities.shared_by_processes) = (true, true);
        (capabilities.shared_by_machines, capabilities.audit_chain) = (true, true);
        (capabilities.inbox, capabilities.outbox) = (true, true);
        capabilities
    };

    /// Connects to a server, and opens or creates the store in its database.
    ///
    /// `dsn` is a URL (`postgres://user@host/database?sslmode=verify-full`) or a list of `key=value` pairs, as libpq has them, with one
    /// or several hosts. Its parameters `schema` and `max_connections` go before the options of these names. Without a password in it,
    /// `PGPASSWORD` counts, then the password file of its parameter `passfile` or of `PGPASSFILE`, then `~/.pgpass`.
    ///
    /// # Errors
    /// `Invalid` if the DSN or an option cannot be used, or if the tables are of a newer version; `Unavailable` if the server cannot be
    /// reached or refuses writes; `Denied` if the role may not use the tables, or not create them.
    pub async fn connect(dsn: &str, options: PostgresStoreOptions) -> Result<Self> {
        let dsn = Dsn::load(dsn)?;
        let options = dsn.apply(options);
        options.check()?;
        let connector = Connector::of(dsn, "lazaret", options.acquire_timeout, options.statement_timeout)?;
        let (mut config, tls) = connector.into_parts();
        let session = options.session(config.get_options().unwrap_or_default());
        config.options(session);
        let notifications =
            Notifications::new(config.clone(), tls.clone(), &options.schema, options.acquire_timeout);
        // The clock of the server may be set, so the time between two readings of it is counted by this machine.
        let counting = options.clock.clone().unwrap_or_else(|| Arc::new(SystemClock));
        let shared = Shared {
            pool: pool(config.clone(), tls.clone(), &options, options.max_connections)?,
            kept: pool(config, tls, &options, 1)?,
            scans: Semaphore::new((options.max_connections / 2).max(1)),
            acquire_timeout: options.acquire_timeout,
            notifications,
            schema: options.schema,
            clock: options.clock,
            expiry: ExpiryClock::new(counting),
            queues: Mutex::default(),
            watches: Mutex::default(),
            settlements: Settlements::default(),
            group_notes: GroupNotes::default(),
        };
        let store = Self { shared: Arc::new(shared) };
        let client = store.client("open").await?;
        migrations::prepare(&client, &store.shared.schema, options.migrate).await?;
        Ok(store)
    }

    /// Tells this process and the others about a change that was committed.
    pub(crate) fn publish(&self, topic: Topic) {
        self.shared.notifications.publish(topic);
    }

    /// Tells the other processes about a change that was committed.
    pub(crate) fn publish_to_others(&self, topic: Topic) {
        self.shared.notifications.publish_to_others(topic);
    }

    /// Subscribes to changes of this process and of others.
    pub(crate) fn subscribe(&self, topics: Vec<Topic>) -> Changes {
        self.shared.notifications.subscribe(topics)
    }

    /// A free connection.
    pub(crate) async fn client(&self, operation: &'static str) -> Result<Object> {
        self.shared.pool.get().await.map_err(|error| of_pool(error, operation))
    }

    /// A connection that reads a value: a free one, or else the first of those that become free and the one that is kept for values. So
    /// whatever other calls do with their connections, values are read: positions, leases, what a health check asks for.
    pub(crate) async fn client_for_value(&self, operation: &'static str) -> Result<Object> {
        let Shared { pool, kept, .. } = &*self.shared;
        let at_once = Timeouts { wait: Some(Duration::ZERO), ..pool.timeouts() };
        match pool.timeout_get(&at_once).await {
            Err(PoolError::Timeout(TimeoutType::Wait)) => {}
            known => return known.map_err(|error| of_pool(error, operation)),
        }
        // Nothing races with the opening of the connection: if others were faster each time, it would be opened again and again.
        if kept.status().size == 0
            && let Ok(client) = kept.get().await
        {
            return Ok(client);
        }
        let freed = tokio::select! {
            biased;
            freed = pool.get() => freed,
            Ok(client) = kept.get() => Ok(client),
        };
        freed.map_err(|error| of_pool(error, operation))
    }

    /// Waits for the turn of a call that may examine many letters or groups. Such calls use half of the connections, in the order in which
    /// they came, so that they never keep the others waiting: the engine, single letters.
    pub(crate) async fn turn_to_scan(&self, operation: &'static str) -> Result<SemaphorePermit<'_>> {
        let unavailable =
            |context: &str| StoreError::not_done(ErrorKind::Unavailable, operation, context.to_owned());
        match tokio::time::timeout(self.shared.acquire_timeout, self.shared.scans.acquire()).await {
            Ok(turn) => turn.map_err(|_| unavailable("the store is closed")),
            Err(_) => Err(unavailable("no connection became free in time: other searches use all of theirs")),
        }
    }

    /// The clock of the options; `None` for that of the server.
    pub(crate) fn given_clock(&self) -> Option<&dyn Clock> {
        self.shared.clock.as_deref()
    }

    /// The time by which values expire.
    pub(crate) fn expiry(&self) -> &ExpiryClock {
        &self.shared.expiry
    }

    /// The settlements that wait for a transaction.
    pub(crate) fn settlements(&self) -> &Settlements {
        &self.shared.settlements
    }

    /// The notes about groups that this process has written.
    pub(crate) fn group_notes(&self) -> &GroupNotes {
        &self.shared.group_notes
    }

    /// The name of the schema.
    pub(crate) fn schema(&self) -> &str {
        &self.shared.schema
    }

    /// `true` if the clock was set back since the last call for this queue.
    pub(crate) fn clock_went_back(&self, queue: &QueueName, now: Timestamp) -> bool {
        let mut watches = self.shared.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.entry(queue.clone()).or_default().went_back(now)
    }

    /// The rows of one query, outside of a transaction.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let client = self.client(operation).await?;
        let asked = async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, parameters).await
        };
        asked.await.map_err(|error| Fault::Sql(error).into_error(operation))
    }

    /// Runs one statement that writes, a transaction of its own. Without a response it may have been committed.
    pub(crate) async fn write_once(
        &self,
        operation: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<()> {
        let client = self.client(operation).await?;
        let statement = client.prepare_cached(sql).await;
        let statement = statement.map_err(|error| Fault::Sql(error).into_error(operation))?;
        match client.query(&statement, parameters).await {
            Ok(_) => Ok(()),
            Err(error) => {
                if error.code().is_some_and(spoils_connection) {
                    drop(Object::take(client));
                }
                Err(of_commit(error, operation))
            }
        }
    }

    /// The store's time.
    pub(crate) async fn now(&self, operation: &'static str) -> Result<Timestamp> {
        if let Some(clock) = self.given_clock() {
            return Ok(clock.now());
        }
        let rows = self.ask(operation, CLOCK, &[]).await?;
        let read =
            first(&rows, |row| Ok(time(row.try_get(0)?))).map_err(|fault| fault.into_error(operation))?;
        read.ok_or_else(|| StoreError::not_done(ErrorKind::Corrupt, operation, "the server states no time"))
    }

    fn known_queue(&self, name: &QueueName) -> Option<Queue> {
        let queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.get(name).map(|qid| Queue { qid: *qid, name: name.clone() })
    }

    /// The number of a queue, if it exists.
    pub(crate) async fn find_queue(
        &self,
        operation: &'static str,
        name: &QueueName,
    ) -> Result<Option<Queue>> {
        if let Some(known) = self.known_queue(name) {
            return Ok(Some(known));
        }
        let rows =
            self.ask(operation, "SELECT qid FROM queues WHERE name = $1", &[&text(name.as_str())]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let qid: i64 = row.get(0);
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), qid);
        Ok(Some(Queue { qid, name: name.clone() }))
    }

    /// The number of a queue, which is created if necessary.
    pub(crate) async fn queue(&self, operation: &'static str, name: &QueueName) -> Result<Queue> {
        loop {
            if let Some(found) = self.find_queue(operation, name).await? {
                return Ok(found);
            }
            let sql = "INSERT INTO queues (name, consumer) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
            self.write_once(operation, sql, &[&text(name.as_str()), &text(name.consumer())]).await?;
        }
    }
}

fn pool(config: Config, tls: Tls, options: &PostgresStoreOptions, connections: usize) -> Result<Pool> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(config, PoolConnect(tls), recycling);
    let timeout = Some(options.acquire_timeout);
    Pool::builder(manager)
        .max_size(connections)
        .wait_timeout(timeout)
        .create_timeout(timeout)
        .recycle_timeout(timeout)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::not_done(ErrorKind::Invalid, "open", error.to_string()))
}

/// The first row of an answer, read by a function that may find it corrupt.
pub(crate) fn first<T>(rows: &[Row], read: impl FnOnce(&Row) -> Work<T>) -> Work<Option<T>> {
    rows.first().map(read).transpose()
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.shared.schema).finish_non_exhaustive()
    }
}
