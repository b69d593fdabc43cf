//! Generates a starter configuration file.

use crate::effective::quoted;

/// The choices for a starter file.
///
/// ```
/// use lazaret_config::{check, init, InitOptions, InitSource, NoEnv};
/// let text = init(&InitOptions { name: "orders".to_owned(), source: InitSource::Kafka, ..InitOptions::default() });
/// assert!(check("lazaret.yaml", text.as_bytes(), &NoEnv).config.is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitOptions {
    /// The name of the consumer.
    pub name: String,
    /// The source.
    pub source: InitSource,
    /// The handler.
    pub handler: InitHandler,
    /// The store.
    pub store: InitStore,
    /// The ordering guarantee.
    pub order: InitOrder,
}

impl Default for InitOptions {
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

/// The source of a starter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitSource {
    Inbox,
    File,
    Kafka,
    Mongodb,
    PostgresOutbox,
}

impl InitSource {
    /// All sources.
    pub const ALL: [Self; 5] = [Self::Inbox, Self::File, Self::Kafka, Self::Mongodb, Self::PostgresOutbox];
}

/// The handler of a starter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitHandler {
    Http,
    Command,
}

impl InitHandler {
    /// All handlers.
    pub const ALL: [Self; 2] = [Self::Http, Self::Command];
}

/// The store of a starter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitStore {
    Memory,
    Sqlite,
    Postgres,
    Mongodb,
}

impl InitStore {
    /// All stores.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Sqlite, Self::Postgres, Self::Mongodb];
}

/// The ordering guarantee of a starter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are named as in the file")]
pub enum InitOrder {
    Key,
    Partition,
    None,
}

impl InitOrder {
    /// All ordering guarantees.
    pub const ALL: [Self; 3] = [Self::Key, Self::Partition, Self::None];
}

/// Generates a commented configuration file. The file always passes [`check`](crate::check) if the name
/// is valid. It may require a capability that the build lacks, which [`load`](crate::load) reports.
pub fn init(options: &InitOptions) -> String {
    let name = quoted(&options.name);
    let (store, source, handler) =
        (store(options.store), source(options.source, &options.name), handler(options.handler));
    let order = match options.order {
        InitOrder::Key => {
            "order: key                      # messages of one key are handled in order; other keys never wait"
        }
        InitOrder::Partition => {
            "order: partition                # all messages of a partition are handled in order"
        }
        InitOrder::None => "order: none                     # no order",
    };
    format!(
        "\
# Lazaret's configuration. All keys: `lazaret schema`. Check it with `lazaret check -c FILE`.

# Address of the API, the inbox and the metrics. To allow other machines, use another address and configure `auth`.
listen: 127.0.0.1:7117

{store}

# Secrets in error texts that readers of letters do not see. Nothing is redacted by default.
# redact:
#   errors: [card-numbers, emails, tokens]
#   store: true                     # redact them before they are stored, too

consumers:
  {name}:
{source}
{handler}

    {order}
    concurrency: 64                 # maximum number of concurrent attempts

    retry:
      max-attempts: 5               # including the first attempt
      initial-delay: 1s
      multiplier: 2.0               # each delay is twice as long as the previous one
      max-delay: 5m
      jitter: 0.2                   # ±20 %, to spread retries
      # no-retry-on: [INVALID_SCHEMA]

    # Classification rules, before the built-in rules. The first match decides.
    # classify:
    #   - {{ when: {{ status: 418 }}, then: dead-letter, reason: TEAPOT }}

    dead-letter:
      ttl: 30d                      # time until an open letter expires; 0 disables expiry
      # owner: my-team
"
    )
}

fn store(store: InitStore) -> &'static str {
    match store {
        InitStore::Memory => {
            "# Store for letters and positions. In memory they are lost when the process exits.\nstore: 'memory:'"
        }
        InitStore::Sqlite => "# Store for letters and positions: one file.\nstore: sqlite:lazaret.db",
        InitStore::Postgres => {
            "# Store for letters and positions. The password is read from the environment.\n\
             store: 'postgres://lazaret:${LAZARET_DB_PASSWORD:-}@127.0.0.1:5432/lazaret'"
        }
        InitStore::Mongodb => {
            "# Store for letters and positions.\nstore: '${LAZARET_MONGODB:-mongodb://127.0.0.1:27017/lazaret}'"
        }
    }
}

fn source(source: InitSource, name: &str) -> String {
    let text = match source {
        InitSource::Inbox => return inbox(name),
        InitSource::File => {
            "    # One JSON message per line.\n    source:\n      file:\n        path: events.jsonl\n        follow: true                # wait for new lines at its end"
        }
        InitSource::Kafka => {
            "    # Consumer group: default is the name of the consumer; set `group` for another.\n    source:\n      kafka:\n        \
             brokers: '${KAFKA_BROKERS:-127.0.0.1:9092}'\n        topics: [events]\n        \
             # properties: { security.protocol: SASL_SSL, sasl.password: '${KAFKA_PASSWORD}' }"
        }
        InitSource::Mongodb => {
            "    # Change stream of a collection.\n    source:\n      mongodb:\n        uri: '${MONGODB_URI:-mongodb://127.0.0.1:27017}'\n        \
             database: shop\n        collection: orders"
        }
        InitSource::PostgresOutbox => {
            "    # Outbox table of a PostgreSQL database. Settled rows are deleted; set `ack: position` to keep them.\n    source:\n      \
             postgres-outbox:\n        dsn: 'postgres://orders:${OUTBOX_DB_PASSWORD:-}@127.0.0.1:5432/shop'\n        table: outbox\n        \
             # setup: true               # create the table and its trigger if they are missing"
        }
    };
    text.to_owned()
}

/// Returns the inbox section, with an example request in a comment.
fn inbox(name: &str) -> String {
    // A name that needs URL escapes is replaced by a placeholder.
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let name = if is_plain { name } else { "CONSUMER" };
    format!(
        "    # Messages are posted over HTTP, and durable when the response arrives. Id and key are headers; without a key there is no order.\n    \
         #   curl localhost:7117/v1/inbox/{name} -H 'content-type: application/json' -H 'lazaret-id: e-1' -H 'lazaret-key: order-7' \
         -d '{{\"total\": 12.50}}'\n    \
         source:\n      inbox: {{}}"
    )
}

fn handler(handler: InitHandler) -> &'static str {
    match handler {
        InitHandler::Http => {
            "    # Each attempt is one POST request. 2xx: handled; 500, 503: retry; 400, 422: dead letter.\n    handler:\n      http:\n        \
             url: http://127.0.0.1:8080/events\n        timeout: 10s"
        }
        InitHandler::Command => {
            "    # Each attempt runs the program with the payload on stdin. Exit code 0: handled; 65: dead letter; others: retry.\n    handler:\n      \
             command:\n        program: [python3, handler.py]\n        timeout: 10s"
        }
    }
}
