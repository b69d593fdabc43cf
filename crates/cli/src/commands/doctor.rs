//! `doctor`: runs preflight checks on a configuration.

use clap::Args;
use lazaret_daemon::{doctor, program};

use super::Run;
use super::check::File;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, print_values};

/// The CSV columns.
const COLUMNS: [&str; 4] = ["subject", "outcome", "detail", "advice"];

/// Check the store, sources, handlers and addresses of a configuration.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    file: File,
}

impl Run for Doctor {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let found = doctor::preflight(&self.file.config).await;
        let screen = &context.screen;
        let printed = match context.format() {
            Format::Table => {
                let lines: String = found.iter().map(|finding| format!("{finding}\n")).collect();
                screen.raw(lines.as_bytes())
            }
            format => print_values(screen, format, &COLUMNS, &found),
        };
        match printed {
            // A closed pipe does not change the verdict.
            Ok(()) | Err(Error::OutputClosed) => Ok(Exit::of_daemon(program::verdict(&found))),
            Err(error) => Err(error),
        }
    }
}
