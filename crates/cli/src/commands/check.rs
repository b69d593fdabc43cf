//! `check`: what is wrong with a configuration file, or what holds by it.

use std::path::PathBuf;

use clap::Args;
use lazaret_daemon::{Unreadable, program, read};

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The configuration file.
#[derive(Debug, Args)]
pub(super) struct File {
    /// The configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = "lazaret.yaml")]
    pub(super) config: PathBuf,
}

/// Check a configuration file.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    file: File,

    /// Print all that holds for this consumer, and where each value comes from
    #[arg(long, value_name = "CONSUMER")]
    effective: Option<String>,
}

impl Run for Check {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let code = Exit::of_daemon(program::check(&self.file.config));
        let loaded = read(&self.file.config);
        if let Err(Unreadable::Mistakes(found)) = &loaded
            && let Some(first) = found.list().first()
        {
            context.screen.next(&format!("lazaret explain {}", first.code()));
        }
        let (Exit::Ok, Some(consumer)) = (code, &self.effective) else { return Ok(code) };
        let loaded = loaded.map_err(|error| Error::Other(error.to_string()))?;
        let text = loaded.config.effective(consumer);
        let text =
            text.ok_or_else(|| Error::not_found(format!("there is no consumer {consumer:?} in it")))?;
        context.screen.raw(text.as_bytes())?;
        Ok(code)
    }
}
