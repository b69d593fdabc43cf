//! Builds the source for MongoDB change streams, and opens the store in MongoDB.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_config::{Consumer as ConsumerConfig, MongodbSource as From, StoreLocation};
use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;
use lazaret_source_mongodb::{
    LeaseOptions, MongoSource, MongoSourceOptions, MongoStatus, Server as SourceServer, StoreCollections,
    StreamState,
};
use lazaret_store_mongodb::{DEFAULT_DATABASE, Layout, MongoStore, MongoStoreOptions, StoreUri};
use lazaret_telemetry::ChangeStreamStats;
use mongodb::Client;
use mongodb::options::{ClientOptions, ConnectionString, HostInfo};
use serde_json::Value as Json;

use super::consumer::Shared;
use super::mongodb_errors::{Explained, check_store_uri, explain};
use crate::error::Error;

/// How long to wait for a server, unless the URI sets `serverSelectionTimeoutMS`.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long opening the store may take in all.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time between attempts of a standby instance to get the lease.
const MAX_STANDBY: Duration = Duration::from_secs(5);

/// A server, with the addresses to name in messages: they contain no credentials.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) addresses: String,
    /// The size of its pool, if the URI states one.
    connections: Option<u32>,
    /// The collection of the letters, if the URI is that of a store and names one.
    collection: Option<String>,
    /// The layout of the letters, if the URI is that of a store and names one.
    layout: Option<Layout>,
}

impl Server {
    /// Creates a client, which connects when it is used. An error of the driver does not contain credentials.
    pub(crate) async fn new(uri: &str, timeout: Duration) -> Result<Self, mongodb::error::Error> {
        let mut options = ClientOptions::parse(uri).await?;
        options.app_name.get_or_insert_with(|| "lazaret".to_owned());
        options.server_selection_timeout.get_or_insert(timeout);
        let addresses: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let (addresses, connections) = (addresses.join(", "), options.max_pool_size);
        Ok(Self {
            client: Client::with_options(options)?,
            addresses,
            connections,
            collection: None,
            layout: None,
        })
    }

    /// Creates a client for a store. Its URI may name the collection and the layout of the letters; it was [checked](check_store_uri).
    pub(crate) async fn of_store(uri: &str, timeout: Duration) -> Result<Self, mongodb::error::Error> {
        let StoreUri { driver, collection, layout } = StoreUri::parse(uri);
        let layout = layout.and_then(|name| name.parse().ok());
        Ok(Self { collection, layout, ..Self::new(&driver, timeout).await? })
    }

    /// The database of the store: that of the URI, or the default one.
    pub(crate) fn store_database(&self) -> String {
        let named = self.client.default_database();
        named.map_or_else(|| DEFAULT_DATABASE.to_owned(), |database| database.name().to_owned())
    }

    /// The options of the store.
    pub(crate) fn store_options(&self) -> MongoStoreOptions {
        let default = MongoStoreOptions::default();
        let connections = self.connections.map_or(default.connections, |size| size as usize);
        let collection = self.collection.clone().unwrap_or_else(|| default.collection.clone());
        let layout = self.layout.unwrap_or(default.layout);
        MongoStoreOptions { connections, collection, layout, ..default }
    }
}

/// Opens the store, with a bounded wait.
pub(super) async fn store(uri: &str) -> Result<MongoStore, Error> {
    if let Err(why) = check_store_uri(uri) {
        return Err(Error::OpenStore {
            store: "mongodb".to_owned(),
            why,
            advice: "correct the URI in `store`",
        });
    }
    let wrong_uri = |error: mongodb::error::Error| {
        let Explained { why, advice } = explain(&error);
        Error::OpenStore { store: "mongodb".to_owned(), why, advice }
    };
    let server = Server::of_store(uri, SERVER_TIMEOUT).await.map_err(wrong_uri)?;
    let store = format!("mongodb at {}", server.addresses);
    let database = server.store_database();
    let opened = MongoStore::with_client(&server.client, &database, server.store_options());
    match tokio::time::timeout(OPEN_TIMEOUT, opened).await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(error)) => {
            let Explained { why, advice } = explain_store(&error);
            Err(Error::OpenStore { store, why, advice })
        }
        Err(_) => {
            let why = format!("no answer within {OPEN_TIMEOUT:?}");
            Err(Error::OpenStore { store, why, advice: "check the server and the network" })
        }
    }
}

