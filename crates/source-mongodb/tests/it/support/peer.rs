//! A scripted MongoDB server: it speaks the wire protocol, and keeps a list of events with resume tokens, post-batch tokens and
//! faults, in the shapes that MongoDB 7 sends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::matching::passes;

const OP_REPLY: i32 = 1;
const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;
/// The wire version of MongoDB 6.0, the first one with images.
const WITH_IMAGES: i32 = 17;
/// How long a request waits for events.
const AWAIT: Duration = Duration::from_millis(10);
/// The cluster time of tick 0.
const EPOCH: u32 = 1_700_000_000;
/// The fields of the stage `$changeStream` that MongoDB 4.4 knows, but for internal ones. It refuses others, and the driver sends them to every
/// server.
const OF_STREAMS: [&str; 6] = [
    "allChangesForCluster",
    "fullDocument",
    "fullDocumentBeforeChange",
    "resumeAfter",
    "startAfter",
    "startAtOperationTime",
];

/// A fault of one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An error of the server: code, name, and whether it is labelled as resumable.
    Error(i32, &'static str, bool),
    /// The connection ends without an answer.
    Disconnect,
}

/// The state of the server.
#[derive(Default)]
struct State {
    address: String,
    /// The current tick of the cluster time.
    now: u32,
    /// Events before this tick are gone.
    oldest: u32,
    events: Vec<(u32, Document)>,
    /// The UUID of the collection, in hexadecimal digits, as the tokens of events name it. Without it they name none.
    collection: Option<&'static str>,
    /// The position of each cursor, and its stages; the index is the id minus one.
    cursors: Vec<(u32, Vec<Document>)>,
    aggregate_faults: VecDeque<Fault>,
    get_more_faults: VecDeque<Fault>,
    find_faults: VecDeque<Fault>,
    /// The options of every stream that was opened.
    opened: Vec<Document>,
    /// The database and the collection, or 1, of the stream that was opened last.
    target: Option<(String, Bson)>,
    /// The stages of the stream that was opened last, behind `$changeStream`.
    pipeline: Vec<Document>,
    wire_version: i32,
    /// `hello` is only known by its former name.
    without_hello: bool,
    without_post_batch_tokens: bool,
    without_operation_times: bool,
    oplog_is_empty: bool,
    /// The number of answers without events.
    empty_answers: u64,
}

