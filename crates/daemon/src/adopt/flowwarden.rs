//! FlowWarden's collections.

use std::path::PathBuf;

use lazaret_adopt::flowwarden::{Adoption, adopt_position};
pub use lazaret_adopt::flowwarden::{CHECKPOINTS, DEAD_LETTERS, Preview, Report, StreamCount};
use lazaret_config::{Consumer as ConsumerConfig, Source, StoreLocation};
use lazaret_core::QueueName;
pub use lazaret_source_mongodb::{ForeignAnchorKind, TakenOver};
use lazaret_source_mongodb::{MongoSourceOptions, TakeOverOptions};
use mongodb::Database;

use super::{AdoptionError, consumer_of, readable, sequencing};
use crate::assemble::{MONGODB_TIMEOUT, MongodbServer, Stores, mongodb_options};

/// An adoption of FlowWarden's collections.
#[derive(Clone, Debug)]
pub struct FlowWarden {
    /// The configuration file.
    pub config: PathBuf,
    /// The consumer that gets the letters and the position.
    pub consumer: String,
    /// The server of FlowWarden's collections; `None` is that of the consumer's source.
    pub uri: Option<String>,
    /// Their database; `None` is that of the URI, else that of the consumer's source.
    pub database: Option<String>,
    /// The collection of the dead letters.
    pub dead_letters: String,
    /// The collection of the positions.
    pub checkpoints: String,
    /// The name of the stream in FlowWarden; `None` is the name of the consumer.
    pub stream: Option<String>,
    /// The collection that the stream watches; `None` is that of the consumer.
    pub collection: Option<String>,
    /// The statuses that are adopted besides `PENDING`.
    pub statuses: Vec<String>,
    /// Puts the letters into sequences of their own.
    pub separate_sequences: bool,
    /// What is adopted.
    pub parts: Parts,
    /// Replaces the position of a consumer that has another one.
    pub replace_position: bool,
    /// Only tells what would be done.
    pub dry_run: bool,
}

/// What is adopted of FlowWarden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// The dead letters, then the position.
    #[default]
    All,
    /// Only the dead letters.
    Letters,
    /// Only the position.
    Position,
}

/// What was adopted.
#[derive(Debug)]
pub struct Adopted {
    /// The name of the stream in FlowWarden.
    pub stream: String,
    /// The queue of the letters.
    pub queue: QueueName,
    /// The dead letters; `None` if they were not asked for.
    pub letters: Option<Letters>,
    /// The position; `None` if it was not asked for.
    pub position: Option<Position>,
}

/// The dead letters.
#[derive(Debug)]
pub enum Letters {
    /// They were adopted.
    Done(Box<Report>),
    /// They would be adopted.
    Preview(Preview),
}

/// The position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// FlowWarden has no position of this stream.
    Absent,
    /// What became of it.
    Found(TakenOver),
}

/// Adopts FlowWarden's dead letters and its position, in this order: the position moves the stream past the events of the letters
/// (I1). `progress` is called after every batch that is durable.
///
/// # Errors
/// When something does not fit, or the server or the store fails.
pub async fn flowwarden(
    request: &FlowWarden,
    progress: impl Fn(&Report) + Send + Sync + 'static,
) -> Result<Adopted, AdoptionError> {
    let config = readable(&request.config)?;
    let consumer = consumer_of(&config, &request.consumer, &request.config)?;
    let options = source_options(consumer, &config.store)?;
    let database = database(request, &options).await?;
    let stores = Stores::open(&config.store, config.encryption.as_ref()).await?;
    stores.keep_free(config.consumers.iter());
    let adopted = adopt(request, consumer, &options, &database, &stores, progress).await;
    stores.close().await;
    adopted
}

fn source_options(
    consumer: &ConsumerConfig,
    store: &StoreLocation,
) -> Result<MongoSourceOptions, AdoptionError> {
    let Source::Mongodb(from) = &consumer.source else {
        let why = format!(
            "the consumer {} does not read a change stream; FlowWarden's dead letters are events of change streams",
            consumer.name
        );
        return Err(AdoptionError::Invalid(why));
    };
    Ok(mongodb_options(consumer, from, store)?)
}

