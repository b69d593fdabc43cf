//! Reads, checks and explains Lazaret's configuration file (`lazaret.yaml`).
//!
//! This crate turns text into a valid [`Config`], or into [`Diagnostics`] with file, line, column, the
//! line itself and a hint. All errors of a file are reported at once. The text and the environment are
//! parameters. Only [`ProcessEnv`] does I/O.
//!
//! ```
//! use lazaret_config::{Capabilities, NoEnv, load};
//! let text = "
//! store: sqlite:lazaret.db
//! consumers:
//!   notification-service:
//!     source: { inbox: {} }
//!     handler: { http: { url: 'http://127.0.0.1:8080/events', timeout: 10s } }
//!     retry: { max-attempts: 5, max-delay: 5m }
//! ";
//! let loaded = load("lazaret.yaml", text.as_bytes(), &NoEnv, &Capabilities::all()).unwrap();
//! assert_eq!(loaded.config.consumers[0].retry.policy.max_attempts, 5);
//!
//! let wrong = text.replace("max-attempts: 5", "max-atempts: 5");
//! let found = load("lazaret.yaml", wrong.as_bytes(), &NoEnv, &Capabilities::all()).unwrap_err();
//! assert!(found.plain().contains("did you mean `max-attempts`?"));
//! ```
//!
//! - [`check`] and [`load`] read a file.
//! - [`Config::missing`] reports the capabilities that a configuration requires and a build lacks.
//! - [`Config::effective`] renders the effective configuration of a consumer, with the origin of each value.
//! - [`declared`] reads the configuration of consumers that a program declares with attributes.
//! - [`diff`] determines which changes a reload applies, and which require a restart.
//! - [`init`] generates a starter file.
//! - [`schema`] returns the JSON Schema, and [`keys_markdown`] the reference of all keys.
//!
//! # Data flow
//!
//! `table` defines all keys. `load` runs the steps in order. `tree` parses YAML, and `read` types the
//! values by the table (`scalar`, `text`, `formats`, `quantity`). `merge` applies `defaults`. `rules`
//! and `capability` check the `document`, and `model` builds the values. Every step adds findings to
//! `diagnostic`, and `render` prints them.
//!
//! # Syntax of values
//!
//! Durations are numbers with units (`500ms`, `1s`, `5m`, `1h 30m`, `30d`, `2w`). Sizes (`64KiB`) and
//! rates (`50/s`, `10/m`, `5/h`) also have units. In values, `${NAME}` and `${NAME:-default}` expand to
//! environment variables, `${file:PATH}` expands to the content of a file, and `$${` is an escaped `${`.
//! Keys are not expanded. `defaults` accepts every key of a consumer. Sections and maps are merged key
//! by key. A consumer's list replaces the list in `defaults`, and so does its choice of source or
//! handler. YAML anchors, aliases, merge keys and tags are rejected.

mod adopt_rules;
mod capability;
mod code;
mod collection_rules;
mod declared;
mod default_hint;
mod diagnostic;
mod diff;
mod document;
mod effective;
mod env;
mod formats;
mod init;
mod lease_rules;
mod load;
mod merge;
mod model;
mod quantity;
mod read;
mod reference;
mod render;
mod retry_topic_rules;
mod rules;
mod scalar;
mod schema;
mod secrets;
mod source;
mod suggest;
mod syntax;
mod table;
mod text;
mod tree;
mod value;

pub use capability::{
    Capabilities, Capability, PipelineCheck, PipelineReview, PropertyCheck, PropertyError, UriCheck,
    WatchCheck,
};
pub use code::{Code, Severity};
pub use declared::{Declared, Setting, declared};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use diff::{Change, ChangeKind, Diff, diff};
pub use env::{Env, NoEnv, ProcessEnv};
pub use formats::{Address, SequenceRule, StoreLocation};
pub use init::{InitHandler, InitOptions, InitOrder, InitSource, InitStore, init};
pub use load::{Checked, Loaded, check, load};
pub use model::{
    AdoptTopics, Advanced, AlertThresholds, Approval, Auth, BeforeChange, Checkpoint, CommandHandler,
    CommandMode, Config, Console, Consumer, CopiesCollection, DeadLetter, Encryption, FullDocument, Handler,
    HistoryLost, HttpHandler, KafkaSource, KeySource, LogFormat, LogLevel, MongodbSource, Oidc, OnInvalidate,
    OperationType, Order, OutboxAck, PostgresOutboxSource, Proxy, Replay, Reprocess, RequestLimits, Restart,
    Retry, RetryTopics, Role, Secret, Source, StartPosition, Telemetry, Tls, Token, TopicFormat, Webhook,
};
pub use reference::keys_markdown;
pub use schema::schema;
pub use source::{SourceText, Span};
pub use table::Reload;
pub use value::Origin;
