//! `run`: runs the daemon with every consumer of a configuration and the API.

use clap::Args;
use lazaret_daemon::{Options, program};

use super::Run as Runs;
use super::check::{File, check};
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Run every consumer of a configuration file.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    file: File,

    /// Exit when finite sources are read to the end and no message is in flight or waiting for a retry
    #[arg(long)]
    until_idle: bool,

    /// Only validate the file, same as `lazaret check`
    #[arg(long, conflicts_with = "until_idle")]
    check: bool,
}

impl Runs for Run {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if self.check {
            return check(context, &self.file.config).map(|(exit, _)| exit);
        }
        let options = Options { until_idle: self.until_idle, ..Options::default() };
        Ok(Exit::of_daemon(program::run(&self.file.config, options).await))
    }
}
