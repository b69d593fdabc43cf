//! `explain`: the page of an error code.

use clap::Args;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::error_codes::{find, sentence};
use crate::exit::Exit;
use crate::output::{Line, Tone};

/// Say what an error code means.
#[derive(Debug, Args)]
pub struct Explain {
    /// The code, such as LZ0120
    code: String,
}

impl Run for Explain {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let found = find(&self.code);
        let code =
            found.ok_or_else(|| Error::not_found(format!("there is no error code {:?}", self.code)))?;
        let title = Line::new().add(code.code, Tone::Strong).plain(format!(": {}", sentence(code.title)));
        context.screen.line(&title)?;
        context.screen.line(&Line::of(code.page))?;
        Ok(Exit::Ok)
    }
}
