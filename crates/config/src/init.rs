//! Writes a file to begin with, from a few answers.

use crate::effective::quoted;

/// What a new file should be about.
///
/// ```
/// use lazaret_config::{check, init, Answers, InitSource, NoEnv};
/// let text = init(&Answers { name: "orders".to_owned(), source: InitSource::Kafka, ..Answers::default() });
/// assert!(check("lazaret.yaml", text.as_bytes(), &NoEnv).config.is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The name of the consumer.
    pub name: String,
    /// Where messages come from.
    pub source: InitSource,
    /// Who handles them.
    pub handler: InitHandler,
    /// Where letters are kept.
    pub store: InitStore,
    /// Which order is kept.
    pub order: InitOrder,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            name: "my-consumer".to_owned(),
            source: InitSource::Inbox,
            handler: InitHandler::Http,
            store: InitStore::Sqlite,
            order: InitOrder::Key,
        }
    }
}

/// The sources that a new file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitSource {
    Inbox,
    File,
    Kafka,
    Mongodb,
}

impl InitSource {
    /// Every source.
    pub const ALL: [Self; 4] = [Self::Inbox, Self::File, Self::Kafka, Self::Mongodb];
}

/// The handlers that a new file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitHandler {
    Http,
    Command,
}

impl InitHandler {
    /// Every handler.
    pub const ALL: [Self; 2] = [Self::Http, Self::Command];
}

/// The stores that a new file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitStore {
    Memory,
    Sqlite,
    Postgres,
    Mongodb,
}

impl InitStore {
    /// Every store.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Sqlite, Self::Postgres, Self::Mongodb];
}

/// The orders that a new file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitOrder {
    Key,
    Partition,
    None,
}

impl InitOrder {
    /// Every order.
    pub const ALL: [Self; 3] = [Self::Key, Self::Partition, Self::None];
}

/// A configuration file with remarks. It always passes [`check`](crate::check), if the name can be the name of a consumer. A build
/// may not have all of it: [`load`](crate::load) says so.
pub fn init(answers: &Answers) -> String {
    let name = quoted(&answers.name);
    let (store, source, handler) =
        (store(answers.store), source(answers.source, &answers.name), handler(answers.handler));
    let order = match answers.order {
        InitOrder::Key => {
            "order: key                      # messages with one key are handled in order; other keys never wait"
        }
        InitOrder::Partition => {
            "order: partition                # all messages of a partition are handled in order"
        }
        InitOrder::None => "order: none                     # messages are handled in any order",
    };
    format!(
        "\
# Lazaret's configuration. All keys: `lazaret schema`. Check it with `lazaret check -c FILE`.

# Where the API, the inbox and the metrics are served. Other machines cannot reach it; to let them, configure `auth` as well.
listen: 127.0.0.1:7117

{store}

consumers:
  {name}:
{source}
{handler}

    {order}
    concurrency: 64                 # how many attempts may run at once

    retry:
      max-attempts: 5               # the first attempt included
      initial-delay: 1s
      multiplier: 2.0               # each delay is twice the one before
      max-delay: 5m
      jitter: 0.2                   # ±20 %, so that messages do not wait in step
      # no-retry-on: [INVALID_SCHEMA]

    # What failures are, before the built-in rules decide. The first that fits wins.
    # classify:
    #   - {{ when: {{ status: 418 }}, then: dead-letter, reason: TEAPOT }}

    dead-letter:
      ttl: 30d                      # how long a letter may stay open; 0 for ever
      # owner: my-team
"
    )
}

fn store(store: InitStore) -> &'static str {
    match store {
        InitStore::Memory => {
            "# Where letters and positions are kept. In memory they are gone when the process ends.\nstore: 'memory:'"
        }
        InitStore::Sqlite => "# Where letters and positions are kept: one file.\nstore: sqlite:lazaret.db",
        InitStore::Postgres => {
            "# Where letters and positions are kept. The password is taken from the environment.\n\
             store: 'postgres://lazaret:${LAZARET_DB_PASSWORD:-}@127.0.0.1:5432/lazaret'"
        }
        InitStore::Mongodb => {
            "# Where letters and positions are kept.\nstore: '${LAZARET_MONGODB:-mongodb://127.0.0.1:27017/lazaret}'"
        }
    }
}

fn source(source: InitSource, name: &str) -> String {
    let text = match source {
        InitSource::Inbox => return inbox(name),
        InitSource::File => {
            "    # One JSON message a line.\n    source:\n      file:\n        path: events.jsonl\n        follow: true                # wait for more at its end"
        }
        InitSource::Kafka => {
            "    # The group is that of the consumer's name, unless `group` says otherwise.\n    source:\n      kafka:\n        \
             brokers: '${KAFKA_BROKERS:-127.0.0.1:9092}'\n        topics: [events]\n        \
             # properties: { security.protocol: SASL_SSL, sasl.password: '${KAFKA_PASSWORD}' }"
        }
        InitSource::Mongodb => {
            "    # The changes of a collection.\n    source:\n      mongodb:\n        uri: '${MONGODB_URI:-mongodb://127.0.0.1:27017}'\n        \
             database: shop\n        collection: orders"
        }
    };
    text.to_owned()
}

/// The inbox, with a message to try it with: that id and key are headers cannot be guessed.
fn inbox(name: &str) -> String {
    // A name that a URL would have to escape is left to the reader.
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let name = if is_plain { name } else { "CONSUMER" };
    format!(
        "    # Messages are sent over HTTP, and are durable when it answers. Id and key are headers; without a key there is no order.\n    \
         #   curl localhost:7117/v1/inbox/{name} -H 'content-type: application/json' -H 'lazaret-id: e-1' -H 'lazaret-key: order-7' \
         -d '{{\"total\": 12.50}}'\n    \
         source:\n      inbox: {{}}"
    )
}

fn handler(handler: InitHandler) -> &'static str {
    match handler {
        InitHandler::Http => {
            "    # Each attempt is one POST. 2xx: handled; 5xx: try again; 400, 422: dead letter.\n    handler:\n      http:\n        \
             url: http://127.0.0.1:8080/events\n        timeout: 10s"
        }
        InitHandler::Command => {
            "    # Each attempt is one run with the payload on stdin. Exit code 0: handled; 65: dead letter; others: try again.\n    handler:\n      \
             command:\n        program: [python3, handler.py]\n        timeout: 10s"
        }
    }
}
