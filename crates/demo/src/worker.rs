//! The worker: the process with the consumer and the API. It is what a service of yours would be, and it may die.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret::file::{self, FileSource};
use lazaret::flight::MappedRecorder;
use lazaret::prelude::*;
use lazaret::server::{Approval, Registry, Server};
use lazaret::sqlite::SqliteStore;
use lazaret::store::Limits;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::net::TcpListener;

use crate::folder::Folder;
use crate::handler::Shop;
use crate::journal::{Fact, Journal};
use crate::orders::Order;
use crate::report::{Report, Told};
use crate::watch::{self, replay};

/// The consumer. Its only component has the same name.
pub(crate) const CONSUMER: &str = "orders";
/// How often it says how things stand.
const REPORT_EVERY: Duration = Duration::from_millis(150);

/// The most automatic attempts of an order.
pub(crate) const MAX_ATTEMPTS: u32 = 4;
/// So many deaths of the process, and an order that was alone to blame is given up.
pub(crate) const MAX_CRASHES: u32 = 2;

/// The queue of the consumer.
pub(crate) fn queue() -> QueueName {
    QueueName::of(CONSUMER, CONSUMER)
}

/// Runs the worker in this folder, until it is told to stop or nobody is there to tell it.
///
/// # Errors
/// When something of it cannot be opened, or the consumer ends by itself.
pub async fn run(folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    // A death is part of the story. It need not leave an image of the memory behind.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let folder = Folder::new(folder);
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    let Some(Told::Start { life, port }) = next(&mut told).await? else {
        return Err("the worker is started by `lazaret demo` and by nobody else".into());
    };
    let store = Arc::new(SqliteStore::open(folder.store(), Default::default())?);
    let registry = Registry::default();
    registry.starting(CONSUMER, Approval::None);
    let consumer = consumer(&folder, life, &store, &registry).await?;
    let handle = consumer.handle();
    registry.running(handle.clone());

    let listener = listen(port).await?;
    let port = listener.local_addr()?.port();
    let server = Server::builder(store.clone()).registry(registry).verify_audit((*store).clone()).build();
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { server.serve(listener, stop).await }
    });
    say(&Report::Ready { port })?;

    let drain = CancellationToken::new();
    let mut running = tokio::spawn(consumer.run(drain.clone()));
    let mut ticks = tokio::time::interval(REPORT_EVERY);
    loop {
        tokio::select! {
            ended = &mut running => {
                ended??;
                break;
            }
            _ = ticks.tick() => say(&Report::State(Box::new(watch::state(&store, &handle).await?)))?,
            message = next(&mut told) => match message? {
                Some(Told::Replay) => say(&Report::Said(replay(&store, &handle).await?))?,
                Some(Told::Start { .. }) => {}
                // Nobody is there any more, or nobody wants more.
                Some(Told::Stop) | None => {
                    drain.cancel();
                    (&mut running).await??;
                    say(&Report::State(Box::new(watch::state(&store, &handle).await?)))?;
                    break;
                }
            },
        }
    }
    stop.cancel();
    serving.await??;
    Ok(())
}

/// A consumer as a service would build it.
async fn consumer(
    folder: &Folder,
    life: u32,
    store: &Arc<SqliteStore>,
    registry: &Registry,
) -> Result<Consumer, Box<dyn Error + Send + Sync>> {
    let journal = Arc::new(Journal::open(&folder.journal(), life)?);
    let shop = Arc::new(Shop { folder: folder.clone(), journal: journal.clone() });
    let follow = file::Options { follow: true, poll: Duration::from_millis(20), ..Default::default() };
    let source = FileSource::open(folder.orders(), store.clone(), CONSUMER, follow).await?;
    let recorder = MappedRecorder::open(folder.flight(), Default::default())?;
    let retry = RetryPolicy {
        max_attempts: MAX_ATTEMPTS,
        initial_delay: Duration::from_millis(400),
        multiplier: 2.0,
        // The first retry waits in memory. The second is later than this and waits in the store, with all that follows.
        hold: Duration::from_millis(500),
        max_crashes: MAX_CRASHES,
        ..RetryPolicy::default()
    };
    let options = Options {
        concurrency: 32,
        retry,
        // One bank of eight fails. A breaker would hold the customers of the other seven as well.
        breaker: None,
        dead_letter: Some(DeadLetterOptions {
            limits: Limits { max_sequence_size: Some(100_000), ..Limits::default() },
            owner: Some("payments-team".into()),
            ..DeadLetterOptions::default()
        }),
        flight_recorder: Some(Arc::new(recorder)),
        // What a process that died was retrying is free again when its lease is over. Here nobody wants to wait for that.
        lease: Duration::from_secs(2),
        // What was handled since the last commit is handled again after a death: make that little.
        commit_interval: Duration::from_millis(50),
        // Whoever acts on letters sees at once what comes of it.
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

/// Writes down what the handler does not see.
fn note(journal: &Journal, event: &Event<'_>) {
    let (message, fact) = match event {
        Event::Failed { message, failure, .. } => {
            (message, Fact::Failed { reason: failure.reason.as_str().to_owned() })
        }
        Event::RetryScheduled { message, due, .. } => (message, Fact::Due(due.as_microsecond())),
        Event::RetryExhausted { message, .. } => (message, Fact::GaveUp),
        Event::LetterStored { message, state, .. } => (message, Fact::Letter(state.as_str().to_owned())),
        Event::LetterClosed { message, state, .. } => (message, Fact::Closed(state.as_str().to_owned())),
        _ => return,
    };
    if let Err(error) = journal.write(message.id.as_str(), fact) {
        let _ = writeln!(io::stderr(), "the journal cannot be written: {error}");
    }
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await {
        // Somebody else is there: any other place will do.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await
        }
        other => other,
    }
}

/// What it is told next; `None` when nobody is there any more.
async fn next(lines: &mut Lines<BufReader<Stdin>>) -> io::Result<Option<Told>> {
    match lines.next_line().await? {
        Some(line) => Ok(Some(serde_json::from_str(&line)?)),
        None => Ok(None),
    }
}

fn say(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
