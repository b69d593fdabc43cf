//! `schema`: prints the JSON Schema of the configuration file, for editors.

use clap::Args;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// Print the JSON Schema of the configuration file.
#[derive(Debug, Args)]
pub struct Schema {}

impl Run for Schema {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let schema = serde_json::to_string_pretty(&lazaret_config::schema())
            .map_err(|error| Error::Other(format!("cannot serialize the schema: {error}")))?;
        context.screen.raw(format!("{schema}\n").as_bytes())?;
        Ok(Exit::Ok)
    }
}
