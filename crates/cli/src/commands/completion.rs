//! `completion`: prints a shell completion script.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Print a shell completion script.
#[derive(Debug, Args)]
pub struct Completion {
    /// Generate the script for this shell
    shell: Shell,
}

impl Run for Completion {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "lazaret", &mut text);
        context.screen.raw(&text)?;
        Ok(Exit::Ok)
    }
}
