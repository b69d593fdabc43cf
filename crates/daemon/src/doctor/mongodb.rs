//! Checks a MongoDB server: for a source, that its change stream can be opened and resumed; for a store, that it can be written.
//!
//! A server may lack a command, or not permit it. Then a finding says what could not be checked.

use std::time::Duration;

use bson::{Bson, Document, doc};
use jiff::Timestamp;
use lazaret_config::{Consumer as ConsumerConfig, MongodbSource as From, StoreLocation};
use lazaret_core::store::Checkpoint;
use lazaret_source_mongodb::{
    ErrorClass, MongoSource, MongoSourceOptions, ProbeError, Probed, Server as SourceServer, describe, hello,
};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use mongodb::error::Error;

use super::finding::{Finding, PROBE_TIMEOUT};
use super::{mongodb_answers as answers, mongodb_sharding as sharding, store};
use crate::assemble::{
    ExplainedMongodb as Explained, MongodbServer as Server, explain_mongodb, explain_mongodb_store,
    mongodb_options,
};

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = PROBE_TIMEOUT.saturating_mul(3);

/// The answer of a server.
type Answer<T> = Result<T, String>;

/// Checks the server of a source, what it watches, and its oplog. Opens the change stream where the source would, and reads until the server
/// has sent an event or certified a position.
pub(super) async fn check_source(
    subject: &str,
    config: &ConsumerConfig,
    from: &From,
    at: &StoreLocation,
) -> Vec<Finding> {
    let (server, hello, clock) = match connect(Server::new(from.uri.reveal(), PROBE_TIMEOUT).await).await {
        Ok(connected) => connected,
        Err(Explained { why, advice }) => return vec![Finding::fail(subject, why, advice)],
    };
    let mut found = Vec::new();
    let checkpoint = match stored_position(config, from, at).await {
        Ok(checkpoint) => checkpoint,
        Err(why) => {
            let detail = format!("stored position not checked: {why}");
            found.push(Finding::warn(subject, detail, store::UNREADABLE));
            None
        }
    };
    let opened = open(&server, config, from, at, checkpoint.as_ref()).await;
    // A position that is lost, or an event that is too large, says nothing against the server.
    let is_served = match &opened {
        Ok(_) => true,
        Err(error) => answers::is_served(error.class),
    };
    found.push(answers::deployment(subject, &hello, is_served));
    found.push(answers::stream(subject, from, opened));
    if let Some(collection) = collection(&server, from).await {
        found.extend(answers::collection(subject, from, collection));
    }
    if is_served {
        let window = oplog_window(&server).await;
        found.push(answers::oplog(subject, window, from.checkpoint.idle_heartbeat));
    }
    found.extend(answers::clock(subject, clock));
    found
}

/// Checks the server of the store, and the rights of its user. Writes nothing.
pub(super) async fn check_store(uri: &str) -> Vec<Finding> {
    let subject = "store";
    let (server, hello, clock) = match connect(Server::of_store(uri, PROBE_TIMEOUT).await).await {
        Ok(connected) => connected,
        Err(Explained { why, advice }) => return vec![Finding::fail(subject, why, advice)],
    };
    let (database, options) = (server.store_database(), server.store_options());
    let collection = options.collection.clone();
    let checked = in_time(MongoStore::check(&server.client, &database, options.clone())).await;
    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let rights = command(&server, status).await;
    let mut found = vec![
        answers::store_deployment(&server.addresses, &database, &hello),
        answers::store_rights(&database, &collection, rights),
    ];
    if answers::is_router(&hello) {
        found.extend(sharding::judge(&cluster(&server, database, options).await));
    }
    match checked {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let Explained { why, advice } = explain_mongodb_store(&error);
            found.push(Finding::fail(subject, why, advice));
        }
        Err(late) => found.push(Finding::fail(subject, late, "check the server and the network")),
    }
    found.extend(answers::clock(subject, clock));
    found
}

/// Asks a cluster how it spreads the collections of a store.
async fn cluster(server: &Server, database: String, options: MongoStoreOptions) -> sharding::Cluster {
    let wanted = MongoStore::collections(&server.client, &database, options);
    let names: Vec<String> = wanted.iter().map(|of| format!("{database}.{}", of.name)).collect();
    let listed = doc! { "find": "collections", "filter": { "_id": { "$in": names } } };
    let listed = first_batch(server, "config", listed).await;
    let shards = first_batch(server, "config", doc! { "find": "shards" }).await.map(|shards| shards.len());
    let keys = listed.as_deref().unwrap_or_default();
    let is_sharded = |name: &str| sharding::listed_key(keys, &database, name).is_some();
    let (own, mut statistics) = (server.client.database(&database), Vec::new());
    for of in wanted.iter().filter(|of| of.shard_key.is_some() && is_sharded(&of.name)) {
        let asked = own.run_command(doc! { "collStats": &of.name }).into_future();
        let answered = in_time(asked).await.and_then(|answer| answer.map_err(|error| describe(&error)));
        statistics.push((of.name.clone(), answered));
    }
    sharding::Cluster { database, wanted, listed, shards, statistics }
}

/// The first documents that a command finds.
async fn first_batch(server: &Server, database: &str, command: Document) -> Answer<Vec<Document>> {
    let found = in_time(server.client.database(database).run_command(command).into_future()).await?;
    let found = found.map_err(|error| describe(&error))?;
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map(Vec::as_slice).unwrap_or_default();
    Ok(batch.iter().filter_map(Bson::as_document).cloned().collect())
}

