//! `doctor`: looks at everything that a configuration speaks of, and says how to mend it.

use clap::Args;
use lazaret_daemon::program;

use super::Run;
use super::check::File;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Look at store, sources, handlers and addresses before they are needed.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    file: File,
}

impl Run for Doctor {
    async fn run(self, _: &mut Context) -> Result<Exit> {
        Ok(Exit::of_daemon(program::doctor(&self.file.config).await))
    }
}
