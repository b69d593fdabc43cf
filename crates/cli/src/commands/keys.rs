//! `keys`: creates encryption keys, and lists the configured ones.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lazaret_daemon::{encryption, read};
use serde::Serialize;

use super::Run;
use super::check::File;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, print_values};

/// The CSV columns.
const COLUMNS: [&str; 4] = ["id", "role", "place", "error"];

/// Create and list encryption keys.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create a key in a file that only you can read, or print it
    Generate(Generate),
    /// List the configured keys with their ids
    Ls(List),
}

impl Run for Keys {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        match self {
            Self::Generate(generate) => generate.create(context),
            Self::Ls(list) => list.print(context).await,
        }
    }
}

/// Create a key in a file that only you can read, or print it.
#[derive(Debug, Args)]
pub struct Generate {
    /// Write the key to this file, which must not exist; default: standard output
    file: Option<PathBuf>,
}

impl Generate {
    fn create(self, context: &Context) -> Result<Exit> {
        let (key, id) = encryption::generate();
        match &self.file {
            None => context.screen.raw(format!("{key}\n").as_bytes())?,
            Some(path) => write_new(path, &key)
                .map_err(|error| Error::io(format!("cannot create {}", path.display()), error))?,
        }
        context.screen.info(&format!("key {id}; keep a copy elsewhere: what it encrypts is lost without it"));
        Ok(Exit::Ok)
    }
}

/// Creates a file that only its owner can read.
fn write_new(path: &Path, key: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    writeln!(file, "{key}")?;
    file.sync_all()
}

/// List the configured keys with their ids.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    file: File,
}

/// A configured key.
#[derive(Serialize)]
struct ConfiguredKey {
    id: Option<String>,
    /// `encrypts`, or `decrypts` for all but the first.
    role: &'static str,
    place: String,
    /// Why it cannot be read.
    error: Option<String>,
}

impl List {
    async fn print(self, context: &Context) -> Result<Exit> {
        let loaded = read(&self.file.config).map_err(|error| Error::Other(error.to_string()))?;
        let mut keys = Vec::new();
        for (n, (place, read)) in encryption::configured(&loaded.config).await.into_iter().enumerate() {
            let role = if n == 0 { "encrypts" } else { "decrypts" };
            let (id, error) = match read {
                Ok(id) => (Some(id), None),
                Err(error) => (None, Some(error.to_string())),
            };
            keys.push(ConfiguredKey { id, role, place, error });
        }
        match context.format() {
            Format::Table => {
                let line = |key: &ConfiguredKey| match (&key.id, &key.error) {
                    (Some(id), _) => format!("{id}  {}  {}\n", key.role, key.place),
                    (None, error) => format!("-  {}  {}\n", key.role, error.as_deref().unwrap_or_default()),
                };
                context.screen.raw(keys.iter().map(line).collect::<String>().as_bytes())?;
            }
            format => print_values(&context.screen, format, &COLUMNS, &keys)?,
        }
        Ok(if keys.iter().all(|key| key.error.is_none()) { Exit::Ok } else { Exit::Error })
    }
}