/// Checks the server that the copies of dead letters go to, unless it is that of the store. Writes nothing.
pub(super) async fn check_copies(config: &ConsumerConfig) -> Option<Finding> {
    let collection = config.dead_letter.as_ref()?.collection.as_ref()?;
    let uri = collection.uri.as_ref()?.reveal();
    let subject = format!("{} dead letters", config.name);
    Some(match connect(Server::of_store(uri, PROBE_TIMEOUT).await).await {
        Ok((server, ..)) => {
            let place = format!("{}.{} at {}", server.store_database(), collection.name, server.addresses);
            Finding::ok(subject, format!("copies go to {place}"))
        }
        Err(Explained { why, advice }) => Finding::fail(subject, why, advice),
    })
}

/// A value of the store; `None` if it does not exist yet.
pub(super) async fn stored_value(uri: &str, (space, name): (&str, &str)) -> Answer<Option<Vec<u8>>> {
    let server = Server::of_store(uri, PROBE_TIMEOUT).await.map_err(|error| explain_mongodb(&error).why)?;
    let (database, options) = (server.store_database(), server.store_options());
    let value = MongoStore::stored_value(&server.client, &database, options, space, name);
    let found = in_time(value).await?.map_err(|error| explain_mongodb_store(&error).why)?;
    Ok(found.map(|value| value.to_vec()))
}

/// Connects, and reads the kind of the server and its clock.
async fn connect(server: Result<Server, Error>) -> Result<(Server, Document, answers::Clock), Explained> {
    let server = server.map_err(|error| explain_mongodb(&error))?;
    let asked = Timestamp::now();
    let hello = in_time(hello(&server.client)).await;
    let answered = Timestamp::now();
    let failed = |Explained { why, advice }| Explained {
        why: format!("no response from the server {}: {why}", server.addresses),
        advice,
    };
    match hello {
        Ok(Ok(hello)) => {
            let time = hello.get_datetime("localTime").ok();
            let server_time = time.and_then(|time| Timestamp::from_millisecond(time.timestamp_millis()).ok());
            Ok((server, hello, answers::Clock { asked, answered, server: server_time }))
        }
        Ok(Err(error)) => Err(failed(explain_mongodb(&error))),
        Err(why) => Err(failed(Explained { why, advice: "check the server and the network" })),
    }
}

async fn command(server: &Server, command: Document) -> Answer<Document> {
    let admin = server.client.database("admin");
    in_time(admin.run_command(command).into_future()).await?.map_err(|error| describe(&error))
}

/// The checkpoint of a source, if the store has one.
async fn stored_position(
    config: &ConsumerConfig,
    from: &From,
    at: &StoreLocation,
) -> Answer<Option<Checkpoint>> {
    // Options that are wrong are found when the stream is opened.
    let Ok(options) = mongodb_options(config, from, at) else { return Ok(None) };
    let name = options.checkpoint_name();
    let value = store::stored_value(at, (Checkpoint::SPACE, name.as_str())).await?;
    let checkpoint = value.map(|value| Checkpoint::from_value(&value, "checkpoint"));
    checkpoint.transpose().map_err(|error| error.to_string())
}

/// Opens the change stream as the source does, behind its checkpoint if it has one.
async fn open(
    server: &Server,
    config: &ConsumerConfig,
    from: &From,
    at: &StoreLocation,
    checkpoint: Option<&Checkpoint>,
) -> Result<Probed, ProbeError> {
    let options = mongodb_options(config, from, at)
        .map_err(|error| ProbeError::new(ErrorClass::InvalidPipeline, error.to_string()))?;
    let options = MongoSourceOptions { server: SourceServer::Client(server.client.clone()), ..options };
    let opened = in_time(MongoSource::probe(&options, checkpoint)).await;
    opened.unwrap_or_else(|late| Err(ProbeError::new(ErrorClass::Network, late)))
}

/// The description of the watched collection, `None` in it if there is no such collection; `None` without a collection to watch.
async fn collection(server: &Server, from: &From) -> Option<Answer<Option<Document>>> {
    let (database, name) = (from.database.as_ref()?, from.collection.as_ref()?);
    let database = server.client.database(database);
    let command = doc! { "listCollections": 1, "filter": { "name": name } };
    let listed = match in_time(database.run_command(command).into_future()).await {
        Ok(listed) => listed.map_err(|error| describe(&error)),
        Err(late) => Err(late),
    };
    Some(listed.map(|listed| {
        let batch = listed.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).ok()?;
        batch
            .iter()
            .filter_map(Bson::as_document)
            .find(|found| found.get_str("name").is_ok_and(|found| found == name))
            .cloned()
    }))
}

/// The times of the oldest and the newest entry of the oplog, in seconds.
async fn oplog_window(server: &Server) -> Answer<Option<(u32, u32)>> {
    let oplog = server.client.database("local").collection::<Document>("oplog.rs");
    let entry = async |direction: i32| {
        let found = oplog.find_one(doc! {}).sort(doc! { "$natural": direction }).into_future();
        let found = in_time(found).await?.map_err(|error| describe(&error))?;
        Ok::<_, String>(found.and_then(|entry| entry.get_timestamp("ts").ok()).map(|ts| ts.time))
    };
    Ok(entry(1).await?.zip(entry(-1).await?))
}

async fn in_time<T>(future: impl Future<Output = T>) -> Answer<T> {
    let late = |_| format!("no answer within {REQUEST_TIMEOUT:?}");
    tokio::time::timeout(REQUEST_TIMEOUT, future).await.map_err(late)
}
