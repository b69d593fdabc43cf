//! `man`: writes the man pages, one per command.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// Write the man pages.
#[derive(Debug, Args)]
pub struct Man {
    /// Write to this directory; created if it is missing
    folder: PathBuf,
}

impl Run for Man {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let wrong =
            |error| Error::io(format!("cannot write the man pages to {}", self.folder.display()), error);
        std::fs::create_dir_all(&self.folder).map_err(wrong)?;
        clap_mangen::generate_to(crate::Cli::command(), &self.folder).map_err(wrong)?;
        context.screen.next_command(&format!("man {}", self.folder.join("lazaret.1").display()));
        Ok(Exit::Ok)
    }
}
