//! The daemon as a service: every consumer of a configuration, and the API beside them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "sqlite")]
use lazaret_config::Source;
use lazaret_config::{Address, Config};
#[cfg(feature = "sqlite")]
use lazaret_server::Builder;
use lazaret_server::{Options as ServerOptions, Registry, Server};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::assemble::{self, Shared, Stores};
use crate::error::Error;
use crate::reload::{Reloaded, Running, take_over};
use crate::runner::{Backoff, End, Runner};
use crate::telemetry::{Telemetry, Watching};

/// How the daemon behaves, besides what the configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// End when every source is read to its end and nothing is in flight or waiting for a retry.
    pub until_idle: bool,
    /// How long a consumer that failed waits before it is started anew, the first time; twice as long each next time.
    pub restart_delay: Duration,
    /// The longest such wait.
    pub max_restart_delay: Duration,
}

impl Default for Options {
    /// Runs until it is told to stop; consumers that fail are started anew after one second to one minute.
    fn default() -> Self {
        Self {
            until_idle: false,
            restart_delay: Duration::from_secs(1),
            max_restart_delay: Duration::from_secs(60),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Consumers that ended with an error, and why.
    pub failed: Vec<(String, String)>,
    /// How many letters are open, of each consumer that has any.
    pub open_letters: BTreeMap<String, u64>,
    /// Whether it was told to stop, rather than having nothing left to do.
    pub drained: bool,
}

/// A daemon that is ready to run: its store is open and its address is taken.
pub struct Service {
    shared: Arc<Shared>,
    server: Server,
    listener: TcpListener,
    runners: Vec<Runner>,
    watching: Watching,
    /// Ends every consumer.
    stop: CancellationToken,
    handle: Handle,
}

/// The way to talk to a daemon while it runs. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    running: Arc<Mutex<Running>>,
    address: SocketAddr,
}

impl Service {
    /// Opens the store and takes the address. Consumers start with [`run`](Self::run): what is wrong with one of them does
    /// not keep the others from running.
    ///
    /// # Errors
    /// When the store cannot be opened, the address cannot be listened on, or a token makes no sense.
    pub async fn open(config: Config, options: Options) -> Result<Self, Error> {
        let config = Arc::new(config);
        let stores = Stores::open(&config.store).await?;
        let registry = Registry::default();
        let telemetry = Telemetry::new(&config);
        let server = server(&config, &stores, &registry, &telemetry)?;
        let listener = listen(&config.listen).await?;
        let address = listener
            .local_addr()
            .map_err(|source| Error::Listen { address: config.listen.to_string(), source })?;
        let (telemetry, watching) = telemetry.begin(&config, &stores).await?;
        let shared = Arc::new(Shared { stores, registry, telemetry, until_idle: options.until_idle });
        let stop = CancellationToken::new();
        let backoff = Backoff { first: options.restart_delay, most: options.max_restart_delay };
        let mut consumers = BTreeMap::new();
        let mut runners = Vec::new();
        for wanted in &config.consumers {
            let (desk, wanted_of) = watch::channel(Arc::new(wanted.clone()));
            let has_failed = Arc::default();
            let known =
                crate::reload::Known { config: config.clone(), desk, has_failed: Arc::clone(&has_failed) };
            consumers.insert(wanted.name.clone(), known);
            runners.push(Runner {
                name: wanted.name.clone(),
                wanted: wanted_of,
                shared: shared.clone(),
                recorder_folder: config.flight_recorder.clone(),
                backoff,
                has_failed,
                drain: stop.clone(),
                recorder: None,
            });
        }
        let running = Arc::new(Mutex::new(Running { started: config, consumers }));
        let handle = Handle { running, address };
        Ok(Self { shared, server, listener, runners, watching, stop, handle })
    }

    /// The way to talk to the daemon while it runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `drain` is cancelled or, with [`Options::until_idle`], until nothing is left to do.
    ///
    /// Draining stops the sources, settles what it can, commits positions and releases leases; the API is served until then.
    /// At the end the store is closed.
    ///
    /// # Errors
    /// When the API cannot be served, or the store does not answer at the end.
    pub async fn run(self, drain: CancellationToken) -> Result<Report, Error> {
        let shared = self.shared.clone();
        let report = self.run_to_end(drain).await;
        shared.stores.close().await;
        report
    }