/// The database of FlowWarden's collections.
async fn database(request: &FlowWarden, options: &MongoSourceOptions) -> Result<Database, AdoptionError> {
    let own = match &options.server {
        lazaret_source_mongodb::Server::Uri(uri) => Some(uri),
        lazaret_source_mongodb::Server::Client(_) => None,
    };
    let uri = request.uri.as_ref().or(own).ok_or_else(|| AdoptionError::Invalid("no URI".to_owned()))?;
    let server = MongodbServer::new(uri, MONGODB_TIMEOUT).await;
    let server = server.map_err(|error| AdoptionError::Invalid(format!("invalid URI: {error}")))?;
    let named = server.client.default_database().map(|database| database.name().to_owned());
    let name = request.database.clone().or(named).or_else(|| options.database.clone());
    let name = name.ok_or_else(|| {
        AdoptionError::Invalid(
            "the database of FlowWarden's collections is not known: pass --database".to_owned(),
        )
    })?;
    Ok(server.client.database(&name))
}

async fn adopt(
    request: &FlowWarden,
    consumer: &ConsumerConfig,
    options: &MongoSourceOptions,
    database: &Database,
    stores: &Stores,
    progress: impl Fn(&Report) + Send + Sync + 'static,
) -> Result<Adopted, AdoptionError> {
    let stream = request.stream.clone().unwrap_or_else(|| consumer.name.clone());
    let queue = QueueName::of(&consumer.name, &consumer.name);
    let letters = match request.parts {
        Parts::Position => None,
        Parts::All | Parts::Letters => {
            let adoption = adoption(request, consumer, options, database, &stream)?.into_queue(queue.clone());
            Some(match request.dry_run {
                true => Letters::Preview(adoption.preview(&*stores.adoption).await?),
                false => {
                    Letters::Done(Box::new(adoption.on_progress(progress).run(&*stores.adoption).await?))
                }
            })
        }
    };
    let position = match request.parts {
        Parts::Letters => None,
        Parts::All | Parts::Position => {
            let how = TakeOverOptions { replace: request.replace_position, dry_run: request.dry_run };
            let checkpoints = database.collection(&request.checkpoints);
            let taken = adopt_position(options, stores.values.clone(), &checkpoints, &stream, how).await?;
            Some(taken.map_or(Position::Absent, Position::Found))
        }
    };
    Ok(Adopted { stream, queue, letters, position })
}

/// The adoption of the dead letters, as the consumer keeps its own.
fn adoption(
    request: &FlowWarden,
    consumer: &ConsumerConfig,
    options: &MongoSourceOptions,
    database: &Database,
    stream: &str,
) -> Result<Adoption, AdoptionError> {
    let mut adoption = Adoption::of(options, database, stream)
        .from_collection(&request.dead_letters)
        .with_sequencing(sequencing(consumer))
        .with_redaction(consumer.redact.stored_texts());
    if let Some(letters) = &consumer.dead_letter {
        adoption = adoption.with_limits(letters.limits).with_ttl(letters.ttl);
        if let Some(owner) = &letters.owner {
            adoption = adoption.with_owner(owner.as_str());
        }
        if !letters.include_payload {
            adoption = adoption.without_payloads();
        }
        if !letters.include_backtrace {
            adoption = adoption.without_backtraces();
        }
    }
    if let Some(collection) = &request.collection {
        let watched = options.database.as_deref().unwrap_or_else(|| database.name());
        adoption = adoption.watching(watched, collection);
    } else if options.collection.is_none() {
        let why = "the consumer watches several collections, and FlowWarden does not record the one of an event: pass \
                   --collection with the one that its stream watches";
        return Err(AdoptionError::Invalid(why.to_owned()));
    }
    if request.separate_sequences {
        adoption = adoption.in_separate_sequences();
    }
    Ok(request.statuses.iter().fold(adoption, |adoption, status| adoption.with_status(status)))
}
