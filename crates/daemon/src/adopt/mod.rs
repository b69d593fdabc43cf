//! Implements `lazaret adopt`: dead letters and positions of other tools become those of a consumer.

#[cfg(feature = "postgres")]
pub mod axon;
#[cfg(feature = "mongodb")]
pub mod flowwarden;

use std::path::{Path, PathBuf};

pub use lazaret_adopt::{Report, Tally};
use lazaret_config::{Config, Consumer as ConsumerConfig, StoreLocation};
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
fn sequencing(consumer: &ConsumerConfig) -> Sequencing {
    match consumer.retry.policy.strategy {
        Strategy::Unordered => Sequencing::Alone,
        _ => consumer.sequencing(),
    }
}
