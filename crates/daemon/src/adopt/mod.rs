//! Implements `lazaret adopt`: dead letters and positions of other tools become those of a consumer.

#[cfg(feature = "postgres")]
pub mod axon;
#[cfg(feature = "mongodb")]
pub mod flowwarden;
#[cfg(feature = "kafka")]
pub mod kafka;

use std::path::{Path, PathBuf};

#[cfg(any(feature = "kafka", feature = "postgres"))]
use lazaret_adopt::{Expiry, Target};
pub use lazaret_adopt::{Report, Tally};
use lazaret_config::{Config, Consumer as ConsumerConfig, StoreLocation};
#[cfg(any(feature = "kafka", feature = "postgres"))]
use lazaret_core::QueueName;
use lazaret_core::Sequencing;
use lazaret_core::policy::Strategy;
use lazaret_core::source::SourceError;

use crate::error::Error;
use crate::read::{ReadError, read};

/// Why nothing more was adopted. What was adopted before stays, and the same command continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptionError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ReadError),
    /// The consumer is not in the configuration.
    #[error("consumer {0:?} not found in {file}", file = .1.display())]
    NoConsumer(String, PathBuf),
    /// The request or the configuration of the consumer does not fit.
    #[error("{0}")]
    Invalid(String),
    /// The store of the daemon.
    #[error(transparent)]
    Store(#[from] Error),
    /// The server of the other tool, or the options of the source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The dead letters of FlowWarden.
    #[cfg(feature = "mongodb")]
    #[error(transparent)]
    FlowWarden(#[from] lazaret_adopt::flowwarden::AdoptError),
    /// The position of FlowWarden.
    #[cfg(feature = "mongodb")]
    #[error("the position was not adopted: {0}")]
    Position(#[from] lazaret_source_mongodb::TakeOverError),
    /// The dead letters of a topic.
    #[cfg(feature = "kafka")]
    #[error("{topic}: {error}")]
    Topic {
        /// The dead-letter topic.
        topic: String,
        /// The cause, and the progress until then.
        error: lazaret_adopt::kafka::AdoptError,
    },
    /// The dead letters of Axon.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Axon(#[from] lazaret_adopt::axon::AdoptError),
}

/// Reads the configuration. Its store must be durable.
fn readable(file: &Path) -> Result<Config, AdoptionError> {
    let config = read(file)?.config;
    if config.store == StoreLocation::Memory {
        let why = "the store is in memory: what is adopted would be gone at once; configure a `store`";
        return Err(AdoptionError::Invalid(why.to_owned()));
    }
    Ok(config)
}

fn consumer_of<'a>(config: &'a Config, name: &str, file: &Path) -> Result<&'a ConsumerConfig, AdoptionError> {
    let found = config.consumers.iter().find(|consumer| consumer.name == name);
    found.ok_or_else(|| AdoptionError::NoConsumer(name.to_owned(), file.to_owned()))
}

/// The sequencing of a consumer's letters.
pub(crate) fn sequencing(consumer: &ConsumerConfig) -> Sequencing {
    match consumer.retry.policy.strategy {
        Strategy::Unordered => Sequencing::Alone,
        _ => consumer.sequencing(),
    }
}

/// The target of an adoption: the letters are kept as the consumer keeps its own.
#[cfg(any(feature = "kafka", feature = "postgres"))]
pub(crate) fn target(consumer: &ConsumerConfig, separate_sequences: bool) -> Target {
    let mut target = Target {
        sequencing: sequencing(consumer),
        separate_sequences,
        redact: consumer.redact.stored_texts(),
        ..Target::new(QueueName::of(&consumer.name, &consumer.name))
    };
    if let Some(letters) = &consumer.dead_letter {
        target.limits = letters.limits;
        target.expiry = letters.ttl.map_or(Expiry::Never, Expiry::After);
        target.owner = letters.owner.as_ref().map(|owner| owner.as_str().into());
        (target.include_payload, target.include_backtrace) =
            (letters.include_payload, letters.include_backtrace);
    }
    target
}