/// Explains why a store cannot be opened: in the words of the driver, or of the store, which refuses what it finds.
pub(crate) fn explain_store(error: &StoreError) -> Explained {
    let driver = std::error::Error::source(error).and_then(<dyn std::error::Error>::downcast_ref);
    driver.map_or_else(
        || Explained {
            why: error.context().to_owned(),
            advice: "correct the cause, or use another database in `store`",
        },
        explain,
    )
}

/// Opens the source. Its status is part of the consumer's, and its ages and restarts are metrics.
pub(super) fn open(
    config: &ConsumerConfig,
    from: &From,
    shared: &Shared,
) -> Result<MongoSource, SourceError> {
    let options = options(config, from, &shared.store)?;
    let instance = options.instance.clone();
    let source = MongoSource::open(options, shared.stores.values.clone())?;
    let status = source.status();
    shared.registry.source_notice(&config.name, {
        let status = status.clone();
        move || notice(&status.borrow().state, instance.as_deref())
    });
    shared.registry.source_readiness(&config.name, {
        let status = status.clone();
        move || is_ready(&status.borrow())
    });
    shared.telemetry.metrics.change_stream(&config.name, move || {
        // A source that was closed has no sender any more.
        let is_open = status.has_changed().is_ok();
        measured(&status.borrow(), is_open, Timestamp::now())
    });
    Ok(source)
}

/// Checks a pipeline without a server.
pub(crate) fn check_pipeline(pipeline: &[Json]) -> Result<(), String> {
    with_pipeline(pipeline)?.validate().map_err(|error| {
        let text = error.to_string();
        text.split_once("change stream x: ").map_or(text.clone(), |(_, why)| why.to_owned())
    })
}

/// Reviews a pipeline. Returns what is probably a mistake.
pub(crate) fn review_pipeline(pipeline: &[Json]) -> Option<String> {
    with_pipeline(pipeline).ok()?.warning()
}

fn with_pipeline(pipeline: &[Json]) -> Result<MongoSourceOptions, String> {
    let pipeline = MongoSourceOptions::stages(pipeline)?;
    Ok(MongoSourceOptions { pipeline, ..MongoSourceOptions::deployment("mongodb://localhost", "x") })
}

/// Returns the options of a source.
pub(crate) fn options(
    config: &ConsumerConfig,
    from: &From,
    store: &StoreLocation,
) -> Result<MongoSourceOptions, SourceError> {
    let options = MongoSourceOptions::from_config(&config.name, from)?;
    let instance = options.instance.clone().or_else(|| Some(host()));
    let store_uri = match store {
        StoreLocation::Mongodb(uri) => Some(uri.as_str()),
        _ => None,
    };
    let of_store = store_uri.map(store_collections);
    let store_collections = of_store.into_iter().chain(copies_collection(config, store_uri)).collect();
    Ok(MongoSourceOptions { lease: lease(config.advanced.lease), instance, store_collections, ..options })
}

/// The collection that gets copies of dead letters, if configured: a stream that reads it would copy its own failures without end.
fn copies_collection(config: &ConsumerConfig, store: Option<&str>) -> Option<StoreCollections> {
    let copies = config.dead_letter.as_ref()?.collection.as_ref()?;
    let uri = copies.uri.as_ref().map(lazaret_config::Secret::reveal).or(store)?;
    Some(StoreCollections { collection: copies.name.clone(), ..store_collections(uri) })
}

/// The collections of the store at this URI.
fn store_collections(uri: &str) -> StoreCollections {
    let StoreUri { driver, collection, .. } = StoreUri::parse(uri);
    let server = SourceServer::Uri(driver);
    StoreCollections {
        database: server.default_database().unwrap_or_else(|| DEFAULT_DATABASE.to_owned()),
        collection: collection.unwrap_or_else(|| MongoStoreOptions::default().collection),
        server,
    }
}

/// Checks without a server that a source does not watch a collection of the store. Servers with other addresses may be the same: that
/// is checked when the stream is opened.
pub(crate) fn check_watch(source: &str, database: &str, collection: &str, store: &str) -> Result<(), String> {
    let of_store = store_collections(store);
    let hosts = |uri: &str| ConnectionString::parse(uri).ok().map(|parsed| parsed.host_info);
    let is_same = match (hosts(source), hosts(&StoreUri::parse(store).driver)) {
        (Some(HostInfo::HostIdentifiers(source)), Some(HostInfo::HostIdentifiers(store))) => {
            source.iter().any(|host| store.contains(host))
        }
        (Some(HostInfo::DnsRecord(source)), Some(HostInfo::DnsRecord(store))) => source == store,
        _ => false,
    };
    match is_same && of_store.contains(database, collection) {
        true => Err(format!(
            "{database}.{collection} belongs to the store of Lazaret: each letter would be an event of the stream"
        )),
        false => Ok(()),
    }
}