/// A server that belongs to one test.
pub(crate) struct Peer {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
    uri: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The resume token of a tick.
pub(crate) fn token(tick: u32) -> String {
    format!("82{:08X}{:08X}2B0229296E04", EPOCH + tick, 1)
}

/// The resume token of an invalidation of a collection with this UUID.
pub(crate) fn invalidation_token(tick: u32, collection: &str) -> String {
    format!("82{:08X}{:08X}2B042C0100296F5A1004{collection}04", EPOCH + tick, 1)
}

/// The resume token of an event in a collection with this UUID.
pub(crate) fn event_token(tick: u32, collection: &str) -> String {
    format!("82{:08X}{:08X}2B042C0100296E5A1004{collection}04", EPOCH + tick, 1)
}

fn tick_of(token: &Document) -> u32 {
    let data = token.get_str("_data").unwrap();
    u32::from_str_radix(&data[2..10], 16).unwrap() - EPOCH
}

fn is_invalidation(event: &Document) -> bool {
    event.get_str("operationType").is_ok_and(|name| name == "invalidate")
}

/// The cluster time of a tick.
pub(crate) fn time(tick: u32) -> Timestamp {
    Timestamp { time: EPOCH + tick, increment: 1 }
}

impl Peer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let uri = format!("mongodb://{address}/?directConnection=true");
        let state = State { address, now: 1, oldest: 1, wire_version: 21, ..State::default() };
        let (state, changed) = (Arc::new(Mutex::new(state)), Arc::new(Notify::new()));
        let shared = (state.clone(), changed.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, shared.0.clone(), shared.1.clone()));
            }
        });
        Self { state, changed, task, uri }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Adds an event with these fields. Returns its tick.
    pub(crate) fn push(&self, fields: Document) -> u32 {
        let mut state = self.lock();
        state.now += 1;
        let tick = state.now;
        let data = match state.collection {
            Some(id) if is_invalidation(&fields) => invalidation_token(tick, id),
            Some(id) => event_token(tick, id),
            None => token(tick),
        };
        let mut event = doc! { "_id": { "_data": data }, "clusterTime": time(tick) };
        event.extend(fields);
        state.events.push((tick, event));
        drop(state);
        self.changed.notify_waiters();
        tick
    }

    pub(crate) fn insert(&self, id: i32) -> u32 {
        self.push(doc! {
            "operationType": "insert", "ns": { "db": "shop", "coll": "orders" },
            "documentKey": { "_id": id }, "fullDocument": { "_id": id, "number": i64::from(id) },
        })
    }

    pub(crate) fn invalidate(&self) -> u32 {
        self.push(doc! { "operationType": "drop", "ns": { "db": "shop", "coll": "orders" } });
        self.push(doc! { "operationType": "invalidate" })
    }

    /// Events are of a collection with this UUID from now on.
    pub(crate) fn create(&self, collection: &'static str) {
        self.lock().collection = Some(collection);
    }

    /// The server is restored from a state before all events, with a clock that is set back. The cursors stay, as those that the driver has
    /// resumed.
    pub(crate) fn set_back(&self) {
        let mut state = self.lock();
        (state.now, state.oldest) = (1, 1);
        state.events.clear();
    }

    /// The cluster time goes on by writes to other collections.
    pub(crate) fn advance(&self) -> u32 {
        let mut state = self.lock();
        state.now += 1;
        state.now
    }

    /// The oplog loses everything before now.
    pub(crate) fn truncate(&self) {
        let mut state = self.lock();
        let now = state.now;
        state.oldest = now;
    }

    pub(crate) fn fail_aggregate(&self, fault: Fault) {
        self.lock().aggregate_faults.push_back(fault);
    }

    pub(crate) fn fail_get_more(&self, fault: Fault) {
        self.lock().get_more_faults.push_back(fault);
    }

    /// Fails a look at the oplog.
    pub(crate) fn fail_find(&self, fault: Fault) {
        self.lock().find_faults.push_back(fault);
    }

    /// Returns whether all faults have struck.
    pub(crate) fn has_failed(&self) -> bool {
        let state = self.lock();
        state.get_more_faults.is_empty() && state.aggregate_faults.is_empty() && state.find_faults.is_empty()
    }

    pub(crate) async fn until_failed(&self) {
        while !self.has_failed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) fn without_post_batch_tokens(&self) {
        self.lock().without_post_batch_tokens = true;
    }

    /// The last operation is only found in the oplog.
    pub(crate) fn without_operation_times(&self) {
        self.lock().without_operation_times = true;
    }

    pub(crate) fn empty_oplog(&self) {
        self.lock().oplog_is_empty = true;
    }

    /// The options of the stream that was opened last.
    pub(crate) fn last_opened(&self) -> Document {
        self.lock().opened.last().cloned().unwrap()
    }

    /// The database and the collection, or 1, of the stream that was opened last.
    pub(crate) fn last_target(&self) -> (String, Bson) {
        self.lock().target.clone().unwrap()
    }

    /// The stages of the stream that was opened last, behind `$changeStream`.
    pub(crate) fn last_pipeline(&self) -> Vec<Document> {
        self.lock().pipeline.clone()
    }

    /// The server is of another version.
    pub(crate) fn set_wire_version(&self, version: i32) {
        self.lock().wire_version = version;
    }

    /// The server is MongoDB 4.4.0 or 4.4.1.
    pub(crate) fn without_hello(&self) {
        self.lock().without_hello = true;
    }

    pub(crate) fn openings(&self) -> usize {
        self.lock().opened.len()
    }

    /// Waits until the server has answered without events a few times.
    pub(crate) async fn until_idle(&self) {
        let before = self.lock().empty_answers;
        while self.lock().empty_answers < before + 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, changed: Arc<Notify>) {
    while let Ok((request, opcode, command)) = read_request(&mut stream).await {
        let name = command.keys().next().unwrap().clone();
        let Some(answer) = answer(&name, &command, &state, &changed).await else { return };
        if write_answer(&mut stream, request, opcode, &answer).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<(i32, i32, Document)> {
    let mut header = [0; 16];
    stream.read_exact(&mut header).await?;
    let number = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let (length, request, opcode) = (number(0), number(4), number(12));
    let mut body = vec![0; usize::try_from(length).unwrap() - 16];
    stream.read_exact(&mut body).await?;
    let document = match opcode {
        // Flags, then one section of kind 0.
        OP_MSG => &body[5..],
        // Flags, the name of the collection, and two numbers.
        OP_QUERY => {
            let end = body[4..].iter().position(|byte| *byte == 0).unwrap() + 4;
            &body[end + 9..]
        }
        other => panic!("unknown opcode {other}"),
    };
    Ok((request, opcode, bson::deserialize_from_slice(document).unwrap()))
}

async fn write_answer(
    stream: &mut TcpStream,
    request: i32,
    opcode: i32,
    answer: &Document,
) -> std::io::Result<()> {
    let document = bson::serialize_to_vec(answer).unwrap();
    let mut body = Vec::new();
    let opcode = match opcode {
        OP_QUERY => {
            // Flags, cursor, start, and the number of documents.
            body.extend(8_i32.to_le_bytes());
            body.extend(0_i64.to_le_bytes());
            body.extend(0_i32.to_le_bytes());
            body.extend(1_i32.to_le_bytes());
            OP_REPLY
        }
        _ => {
            body.extend([0; 5]);
            OP_MSG
        }
    };
    body.extend(document);
    let mut message = Vec::new();
    for number in [i32::try_from(body.len()).unwrap() + 16, 0, request, opcode] {
        message.extend(number.to_le_bytes());
    }
    message.extend(body);
    stream.write_all(&message).await
}

/// The answer to a command; `None` to disconnect.
async fn answer(name: &str, command: &Document, state: &Mutex<State>, changed: &Notify) -> Option<Document> {
    match name {
        "hello" if state.lock().unwrap().without_hello => Some(error(59, "CommandNotFound", false)),
        "hello" | "isMaster" | "ismaster" => Some(hello(&state.lock().unwrap())),
        "aggregate" => aggregate(command, &mut state.lock().unwrap()),
        "getMore" => get_more(command, state, changed).await,
        "find" if command.get_str("find").is_ok_and(|name| name != "oplog.rs") => {
            Some(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "config.version", "firstBatch": [] } })
        }
        "find" => oplog(command, &mut state.lock().unwrap()),
        _ => Some(doc! { "ok": 1 }),
    }
}

