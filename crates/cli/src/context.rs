//! What every command is given: the options that stand anywhere, the output, and the client.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::output::{Format, Screen};

/// Where nothing else is said.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7117";

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Even when the output goes elsewhere
    Always,
    /// Not at all
    Never,
}

/// Options that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options for every command")]
pub struct Global {
    /// The address of the daemon
    #[arg(long, global = true, value_name = "URL", env = "LAZARET_URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// A file with the token; without it the variable LAZARET_TOKEN is read
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// How to print: a table, one JSON value, one JSON value a line, or CSV
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT")]
    pub output: Option<Format>,

    /// The same as -o json
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,

    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

/// What a command works with.
pub struct Context {
    /// What the command line says for every command.
    pub global: Global,
    /// Where it prints.
    pub screen: Screen,
}

impl Context {
    /// The context for these options, on this process's own output.
    pub fn new(global: Global) -> Self {
        let screen = Screen::of_process(global.color);
        Self { global, screen }
    }

    /// How to print, if somebody said it.
    pub fn chosen_format(&self) -> Option<Format> {
        if self.global.json { Some(Format::Json) } else { self.global.output }
    }

    /// How to print; a table unless said otherwise.
    pub fn format(&self) -> Format {
        self.chosen_format().unwrap_or_default()
    }

    /// The way to the daemon.
    ///
    /// # Errors
    /// When the address or the token makes no sense.
    pub fn client(&self) -> Result<Client> {
        let token = self.token()?;
        let client = Client::new(&self.global.url, token.as_deref())?;
        if token.is_some() && client.is_exposed() {
            self.screen.warn(&format!("the token goes to {} unencrypted: use https", self.global.url));
        }
        Ok(client)
    }

    fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.global.token_file else {
            return Ok(std::env::var("LAZARET_TOKEN").ok().filter(|token| !token.trim().is_empty()));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::io(format!("the token file {} cannot be read", path.display()), error))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(Error::usage(format!("the token file {} is empty", path.display())));
        }
        Ok(Some(token.to_owned()))
    }

    /// The time by which ages are told.
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
