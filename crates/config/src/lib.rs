//! Lazaret's configuration file (`lazaret.yaml`): read, checked and explained.
//!
//! This crate turns text into a checked [`Config`], or into [`Diagnostics`] that name file, line and column, show the line and
//! say what to do. All mistakes of a file are told at once. It does no I/O: the text and the environment come in, values go
//! out.
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
//! - [`Config::missing`] says what a build does not have.
//! - [`Config::effective`] shows what holds for a consumer, and where each value came from.
//! - [`diff`] says what a reload can take over, and what needs a restart.
//! - [`init`] writes a file to begin with.
//! - [`schema`] is the JSON Schema, [`keys_markdown`] the reference of all keys.
//!
//! # How values are written
//!
//! Durations are numbers with units (`500ms`, `1s`, `5m`, `1h 30m`, `30d`, `2w`), sizes have units as well (`64KiB`), and so have
//! rates (`50/s`, `10/m`, `5/h`). `${NAME}` and `${NAME:-default}` are taken from the environment in every value, not in keys;
//! `$${` stands for `${`. `defaults` may hold every key of a consumer. Sections and maps are merged with a consumer's own key by
//! key; a list is one value, and a consumer's own replaces it; where exactly one of several can be chosen, a consumer's own
//! choice replaces another one. Anchors, aliases, merge keys and tags of YAML are refused.

mod capability;
mod code;
mod diagnostic;
mod diff;
mod document;
mod effective;
mod env;
mod forms;
mod init;
mod merge;
mod model;
mod own;
mod quantity;
mod read;
mod reference;
mod remedy;
mod render;
mod rules;
mod scalar;
mod schema;
mod secrets;
mod source;
mod suggest;
mod syntax;
mod table;
mod tree;
mod value;

pub use capability::{Capabilities, Capability, CheckProperty, PropertyFault};
pub use code::{Code, Severity};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use diff::{Change, Diff, What, diff};
pub use env::{Env, NoEnv, ProcessEnv};
pub use forms::{Address, SequenceRule, StoreAt};
pub use init::{Answers, InitHandler, InitOrder, InitSource, InitStore, init};
pub use model::{
    Advanced, Approval, Auth, Checkpoint, CommandHandler, CommandMode, Config, Consumer, DeadLetter, Handler,
    HttpHandler, KafkaSource, MongodbSource, Order, Replay, Reprocess, RequestLimits, Retry, RetryTopics,
    Secret, Source, Telemetry, Token, Webhook,
};
pub use reference::keys_markdown;
pub use schema::schema;
pub use source::{SourceText, Span};
pub use table::Reload;
pub use value::Origin;

/// What came of reading a file.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration, if there are no errors.
    pub config: Option<Config>,
    /// What was found: errors and warnings.
    pub diagnostics: Diagnostics,
}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What somebody should look at.
    pub warnings: Diagnostics,
}

/// Reads and checks a file. The name is that of the file, for messages.
///
/// ```
/// use lazaret_config::{check, NoEnv};
/// let checked = check("lazaret.yaml", b"listen: 127.0.0.1:7117\n", &NoEnv);
/// assert!(checked.config.is_none());
/// assert!(checked.diagnostics.plain().contains("needs the key `consumers`"));
/// ```
pub fn check(name: &str, bytes: &[u8], env: &dyn Env) -> Checked {
    let (document, diagnostics) = document::read(name, bytes, env, None);
    Checked { config: document.map(Config::new), diagnostics }
}

/// Reads and checks a file for a build that has these parts. Everything that keeps it from running is an error, and all errors
/// are told at once.
///
/// ```
/// use lazaret_config::{load, Capabilities, Capability, Code, NoEnv};
/// let text = b"store: mongodb://127.0.0.1/lazaret\nconsumers: {}\n";
/// let embedded = Capabilities::of([Capability::StoreSqlite]);
/// let found = load("lazaret.yaml", text, &NoEnv, &embedded).unwrap_err();
/// assert_eq!(found.list()[0].code(), Code::NotInThisBuild);
/// assert_eq!(load("lazaret.yaml", text, &NoEnv, &Capabilities::all()).unwrap().warnings.warnings(), 1);
/// ```
pub fn load(name: &str, bytes: &[u8], env: &dyn Env, build: &Capabilities) -> Result<Loaded, Diagnostics> {
    let (document, diagnostics) = document::read(name, bytes, env, Some(build));
    match document {
        Some(document) => Ok(Loaded { config: Config::new(document), warnings: diagnostics }),
        None => Err(diagnostics),
    }
}
