//! Lazaret's command line: see why messages failed, and replay them safely.
//!
//! `run`, `check`, `schema`, `init` and `doctor` are about a configuration file and the [daemon](lazaret_daemon), `demo` needs
//! nothing at all. Everything else is a client of the HTTP API. What comes from messages is made harmless before it reaches a terminal
//! ([`neutral`]), exit codes are part of the contract ([`Exit`]), and each command is a file below `commands`.

pub mod neutral;

mod client;
mod commands;
mod context;
mod error;
mod error_codes;
mod exit;
mod hints;
mod holders;
mod misread;
mod output;
mod paging;
mod progress;
mod prompt;
mod reference;
mod rollout;
mod selection;
mod standstill;
mod watch;

use clap::Parser;

pub use commands::{Command, Run};
pub use context::{Context, Global};
pub use error::{Error, Result};
pub use error_codes::error_codes;
pub use exit::Exit;
pub use reference::reference;

/// The failure-handling layer for event consumers.
#[derive(Debug, Parser)]
#[command(name = "lazaret", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 partly failed or letters remain, 4 not found or stale plan, \
    5 waiting for approval, 6 denied, 130 interrupted (the operation goes on)."
)]
pub struct Cli {
    /// Options for every command.
    #[command(flatten)]
    pub global: Global,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line. What makes no sense ends the process with a word on what may be meant.
    pub fn of_process() -> Self {
        let explain = |error| misread::explained(misread::as_written(error, std::env::args_os()));
        Self::try_parse().unwrap_or_else(|error| explain(error).exit())
    }

    /// Does what the command line says, and tells how it ended.
    pub async fn run(self) -> Exit {
        let mut context = Context::new(self.global);
        match self.command.run(&mut context).await {
            Ok(exit) => exit,
            Err(error) => {
                context.screen.error(&error);
                error.exit()
            }
        }
    }
}
