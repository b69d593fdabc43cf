//! A pool of long-running workers.
//!
//! A message that crashes its worker is a suspect. Its next attempts run apart from the others: one
//! suspect at a time, in a separate worker, with a separate back-off. Suspects do not wait here for
//! their turn, because each would take the place of another message in the engine. Instead, their
//! attempts are deferred. So messages that crash every worker delay no other message, however many there
//! are (I3).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::{HandlerError, MessageId, Reason, Verdict};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use super::exit;
use super::line::{self, InvalidResponse};
use super::restart_delay::RestartDelay;
use super::setup::{Setup, timed_out};
use super::suspects::Suspects;
use super::worker::{RESPONSE_LIMIT, Worker, WorkerError};
use crate::attempt_info::AttemptInfo;

/// The maximum time between the end of a worker's output and its exit.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// The delay of an attempt while another suspect runs.
const BUSY_DELAY: Duration = Duration::from_millis(500);

/// A pool of workers, each with at most one message.
pub(super) struct Pool {
    setup: Setup,
    /// One permit per busy worker.
    permits: Semaphore,
    /// The idle workers. The most recently used one is reused first, because its memory is still in the
    /// cache.
    idle: Mutex<Vec<Worker>>,
    restart: Mutex<RestartDelay>,
    suspects: Mutex<Suspects>,
    /// The permit for the suspect that runs.
    suspect_permit: Semaphore,
    suspect_restart: Mutex<RestartDelay>,
}

/// The place where an attempt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// In a worker of the pool.
    Pool,
    /// Apart from the pool, in a separate worker.
    Suspect,
}

impl Pool {
    pub(super) fn new(setup: Setup, workers: usize) -> Self {
        Self {
            setup,
            permits: Semaphore::new(workers.min(Semaphore::MAX_PERMITS)),
            idle: Mutex::new(Vec::new()),
            restart: Mutex::default(),
            suspects: Mutex::default(),
            suspect_permit: Semaphore::new(1),
            suspect_restart: Mutex::default(),
        }
    }

    /// Runs one attempt.
    pub(super) async fn run(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let info = AttemptInfo::of(self.setup.caller(), delivery);
        let line = line::request(self.setup.caller(), &info)?;
        let id = &info.message.id;
        let is_suspect = lock(&self.suspects).contains(id);
        let (lane, _permit) = match is_suspect {
            true => (Lane::Suspect, self.suspect_place()?),
            false => (Lane::Pool, self.permits.acquire().await.expect("the semaphore is never closed")),
        };
        delivery.check_owned()?;
        let (worker, response) = match self.take_idle(lane) {
            None => self.start_and_call(delivery, &line, lane).await?,
            Some(mut idle) => match timeout(self.setup.timeout, idle.call(&line)).await {
                // The worker exited while it was idle and did not receive the message. This is not a
                // failed attempt.
                Ok(Err(WorkerError::Unsent)) => self.start_and_call(delivery, &line, lane).await?,
                response => (idle, response.ok()),
            },
        };
        let invalid = match response {
            Some(Ok(response)) => match line::classify(&response, delivery, || worker.stderr.text()) {
                Ok(outcome) => {
                    self.put_back(worker, lane);
                    return outcome;
                }
                Err(invalid) => invalid,
            },
            Some(Err(WorkerError::TooLong)) => InvalidResponse::TooLong { limit: RESPONSE_LIMIT },
            Some(Err(WorkerError::Unsent | WorkerError::Exited)) => {
                self.worker_crashed(&worker, lane, id);
                return Err(self.reap(worker).await);
            }
            None => return Err(self.terminate(worker).await),
        };
        self.worker_crashed(&worker, lane, id);
        Err(self.kill(worker, &invalid).await)
    }

