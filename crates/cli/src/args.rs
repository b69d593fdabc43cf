//! The arguments of `lazaret`, and the run of the command that they select.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::clap_errors;
use crate::commands::{Command, Run};
use crate::context::{Context, Global};
use crate::exit::Exit;
use crate::help_groups::with_groups;
use crate::negated_terms;

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
        Self::parse_args(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Parses arguments, the name of the program first. A query may contain negated terms, which look like options.
    ///
    /// # Errors
    /// When they are invalid.
    pub fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let args = negated_terms::rewrite(&mut Self::command(), args)?;
        let explain = |error| {
            let error = clap_errors::without_env(error, args.clone());
            clap_errors::with_wait_tip(clap_errors::with_query_tip(clap_errors::with_config_tip(error)))
        };
        with_groups(Self::command())
            .try_get_matches_from(args.clone())
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(explain)
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
