//! A declared consumer with all its values, from attributes, the configuration file and the built-in
//! defaults.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use lazaret_config::{
    Config, Consumer as ConsumerConfig, Declared, Diagnostics, Env, MongodbSource, Origin, Source, declared,
};
use lazaret_engine::{Builder, Consumer, InvalidSchedule, Options};

use super::declaration::{DEAD_LETTER_COLLECTION, Declaration, DeclaredSource, Watch};

/// The declared consumers of a program.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The consumers in the order of their declarations.
    pub consumers: Vec<DeclaredConsumer>,
    /// The warnings about the file and the attributes.
    pub warnings: Diagnostics,
}

/// Resolves declarations with the values of a configuration file. `file` is the file's name for
/// messages, and its text.
///
/// The file has the format of the daemon: `defaults`, and under `consumers` the values of each declared
/// consumer by name. The file must not set the `handler` of a declared consumer, and may complete its
/// `source`. Environment variables are expanded in the file and in attributes.
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
/// Returns all errors of the file, and all contradictions between the file and the attributes.
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
    /// The index among the consumers of the configuration, which are in the order of the declarations.
    index: usize,
}

/// The settings of a declared change stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChangeStream {
    /// The scope that the stream watches.
    pub watch: Watch,
    /// The name of the client to use; `None` for the program's only client.
    pub client: Option<&'static str>,
    /// All other settings. If the file does not set the `uri`, it is empty.
    pub source: MongodbSource,
}

impl DeclaredConsumer {
    /// Returns the name of the consumer.
    pub const fn name(&self) -> &'static str {
        self.declaration.name
    }

    /// Returns the declaration.
    pub const fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Returns the values: policies, source and tuning parameters. The [`builder`](Self::builder)
    /// contains the rules for error types.
    pub fn config(&self) -> &ConsumerConfig {
        &self.config.consumers[self.index]
    }

    /// Starts building the consumer with its name, handlers, filter and options. The caller adds the
    /// source and the store.
    ///
    /// The duplicate filter of the configuration, [`inbox_dedupe`](ConsumerConfig::inbox_dedupe), needs
    /// a store, so the program must set it up.
    ///
    /// # Errors
    ///
    /// Fails if the schedule of the automatic reprocessing is invalid.
    pub fn builder(&self) -> Result<Builder, InvalidSchedule> {
        let Declaration { handler, filter, classify, name, .. } = &self.declaration;
        let mut options = Options::from_config(self.config())?;
        options.filter.clone_from(filter);
        if let Some(classify) = classify {
            options.classifier = classify(options.classifier);
        }
        Ok(Consumer::builder(*name).handler(handler.clone()).options(options))
    }

    /// Returns the settings of the change stream, or `None` for another source.
    pub fn change_stream(&self) -> Option<ChangeStream> {
        match (&self.declaration.source, &self.config().source) {
            (&DeclaredSource::ChangeStream { watch, client }, Source::Mongodb(source)) => {
                Some(ChangeStream { watch, client, source: source.clone() })
            }
            _ => None,
        }
    }

    /// Returns the options of the Kafka source, or `None` for another source. If the file names no
    /// brokers, they are empty.
    #[cfg(feature = "kafka")]
    pub fn kafka_options(&self) -> Option<lazaret_source_kafka::KafkaOptions> {
        match &self.config().source {
            Source::Kafka(source) => Some(lazaret_source_kafka::KafkaOptions::from_config(source)),
            _ => None,
        }
    }

    /// Returns the options of the change stream source, or `None` for another source. `uri` is the
    /// server address to use if the file sets none. If neither an attribute nor the file names a
    /// database, the database of the address is used.
    ///
    /// # Errors
    ///
    /// Fails if the pipeline is not valid extended JSON.
    #[cfg(feature = "mongodb")]
    pub fn mongo_options(
        &self,
        uri: &str,
    ) -> Option<Result<lazaret_source_mongodb::MongoSourceOptions, lazaret_core::source::SourceError>> {
        use lazaret_source_mongodb::{MongoSourceOptions, Server};
        let stream = self.change_stream()?;
        Some(MongoSourceOptions::from_config(self.name(), &stream.source).map(|mut options| {
            if stream.source.uri.reveal().is_empty() {
                options.server = Server::Uri(uri.to_owned());
            }
            if options.database.is_none() && stream.watch != Watch::Deployment {
                options.database = options.server.default_database();
            }
            options
        }))
    }

    /// Returns the collection of dead letters.
    pub fn dead_letter_collection(&self) -> &'static str {
        self.declaration.dead_letter_collection.unwrap_or(DEAD_LETTER_COLLECTION)
    }

    /// Returns the name of the client that keeps the dead letters, or `None` for the program's only
    /// client.
    pub const fn dead_letter_client(&self) -> Option<&'static str> {
        self.declaration.dead_letter_client
    }

    /// Returns the origin of a value by the path of its key, such as `retry.max-attempts`. Returns
    /// `None` if the key is unknown or not set.
    pub fn origin(&self, path: &str) -> Option<Origin> {
        self.config.origin(self.name(), path)
    }

    /// Renders all values as YAML. A comment shows the origin of each value: the attribute, the line of
    /// the file, or `built-in`.
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
        if let DeclaredSource::ChangeStream { watch, client } = source {
            line("change_stream.watch", watch.as_str(), *watch != Watch::default());
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
