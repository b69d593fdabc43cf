//! A pool of workers that live long.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::{HandlerError, Reason, Verdict};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::setup::{Setup, late};
use super::worker::{ANSWER_LIMIT, Trouble, Worker};
use super::{exit, line};
use crate::facts::Facts;

/// How long to wait with a new worker after one that failed; doubled each time.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The longest such wait.
const BACK_OFF_LIMIT: Duration = Duration::from_secs(10);
/// How long a worker that has closed its output may take to end.
const DYING: Duration = Duration::from_millis(500);

/// Workers, each with at most one message.
pub(super) struct Pool {
    setup: Setup,
    /// One permit per worker that may be at work.
    turns: Semaphore,
    /// Those without a message. The one that worked last is the first to work again: its memory is warm.
    idle: Mutex<Vec<Worker>>,
    failures: Mutex<Failures>,
}

/// How often in a row workers failed, and until when no new one is started because of that.
#[derive(Default)]
struct Failures {
    in_a_row: u32,
    wait_until: Option<Instant>,
}

impl Pool {
    pub(super) fn new(setup: Setup, workers: usize) -> Self {
        Self {
            setup,
            turns: Semaphore::new(workers.min(Semaphore::MAX_PERMITS)),
            idle: Mutex::new(Vec::new()),
            failures: Mutex::new(Failures::default()),
        }
    }

    /// One attempt.
    pub(super) async fn run(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let facts = Facts::of(self.setup.caller(), delivery);
        let line = line::request(self.setup.caller(), &facts)?;
        let _turn = self.turns.acquire().await.expect("the semaphore is never closed");
        let (worker, asked) = match self.take_idle() {
            None => self.start_and_ask(&line).await?,
            Some(mut idle) => match timeout(self.setup.timeout, idle.ask(&line)).await {
                // It ended while it was idle, and never had the message: that is nobody's failure.
                Ok(Err(Trouble::Unsent)) => self.start_and_ask(&line).await?,
                asked => (idle, asked.ok()),
            },
        };
        let why = match asked {
            Some(Ok(answer)) => {
                match line::judge(&answer, facts.message.id.as_str(), || worker.stderr.words()) {
                    Ok(outcome) => {
                        self.put_back(worker);
                        return outcome;
                    }
                    Err(why) => why,
                }
            }
            Some(Err(Trouble::TooLong)) => format!("its answer is longer than {ANSWER_LIMIT} bytes"),
            Some(Err(Trouble::Unsent | Trouble::Gone)) => return Err(self.bury(worker).await),
            None => return Err(self.stop(worker).await),
        };
        Err(self.dismiss(worker, &why).await)
    }

    /// Starts a worker and gives it a message. `None` means that its time was up.
    async fn start_and_ask(
        &self,
        line: &[u8],
    ) -> Result<(Worker, Option<Result<Vec<u8>, Trouble>>), HandlerError> {
        let wait_until = lock(&self.failures).wait_until;
        if let Some(until) = wait_until {
            sleep_until(until).await;
        }
        let mut worker = Worker::start(&self.setup).map_err(|error| {
            self.note_failure();
            self.setup.not_started(&error)
        })?;
        let asked = timeout(self.setup.timeout, worker.ask(line)).await;
        Ok((worker, asked.ok()))
    }

    fn take_idle(&self) -> Option<Worker> {
        loop {
            // Those that are not fit are killed when they are dropped here.
            let worker = lock(&self.idle).pop()?;
            if worker.is_fit() {
                // It spoke of another message. What a new one says while it starts belongs to its first.
                worker.stderr.forget();
                return Some(worker);
            }
        }
    }

    fn put_back(&self, worker: Worker) {
        *lock(&self.failures) = Failures::default();
        lock(&self.idle).push(worker);
    }

    fn note_failure(&self) {
        let mut failures = lock(&self.failures);
        let doubled = BACK_OFF.saturating_mul(1 << failures.in_a_row.min(16));
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        failures.wait_until = Some(Instant::now() + doubled.min(BACK_OFF_LIMIT));
    }

    /// What is left of a worker that died over a message.
    async fn bury(&self, mut worker: Worker) -> HandlerError {
        self.note_failure();
        let exited = timeout(DYING, worker.group.exited()).await;
        let by_itself = matches!(exited, Ok(Ok(())));
        let status = worker.group.end().await;
        let said = worker.stderr.words();
        match status {
            Ok(status) if by_itself => exit::crashed(status, said),
            Ok(_) => broken("the worker closed its output without an answer", &said),
            Err(error) => broken(&format!("the worker is gone: {error}"), &said),
        }
    }

    /// Ends a worker whose time is up.
    async fn stop(&self, mut worker: Worker) -> HandlerError {
        self.note_failure();
        // How it ends does not matter: it is over.
        let _ = worker.group.stop(self.setup.grace).await;
        late(self.setup.timeout, &worker.stderr.words())
    }

    /// Kills a worker that cannot be trusted any more.
    async fn dismiss(&self, mut worker: Worker, why: &str) -> HandlerError {
        self.note_failure();
        let _ = worker.group.end().await;
        let said = worker.stderr.words();
        let error = broken(&format!("the worker was killed: {why}"), &said);
        error.reason(Reason::HANDLER_ERROR)
    }
}

/// The failure of a message whose worker is no more.
fn broken(text: &str, said: &str) -> HandlerError {
    let text = if said.is_empty() { text.to_owned() } else { format!("{text}; it had said: {said}") };
    HandlerError::foreign("worker", text).reason(Reason::CRASHED).suggest(Verdict::Retry)
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Without a runtime they are killed as they are dropped.
        if let Ok(runtime) = Handle::try_current() {
            let grace = self.setup.grace;
            lock(&self.idle).drain(..).for_each(|worker| drop(runtime.spawn(worker.retire(grace))));
        }
    }
}

/// Nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