    /// Returns the permit for a suspect. The attempt is deferred while another suspect runs, and during
    /// the back-off.
    fn suspect_place(&self) -> Result<SemaphorePermit<'_>, HandlerError> {
        let until = lock(&self.suspect_restart).until();
        let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            return Err(HandlerError::deferred(
                "the message crashed its worker and waits for the next one",
                wait,
            ));
        }
        let busy = || HandlerError::deferred("another message that crashed its worker is tried", BUSY_DELAY);
        self.suspect_permit.try_acquire().map_err(|_| busy())
    }

    /// Starts a worker and sends it a message. After a timeout, the returned response is `None`.
    async fn start_and_call(
        &self,
        delivery: &Delivery,
        line: &[u8],
        lane: Lane,
    ) -> Result<(Worker, Option<Result<Vec<u8>, WorkerError>>), HandlerError> {
        let restart = match lane {
            Lane::Pool => &self.restart,
            Lane::Suspect => &self.suspect_restart,
        };
        let until = lock(restart).until();
        if let Some(until) = until {
            sleep_until(until).await;
            delivery.check_owned()?;
        }
        let started = Instant::now();
        let mut worker = Worker::start(&self.setup).map_err(|error| {
            lock(restart).failed(started, Instant::now());
            self.setup.not_started(&error)
        })?;
        let response = timeout(self.setup.timeout, worker.call(line)).await;
        Ok((worker, response.ok()))
    }

    fn take_idle(&self, lane: Lane) -> Option<Worker> {
        if lane == Lane::Suspect {
            return None;
        }
        loop {
            // Workers that are not ready are dropped here, which kills them.
            let worker = lock(&self.idle).pop()?;
            if worker.is_ready() {
                // Earlier output belongs to another message. The startup output of a new worker belongs
                // to its first message.
                worker.stderr.clear();
                return Some(worker);
            }
        }
    }

    /// Takes back a worker that has responded.
    fn put_back(&self, mut worker: Worker, lane: Lane) {
        worker.has_responded = true;
        *lock(&self.restart) = RestartDelay::default();
        if lane == Lane::Suspect {
            *lock(&self.suspect_restart) = RestartDelay::default();
            // The cause of the crashes may be gone, and then the other messages are not suspects either.
            // A suspect that still crashes workers is recorded again.
            lock(&self.suspects).clear();
            // The pool keeps the worker if it has too few.
            if self.permits.available_permits() <= lock(&self.idle).len() {
                drop(tokio::spawn(worker.retire(self.setup.grace)));
                return;
            }
        }
        lock(&self.idle).push(worker);
    }

    /// Records that a message crashed its worker.
    fn worker_crashed(&self, worker: &Worker, lane: Lane, message: &MessageId) {
        let now = Instant::now();
        lock(&self.suspects).insert(message.clone());
        lock(&self.suspect_restart).failed(worker.started, now);
        // If the worker has responded before, it works, and the message ended it: the next worker starts
        // at once. A worker that never responded may be unable to work at all.
        if lane == Lane::Pool && !worker.has_responded {
            lock(&self.restart).failed(worker.started, now);
        }
    }

    /// Reaps a worker that exited during an attempt.
    async fn reap(&self, mut worker: Worker) -> HandlerError {
        let exited = timeout(EXIT_TIMEOUT, worker.group.exited()).await;
        let exited = matches!(exited, Ok(Ok(())));
        let status = worker.group.kill().await;
        let stderr = worker.stderr.text();
        match status {
            Ok(status) if exited => exit::crashed(status, stderr),
            Ok(_) => crashed("the worker closed its output without a response", &stderr),
            Err(error) => crashed(&format!("failed to wait for the worker: {error}"), &stderr),
        }
    }

    /// Terminates a worker after a timeout. Its successor starts at once, because the timeout itself
    /// limits the rate of starts.
    async fn terminate(&self, mut worker: Worker) -> HandlerError {
        // The exit status does not matter: the attempt has timed out.
        let _ = worker.group.terminate(self.setup.grace).await;
        timed_out(self.setup.timeout, &worker.stderr.text())
    }

    /// Kills a worker after an invalid response.
    async fn kill(&self, mut worker: Worker, invalid: &InvalidResponse) -> HandlerError {
        let _ = worker.group.kill().await;
        let stderr = worker.stderr.text();
        let error = crashed(&format!("the worker was killed: {invalid}"), &stderr);
        error.reason(Reason::INVALID_RESPONSE)
    }
}

/// Returns the failure of an attempt whose worker crashed.
fn crashed(text: &str, stderr: &str) -> HandlerError {
    let text = if stderr.is_empty() { text.to_owned() } else { format!("{text}; stderr: {stderr}") };
    HandlerError::foreign("worker", text).reason(Reason::CRASHED).suggest(Verdict::Retry)
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Without a runtime, dropping the workers kills them.
        if let Ok(runtime) = Handle::try_current() {
            let grace = self.setup.grace;
            lock(&self.idle).drain(..).for_each(|worker| drop(runtime.spawn(worker.retire(grace))));
        }
    }
}

/// Locks a mutex. A poisoned lock is usable, because no update is partial.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
