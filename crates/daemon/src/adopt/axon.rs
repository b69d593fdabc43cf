//! Axon's dead-letter tables.

use std::path::PathBuf;
use std::time::Duration;

use lazaret_adopt::axon::Adoption;
pub use lazaret_adopt::axon::{GroupCount, Preview, Report};
use lazaret_store_postgres::Connector;

use super::{AdoptionError, consumer_of, readable, target};
use crate::assemble::Stores;
use crate::error::Error;

/// How long Axon's server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// An adoption of one processing group.
#[derive(Clone, Debug)]
pub struct Axon {
    /// The configuration file.
    pub config: PathBuf,
    /// The consumer that gets the letters.
    pub consumer: String,
    /// The database of Axon's table.
    pub dsn: String,
    /// The table; `None` is the one of Axon's names that exists.
    pub table: Option<String>,
    /// The processing group; `None` is the name of the consumer.
    pub group: Option<String>,
    /// Puts the letters into sequences of their own.
    pub separate_sequences: bool,
    /// Only tells what would be done.
    pub dry_run: bool,
}

/// What was adopted, or would be.
#[derive(Debug)]
pub struct Adopted {
    /// The processing group.
    pub group: String,
    /// The letters.
    pub letters: Letters,
}

/// The dead letters.
#[derive(Debug)]
pub enum Letters {
    /// They were adopted.
    Done(Box<Report>),
    /// They would be adopted.
    Preview(Preview),
}

/// Adopts Axon's dead letters. `progress` is called after every batch that is durable.
///
/// # Errors
/// When something does not fit, or a server or the store fails.
pub async fn axon(
    request: &Axon,
    progress: impl Fn(&Report) + Send + Sync + 'static,
) -> Result<Adopted, AdoptionError> {
    let config = readable(&request.config)?;
    let consumer = consumer_of(&config, &request.consumer, &request.config)?;
    let connector = Connector::new(&request.dsn, "lazaret adopt", TIMEOUT, TIMEOUT).map_err(Error::from)?;
    let client = connector.connect(|_| ()).await.map_err(Error::from)?;
    let group = request.group.clone().unwrap_or_else(|| consumer.name.clone());
    let mut adoption =
        Adoption::of(&client, &group, target(consumer, request.separate_sequences)).on_progress(progress);
    if let Some(table) = &request.table {
        adoption = adoption.from_table(table);
    }
    let stores = Stores::open(&config.store, config.encryption.as_ref()).await?;
    stores.keep_free(config.consumers.iter());
    let letters = match request.dry_run {
        true => adoption.preview(&*stores.adoption).await.map(Letters::Preview),
        false => adoption.run(&*stores.adoption).await.map(|report| Letters::Done(Box::new(report))),
    };
    stores.close().await;
    Ok(Adopted { group, letters: letters? })
}
