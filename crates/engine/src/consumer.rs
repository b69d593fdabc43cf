//! A consumer. It is built from a source, a store and handlers, then run.

use std::collections::HashSet;
use std::sync::Arc;

use lazaret_core::handler::{BoxHandler, Handler, handler};
use lazaret_core::store::Store;
use lazaret_core::{Clock, ConsumerName, QueueName, Source, SystemClock};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ages::Ages;
use crate::component::{Component, QueueSignals};
use crate::dedupe::{self, DuplicateFilter};
use crate::error::{BuildError, Error};
use crate::events::Observer;
use crate::flight::Flight;
use crate::flow::Shards;
use crate::guards::Guards;
use crate::hand_offs::{self, HandOffs, Inbound};
use crate::handle::Handle;
use crate::identity::Identity;
use crate::incarnations::SeenIncarnations;
use crate::intake::{GRACE, Intake};
use crate::lifecycle::Lifecycle;
use crate::mailbox::Mailbox;
use crate::open_sequences::OpenSequences;
use crate::operations;
use crate::options::Options;
use crate::reprocess;
use crate::retention;
use crate::scheduler;
use crate::shard::Shard;
use crate::store_changes;
use crate::store_clock::StoreClock;
use crate::store_refresh;
use crate::stored::{ActiveRuns, Places};
use crate::telemetry::{Stats, Telemetry};

/// A named subscription with a source, handlers and a policy. It owns its letters.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use lazaret_core::policy::RetryPolicy;
/// use lazaret_engine::Consumer;
/// use lazaret_memory::{MemoryLog, MemoryStore};
///
/// async fn on_order() {}
///
/// # fn main() -> Result<(), lazaret_engine::BuildError> {
/// let consumer = Consumer::builder("shop")
///     .source(MemoryLog::new("orders", 3).join())
///     .store(Arc::new(MemoryStore::default()))
///     .handler(on_order)
///     .concurrency(16)
///     .retry(RetryPolicy { max_attempts: 5, ..RetryPolicy::default() })
///     .hold(Duration::from_secs(2))
///     .breaker(None)
///     .build()?;
/// assert_eq!(consumer.queue().as_str(), "shop/shop");
/// # Ok(())
/// # }
/// ```
///
/// Dropping the future of [`run`](Self::run) has the effect of a crash: nothing is lost, and the next
/// run repeats what was in flight.
pub struct Consumer {
    source: Box<dyn Source>,
    handle: Handle,
    inbound: Inbound,
    dropped_claims: dedupe::Dropped,
}

/// Builds a [`Consumer`]. A source, a store and at least one handler are required; everything else has a
/// default.
///
/// Each option has its own setter. [`options`](Self::options) replaces all options at once.
pub struct Builder {
    name: String,
    source: Option<Box<dyn Source>>,
    store: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    components: Vec<(String, BoxHandler)>,
    observers: Vec<Arc<dyn Observer>>,
    pub(crate) options: Options,
}

impl Consumer {
    /// Starts building a consumer with this name. The name is part of the names of its queues and must
    /// stay the same.
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder {
            name: name.into(),
            source: None,
            store: None,
            clock: Arc::new(SystemClock),
            components: Vec::new(),
            observers: Vec::new(),
            options: Options::default(),
        }
    }

    /// Returns a handle to the consumer's pauses, states and replays. It also works while the consumer
    /// runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns the queue that holds the letters of the consumer: `shop/shop` for a consumer `shop`. If
    /// the consumer has several [components](Builder::component), this is the queue of the first one;
    /// [`Handle::queues`] returns all queues.
    pub fn queue(&self) -> &QueueName {
        self.handle.queue()
    }

    /// Runs until `drain` is cancelled, the source is read to its end (with
    /// [`until_idle`](Options::until_idle)), or an error occurs that a retry cannot fix.
    ///
    /// Draining stops intake, settles as many messages as possible within the deadline, commits, and
    /// releases leases, in that order.
    pub async fn run(self, drain: CancellationToken) -> Result<Stats, Error> {
        let Self { mut source, handle, inbound, dropped_claims } = self;
        let Handle { first, components, shards } = handle;
        let Component { options, store, guards, lifecycle, telemetry, .. } = &*first;
        let notices = Arc::new(Mailbox::default());
        let mut tasks = JoinSet::new();
        let writer = hand_offs::write(inbound, store.clone(), options.clone(), guards.clone());
        tasks.spawn(suspendable(options, writer));
        // A separate set: this task outlives the others, because it releases their claims.
        let (mut releasing, last_claims) = (JoinSet::new(), CancellationToken::new());
        releasing.spawn(suspendable(
            options,
            dedupe::release(first.dedupe.clone(), dropped_claims, last_claims.clone()),
        ));
        for (index, mailbox) in shards.iter().enumerate() {
            let per_shard = options.blocked_limit.div_ceil(shards.len());
            let open = Arc::new(OpenSequences::new(components.len(), per_shard));
            let shard = Shard::new(index, components.clone(), open, mailbox.clone(), notices.clone());
            tasks.spawn(suspendable(options, shard.run()));
        }
        let places = Places::new(options.retries_at_once());
        let replays = Places::new(options.replays_at_once());
        for component in &components {
            tasks.spawn(suspendable(
                options,
                scheduler::schedule(component.clone(), shards.clone(), places.clone()),
            ));
            tasks.spawn(suspendable(
                options,
                operations::operate(component.clone(), shards.clone(), replays.clone()),
            ));
            tasks.spawn(suspendable(options, reprocess::reprocess(component.clone())));
            tasks.spawn(suspendable(options, retention::run(component.clone())));
        }
        tasks.spawn(suspendable(options, store_refresh::run(components.clone(), shards.clone())));
        tasks.spawn(suspendable(options, store_changes::run(components.clone())));
        source.attach(Arc::new(SeenIncarnations::of(&first, &components)));
        let intake = Intake::new(source, components, shards, notices).run();
        tokio::pin!(intake);
        let mut deadline = None;
        loop {
            let ended = tokio::select! {
                biased;
                () = drain.cancelled(), if !lifecycle.drain.is_cancelled() => {
                    lifecycle.drain.cancel();
                    continue;
                }
                () = lifecycle.drain.cancelled(), if deadline.is_none() => {
                    deadline = Some(Instant::now() + options.drain_deadline);
                    continue;
                }
                Some(ended) = tasks.join_next() => ended,
                Some(ended) = releasing.join_next() => ended,
                () = &mut intake => break,
            };
            if let Err(panicked) = ended {
                return Err(Error::Panicked(panicked.to_string()));
            }
        }
        let end = async {
            tasks.shutdown().await;
            last_claims.cancel();
            while releasing.join_next().await.is_some() {}
        };
        let now = Instant::now();
        // Claims that are not released by then end with their leases.
        _ = tokio::time::timeout_at(deadline.unwrap_or(now).max(now + GRACE), end).await;
        drop((tasks, releasing));
        lifecycle.end();
        match lifecycle.take_error() {
            Some(error) => Err(error),
            None => Ok(telemetry.counters.read()),
        }
    }
}

