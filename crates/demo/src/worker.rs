//! The worker: the process that runs the consumer, the API and the console, like a user's service. It
//! may crash.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret::console;
use lazaret::file::{self, FileSource};
use lazaret::flight::MappedRecorder;
use lazaret::prelude::*;
use lazaret::server::{Approval, Registry, Server};
use lazaret::sqlite::SqliteStore;
use lazaret::store::Limits;
use lazaret::{Event, Options};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::net::TcpListener;

use crate::folder::Folder;
use crate::handler::Shop;
use crate::journal::{Fact, Journal};
use crate::orders::Order;
use crate::protocol::{Report, WorkerCommand};
use crate::worker_state::{self, replay};

/// The consumer. Its only component has the same name.
pub(crate) const CONSUMER: &str = "orders";
/// The interval between state reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(150);

/// The maximum number of automatic attempts of an order.
pub(crate) const MAX_ATTEMPTS: u32 = 4;
/// The number of crashes after which an order is dead-lettered.
pub(crate) const MAX_CRASHES: u32 = 2;

/// Returns the queue of the consumer.
pub(crate) fn queue() -> QueueName {
    QueueName::of(CONSUMER, CONSUMER)
}

/// Runs the worker in this folder until it is stopped or its standard input is closed.
///
/// # Errors
/// When a file cannot be opened, or the consumer fails.
pub async fn run(folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    // A crash is part of the story and need not write a core dump.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let folder = Folder::new(folder);
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let Some(WorkerCommand::Start { incarnation, port }) = next_command(&mut commands).await? else {
        return Err("the worker can only be started by `lazaret demo`".into());
    };
    let store = Arc::new(SqliteStore::open(folder.store(), Default::default())?);
    let registry = Registry::default();
    registry.starting(CONSUMER, Approval::None);
    let consumer = consumer(&folder, incarnation, &store, &registry).await?;
    let handle = consumer.handle();
    registry.running(handle.clone());

    let listener = listen(port).await?;
    let port = listener.local_addr()?.port();
    let server = Server::builder(store.clone())
        .registry(registry)
        .pages(console::router)
        .problem_page(console::problem_page)
        .build();
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { server.serve(listener, stop).await }
    });
    send(&Report::Ready { port })?;

    let drain = CancellationToken::new();
    let mut running = tokio::spawn(consumer.run(drain.clone()));
    let mut ticks = tokio::time::interval(REPORT_INTERVAL);
    loop {
        tokio::select! {
            ended = &mut running => {
                ended??;
                break;
            }
            _ = ticks.tick() => send(&Report::State(Box::new(worker_state::state(&store, &handle).await?)))?,
            message = next_command(&mut commands) => match message? {
                Some(WorkerCommand::Replay) => send(&Report::Log(replay(&store, &handle).await?))?,
                Some(WorkerCommand::Start { .. }) => {}
                // The worker was stopped, or the parent process has exited.
                Some(WorkerCommand::Stop) | None => {
                    drain.cancel();
                    (&mut running).await??;
                    send(&Report::State(Box::new(worker_state::state(&store, &handle).await?)))?;
                    break;
                }
            },
        }
    }
    stop.cancel();
    serving.await??;
    Ok(())
}

/// Builds a consumer as a user's service would.
async fn consumer(
    folder: &Folder,
    incarnation: u32,
    store: &Arc<SqliteStore>,
    registry: &Registry,
) -> Result<Consumer, Box<dyn Error + Send + Sync>> {
    let journal = Arc::new(Journal::open(&folder.journal(), incarnation)?);
    let shop = Arc::new(Shop { folder: folder.clone(), journal: journal.clone() });
    let follow = file::Options { follow: true, poll: Duration::from_millis(20), ..Default::default() };
    let source = FileSource::open(folder.orders(), store.clone(), CONSUMER, follow).await?;
    let recorder = MappedRecorder::open(folder.flight(), Default::default())?;
    let retry = RetryPolicy {
        max_attempts: MAX_ATTEMPTS,
        initial_delay: Duration::from_millis(400),
        multiplier: 2.0,
        // The first retry waits in memory. Later ones exceed this limit and wait in the store.
        hold: Duration::from_millis(500),
        max_crashes: MAX_CRASHES,
        ..RetryPolicy::default()
    };
    let options = Options {
        concurrency: 32,
        retry,
        // One bank of eight is down. A circuit breaker would also hold the customers of the other seven.
        breaker: None,
        dead_letter: Some(DeadLetterOptions {
            limits: Limits { max_sequence_size: Some(100_000), ..Limits::default() },
            owner: Some("payments-team".into()),
            ..DeadLetterOptions::default()
        }),
        flight_recorder: Some(Arc::new(recorder)),
        // The leases of a crashed process must expire before its letters are retried. Short for the demo.
        lease: Duration::from_secs(2),
        // Messages after the last commit are handled again after a crash. A short interval keeps them few.
        commit_interval: Duration::from_millis(50),
        // Changes to letters take effect quickly.
        refresh: Duration::from_millis(200),
        ..Options::default()
    };
    let consumer = Consumer::builder(CONSUMER)
        .source(source)
        .store(store.clone())
        .handler(move |order: Result<Json<Order>, HandlerError>, context: Context| {
            let shop = shop.clone();
            async move { shop.handle(order, context).await }
        })
        .observer(registry.observer(CONSUMER))
        .observer(move |event: &Event<'_>| note(&journal, event))
        .options(options);
    Ok(consumer.build()?)
}

/// Records events that the handler does not see.
fn note(journal: &Journal, event: &Event<'_>) {
    let (id, fact) = match event {
        Event::Failed { message, failure, .. } => {
            (message.id.as_str(), Fact::Failed { reason: failure.reason.as_str().to_owned() })
        }
        Event::RetryScheduled { message, due, .. } => (message.id.as_str(), Fact::Due(due.as_microsecond())),
        Event::RetryExhausted { message, .. } => (message.id.as_str(), Fact::GaveUp),
        Event::LetterStored { message, state, .. } => {
            (message.id.as_str(), Fact::Letter(state.as_str().to_owned()))
        }
        Event::LetterClosed { message, state, .. } => {
            (message.id.as_str(), Fact::Closed(state.as_str().to_owned()))
        }
        Event::LeaseLost { sequence, .. } => (sequence.as_str(), Fact::LeaseLost),
        _ => return,
    };
    if let Err(error) = journal.write(id, fact) {
        let _ = writeln!(io::stderr(), "cannot write the journal: {error}");
    }
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await {
        // The port is in use, so any other port is taken.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await
        }
        other => other,
    }
}

/// Reads the next command. Returns `None` when standard input is closed.
async fn next_command(lines: &mut Lines<BufReader<Stdin>>) -> io::Result<Option<WorkerCommand>> {
    match lines.next_line().await? {
        Some(line) => Ok(Some(serde_json::from_str(&line)?)),
        None => Ok(None),
    }
}

fn send(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
