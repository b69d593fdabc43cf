//! The cost of a change event when nothing fails: the engine on the source, against a bare loop around the driver.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use futures_util::StreamExt;
use lazaret_core::handler::Payload;
use lazaret_engine::{Consumer, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{MongoSource, MongoSourceOptions, Start};
use mongodb::Collection;
use mongodb::options::ChangeStreamOptions;
use tokio_util::sync::CancellationToken;

use super::BENCH;
use super::server::Server;
use crate::Scale;
use crate::core::{options, rate};
use crate::table::{Bar, Compared, Row, spread};

const EVENTS: usize = 20_000;
/// The bytes of each document beside its id and key.
const PAYLOAD: usize = 1024;
/// The documents per insert.
const BATCH: usize = 500;
/// The events that the server sends in one answer, over a megabyte.
const SERVER_BATCH: u32 = 1000;
/// Many short rounds, so that other load on the machine affects both alike.
const ROUNDS: usize = 15;
/// The poll interval for the start and end of a run.
const LOOK: Duration = Duration::from_millis(1);
/// The timeout of a run.
const TOO_LONG: Duration = Duration::from_secs(300);

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let stream = Stream::fill(server, scale.count(EVENTS)).await;
    // Warm-up.
    bare(&stream, Some(SERVER_BATCH)).await;
    let batches = "events/1 KiB, sent in batches of 1,000, beside a bare loop of the driver";
    // Without a size of its batches, the wire server sends all events at once. A server sends up to 16 MiB, and makes the next batch while the
    // time runs.
    let at_once = match server.is_wire_server {
        true => "events/the same, all sent before the time begins: the work of the client alone",
        false => "events/the same, in batches as large as the server sends them",
    };
    vec![
        compare(server, &stream, Some(SERVER_BATCH), batches).await.with_bar(Bar::RatioAtLeast(0.85)),
        compare(server, &stream, None, at_once).await,
    ]
}

/// Compares the source with the loop.
async fn compare(server: &Server, stream: &Stream, batch: Option<u32>, name: &str) -> Row {
    let (mut loops, mut engine) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        loops.push(rate(stream.events, bare(stream, batch).await));
        engine.push(rate(stream.events, engine_run(server, stream, batch).await));
    }
    let note = format!("{ROUNDS} rounds; the ratios lie between {}", spread(&engine, &loops));
    Row::compared(BENCH, name, "events/s", &Compared::new(&engine, &loops)).with_note(note)
}

/// A collection whose inserts are read in every round.
struct Stream {
    collection: Collection<Document>,
    /// The cluster time of the first insert.
    start: bson::Timestamp,
    events: usize,
}

impl Stream {
    async fn fill(server: &Server, events: usize) -> Self {
        let collection = server.collection();
        let mut changes = collection.watch().await.expect("the server has change streams");
        let payload = Binary { subtype: BinarySubtype::Generic, bytes: vec![b'x'; PAYLOAD] };
        let documents: Vec<Document> = (0..events)
            .map(|number| doc! { "_id": number as i64, "key": number as i64 % 1000, "payload": &payload })
            .collect();
        for batch in documents.chunks(BATCH) {
            collection.insert_many(batch).await.expect("the server takes documents");
        }
        let first = changes.next().await.expect("the stream goes on").expect("the stream has no error");
        let start = first.cluster_time.expect("every event has a cluster time");
        Self { collection, start, events }
    }
}

/// Reads all events with the driver, and keeps the resume token of each. Returns the time from the first event to the last.
async fn bare(stream: &Stream, batch: Option<u32>) -> Duration {
    let options =
        ChangeStreamOptions::builder().start_at_operation_time(stream.start).batch_size(batch).build();
    let watch = stream.collection.watch().with_options(options);
    let mut changes = watch.await.expect("the server has change streams");
    let mut started = None;
    for _ in 0..stream.events {
        let event = changes.next().await.expect("the stream goes on").expect("the stream has no error");
        started.get_or_insert_with(Instant::now);
        black_box((changes.resume_token(), event));
    }
    started.map_or(Duration::ZERO, |started| started.elapsed())
}

async fn no_op(Payload(payload): Payload) {
    black_box(payload);
}

/// Reads all events with the source and the engine. Returns the time from the first event to the last one settled.
async fn engine_run(server: &Server, stream: &Stream, batch: Option<u32>) -> Duration {
    let (database, name) = (server.database.name(), stream.collection.name());
    let source = MongoSourceOptions {
        start: Start::At(stream.start),
        batch_size: batch,
        ..MongoSourceOptions::collection(&server.uri, database, name)
    };
    let store = Arc::new(MemoryStore::default());
    let source = MongoSource::open(source, store.clone()).expect("the options of the benchmark are valid");
    let builder = Consumer::builder("bench").source(source).store(store).handler(no_op);
    let consumer = builder.options(options()).build().expect("the options of the benchmark are valid");
    let (handle, stop) = (consumer.handle(), CancellationToken::new());
    let run = tokio::spawn(consumer.run(stop.clone()));
    let until = async |holds: &dyn Fn(Stats) -> bool| {
        let started = Instant::now();
        while !holds(handle.stats()) {
            assert!(started.elapsed() < TOO_LONG, "the run hangs: {:?}", handle.stats());
            tokio::time::sleep(LOOK).await;
        }
    };
    until(&|stats| stats.read > 0).await;
    let started = Instant::now();
    until(&|stats| stats.handled >= stream.events as u64).await;
    let took = started.elapsed();
    stop.cancel();
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(stats.handled, stream.events as u64, "every event is handled once");
    took
}