/// Wraps a task of a consumer so that the simulation can stop it.
#[cfg(feature = "suspension")]
fn suspendable<F: Future>(options: &Options, task: F) -> impl Future<Output = F::Output> + use<F> {
    options.suspension.clone().hold(task)
}

/// Returns the task unchanged.
#[cfg(not(feature = "suspension"))]
fn suspendable<F: Future>(_: &Options, task: F) -> F {
    task
}

impl Builder {
    /// Sets the source of the messages.
    #[must_use]
    pub fn source(mut self, source: impl Source) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Sets the store that keeps the letters.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the only handler: a function, a [`Router`](lazaret_core::handler::Router), or a handler with
    /// layers. Its component has the consumer's name.
    #[must_use]
    pub fn handler<A: 'static>(mut self, h: impl Handler<A>) -> Self {
        self.components.push((self.name.clone(), handler(h)));
        self
    }

    /// Adds one of several handlers. Each has its own queue. The name is part of the queue's name and
    /// must stay the same.
    #[must_use]
    pub fn component<A: 'static>(mut self, name: impl Into<String>, h: impl Handler<A>) -> Self {
        self.components.push((name.into(), handler(h)));
        self
    }

    /// Replaces all options, including those that were set before.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Adds an observer of events. A consumer may have several.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Sets the clock. Default: the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Validates the options and builds the consumer.
    pub fn build(self) -> Result<Consumer, BuildError> {
        let Self { name, source, store, clock, components, observers, options } = self;
        options.validate()?;
        if components.is_empty() {
            return Err(BuildError::NoHandler);
        }
        let mut names = HashSet::new();
        for text in std::iter::once(&name).chain(components.iter().map(|(name, _)| name)) {
            let bad = text.contains('/') || text.chars().any(char::is_control);
            if text.is_empty() || text.len() > 200 || bad {
                return Err(BuildError::BadName(text.clone()));
            }
        }
        for (component, _) in &components {
            if !names.insert(component.clone()) {
                return Err(BuildError::DuplicateComponent(component.clone()));
            }
        }
        for policy in components.iter().flat_map(|(_, handler)| handler.retry_policies()) {
            policy.validate()?;
            if policy.strategy != options.retry.strategy {
                return Err(BuildError::RouteStrategy {
                    route: policy.strategy,
                    consumer: options.retry.strategy,
                });
            }
        }
        let source = source.ok_or(BuildError::NoSource)?;
        let store = store.ok_or(BuildError::NoStore)?;
        let (hand_offs, inbound) = HandOffs::new();
        let options = Arc::new(options);
        let consumer = ConsumerName::from(name.as_str());
        let identity = Arc::new(Identity::new(consumer, &options, &*clock));
        let clock = Arc::new(StoreClock::new(clock));
        let telemetry = Arc::new(Telemetry::new(observers));
        let queues = components.iter().map(|(component, _)| QueueName::of(&name, component)).collect();
        let guards = Arc::new(Guards::new(&options, queues, clock.clone(), telemetry.clone()));
        let lifecycle = Arc::new(Lifecycle::default());
        let flight = Arc::new(Flight::new(&options));
        let (dedupe, dropped_claims) = DuplicateFilter::new(&options, &identity, &clock);
        let components = components.into_iter().enumerate().map(|(index, (component, handler))| {
            Arc::new(Component {
                index,
                queue: QueueName::of(&name, &component),
                handler,
                signals: QueueSignals::default(),
                active_runs: ActiveRuns::default(),
                options: options.clone(),
                identity: identity.clone(),
                clock: clock.clone(),
                store: store.clone(),
                hand_offs: hand_offs.clone(),
                guards: guards.clone(),
                lifecycle: lifecycle.clone(),
                ages: Ages::default(),
                telemetry: telemetry.clone(),
                flight: flight.clone(),
                dedupe: dedupe.clone(),
            })
        });
        let components: Vec<_> = components.collect();
        let shards: Shards = (0..options.shard_count()).map(|_| Arc::new(Mailbox::default())).collect();
        let handle = Handle { first: components[0].clone(), components, shards };
        Ok(Consumer { source, handle, inbound, dropped_claims })
    }
}
