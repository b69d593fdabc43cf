//! The handler that runs a command.

use std::fmt;
use std::sync::Arc;

use lazaret_core::handler::{Delivery, Handle, HandlerFuture};
use tokio::sync::Semaphore;

use super::lines::Pool;
use super::once;
use super::options::{CommandOptions, Mode};
use super::setup::Setup;
use crate::error::Error;

/// A handler that runs a program.
///
/// Clones share workers and limits. See [`CommandOptions`] for the settings.
///
/// # Processes
///
/// Each process leads its own process group. At the timeout, the group receives `SIGTERM`, and `SIGKILL`
/// after the grace period. The attempt ends when the process has exited, and not before. A cancelled
/// attempt is killed at once. When the program exits, the remaining processes of its group are killed.
/// Only a process that leaves its group escapes.
///
/// It requires a tokio runtime with I/O and time enabled.
///
/// ```
/// use lazaret_handlers::{CommandHandler, CommandOptions};
/// let handler = CommandHandler::new(CommandOptions::new(["python3", "handler.py"]))?;
/// assert!(CommandHandler::new(CommandOptions::new([""; 0])).is_err());
/// # let _ = handler;
/// # Ok::<(), lazaret_handlers::Error>(())
/// ```
#[derive(Clone)]
pub struct CommandHandler {
    kind: Kind,
    program: Arc<str>,
}

#[derive(Clone)]
enum Kind {
    Once(Arc<Once>),
    Lines(Arc<Pool>),
}

struct Once {
    setup: Setup,
    permits: Option<Semaphore>,
}

impl CommandHandler {
    /// Checks the options and creates the handler, without starting a process.
    pub fn new(options: CommandOptions) -> Result<Self, Error> {
        let (mode, workers) = (options.mode, options.workers);
        let setup = Setup::check(options)?;
        let program = setup.options.program.first().map_or_else(|| "".into(), |name| name.as_str().into());
        let kind = match mode {
            Mode::Once => {
                let permits = workers.map(|limit| Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
                Kind::Once(Arc::new(Once { setup, permits }))
            }
            Mode::Lines => {
                let processors = || std::thread::available_parallelism().map_or(1, usize::from);
                Kind::Lines(Arc::new(Pool::new(setup, workers.unwrap_or_else(processors))))
            }
        };
        Ok(Self { kind, program })
    }
}

impl Handle for CommandHandler {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        match self.kind.clone() {
            Kind::Once(once) => Box::pin(async move {
                let _permit = match &once.permits {
                    Some(permits) => Some(permits.acquire().await.expect("the semaphore is never closed")),
                    None => None,
                };
                delivery.check_owned()?;
                once::run(&once.setup, &delivery).await
            }),
            Kind::Lines(pool) => Box::pin(async move { pool.run(&delivery).await }),
        }
    }
}

impl fmt::Debug for CommandHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.kind {
            Kind::Once(_) => Mode::Once,
            Kind::Lines(_) => Mode::Lines,
        };
        f.debug_struct("CommandHandler")
            .field("program", &self.program)
            .field("mode", &mode)
            .finish_non_exhaustive()
    }
}
