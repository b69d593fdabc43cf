//! What every command receives: the global options, the output and the client.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::output::{ColorChoice, Format, Screen};

/// The default address of the daemon.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7117";

/// Options that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Connect to the daemon at this address; unix:PATH for a Unix socket
    #[arg(long, global = true, value_name = "URL", env = "LAZARET_URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Read the token from a file; default: the environment variable LAZARET_TOKEN
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Trust the certificate authorities in this PEM file; default: those of the system
    #[arg(long, global = true, value_name = "FILE", env = "LAZARET_CA_FILE")]
    pub ca_file: Option<PathBuf>,

    /// Set the output format; default: table
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT")]
    pub output: Option<Format>,

    /// Print JSON, same as -o json
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,

    /// Control the use of colors
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

/// The environment of a command.
pub struct Context {
    /// The global options.
    pub global: Global,
    /// The output.
    pub screen: Screen,
}

impl Context {
    /// Creates the context for these options, on the standard streams of this process.
    pub fn new(global: Global) -> Self {
        let screen = Screen::from_stdio(global.color);
        Self { global, screen }
    }

    /// Returns the output format, if it was set.
    pub fn chosen_format(&self) -> Option<Format> {
        if self.global.json { Some(Format::Json) } else { self.global.output }
    }

    /// Returns the output format; default: table.
    pub fn format(&self) -> Format {
        self.chosen_format().unwrap_or_default()
    }

    /// Creates a client of the daemon.
    ///
    /// # Errors
    /// When the address, the token or the file of certificate authorities is invalid.
    pub fn client(&self) -> Result<Client> {
        let token = self.token()?;
        let client = Client::new(&self.global.url, token.as_deref(), self.global.ca_file.as_deref())?;
        if token.is_some() && client.sends_plaintext() {
            self.screen.warn(&format!("the token is sent to {} unencrypted: use https", self.global.url));
        }
        Ok(client)
    }

    fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.global.token_file else {
            return Ok(std::env::var("LAZARET_TOKEN").ok().filter(|token| !token.trim().is_empty()));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::io(format!("cannot read the token file {}", path.display()), error))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(Error::usage(format!("the token file {} is empty", path.display())));
        }
        Ok(Some(token.to_owned()))
    }

    /// Returns the time that ages are relative to.
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
