//! `init`: writes a configuration file to begin with, from a few answers.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};

use clap::{Args, ValueEnum};
use lazaret_config::{
    Code, Diagnostics, InitHandler, InitOptions, InitOrder, InitSource, InitStore, NoEnv, load,
};
use lazaret_daemon::capabilities;

use super::Run;
use super::check::File;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::prompt;

/// Write a configuration file to begin with. Asks for what is not said, if there is a terminal.
#[derive(Debug, Args)]
pub struct Init {
    #[command(flatten)]
    file: File,

    /// The name of the consumer
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Where messages come from
    #[arg(long)]
    source: Option<Source>,

    /// Who handles them
    #[arg(long)]
    handler: Option<Handler>,

    /// Where letters are kept
    #[arg(long)]
    store: Option<Store>,

    /// Which order is kept
    #[arg(long)]
    order: Option<Order>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Fed over HTTP
    #[default]
    Inbox,
    /// One JSON message a line
    File,
    /// Topics of a Kafka cluster
    Kafka,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Handler {
    /// Called over HTTP
    #[default]
    Http,
    /// A program
    Command,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Store {
    /// One file
    #[default]
    Sqlite,
    /// Gone with the process
    Memory,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Messages with one key
    #[default]
    Key,
    /// All messages of a partition
    Partition,
    /// None
    None,
}

impl Run for Init {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let path = self.file.config.clone();
        let answers = self.answers()?;
        let text = lazaret_config::init(&answers);
        // What is written can be run: by this build, as it is.
        let checked = load(&path.display().to_string(), text.as_bytes(), &NoEnv, &capabilities());
        if let Err(found) = checked {
            return Err(refused(&found, &answers));
        }
        let written = OpenOptions::new().write(true).create_new(true).open(&path);
        let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::usage_hint(
                format!("{} is there already, and is left as it is", path.display()),
                "name another file with -c",
            ),
            _ => Error::io(format!("{} cannot be written", path.display()), error),
        })?;
        context.screen.say(&format!("{} was written; look at what it says", path.display()));
        context.screen.next(&format!("lazaret doctor -c {}", path.display()));
        Ok(Exit::Ok)
    }
}

/// Why a file with these answers would be of no use.
fn refused(found: &Diagnostics, answers: &InitOptions) -> Error {
    if answers.source == InitSource::Inbox && answers.store == InitStore::Memory {
        let hint = "choose --store sqlite, or another --source";
        return Error::usage_hint(
            "an inbox needs a store that lasts: it answers when a message is durable",
            hint,
        );
    }
    let missing = found.list().iter().find(|found| found.code() == Code::NotInThisBuild);
    if let Some(missing) = missing {
        return Error::usage_hint(missing.message(), "choose another one, or use a build that has it");
    }
    let what = format!("{:?} cannot be the name of a consumer", answers.name);
    Error::usage_hint(what, "letters, digits, `-`, `_` and `.` are always fine")
}

impl Init {
    /// What was said, and what is answered for the rest.
    fn answers(self) -> Result<InitOptions> {
        let name = match self.name {
            Some(name) => name,
            None => prompt::answer("The name of the consumer", &InitOptions::default().name)?,
        };
        let source = choose(self.source, "Where do messages come from")?;
        let handler = choose(self.handler, "Who handles them")?;
        // An inbox is kept in the store, and only one of them lasts: there is nothing to ask.
        let store = match (self.store, source) {
            (None, Source::Inbox) => Store::Sqlite,
            (said, _) => choose(said, "Where are letters kept")?,
        };
        Ok(InitOptions {
            name,
            source: match source {
                Source::Inbox => InitSource::Inbox,
                Source::File => InitSource::File,
                Source::Kafka => InitSource::Kafka,
            },
            handler: match handler {
                Handler::Http => InitHandler::Http,
                Handler::Command => InitHandler::Command,
            },
            store: match store {
                Store::Sqlite => InitStore::Sqlite,
                Store::Memory => InitStore::Memory,
            },
            order: match choose(self.order, "Which order is kept")? {
                Order::Key => InitOrder::Key,
                Order::Partition => InitOrder::Partition,
                Order::None => InitOrder::None,
            },
        })
    }
}

/// What was said, or what is answered; the default where nobody can be asked.
fn choose<T: ValueEnum + Default>(said: Option<T>, question: &str) -> Result<T> {
    if let Some(said) = said {
        return Ok(said);
    }
    let word =
        |value: &T| value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let words: Vec<String> = T::value_variants().iter().map(word).collect();
    loop {
        let answer = prompt::answer(&format!("{question} ({})", words.join(", ")), &word(&T::default()))?;
        if let Ok(value) = T::from_str(&answer, true) {
            return Ok(value);
        }
    }
}
