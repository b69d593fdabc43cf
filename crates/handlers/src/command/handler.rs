//! Runs a command as a handler.

use std::fmt;
use std::sync::Arc;

use lazaret_core::handler::{Delivery, Handle, HandlerFuture};
use tokio::sync::Semaphore;

use super::lines::Pool;
use super::once;
use super::options::{CommandOptions, Mode};
use super::setup::Setup;
use crate::error::Error;

/// A handler that is a program.
///
/// A clone is the same handler: the same workers. See [`CommandOptions`] for what can be chosen.
///
/// # Processes
///
/// Each process leads a group of its own. When its time is up, the whole group gets `SIGTERM`, and `SIGKILL` after the
/// grace; the attempt ends when the process has ended, not before. An attempt that is given up from outside is killed at
/// once. What is left of the group when a program has ended is killed, too. Only a process that leaves its group escapes.
///
/// It needs a tokio runtime with its I/O and its time enabled.
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
    turns: Option<Semaphore>,
}

impl CommandHandler {
    /// Checks the options and makes the handler. Starts nothing yet.
    pub fn new(options: CommandOptions) -> Result<Self, Error> {
        let (mode, workers) = (options.mode, options.workers);
        let setup = Setup::check(options)?;
        let program = setup.options.program.first().map_or_else(|| "".into(), |name| name.as_str().into());
        let kind = match mode {
            Mode::Once => {
                let turns = workers.map(|limit| Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
                Kind::Once(Arc::new(Once { setup, turns }))
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
                let _turn = match &once.turns {
                    Some(turns) => Some(turns.acquire().await.expect("the semaphore is never closed")),
                    None => None,
                };
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