    async fn run_to_end(self, drain: CancellationToken) -> Result<Report, Error> {
        let Self { shared, server, listener, runners, watching, stop, handle } = self;
        tracing::info!(address = %handle.address, consumers = runners.len(), "listening");
        let names: Vec<String> = runners.iter().map(|runner| runner.name.clone()).collect();
        let close = CancellationToken::new();
        let mut serving = tokio::spawn({
            let close = close.clone();
            async move { server.serve(listener, close).await }
        });
        let (unwatch, watching) = watching.start(&shared.stores);
        let mut served = None;
        let mut lives = JoinSet::new();
        for runner in runners {
            let name = runner.name.clone();
            lives.spawn(async move { (name, runner.run().await) });
        }
        let mut failed = Vec::new();
        // Without an end of its own, a daemon without consumers waits to be told as well.
        while !(lives.is_empty() && (shared.until_idle || stop.is_cancelled())) {
            tokio::select! {
                () = drain.cancelled(), if !stop.is_cancelled() => stop.cancel(),
                Some(ended) = lives.join_next() => match ended.map_err(|lost| panicked(&lost))? {
                    (_, End::Done) => {}
                    (name, End::Failed(why)) => failed.push((name, why)),
                },
                ended = &mut serving, if served.is_none() => {
                    // Nobody could see or change anything any more.
                    served = Some(ended);
                    stop.cancel();
                }
            }
        }
        close.cancel();
        let served = match served {
            Some(served) => served,
            None => serving.await,
        };
        // Last: what became of the consumers is still told.
        unwatch.cancel();
        watching.await.map_err(|lost| panicked(&lost))?;
        served.map_err(|lost| panicked(&lost))??;
        let open_letters = open_letters(&shared.stores, &names).await?;
        Ok(Report { failed, open_letters, drained: drain.is_cancelled() })
    }
}

impl Handle {
    /// The address at which the API is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes over what can be taken over from another configuration: consumers whose policies changed are drained and
    /// started anew, consumers that have failed are tried again, all others go on untouched. Returns at once; nothing is
    /// lost meanwhile, because positions are durable and letters are in the store.
    pub fn reload(&self, config: Config) -> Reloaded {
        take_over(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner), config)
    }
}

fn panicked(lost: &JoinError) -> Error {
    Error::Panicked(lost.to_string())
}

async fn listen(address: &Address) -> Result<TcpListener, Error> {
    TcpListener::bind((address.host.as_str(), address.port))
        .await
        .map_err(|source| Error::Listen { address: address.to_string(), source })
}

/// The API, with the inboxes of those consumers that have one.
fn server(
    config: &Config,
    stores: &Stores,
    registry: &Registry,
    telemetry: &Telemetry,
) -> Result<Server, Error> {
    let options = ServerOptions { hosts: config.hosts.clone(), limits: assemble::limits(&config.limits) };
    let builder = Server::builder(stores.letters.clone())
        .registry(registry.clone())
        .tokens(assemble::tokens(config)?)
        .metrics(telemetry.rendering())
        .options(options);
    #[cfg(feature = "sqlite")]
    let builder = with_inboxes(builder, config, stores);
    Ok(builder.build())
}

/// What only the embedded store has: inboxes, and an audit that can be checked.
#[cfg(feature = "sqlite")]
fn with_inboxes(mut builder: Builder, config: &Config, stores: &Stores) -> Builder {
    if let Some(store) = &stores.sqlite {
        builder = builder.verify_audit(store.clone());
    }
    for consumer in config.consumers.iter().filter(|consumer| consumer.source == Source::Inbox) {
        if let Some(inbox) = stores.inbox(&consumer.name) {
            builder = builder.inbox(&consumer.name, inbox);
        }
    }
    builder
}

/// How many letters of these consumers are open.
async fn open_letters(stores: &Stores, consumers: &[String]) -> Result<BTreeMap<String, u64>, Error> {
    let mut open = BTreeMap::new();
    for summary in stores.letters.queues().await? {
        let (consumer, letters) = (summary.queue.consumer(), summary.counts.open());
        if letters > 0 && consumers.iter().any(|name| name == consumer) {
            *open.entry(consumer.to_owned()).or_default() += letters;
        }
    }
    Ok(open)
}
