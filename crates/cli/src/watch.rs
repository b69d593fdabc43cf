//! Waits for an operation and reports its progress. Ctrl-C detaches; the operation continues in the daemon.

use std::time::{Duration, Instant};

use lazaret_api::{Code, Operation, OperationState};
use tokio::task::JoinHandle;

use crate::blockers::{Blocker, blockers};
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// The shortest and the longest poll interval.
const MIN_POLL: Duration = Duration::from_millis(100);
const MAX_POLL: Duration = Duration::from_secs(1);
/// The time without progress after which blockers are reported that may pass by themselves.
const STALL_AFTER: Duration = Duration::from_secs(2);
/// How long an unreachable daemon is waited for: long enough for a restart.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Listens for Ctrl-C from its creation on, so that none is missed while an operation starts.
pub(crate) struct Interrupt(JoinHandle<()>);

impl Interrupt {
    /// Starts to listen.
    pub(crate) fn listen() -> Self {
        Self(tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_err() {
                // Without a signal handler, Ctrl-C ends the process.
                std::future::pending::<()>().await;
            }
        }))
    }

    /// Completes when Ctrl-C was received.
    pub(crate) async fn received(&mut self) {
        // A join error means that the task has ended, which happens only after Ctrl-C.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The result of waiting.
pub(crate) enum WaitOutcome {
    /// The operation is over, or continues only when a person acts.
    Stopped(Box<Operation>),
    /// The user stopped waiting.
    Detached,
}

/// Waits until the operation is over or paused. With `through_approval`, waits through the approval as well.
///
/// # Errors
/// When the daemon is unreachable for too long, or refuses.
pub(crate) async fn wait(
    context: &Context,
    client: &Client,
    first: Operation,
    interrupt: &mut Interrupt,
    through_approval: bool,
) -> Result<WaitOutcome> {
    let id = first.id.clone();
    let progress = Progress::new(&context.screen, &first);
    tokio::select! {
        ended = follow(client, first, &progress, through_approval) => {
            progress.clear();
            Ok(WaitOutcome::Stopped(Box::new(ended?)))
        }
        () = interrupt.received() => {
            progress.clear();
            context.screen.info(&format!("detached: {id} continues in the daemon"));
            context.screen.next_commands(&[format!("lazaret op watch {id}"), format!("lazaret op cancel {id} --reason TEXT")]);
            Ok(WaitOutcome::Detached)
        }
    }
}

async fn follow(
    client: &Client,
    mut operation: Operation,
    progress: &Progress,
    through_approval: bool,
) -> Result<Operation> {
    let mut interval = MIN_POLL;
    let mut unreachable_since: Option<Instant> = None;
    let mut stall = Stall::new();
    progress.show(&operation);
    // Only a person ends a pause: it is reported at once. Other conditions may pass by themselves.
    stall.reported = report_blockers(client, &operation, progress, |it| it.resolve_with.is_some()).await;
    loop {
        progress.show(&operation);
        if needs_action(operation.state, through_approval) {
            return Ok(operation);
        }
        tokio::time::sleep(interval).await;
        match client.operation(&operation.id).await {
            Ok(now) if now == operation => {
                interval = (interval * 3 / 2).min(MAX_POLL);
                unreachable_since = None;
                if operation.state == OperationState::Running && stall.should_report() {
                    report_blockers(client, &operation, progress, |_| true).await;
                }
            }
            Ok(now) => {
                (interval, unreachable_since, stall) = (MIN_POLL, None, Stall::new());
                operation = now;
            }
            Err(error) if is_transient(&error) => {
                let since = *unreachable_since.get_or_insert_with(|| {
                    progress.warn(&format!("{error}; retrying until the daemon is back"), None);
                    Instant::now()
                });
                if since.elapsed() > RECONNECT_TIMEOUT {
                    return Err(error);
                }
                interval = MAX_POLL;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Tracks how long an operation makes no progress, and whether that was reported.
struct Stall {
    since: Instant,
    reported: bool,
}

impl Stall {
    fn new() -> Self {
        Self { since: Instant::now(), reported: false }
    }

    /// Returns true once, when the stall has lasted long enough to report it.
    fn should_report(&mut self) -> bool {
        let now = !self.reported && self.since.elapsed() >= STALL_AFTER;
        self.reported |= now;
        now
    }
}

/// Reports those of an operation's blockers that are `relevant`. Returns whether there is one.
async fn report_blockers(
    client: &Client,
    operation: &Operation,
    progress: &Progress,
    relevant: impl Fn(&Blocker) -> bool,
) -> bool {
    let blockers = blockers(client, operation).await;
    let mut is_blocked = false;
    for blocker in blockers.iter().filter(|blocker| relevant(blocker)) {
        let text = format!("{} is blocked: {}", operation.id, blocker.why);
        progress.warn(&text, blocker.resolve_with.as_deref());
        is_blocked = true;
    }
    is_blocked
}

/// Returns whether the operation is over, or continues only when a person acts.
fn needs_action(state: OperationState, through_approval: bool) -> bool {
    match state {
        OperationState::Running | OperationState::Scheduled => false,
        OperationState::AwaitingApproval => !through_approval,
        OperationState::Paused
        | OperationState::Done
        | OperationState::Cancelled
        | OperationState::Rejected => true,
    }
}

/// Returns whether the error is one that a restart of the daemon causes.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error {
        Error::ConnectionRefused { .. } | Error::Unreachable { .. } => true,
        other => matches!(
            other.code(),
            Some(Code::Stopping | Code::StoreUnavailable | Code::Busy | Code::TimedOut)
        ),
    }
}
