//! A declared consumer with all its values: those of attributes, of the configuration file, and the built-in ones.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use lazaret_config::{
    Config, Consumer as ConsumerConfig, Declared, Diagnostics, Env, MongodbSource, Origin, Source, declared,
};
use lazaret_engine::{Builder, Consumer, InvalidSchedule, Options};

use super::declaration::{BeforeChange, DEAD_LETTER_COLLECTION, Declaration, DeclaredSource, Watch};

/// The declared consumers of a program.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The consumers, in the order in which they were declared.
    pub consumers: Vec<DeclaredConsumer>,
    /// The warnings about the file and the attributes.
    pub warnings: Diagnostics,
}

/// Resolves declarations with the values of a configuration file. `file` is its name in messages, and its text.
///
/// The file is that of the daemon: `defaults`, and under `consumers` the values of a declared consumer by its name. It has no `handler`
/// for it, and may complete its `source`. Environment variables are expanded in the file and in attributes.
///
/// ```
/// use lazaret::declare::{Declare, NoEnv, Origin, change_stream, load};
///
/// struct Orders;
///
/// #[change_stream(collection = "orders")]
/// #[retry_policy(max_attempts = 5)]
/// impl Orders {
///     #[on_change]
///     async fn changed(&self) {}
/// }
///
/// let file = b"
/// defaults: { retry: { max-attempts: 4, max-delay: 1m } }
/// consumers: { orders: { source: { mongodb: { database: shop } } } }
/// ";
/// let loaded = load(("lazaret.yaml", file), &NoEnv, [Orders.declare()]).unwrap();
/// let orders = &loaded.consumers[0];
/// assert_eq!(orders.config().retry.policy.max_attempts, 5);
/// assert_eq!(orders.origin("retry.max-attempts"), Some(Origin::Attribute));
/// assert_eq!(orders.origin("retry.max-delay"), Some(Origin::Defaults));
/// assert_eq!(orders.change_stream().unwrap().source.database.as_deref(), Some("shop"));
/// ```
///
/// # Errors
///
/// All errors of the file, and contradictions between it and the attributes.
pub fn load(
    file: (&str, &[u8]),
    env: &dyn Env,
    declarations: impl IntoIterator<Item = Declaration>,
) -> Result<Loaded, Diagnostics> {
    resolve(Some(file), env, declarations.into_iter().collect())
}

pub(super) fn resolve(
    file: Option<(&str, &[u8])>,
    env: &dyn Env,
    declarations: Vec<Declaration>,
) -> Result<Loaded, Diagnostics> {
    let consumers: Vec<_> = declarations
        .iter()
        .map(|declaration| Declared {
            name: declaration.name,
            settings: &declaration.settings,
            defaults: &declaration.defaults,
        })
        .collect();
    let loaded = declared(file, env, &consumers)?;
    let config = Arc::new(loaded.config);
    let consumers = declarations.into_iter().enumerate();
    let consumers = consumers.map(|(index, declaration)| DeclaredConsumer {
        declaration,
        config: Arc::clone(&config),
        index,
    });
    Ok(Loaded { consumers: consumers.collect(), warnings: loaded.warnings })
}

/// A declared consumer with all its values.
#[derive(Clone)]
pub struct DeclaredConsumer {
    declaration: Declaration,
    config: Arc<Config>,
    /// Its place among the consumers of the configuration, which are in the order of the declarations.
    index: usize,
}

/// The settings of a declared change stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChangeStream {
    /// What it watches.
    pub watch: Watch,
    /// The documents before the changes.
    pub before_change: BeforeChange,
    /// The name of the client to use; `None` for the program's only one.
    pub client: Option<&'static str>,
    /// All other settings. `uri` is empty, and `database` and `collection` are `None`, where neither an attribute nor the file sets them.
    pub source: MongodbSource,
}

impl DeclaredConsumer {
    /// The name of the consumer.
    pub const fn name(&self) -> &'static str {
        self.declaration.name
    }

    /// The declaration.
    pub const fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// The values: policies, source and tuning parameters. Rules for error types are in the [`builder`](Self::builder).
    pub fn config(&self) -> &ConsumerConfig {
        &self.config.consumers[self.index]
    }

    /// Starts building the consumer, with its name, handlers, filter and options. Source and store are to be added.
    ///
    /// The duplicate filter of the configuration, [`inbox_dedupe`](ConsumerConfig::inbox_dedupe), needs a store and is left to the program.
    ///
    /// # Errors
    ///
    /// If the schedule of automatic reprocessing is invalid.
    pub fn builder(&self) -> Result<Builder, InvalidSchedule> {
        let Declaration { handler, filter, classify, name, .. } = &self.declaration;
        let mut options = Options::from_config(self.config())?;
        options.filter.clone_from(filter);
        if let Some(classify) = classify {
            options.classifier = classify(options.classifier);
        }
        Ok(Consumer::builder(*name).handler(handler.clone()).options(options))
    }

    /// The settings of the change stream; `None` for another source.
    pub fn change_stream(&self) -> Option<ChangeStream> {
        match (&self.declaration.source, &self.config().source) {
            (&DeclaredSource::ChangeStream { watch, before_change, client }, Source::Mongodb(source)) => {
                Some(ChangeStream { watch, before_change, client, source: source.clone() })
            }
            _ => None,
        }
    }

    /// The options of the Kafka source; `None` for another source. The brokers are empty where the file does not name them.
    #[cfg(feature = "kafka")]
    pub fn kafka_options(&self) -> Option<lazaret_source_kafka::KafkaOptions> {
        match &self.config().source {
            Source::Kafka(source) => Some(lazaret_source_kafka::KafkaOptions::from_config(source)),
            _ => None,
        }
    }

    /// The collection of dead letters.
    pub fn dead_letter_collection(&self) -> &'static str {
        self.declaration.dead_letter_collection.unwrap_or(DEAD_LETTER_COLLECTION)
    }

    /// The name of the client that keeps the dead letters; `None` for the program's only one.
    pub const fn dead_letter_client(&self) -> Option<&'static str> {
        self.declaration.dead_letter_client
    }

    /// The origin of a value, by the path of its key: `retry.max-attempts`. `None` for an unknown key, and for one that is not set.
    pub fn origin(&self, path: &str) -> Option<Origin> {
        self.config.origin(self.name(), path)
    }

    /// Renders all values as YAML, with the origin of each as a comment: the attribute, the line of the file, or `built-in`.
    pub fn effective(&self) -> String {
        let mut text = self.config.effective(self.name()).unwrap_or_default();
        let origin = |set: bool| if set { Origin::Attribute } else { Origin::BuiltIn };
        let Declaration { source, dead_letter_collection, dead_letter_client, .. } = &self.declaration;
        let mut line = |name: &str, value: &str, set: bool| {
            let shown = format!("  # {name}: {value}");
            let _ = writeln!(text, "{shown:<56} # {}", origin(set));
        };
        line("dead_letter_queue.collection", self.dead_letter_collection(), dead_letter_collection.is_some());
        line("dead_letter_queue.client", dead_letter_client.unwrap_or("-"), dead_letter_client.is_some());
        if let DeclaredSource::ChangeStream { watch, before_change, client } = source {
            line("change_stream.watch", watch.as_str(), *watch != Watch::default());
            let is_set = *before_change != BeforeChange::default();
            line("change_stream.full_document_before_change", before_change.as_str(), is_set);
            line("change_stream.client", client.unwrap_or("-"), client.is_some());
        }
        text
    }
}

impl fmt::Debug for DeclaredConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredConsumer").field("declaration", &self.declaration).finish_non_exhaustive()
    }
}
