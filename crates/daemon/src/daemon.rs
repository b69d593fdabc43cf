//! The daemon as a service: all consumers of a configuration, and the API.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_config::{Address, Config, Source};
use lazaret_core::store::Store;
use lazaret_memory::MemoryStore;
use lazaret_server::{Builder, Listener, Options as ServerOptions, Registry, Server};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::assemble::{self, Shared, Stores};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::reload::{Reloaded, Running, RunningConsumer, apply};
use crate::runner::{End, RestartPolicy, Runner, register, register_elsewhere};
use crate::store_wait;
use crate::telemetry::{Telemetry, TelemetryTasks};

/// The options of the daemon that are not part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Exit when all sources are read to their end and nothing is in flight or waiting for a retry.
    pub until_idle: bool,
    /// Run the consumers of the configuration. Without it only the API is served.
    pub run_consumers: bool,
    /// The delay before the first restart of a failed consumer; doubled after each consecutive failure.
    pub restart_delay: Duration,
    /// The maximum restart delay.
    pub max_restart_delay: Duration,
}

impl Default for Options {
    /// Runs until it is drained; failed consumers restart after one second to one minute.
    fn default() -> Self {
        Self {
            until_idle: false,
            run_consumers: true,
            restart_delay: Duration::from_secs(1),
            max_restart_delay: Duration::from_secs(60),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Consumers that ended with an error, and the error.
    pub failed: Vec<(String, String)>,
    /// The number of open letters of each consumer that has any.
    pub open_letters: BTreeMap<String, u64>,
    /// Whether it was drained, instead of having completed all work.
    pub drained: bool,
}

/// A daemon that is ready to run: its store is open and its address is bound.
pub struct Service {
    shared: Arc<Shared>,
    server: Server,
    listener: Listener,
    runners: Vec<Runner>,
    telemetry_tasks: TelemetryTasks,
    /// Stops every consumer.
    stop: CancellationToken,
    handle: Handle,
}

/// Controls a running daemon. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    running: Arc<Mutex<Running>>,
    stores: Stores,
    server: Server,
    address: SocketAddr,
}

impl Service {
    /// Opens the store and binds the address. Consumers start with [`run`](Self::run): an error of one does not affect the
    /// others.
    ///
    /// # Errors
    /// Fails if the store cannot be opened, the address cannot be bound, or a token is invalid. A store whose disk is full is waited
    /// for, except with [`Options::until_idle`]: meanwhile the API tells why, and the daemon is not ready.
    pub async fn open(config: Config, options: Options) -> Result<Self, Error> {
        let config = Arc::new(config);
        let telemetry = Telemetry::new(&config);
        let (stores, bound) = store_wait::open(&config, &telemetry, options.until_idle).await?;
        let capabilities = stores.letters.capabilities().await?;
        if !capabilities.durable {
            tracing::warn!("store is not durable: letters and positions are lost when the process exits");
        }
        let registry = Registry::default();
        let keys = stores.keys.clone();
        registry.store_notice(move |consumer| assemble::encryption_notice(&keys, consumer));
        // Of a store that other machines do not share, this process is the only instance that matters.
        let values = if capabilities.shared_by_machines {
            stores.values.clone()
        } else {
            Arc::new(MemoryStore::default())
        };
        let fleet = Arc::new(Fleet::new(values));
        let parts = ServerParts { registry: &registry, telemetry: &telemetry, fleet: &fleet };
        let inboxes = |builder| serve_inboxes(builder, &config, &stores);
        let server = server(&config, stores.letters.clone(), inboxes, &parts)?;
        let tcp = match bound {
            Some(bound) => bound,
            None => bind(&config).await?,
        };
        let address = tcp.local_addr().map_err(|source| listen_failed(&config, source))?;
        let listener = listener(&config, tcp)?;
        let listener = match &config.socket {
            Some(path) => listener.and_unix(assemble::socket(path)?),
            None => listener,
        };
        let (telemetry, telemetry_tasks) = telemetry.begin(&config, &stores).await?;
        let shared = Arc::new(Shared {
            stores,
            #[cfg(feature = "mongodb")]
            store: config.store.clone(),
            registry,
            telemetry,
            fleet,
            until_idle: options.until_idle,
        });
        let stop = CancellationToken::new();
        let restart =
            RestartPolicy { min_delay: options.restart_delay, max_delay: options.max_restart_delay };
        let mut consumers = BTreeMap::new();
        let mut runners = Vec::new();
        for consumer in &config.consumers {
            if !options.run_consumers {
                register_elsewhere(&shared.registry, consumer);
                continue;
            }
            // Before the API serves: a consumer that is not known yet would need no approval.
            register(&shared.registry, consumer);
            let (sender, receiver) = watch::channel(Arc::new(consumer.clone()));
            let has_failed = Arc::default();
            let running =
                RunningConsumer { config: config.clone(), sender, has_failed: Arc::clone(&has_failed) };
            consumers.insert(consumer.name.clone(), running);
            runners.push(Runner {
                name: consumer.name.clone(),
                config: receiver,
                shared: shared.clone(),
                recorder_folder: config.flight_recorder.clone(),
                restart,
                has_failed,
                drain: stop.clone(),
                recorder: None,
                is_waiting: false,
            });
        }
        let running = Running { started: config, consumers };
        shared.stores.keep_free(running.consumers());
        server.set_config(running.effective());
        let running = Arc::new(Mutex::new(running));
        let handle = Handle { running, stores: shared.stores.clone(), server: server.clone(), address };
        Ok(Self { shared, server, listener, runners, telemetry_tasks, stop, handle })
    }

