//! `serve`: serves the API of a store without running consumers.

use std::path::PathBuf;

use clap::Args;
use lazaret_daemon::program::{self, Served};

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Serve the API of a store without running consumers, for example beside a fleet that shares it.
#[derive(Debug, Args)]
pub struct Serve {
    /// Serve this store, such as postgres://lazaret@db.example/shop, at a loopback address
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    store: Option<String>,

    /// Listen on this address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117", conflicts_with = "config")]
    listen: String,

    /// Serve the store of this configuration file, with its address, tokens, inboxes and replay settings
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with = "store")]
    config: Option<PathBuf>,
}

impl Run for Serve {
    async fn run(self, _context: &mut Context) -> Result<Exit> {
        let served = match (self.config, self.store) {
            (Some(file), _) => Served::File(file),
            // One of the two is required.
            (None, url) => Served::Store { url: url.unwrap_or_default(), listen: self.listen },
        };
        Ok(Exit::of_daemon(program::serve(&served).await))
    }
}