fn hello(state: &State) -> Document {
    let mut hello = doc! {
        "ok": 1, "helloOk": true, "ismaster": true, "isWritablePrimary": true, "setName": "scripted",
        "hosts": [&state.address], "me": &state.address, "maxBsonObjectSize": 16_777_216,
        "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "minWireVersion": 0, "maxWireVersion": state.wire_version,
        "logicalSessionTimeoutMinutes": 30,
        "localTime": bson::DateTime::from_millis(i64::from(EPOCH + state.now) * 1000),
    };
    if !state.without_operation_times {
        hello.insert("operationTime", time(state.now));
    }
    if state.without_hello {
        hello.remove("helloOk");
        hello.remove("isWritablePrimary");
    }
    hello
}

/// The oldest or the newest entry of the oplog.
fn oplog(command: &Document, state: &mut State) -> Option<Document> {
    if let Some(fault) = state.find_faults.pop_front() {
        return strike(fault);
    }
    let is_newest = command.get_document("sort").unwrap().get_i32("$natural").unwrap() == -1;
    let entry = doc! { "ts": time(if is_newest { state.now } else { state.oldest }) };
    let entries = if state.oplog_is_empty { vec![] } else { vec![entry] };
    Some(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "local.oplog.rs", "firstBatch": entries } })
}

fn error(code: i32, name: &str, resumable: bool) -> Document {
    let labels = if resumable { vec!["ResumableChangeStreamError"] } else { vec![] };
    doc! { "ok": 0, "code": code, "codeName": name, "errmsg": format!("scripted {name}"), "errorLabels": labels }
}

fn strike(fault: Fault) -> Option<Document> {
    match fault {
        Fault::Error(code, name, resumable) => Some(error(code, name, resumable)),
        Fault::Disconnect => None,
    }
}