    /// Returns a handle that controls the daemon while it runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `drain` is cancelled or, with [`Options::until_idle`], until all work is done.
    ///
    /// Draining stops the sources, settles messages in flight, commits positions and releases leases. The API is served until
    /// then, and the store is closed at the end.
    ///
    /// # Errors
    /// Fails if the API cannot be served, or the store is unavailable at the end.
    pub async fn run(self, drain: CancellationToken) -> Result<Report, Error> {
        let shared = self.shared.clone();
        let report = self.run_to_end(drain).await;
        shared.stores.close().await;
        report
    }

    async fn run_to_end(self, drain: CancellationToken) -> Result<Report, Error> {
        let Self { shared, server, listener, runners, telemetry_tasks, stop, handle } = self;
        // Before consumers run them: the tokens may have changed while no daemon was running.
        if let Err(error) = server.hold_schedules().await {
            tracing::warn!(%error, "scheduled operations not checked yet");
        }
        tracing::info!(address = %handle.address, consumers = runners.len(), "API listening");
        let names: Vec<String> = runners.iter().map(|runner| runner.name.clone()).collect();
        let close = CancellationToken::new();
        let mut serving = tokio::spawn({
            let close = close.clone();
            async move { server.serve(listener, close).await }
        });
        let (stop_telemetry, telemetry_tasks) = telemetry_tasks.start(&shared.stores);
        let reports = tokio::spawn({
            let (fleet, stop) = (shared.fleet.clone(), stop_telemetry.clone());
            async move { fleet.run(&stop).await }
        });
        let mut served = None;
        let mut runs = JoinSet::new();
        for runner in runners {
            let name = runner.name.clone();
            runs.spawn(async move { (name, runner.run().await) });
        }
        let mut failed = Vec::new();
        // A daemon without consumers runs until it is drained as well, unless `until_idle` is set.
        while !(runs.is_empty() && (shared.until_idle || stop.is_cancelled())) {
            tokio::select! {
                () = drain.cancelled(), if !stop.is_cancelled() => stop.cancel(),
                Some(ended) = runs.join_next() => match ended.map_err(|error| panicked(&error))? {
                    (_, End::Done) => {}
                    (name, End::Failed(why)) => failed.push((name, why)),
                },
                ended = &mut serving, if served.is_none() => {
                    // Without the API the daemon cannot be observed or controlled.
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
        // Telemetry stops last, so that the end of the consumers is reported.
        stop_telemetry.cancel();
        telemetry_tasks.await.map_err(|error| panicked(&error))?;
        reports.await.map_err(|error| panicked(&error))?;
        served.map_err(|error| panicked(&error))??;
        let open_letters = open_letters(&shared.stores, &names).await?;
        Ok(Report { failed, open_letters, drained: drain.is_cancelled() })
    }
}

impl Handle {
    /// The address of the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies another configuration: consumers with changed policies are drained and restarted, failed consumers are
    /// restarted, all others continue. Returns at once; nothing is lost, because positions and letters are durable.
    ///
    /// The tokens are read again, also from an unchanged `tokens-file`. If they are invalid, the previous tokens stay active.
    pub fn reload(&self, config: Config) -> Reloaded {
        let tokens = self.reload_tokens(&config);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = apply(&mut running, config);
        self.stores.keep_free(running.consumers());
        self.server.set_config(running.effective());
        match tokens {
            Ok(tokens) => done.tokens = tokens,
            Err(error) => done.tokens_error = Some(error.to_string()),
        }
        done
    }

    /// Replaces the tokens of the API. Returns their number if they changed. A configuration without `auth` changes nothing.
    fn reload_tokens(&self, config: &Config) -> Result<Option<usize>, Error> {
        if config.auth.is_none() {
            return Ok(None);
        }
        let tokens = assemble::tokens(config)?;
        let count = tokens.len();
        Ok(self.server.set_tokens(tokens)?.then_some(count))
    }
}

fn panicked(error: &JoinError) -> Error {
    Error::Panicked(error.to_string())
}

/// Binds the address.
pub(crate) async fn bind(config: &Config) -> Result<TcpListener, Error> {
    let Address { host, port } = &config.listen;
    let bound = TcpListener::bind((host.as_str(), *port)).await;
    bound.map_err(|source| listen_failed(config, source))
}

/// The error of an address that cannot be served.
pub(crate) fn listen_failed(config: &Config, source: io::Error) -> Error {
    Error::Listen { address: config.listen.to_string(), source }
}

/// Listens on a bound address, with TLS if configured.
pub(crate) fn listener(config: &Config, tcp: TcpListener) -> Result<Listener, Error> {
    Ok(match &config.tls {
        Some(tls) => Listener::tls(tcp, assemble::tls(tls)?),
        None => Listener::from(tcp),
    })
}

/// The parts of the daemon that the API shows, besides the store.
pub(crate) struct ServerParts<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) telemetry: &'a Telemetry,
    pub(crate) fleet: &'a Fleet,
}

/// Builds the API server; `inboxes` adds those of the consumers.
pub(crate) fn server(
    config: &Config,
    letters: Arc<dyn Store>,
    inboxes: impl FnOnce(Builder) -> Builder,
    parts: &ServerParts<'_>,
) -> Result<Server, Error> {
    let options = ServerOptions {
        hosts: config.hosts.clone(),
        strict_transport: config.tls.as_ref().map(|tls| tls.hsts).filter(|lasts| !lasts.is_zero()),
        limits: assemble::limits(&config.limits),
        sessions: assemble::sessions(&config.console),
        proxy: assemble::proxy(&config.console)?,
        redaction: config.redact.clone(),
    };
    let pages = lazaret_console::pages(assemble::console(&config.console)?);
    let pages = pages.map_err(|error| Error::SignIn { key: "console.oidc", why: error.to_string() })?;
    let builder = Server::builder(letters)
        .registry(parts.registry.clone())
        .tokens(assemble::tokens(config)?)
        .instances(parts.fleet.store())
        .metrics(parts.telemetry.rendering())
        .pages(pages)
        .problem_page(lazaret_console::problem_page)
        .options(options);
    Ok(inboxes(builder).build())
}

/// Adds the inboxes of the consumers to the API.
fn serve_inboxes(mut builder: Builder, config: &Config, stores: &Stores) -> Builder {
    for consumer in config.consumers.iter().filter(|consumer| consumer.source == Source::Inbox) {
        builder = stores.serve_inbox(builder, consumer);
    }
    builder
}

/// Counts the open letters of the consumers.
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
