//! The consumer that is killed, and the operator beside it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Attempt;
use lazaret_core::policy::{PoisonPolicy, RetryPolicy};
use lazaret_core::store::{Act, Actor, LetterStore, Limits, StoreError};
use lazaret_core::{HandlerError, LetterId, LetterState, Message, Reason};
use lazaret_engine::{Consumer, DeadLetterOptions, Event, Options, Replayer};
use lazaret_flight_recorder::{MappedRecorder, Options as RecorderOptions};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::journal::{Entry, Journal};
use crate::plan::{CONSUMER, MAX_ATTEMPTS, Plan, Script, key_of, mix, number_of, queue};
use crate::source::PlannedSource;

/// How often the operator closes dead letters.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const PAGE: usize = 200;
/// How long a lease lasts. A process that stalls for longer loses its leases.
pub const LEASE: Duration = Duration::from_secs(2);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every message is settled.
    Done,
    /// The stream is read, but letters were released at the end: another process is needed.
    More,
}

/// The files of a run.
#[derive(Clone, Debug)]
pub struct Files {
    folder: PathBuf,
}

impl Files {
    /// Those in this folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The store.
    pub fn store(&self) -> PathBuf {
        self.folder.join("torture.db")
    }

    /// The flight recorder.
    pub fn recorder(&self) -> PathBuf {
        self.folder.join("torture.flight")
    }

    /// The log of attempts.
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal.log")
    }
}

/// Consumes until every message is settled or the process is killed.
pub async fn work(plan: Plan, process: u32, files: &Files) -> Result<Ended, Box<dyn Error>> {
    let journal = Arc::new(Journal::open(&files.journal(), process)?);
    let store = Arc::new(SqliteStore::open(files.store(), StoreOptions::default())?);
    let recorder = Arc::new(MappedRecorder::open(files.recorder(), RecorderOptions::default())?);
    journal.write(Entry::Start)?;
    let (noted, owned) = (journal.clone(), journal.clone());
    let consumer = Consumer::builder(CONSUMER)
        .source(PlannedSource::new(plan, store.clone()))
        .store(store.clone())
        .handler(move |message: Message, Attempt(attempt)| follow(plan, noted.clone(), message, attempt))
        .observer(move |event: &Event<'_>| note_ownership(&owned, event))
        .options(Options { flight_recorder: Some(recorder), ..options(process) })
        .build()?;
    let replayer = consumer.handle().replayer(CONSUMER).ok_or("the consumer has a component of its name")?;
    let mut run = tokio::spawn(consumer.run(CancellationToken::new()));
    let mut closed = 0;
    loop {
        tokio::select! {
            ended = &mut run => {
                ended??;
                break;
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {
                closed = close_dead(plan, &store, &replayer, &journal).await?;
            }
        }
    }
    // The run may have come to its end before the last letter was closed: then nobody has run the ones behind it.
    closed += close_dead(plan, &store, &replayer, &journal).await?;
    Ok(if closed == 0 { Ended::Done } else { Ended::More })
}

/// Short delays and leases, so that the leases of a killed process expire soon.
fn options(process: u32) -> Options {
    Options {
        concurrency: 64,
        window: 1024,
        until_idle: true,
        retry: retry(),
        commit_interval: Duration::from_millis(20),
        lease: LEASE,
        refresh: Duration::from_millis(100),
        instance: format!("process-{process}"),
        ..plain_options()
    }
}

/// No fuse, breaker or limit in the way.
pub(crate) fn plain_options() -> Options {
    Options {
        breaker: None,
        fuse: None,
        poison: PoisonPolicy { same_failure: None },
        dead_letter: Some(DeadLetterOptions { limits: Limits::NONE, ..DeadLetterOptions::default() }),
        ..Options::default()
    }
}

/// The delays between attempts.
pub(crate) fn retry() -> RetryPolicy {
    RetryPolicy {
        max_attempts: MAX_ATTEMPTS,
        // Some wait in memory, others in the store.
        hold: Duration::from_millis(3),
        initial_delay: Duration::from_millis(2),
        max_delay: Duration::from_millis(20),
        ..RetryPolicy::default()
    }
}

/// Logs what the process gets and loses. What the run of a lost lease did last may be repeated.
pub(crate) fn note_ownership(journal: &Journal, event: &Event<'_>) {
    let entry = match event {
        Event::LeaseLost { sequence, .. } => {
            Entry::Lost { key: key_of(sequence).expect("every message has a key of the plan") }
        }
        Event::Assigned { partition } => Entry::Assigned { partition: partition.index },
        Event::Revoked { partition, lost: false } => Entry::Revoked { partition: partition.index },
        Event::Revoked { partition, lost: true } => Entry::Dropped { partition: partition.index },
        _ => return,
    };
    journal.write(entry).expect("the log is writable");
}

/// Handles a message by the plan, and logs the attempt.
pub(crate) async fn follow(
    plan: Plan,
    journal: Arc<Journal>,
    received: Message,
    attempt: u32,
) -> Result<(), HandlerError> {
    let message = number_of(&received.id).expect("every message has an id of the plan");
    journal.write(Entry::Begin { message, attempt })?;
    let sent = plan.message(message);
    if (&received.key, &received.payload) != (&sent.key, &sent.payload) {
        journal.write(Entry::Altered { message })?;
    }
    let pause = plan.pause(message, attempt);
    if pause > Duration::ZERO {
        tokio::time::sleep(pause).await;
    }
    let handled = match plan.script(message) {
        Script::Fine => true,
        Script::FailsFirst(times) => attempt > times,
        Script::FailsAlways => false,
    };
    journal.write(Entry::End { message, attempt, handled })?;
    if handled {
        return Ok(());
    }
    Err(HandlerError::msg("not yet").reason(Reason::DEPENDENCY_UNAVAILABLE))
}

/// Who closes dead letters.
pub(crate) fn operator() -> Actor {
    Actor::new("operator", "torture", "to go on")
}

/// Closes the dead heads of all keys but those that are kept, and returns their number. A head that is logged and not
/// closed, because the process was killed, is found again by the next process.
async fn close_dead(
    plan: Plan,
    store: &SqliteStore,
    replayer: &Replayer,
    journal: &Journal,
) -> Result<usize, Box<dyn Error>> {
    let dead = dead_heads(plan, store).await?;
    for (message, letter, act) in &dead {
        journal.write(Entry::Close { message: *message })?;
        replayer.act(*letter, *act, &operator()).await?;
    }
    Ok(dead.len())
}

/// The dead heads of all keys but those that are kept, with their messages, and how they are closed.
pub(crate) async fn dead_heads(
    plan: Plan,
    store: &impl LetterStore,
) -> Result<Vec<(u64, LetterId, Act)>, StoreError> {
    let mut dead = Vec::new();
    let mut after = None;
    loop {
        let page = store.heads(&queue(), after.as_deref(), PAGE).await?;
        for head in page.heads.iter().filter(|head| head.state == LetterState::Dead) {
            let message = number_of(&head.message.id).expect("every message has an id of the plan");
            if !plan.keeps_dead_letters(plan.key(message)) {
                let act = if mix(plan.seed, message).is_multiple_of(2) { Act::Evict } else { Act::Resolve };
                dead.push((message, head.id, act));
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(dead),
        }
    }
}
