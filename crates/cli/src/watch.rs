//! Waiting for an operation: a bar on a terminal, lines elsewhere. Ctrl-C detaches; the operation goes on.

use std::time::{Duration, Instant};

use lazaret_api::{Code, Operation, OperationState};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::count;
use crate::progress::Progress;
use crate::standstill::holds;

/// How soon after a look the next one comes, at least and at most.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(1);
/// After how long without a change it is asked why.
const STALL: Duration = Duration::from_secs(2);
/// How long a daemon that does not answer is waited for: long enough for a restart.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hears Ctrl-C from the moment it is made, so that none is missed while an operation is begun.
pub(crate) struct Interrupt(JoinHandle<()>);

impl Interrupt {
    /// Begins to listen.
    pub(crate) fn listen() -> Self {
        Self(tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_err() {
                // Without a way to hear it, the process ends by itself.
                std::future::pending::<()>().await;
            }
        }))
    }

    /// Returns when it has come.
    pub(crate) async fn heard(&mut self) {
        // A task that cannot be joined has ended, which it does only when it has heard.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How waiting ended.
pub(crate) enum Ended {
    /// The operation is over, or goes on only when somebody acts.
    Still(Box<Operation>),
    /// Somebody does not want to wait any more.
    Detached,
}

/// Waits until the operation is over or held. One that awaits approval is waited for if `through_approval` says so.
///
/// # Errors
/// When the daemon does not answer for a long time, or refuses.
pub(crate) async fn wait(
    context: &Context,
    client: &Client,
    first: Operation,
    interrupt: &mut Interrupt,
    through_approval: bool,
) -> Result<Ended> {
    let id = first.id.clone();
    let progress = Progress::new(&context.screen, &first);
    tokio::select! {
        ended = follow(client, first, &progress, through_approval) => {
            progress.clear();
            Ok(Ended::Still(Box::new(ended?)))
        }
        () = interrupt.heard() => {
            progress.clear();
            context.screen.say(&format!("detached; {id} goes on"));
            context.screen.next_of(&[format!("lazaret op watch {id}"), format!("lazaret op cancel {id} --reason TEXT")]);
            Ok(Ended::Detached)
        }
    }
}

async fn follow(
    client: &Client,
    mut operation: Operation,
    progress: &Progress,
    through_approval: bool,
) -> Result<Operation> {
    let mut pause = SOONEST;
    let mut silent_since: Option<Instant> = None;
    let mut stall = Stall::begin();
    loop {
        progress.show(&operation);
        if is_still(operation.state, through_approval) {
            return Ok(operation);
        }
        tokio::time::sleep(pause).await;
        match client.operation(&operation.id).await {
            Ok(now) if now == operation => {
                pause = (pause * 3 / 2).min(LATEST);
                silent_since = None;
                if operation.state == OperationState::Running && stall.is_to_be_told() {
                    tell_why(client, &operation, progress).await;
                }
            }
            Ok(now) => {
                (pause, silent_since, stall) = (SOONEST, None, Stall::begin());
                operation = now;
            }
            Err(error) if passes(&error) => {
                let since = *silent_since.get_or_insert_with(|| {
                    progress.tell(&format!("{error}; {} goes on when it is back", operation.id), None);
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    return Err(error);
                }
                pause = LATEST;
            }
            Err(error) => return Err(error),
        }
    }
}

/// How long nothing has changed, and whether somebody was told.
struct Stall {
    since: Instant,
    told: bool,
}

impl Stall {
    fn begin() -> Self {
        Self { since: Instant::now(), told: false }
    }

    /// Whether it is time to tell, once.
    fn is_to_be_told(&mut self) -> bool {
        let now = !self.told && self.since.elapsed() >= STALL;
        self.told |= now;
        now
    }
}

/// Says what keeps an operation from going on.
async fn tell_why(client: &Client, operation: &Operation, progress: &Progress) {
    for hold in holds(client, operation).await {
        progress.tell(&format!("{} waits: {}", operation.id, hold.why), hold.end.as_deref());
    }
}

/// Whether nothing moves any more unless a person acts.
fn is_still(state: OperationState, through_approval: bool) -> bool {
    match state {
        OperationState::Running | OperationState::Scheduled => false,
        OperationState::AwaitingApproval => !through_approval,
        OperationState::Paused
        | OperationState::Done
        | OperationState::Cancelled
        | OperationState::Rejected => true,
    }
}

/// Whether it is trouble of the kind that a restart brings.
fn passes(error: &Error) -> bool {
    match error {
        Error::NothingListens { .. } | Error::Unreachable { .. } => true,
        other => matches!(
            other.code(),
            Some(Code::Stopping | Code::StoreUnavailable | Code::Busy | Code::TimedOut)
        ),
    }
}

/// How a command ends whose operation stands like this.
pub(crate) fn exit_of(operation: &Operation) -> Exit {
    match operation.state {
        OperationState::AwaitingApproval => Exit::AwaitingApproval,
        OperationState::Rejected => Exit::Denied,
        OperationState::Cancelled | OperationState::Paused => Exit::Partly,
        _ if operation.failed_again > 0 => Exit::Partly,
        _ => Exit::Ok,
    }
}

/// What an operation has done so far, in words.
pub(crate) fn numbers(operation: &Operation) -> String {
    let stages = operation.ramp.len() + 1;
    let stage = if stages > 1 && !operation.state.is_over() {
        format!(", stage {} of {stages}", operation.stage + 1)
    } else {
        String::new()
    };
    format!(
        "{} sent, {} ok, {} failed again, {} skipped{stage}",
        count(operation.sent),
        count(operation.ok),
        count(operation.failed_again),
        count(operation.skipped)
    )
}
