//! `init`: creates a starter configuration file from options and prompts.

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

/// Create a starter configuration file. Prompts for missing options on a terminal.
#[derive(Debug, Args)]
pub struct Init {
    #[command(flatten)]
    file: File,

    /// Name the consumer
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Choose the message source
    #[arg(long)]
    source: Option<Source>,

    /// Choose the handler type
    #[arg(long)]
    handler: Option<Handler>,

    /// Choose the letter store
    #[arg(long)]
    store: Option<Store>,

    /// Choose the ordering guarantee
    #[arg(long)]
    order: Option<Order>,
}

// A value that this build lacks is not offered, but still parsed: the error then says that another build has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Source {
    /// An inbox that accepts messages over HTTP
    #[default]
    Inbox,
    /// A file with one JSON message per line
    File,
    /// Kafka topics
    #[cfg_attr(not(feature = "kafka"), value(hide = true))]
    Kafka,
    /// The change stream of a MongoDB collection
    #[cfg_attr(not(feature = "mongodb"), value(hide = true))]
    Mongodb,
    /// The outbox table of a PostgreSQL database
    #[cfg_attr(not(feature = "postgres"), value(hide = true))]
    PostgresOutbox,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Handler {
    /// An HTTP endpoint
    #[default]
    Http,
    /// A command
    Command,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Store {
    /// A SQLite file
    #[default]
    Sqlite,
    /// A PostgreSQL database, which several machines can share
    #[cfg_attr(not(feature = "postgres"), value(hide = true))]
    Postgres,
    /// A MongoDB database, which several machines can share
    #[cfg_attr(not(feature = "mongodb"), value(hide = true))]
    Mongodb,
    /// In memory, lost when the process ends
    Memory,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Messages with the same key are handled in order
    #[default]
    Key,
    /// Messages of a partition are handled in order
    Partition,
    /// No order
    None,
}

impl Run for Init {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let path = self.file.config.clone();
        let answers = self.answers()?;
        let text = lazaret_config::init(&answers);
        // The written file must be valid for this build.
        let checked = load(&path.display().to_string(), text.as_bytes(), &NoEnv, &capabilities());
        if let Err(found) = checked {
            return Err(invalid_answers(&found, &answers));
        }
        let written = OpenOptions::new().write(true).create_new(true).open(&path);
        let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Error::usage_hint(format!("{} already exists", path.display()), "choose another file with -c")
            }
            _ => Error::io(format!("cannot write {}", path.display()), error),
        })?;
        context.screen.info(&format!("{} created: review it before you run it", path.display()));
        context.screen.next_command(&format!("lazaret doctor -c {}", path.display()));
        Ok(Exit::Ok)
    }
}

/// Explains why these answers do not make a valid configuration.
fn invalid_answers(found: &Diagnostics, answers: &InitOptions) -> Error {
    if answers.source == InitSource::Inbox && answers.store == InitStore::Memory {
        let hint = "use --store sqlite or postgres, or another --source";
        return Error::usage_hint("an inbox needs a durable store", hint);
    }
    if answers.source == InitSource::Inbox && answers.store == InitStore::Mongodb {
        let hint = "use --store sqlite or postgres, or another --source";
        return Error::usage_hint("the store in MongoDB has no inboxes yet", hint);
    }
    let missing = found.list().iter().find(|found| found.code() == Code::NotInThisBuild);
    if let Some(missing) = missing {
        return Error::usage_hint(
            missing.message(),
            "choose another option, or install a build with everything: `cargo install --locked --path crates/cli`",
        );
    }
    let what = format!("invalid consumer name {:?}", answers.name);
    Error::usage_hint(what, "use letters, digits, `-`, `_` and `.`")
}

impl Init {
    /// Collects the answers from the options, and prompts for the rest.
    fn answers(self) -> Result<InitOptions> {
        let name = match self.name {
            Some(name) => name,
            None => prompt::answer("Consumer name", &InitOptions::default().name)?,
        };
        let source = choose(self.source, "Message source")?;
        let handler = choose(self.handler, "Handler type")?;
        // An inbox needs a store that has inboxes; the embedded one needs no server: do not ask.
        let store = match (self.store, source) {
            (None, Source::Inbox) => Store::Sqlite,
            (given, _) => choose(given, "Letter store")?,
        };
        Ok(InitOptions {
            name,
            source: match source {
                Source::Inbox => InitSource::Inbox,
                Source::File => InitSource::File,
                Source::Kafka => InitSource::Kafka,
                Source::Mongodb => InitSource::Mongodb,
                Source::PostgresOutbox => InitSource::PostgresOutbox,
            },
            handler: match handler {
                Handler::Http => InitHandler::Http,
                Handler::Command => InitHandler::Command,
            },
            store: match store {
                Store::Sqlite => InitStore::Sqlite,
                Store::Postgres => InitStore::Postgres,
                Store::Mongodb => InitStore::Mongodb,
                Store::Memory => InitStore::Memory,
            },
            order: match choose(self.order, "Ordering")? {
                Order::Key => InitOrder::Key,
                Order::Partition => InitOrder::Partition,
                Order::None => InitOrder::None,
            },
        })
    }
}

/// Returns the option, or prompts for it; returns the default where there is no terminal.
fn choose<T: ValueEnum + Default>(given: Option<T>, question: &str) -> Result<T> {
    if let Some(given) = given {
        return Ok(given);
    }
    let word =
        |value: &T| value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let offered = offered::<T>();
    loop {
        let answer = prompt::answer(&format!("{question} ({})", offered.join(", ")), &word(&T::default()))?;
        if let Ok(value) = T::from_str(&answer, true) {
            return Ok(value);
        }
    }
}

/// Returns the values that this build has.
fn offered<T: ValueEnum>() -> Vec<String> {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_build_has_is_offered() {
        let with = |has: bool, value| if has { vec![value] } else { Vec::new() };
        let (kafka, mongodb, postgres) =
            (cfg!(feature = "kafka"), cfg!(feature = "mongodb"), cfg!(feature = "postgres"));
        let sources = [
            vec!["inbox", "file"],
            with(kafka, "kafka"),
            with(mongodb, "mongodb"),
            with(postgres, "postgres-outbox"),
        ];
        assert_eq!(offered::<Source>(), sources.concat());
        let stores = [vec!["sqlite"], with(postgres, "postgres"), with(mongodb, "mongodb"), vec!["memory"]];
        assert_eq!(offered::<Store>(), stores.concat());
    }
}
