//! The arguments of `lazaret`, and the run of the command that they select.

use clap::Parser;

use crate::clap_errors;
use crate::commands::{Command, Run};
use crate::context::{Context, Global};
use crate::exit::Exit;

/// The failure-handling layer for event consumers.
#[derive(Debug, Parser)]
#[command(name = "lazaret", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 error, 2 usage error, 3 partial failure or letters remain, 4 not found or stale plan, \
    5 waiting for approval, 6 denied, 130 interrupted (the operation continues)."
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments of this process. Exits with a usage error when they are invalid.
    pub fn from_args() -> Self {
        let explain =
            |error| clap_errors::with_config_tip(clap_errors::without_env(error, std::env::args_os()));
        Self::try_parse().unwrap_or_else(|error| explain(error).exit())
    }

    /// Runs the command and prints its error, if any.
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