fn aggregate(command: &Document, state: &mut State) -> Option<Document> {
    let pipeline = command.get_array("pipeline").unwrap();
    let options = pipeline[0].as_document().unwrap().get_document("$changeStream").unwrap().clone();
    if let Some(unknown) = options.keys().find(|field| !OF_STREAMS.contains(&field.as_str())) {
        let message = format!("BSON field '$changeStream.{unknown}' is an unknown field.");
        return Some(doc! { "ok": 0, "code": 40415, "codeName": "Location40415", "errmsg": message });
    }
    state.opened.push(options.clone());
    state.target = Some((command.get_str("$db").unwrap().to_owned(), command["aggregate"].clone()));
    state.pipeline = pipeline[1..].iter().map(|stage| stage.as_document().unwrap().clone()).collect();
    if state.wire_version < WITH_IMAGES
        && !matches!(options.get_str("fullDocument"), Err(_) | Ok("updateLookup"))
    {
        return Some(error(40575, "Location40575", false));
    }
    if let Some(fault) = state.aggregate_faults.pop_front() {
        return strike(fault);
    }
    let position = match (options.get_document("resumeAfter"), options.get_document("startAfter")) {
        (Ok(token), _) => {
            let tick = tick_of(token);
            let is_end = |(at, event): &(u32, Document)| *at == tick && is_invalidation(event);
            if state.events.iter().any(is_end) {
                return Some(error(260, "InvalidResumeToken", false));
            }
            tick
        }
        (_, Ok(token)) => tick_of(token),
        _ => match options.get("startAtOperationTime") {
            Some(Bson::Timestamp(at)) => at.time - EPOCH - u32::from(at.increment <= 1),
            _ => state.now,
        },
    };
    if position + 1 < state.oldest {
        return Some(error(286, "ChangeStreamHistoryLost", false));
    }
    let pipeline = state.pipeline.clone();
    state.cursors.push((position, pipeline));
    let id = i64::try_from(state.cursors.len()).unwrap();
    let mut cursor = doc! { "id": id, "ns": "shop.orders", "firstBatch": [] };
    if !state.without_post_batch_tokens {
        cursor.insert("postBatchResumeToken", doc! { "_data": certified(position, state) });
    }
    Some(doc! { "ok": 1, "cursor": cursor, "operationTime": time(state.now) })
}

/// The token of a position. At an invalidation it is that of the event, as long as nothing has happened since.
fn certified(position: u32, state: &State) -> String {
    let is_here = |(tick, event): &&(u32, Document)| *tick == position && is_invalidation(event);
    let data = |(_, event): &(u32, Document)| {
        event.get_document("_id").unwrap().get_str("_data").unwrap().to_owned()
    };
    state.events.iter().find(is_here).map_or_else(|| token(position), data)
}

async fn get_more(command: &Document, state: &Mutex<State>, changed: &Notify) -> Option<Document> {
    let id = command.get_i64("getMore").unwrap();
    let index = usize::try_from(id).unwrap() - 1;
    let arrived = changed.notified();
    let is_empty = {
        let state = state.lock().unwrap();
        state.get_more_faults.is_empty()
            && !state.events.iter().any(|(tick, _)| *tick > state.cursors[index].0)
    };
    if is_empty {
        let _ = tokio::time::timeout(AWAIT, arrived).await;
    }
    let mut state = state.lock().unwrap();
    if let Some(fault) = state.get_more_faults.pop_front() {
        return strike(fault);
    }
    let (position, pipeline) = state.cursors[index].clone();
    let mut batch: Vec<Document> = Vec::new();
    let mut end = None;
    for (tick, event) in state.events.iter().filter(|(tick, _)| *tick > position) {
        if passes(&pipeline, event) {
            batch.push(event.clone());
        }
        if is_invalidation(event) {
            end = Some(*tick);
            break;
        }
    }
    state.empty_answers += u64::from(batch.is_empty());
    // A position that was certified stays so.
    let reached = end.unwrap_or_else(|| state.now.max(position));
    state.cursors[index].0 = reached;
    let id = if end.is_some() { 0 } else { id };
    let mut cursor = doc! { "id": id, "ns": "shop.orders", "nextBatch": batch };
    if !state.without_post_batch_tokens {
        cursor.insert("postBatchResumeToken", doc! { "_data": certified(reached, &state) });
    }
    Some(doc! { "ok": 1, "cursor": cursor, "operationTime": time(state.now) })
}
