//! `man`: the manual pages, one for each command.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// Write the manual pages.
#[derive(Debug, Args)]
pub struct Man {
    /// The folder to write them to; it is made if it is not there
    folder: PathBuf,
}

impl Run for Man {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let wrong =
            |error| Error::io(format!("the pages cannot be written to {}", self.folder.display()), error);
        std::fs::create_dir_all(&self.folder).map_err(wrong)?;
        clap_mangen::generate_to(crate::Cli::command(), &self.folder).map_err(wrong)?;
        context.screen.next(&format!("man {}", self.folder.join("lazaret.1").display()));
        Ok(Exit::Ok)
    }
}