/// The lease of the stream, from the lease of the consumer's letters. Two thirds of it are for renewals: with 20 s, longer than the election of a
/// primary.
fn lease(ttl: Duration) -> LeaseOptions {
    let part = |of: u32| (ttl / of).max(Duration::from_millis(1));
    LeaseOptions { ttl, renew: part(6), margin: part(6), standby: part(6).min(MAX_STANDBY) }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns whether the server has answered: the stream was open once, or another instance reads it.
fn is_ready(status: &MongoStatus) -> bool {
    status.opened_at.is_some() || matches!(status.state, StreamState::Standby { leader: Some(_), .. })
}

/// Says why a stream reads nothing; `None` while it reads.
fn notice(state: &StreamState, own: Option<&str>) -> Option<String> {
    match state {
        StreamState::Starting => Some("connecting: the change stream is not open yet".to_owned()),
        StreamState::Standby { leader: Some(leader), until } => {
            // The part behind the slash is random.
            let leader = leader.rsplit_once('/').map_or(leader.as_str(), |(instance, _)| instance);
            Some(match until.filter(|_| own == Some(leader)) {
                // A process that was killed cannot give its lease back.
                Some(until) => format!(
                    "standing by: the instance {leader}, maybe an earlier process of this one, holds the lease of the change stream \
                     until {until:.0}"
                ),
                None => format!("standing by: the instance {leader} reads the change stream"),
            })
        }
        StreamState::Standby { leader: None, .. } => {
            Some("standing by: this instance does not hold the lease of the change stream".to_owned())
        }
        StreamState::Restarting { attempt, error, .. } => {
            Some(format!("the change stream is opened again, attempt {attempt}: {error}"))
        }
        StreamState::Invalidated => {
            Some("the change stream was invalidated; the changes before that are being settled".to_owned())
        }
        _ => None,
    }
}

/// The measurements of a stream. Only one that this instance reads has ages.
fn measured(status: &MongoStatus, is_open: bool, now: Timestamp) -> ChangeStreamStats {
    let restarts = status.restarts;
    if !is_open || matches!(status.state, StreamState::Standby { .. } | StreamState::Closed) {
        return ChangeStreamStats { restarts, ..ChangeStreamStats::default() };
    }
    // Entries between the last change and the position are of other collections, or filtered.
    let reached = status.last_event_at.max(status.token_at);
    let newest = status.oplog.map(|oplog| oplog.newest);
    let lag = reached.zip(newest).map(|(reached, newest)| newest.duration_since(reached));
    ChangeStreamStats {
        // An oplog that was read before the last change is not ahead of it.
        oplog_lag: lag.map(|lag| Duration::try_from(lag).unwrap_or_default()),
        token_age: status.token_age(now),
        restarts,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, Source, check};
    use lazaret_core::Operation;
    use lazaret_source_mongodb::{
        BeforeChange, CheckpointOptions, ErrorClass, FullDocument, OnHistoryLost, OnInvalidate, OplogWindow,
        RestartPolicy, Start,
    };
    use serde_json::json;

    use super::*;

    fn built(keys: &str) -> MongoSourceOptions {
        let text = format!(
            "consumers:\n  shop:\n    handler: {{ command: {{ program: [x] }} }}\n    source:\n      mongodb: {{ uri: 'mongodb://h', {keys} }}\n"
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let Source::Mongodb(from) = &config.consumers[0].source else { panic!() };
        options(&config.consumers[0], from, &config.store).unwrap()
    }

    #[test]
    fn the_defaults_of_the_file_are_valid_options() {
        let options = built("database: shop, collection: orders");
        assert!(options.validate().is_ok());
        assert_eq!(
            (options.stream.as_str(), options.database.as_deref(), options.collection.as_deref()),
            ("shop", Some("shop"), Some("orders"))
        );
        assert_eq!((options.start, options.on_history_lost), (Start::Resume, OnHistoryLost::Fail));
        assert_eq!(options.checkpoint, CheckpointOptions::default());
        assert_eq!(options.restart, RestartPolicy::default());
        assert_eq!((options.full_document, options.lease.ttl.as_secs()), (FullDocument::UpdateLookup, 30));
        assert!(options.lease.standby <= MAX_STANDBY && options.instance.is_some());
    }

    #[test]
    fn every_key_of_the_file_reaches_the_source() {
        let options = built(
            "full-document: required, full-document-before-change: required, operation-types: [insert, drop-database], \
             start: oplog-start, on-history-lost: from-now, on-invalidate: start-after, deployment: all-instances, \
             instance: a, checkpoint: { every: 7, interval: 0, idle-heartbeat: 0 }, \
             restart: { max-attempts: 5, initial-delay: 2s, multiplier: 3, max-delay: 3m }, \
             pipeline: [{ $match: { 'fullDocument.customer': { $oid: 6afb78b2adbe48634cc20623 } } }]",
        );
        assert!(options.validate().is_ok());
        assert_eq!((options.database.clone(), options.collection.clone()), (None, None));
        assert_eq!(options.full_document_before_change, BeforeChange::Required);
        assert_eq!(options.operations, [Operation::Insert, Operation::DropDatabase]);
        assert_eq!((options.start, options.on_history_lost), (Start::OplogStart, OnHistoryLost::FromNow));
        assert_eq!((options.on_invalidate, options.checkpoint.every), (OnInvalidate::StartAfter, 7));
        assert_eq!(options.checkpoint.idle_heartbeat, Duration::ZERO);
        assert!(options.checkpoint.interval > Duration::from_secs(86_400), "by the number of events only");
        assert_eq!(options.checkpoint_name(), "shop@a");
        let seconds: Vec<_> =
            (1..=6).map(|attempt| options.restart.delay(attempt).map(|delay| delay.as_secs())).collect();
        assert_eq!(seconds, [Some(2), Some(6), Some(18), Some(54), Some(162), None]);
        let found =
            options.pipeline[0].get_document("$match").unwrap().get_object_id("fullDocument.customer");
        assert!(found.is_ok(), "extended JSON: {:?}", options.pipeline);
    }

    #[test]
    fn the_shortest_lease_of_a_file_is_a_valid_lease() {
        let options =
            MongoSourceOptions { lease: lease(Duration::from_millis(100)), ..built("database: shop") };
        assert!(options.validate().is_ok());
    }

    #[test]
    fn the_lease_that_a_check_accepts_outlives_an_election() {
        let LeaseOptions { ttl, renew, margin, .. } = lease(Duration::from_secs(20));
        // It was last renewed just before.
        assert!(ttl - renew - margin > Duration::from_secs(12));
    }

    #[test]
    fn a_pipeline_is_checked_without_a_server() {
        assert_eq!(check_pipeline(&[json!({ "$match": { "a": 1 } })]), Ok(()));
        let why = check_pipeline(&[json!({ "$match": {} }), json!({ "$unset": "_id" })]).unwrap_err();
        assert!(why.starts_with("stage 2 of the pipeline (`$unset`) removes"), "{why}");
        let why = check_pipeline(&[json!("x")]).unwrap_err();
        assert_eq!(why, "stage 1 of the pipeline is not an object");
    }

    #[test]
    fn a_filter_that_hides_invalidations_is_a_warning() {
        let filter = json!({ "$match": { "fullDocument.status": "paid" } });
        assert_eq!(review_pipeline(&[filter.clone(), json!({ "$unset": "operationType" })]), None);
        let why = review_pipeline(&[json!({ "$unset": "operationType" }), filter]).unwrap();
        assert!(why.starts_with("stage 2 of the pipeline (`$match`) drops `invalidate`"), "{why}");
    }

    #[test]
    fn the_collections_of_the_store_are_known_to_the_source() {
        let own = store_collections("mongodb://h/shop?replicaSet=rs0&collection=dead");
        assert!(own.contains("shop", "dead") && own.contains("shop", "dead_values"));
        let default = store_collections("mongodb://h");
        let letters = MongoStoreOptions::default().collection;
        assert!(default.contains(DEFAULT_DATABASE, &letters) && !default.contains("shop", &letters));
        let checked = check(
            "lazaret.yaml",
            b"store: 'mongodb://h/shop'\nconsumers: { a: { handler: { command: { program: [x] } }, source: { mongodb: { uri: 'mongodb://h' } } } }",
            &NoEnv,
        );
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let Source::Mongodb(from) = &config.consumers[0].source else { panic!() };
        let options = options(&config.consumers[0], from, &config.store).unwrap();
        assert!(
            options.store_collections.len() == 1 && options.store_collections[0].contains("shop", &letters)
        );
    }

    #[test]
    fn the_collection_of_copies_is_left_out_of_a_stream() {
        let checked = check(
            "lazaret.yaml",
            b"consumers: { a: { handler: { command: { program: [x] } }, source: { mongodb: { uri: 'mongodb://h' } }, \
              dead-letter: { collection: failed, collection-uri: 'mongodb://h/copies' } } }",
            &NoEnv,
        );
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let Source::Mongodb(from) = &config.consumers[0].source else { panic!() };
        let options = options(&config.consumers[0], from, &config.store).unwrap();
        assert!(matches!(&*options.store_collections, [only] if only.contains("copies", "failed")));
    }

    #[test]
    fn a_watch_of_the_store_is_refused_where_the_addresses_tell() {
        let store = "mongodb://a:1,b:2/shop?collection=dead";
        let watch = |uri: &str, collection: &str| check_watch(uri, "shop", collection, store);
        assert!(watch("mongodb://b:2", "dead_values").unwrap_err().contains("belongs to the store"));
        assert_eq!(watch("mongodb://b:2", "orders"), Ok(()));
        assert_eq!(watch("mongodb://c:3", "dead"), Ok(()), "another server, as far as the addresses tell");
    }

    #[test]
    fn a_stream_that_reads_has_no_notice() {
        let notice = |state: &StreamState| notice(state, Some("host-1"));
        assert_eq!(notice(&StreamState::Reading), None);
        assert!(notice(&StreamState::Starting).unwrap().starts_with("connecting"));
        let held_by = |owner: &str| {
            let (leader, until) = (Some(owner.to_owned()), Some(Timestamp::UNIX_EPOCH));
            notice(&StreamState::Standby { leader, until }).unwrap()
        };
        assert_eq!(held_by("host-7/0e6b"), "standing by: the instance host-7 reads the change stream");
        let own = held_by("host-1/0e6b");
        assert!(own.contains("the instance host-1, maybe an earlier process of this one"), "{own}");
        assert!(own.ends_with("until 1970-01-01T00:00:00Z"), "{own}");
        let restarting =
            StreamState::Restarting { attempt: 3, class: ErrorClass::Network, error: "no route".into() };
        assert!(notice(&restarting).unwrap().ends_with("attempt 3: no route"));
    }

    #[test]
    fn a_stream_is_ready_when_it_was_open_or_another_instance_reads_it() {
        let mut status = MongoStatus::default();
        assert!(!is_ready(&status), "the address may be wrong");
        status.state =
            StreamState::Restarting { attempt: 1, class: ErrorClass::Network, error: "no route".into() };
        assert!(!is_ready(&status));
        status.state = StreamState::Standby { leader: Some("host-7/0e6b".into()), until: None };
        assert!(is_ready(&status));
        status.state =
            StreamState::Restarting { attempt: 1, class: ErrorClass::Network, error: "cut".into() };
        status.opened_at = Some(Timestamp::UNIX_EPOCH);
        assert!(is_ready(&status), "it works on what it has read");
    }

    #[test]
    fn ages_are_those_of_a_stream_that_this_instance_reads() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut status = MongoStatus {
            state: StreamState::Reading,
            last_event_at: Some(at(50)),
            token_at: Some(at(100)),
            oplog: Some(OplogWindow { oldest: at(0), newest: at(130) }),
            restarts: 3,
            ..MongoStatus::default()
        };
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs());
        let now = measured(&status, true, at(160));
        assert_eq!((seconds(now.oplog_lag), seconds(now.token_age)), (Some(30), Some(60)));
        status.last_event_at = Some(at(140));
        let lag = measured(&status, true, at(160)).oplog_lag;
        assert_eq!(seconds(lag), Some(0), "the oplog was read before");
        let without_ages = ChangeStreamStats { restarts: 3, ..ChangeStreamStats::default() };
        assert_eq!(
            measured(&status, false, at(160)),
            without_ages,
            "restarts of a closed stream still count"
        );
        status.state = StreamState::Standby { leader: None, until: None };
        assert_eq!(measured(&status, true, at(160)), without_ages);
    }
}
