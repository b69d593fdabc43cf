//! `completion`: what a shell needs to complete commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Print the completions of a shell.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell
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
