//! The declaration of a consumer: its settings as plain data and its handlers.

use std::fmt;
use std::sync::Arc;

use lazaret_config::{Diagnostics, NoEnv, Setting};
use lazaret_core::handler::BoxHandler;
use lazaret_core::policy::Classifier;
use lazaret_engine::Filter;

use super::consumer::{DeclaredConsumer, resolve};

/// The default collection of dead letters. `#[dead_letter_queue(collection = …)]` can name another.
pub const DEAD_LETTER_COLLECTION: &str = "_fw_dlq";

/// A type whose `impl` block declares a consumer with attributes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` declares no consumer",
    label = "no declaration",
    note = "put `#[change_stream(…)]` or `#[kafka_listener(…)]` on its `impl` block"
)]
pub trait Declare: Sized + Send + Sync + 'static {
    /// Returns the declaration. All handlers share `self`.
    fn declare(self) -> Declaration;
}

/// Adds rules for error types to a classifier.
pub(super) type Classify = Arc<dyn Fn(Classifier) -> Classifier + Send + Sync>;

/// The declaration of a consumer, which [`Declare::declare`] returns.
#[derive(Clone)]
pub struct Declaration {
    pub(super) name: &'static str,
    pub(super) source: DeclaredSource,
    pub(super) settings: Vec<Setting>,
    pub(super) defaults: Vec<Setting>,
    pub(super) dead_letter_collection: Option<&'static str>,
    pub(super) dead_letter_client: Option<&'static str>,
    pub(super) handler: BoxHandler,
    pub(super) filter: Option<Arc<Filter>>,
    pub(super) classify: Option<Classify>,
}

/// The kind of the declared source, with the settings that have no key in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeclaredSource {
    /// A MongoDB change stream.
    ChangeStream {
        /// The scope that the stream watches.
        watch: Watch,
        /// The name of the client to use; `None` for the program's only client.
        client: Option<&'static str>,
    },
    /// Kafka topics.
    Kafka,
}

/// The scope that a change stream watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Watch {
    /// One collection.
    #[default]
    Collection,
    /// All collections of a database.
    Database,
    /// All databases of the deployment.
    Deployment,
}

impl Watch {
    /// Returns the value as it is written in the attribute.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Collection => "collection",
            Self::Database => "database",
            Self::Deployment => "deployment",
        }
    }
}

impl Declaration {
    /// Returns the name of the consumer. If the attribute does not set it, it is derived from the type:
    /// `order-handler` for `OrderHandler`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the kind of source.
    pub const fn source(&self) -> &DeclaredSource {
        &self.source
    }

    /// Returns the values that attributes set, with the keys of the configuration file.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Resolves the declaration without a configuration file.
    ///
    /// # Errors
    ///
    /// Fails if attributes contradict each other or a built-in value. For example, `max_delay = "100ms"`
    /// is shorter than the default of `initial_delay`.
    pub fn consumer(self) -> Result<DeclaredConsumer, Diagnostics> {
        let mut loaded = resolve(None, &NoEnv, vec![self])?;
        Ok(loaded.consumers.remove(0))
    }
}

impl fmt::Debug for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declaration")
            .field("name", &self.name)
            .field("source", &self.source)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
