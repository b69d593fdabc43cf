//! Tests that every statement of the store goes by an index, and to the shards that it concerns.
//!
//! The statements are those that the driver sends while the store does all that it can do, so none is forgotten here. On any server, each is
//! compared with the declared indexes (`coverage`) and shard keys (`routing`). A real server also explains each one, beside thousands of
//! letters: it must not read a whole collection, sort, or look at many more entries than it returns.

mod calls;
mod coverage;
mod explained;
mod routing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;

use self::coverage::{Declared, uncovered};
use self::explained::{Judgement, judge};
use crate::indexes::{Index, Indexes, indexes};
use crate::search::{COUNTED, LOOKED_AT};
use crate::values::int;
use crate::{MongoStore, MongoStoreOptions};

/// Letters beside which a real server explains the statements.
const LETTERS: usize = 20_000;
/// Letters beside which the statements are recorded on a server that cannot explain them.
const FEW: usize = 300;

/// Statements that go by no index, and why they need none.
const SMALL: [(&str, &str, &str); 2] = [
    ("batches", "find {} {}", "the hand-offs under way"),
    (
        "sequences",
        "aggregate {queue:{$gte:_},open:_} {}",
        "counts: the server skips from one queue to the next",
    ),
];

/// The commands that the driver sent, while it was asked to note them.
#[derive(Clone, Default)]
struct Recorder {
    on: Arc<AtomicBool>,
    sent: Arc<Mutex<Vec<Document>>>,
}

impl Recorder {
    fn note(&self, event: CommandEvent) {
        let CommandEvent::Started(started) = event else { return };
        if self.on.load(Ordering::SeqCst) {
            self.sent.lock().unwrap().push(started.command);
        }
    }

    /// The commands that were noted since the last call.
    fn take(&self) -> Vec<Document> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

/// A part of a command that finds documents.
#[derive(Clone, Debug)]
struct Statement {
    name: &'static str,
    collection: String,
    filter: Document,
    sort: Document,
    skip: i64,
    /// The command with this statement alone, as a server explains it.
    explained: Document,
}

fn part(of: &Document, name: &str) -> Document {
    of.get_document(name).cloned().unwrap_or_default()
}

fn number(value: Option<&Bson>) -> i64 {
    match value {
        Some(Bson::Int32(number)) => (*number).into(),
        Some(Bson::Int64(number)) => *number,
        Some(Bson::Double(number)) => *number as i64,
        _ => 0,
    }
}

impl Statement {
    /// The statements of a command: none if it finds no documents.
    fn of(command: &Document) -> Vec<Self> {
        let Some((name, collection)) = command.iter().next() else { return Vec::new() };
        let Some(collection) = collection.as_str() else { return Vec::new() };
        let one = |name, filter, sort, skip, explained| Self {
            name,
            collection: collection.to_owned(),
            filter,
            sort,
            skip,
            explained,
        };
        let kept = |names: &[&str]| -> Document {
            let keep = |name: &&str| Some(((*name).to_owned(), command.get(*name)?.clone()));
            names.iter().filter_map(keep).collect()
        };
        let each = |list: &str| -> Vec<Document> {
            let list = command.get_array(list).cloned().unwrap_or_default();
            list.into_iter().filter_map(|one| one.as_document().cloned()).collect()
        };
        match name.as_str() {
            "find" => {
                let explained =
                    kept(&["find", "filter", "sort", "projection", "skip", "limit", "singleBatch"]);
                let (filter, sort) = (part(command, "filter"), part(command, "sort"));
                vec![one("find", filter, sort, number(command.get("skip")), explained)]
            }
            "aggregate" => {
                let stages = each("pipeline");
                let matched = stages.first().map(|stage| part(stage, "$match")).unwrap_or_default();
                let mut explained = kept(&["aggregate", "pipeline"]);
                explained.insert("cursor", doc! {});
                vec![one("aggregate", matched, Document::new(), 0, explained)]
            }
            "distinct" => {
                let explained = kept(&["distinct", "key", "query"]);
                vec![one("distinct", part(command, "query"), Document::new(), 0, explained)]
            }
            "update" => {
                let of = |update: Document| {
                    let explained = doc! { "update": collection, "updates": [update.clone()] };
                    one("update", part(&update, "q"), Document::new(), 0, explained)
                };
                each("updates").into_iter().map(of).collect()
            }
            "delete" => {
                let of = |delete: Document| {
                    let explained = doc! { "delete": collection, "deletes": [delete.clone()] };
                    one("delete", part(&delete, "q"), Document::new(), 0, explained)
                };
                each("deletes").into_iter().map(of).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of letters that it may read without returning them. A search or a count whose condition is not decided by an index
    /// reads a bounded part of one (I7).
    fn bound(&self) -> i64 {
        let number = part(&self.filter, "lazaret.number");
        let is_part = ["$gte", "$lt"].iter().all(|end| number.contains_key(end));
        match (short(&self.collection), self.name) {
            ("letters", "find") if is_part && self.filter.contains_key("$and") => int(LOOKED_AT),
            ("letters", "aggregate") if is_part && self.filter.contains_key("$and") => int(COUNTED),
            _ => 0,
        }
    }

    /// What it looks like, without its values.
    fn shape(&self) -> String {
        let sort: Vec<String> =
            self.sort.iter().map(|(field, order)| format!("{field}:{}", number(Some(order)))).collect();
        format!("{} {} {{{}}}", self.name, shape(&self.filter), sort.join(","))
    }
}

/// A filter without its values.
fn shape(filter: &Document) -> String {
    let value = |value: &Bson| match value {
        Bson::Document(inner) => shape(inner),
        Bson::Array(list) => {
            let mut inner: Vec<String> = list.iter().filter_map(Bson::as_document).map(shape).collect();
            inner.sort();
            inner.dedup();
            format!("[{}]", inner.join(","))
        }
        Bson::Null => "null".to_owned(),
        _ => "_".to_owned(),
    };
    let fields: Vec<String> = filter.iter().map(|(name, of)| format!("{name}:{}", value(of))).collect();
    format!("{{{}}}", fields.join(","))
}

/// A store whose statements are recorded, in a database of its own.
struct Recorded {
    store: MongoStore,
    client: Client,
    database: String,
    recorder: Recorder,
    is_real: bool,
}

impl Recorded {
    /// Opens a store. Without a server the test prints that it did not run, and fails when `CI=true`.
    async fn open() -> Option<Self> {
        let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
            println!(
                "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        let is_real = std::env::var("LAZARET_TEST_MONGODB_KIND").map_or(true, |kind| kind != "wire-server");
        Some(Self::at(uri, is_real).await)
    }

    /// Opens a store on this server.
    async fn at(uri: String, is_real: bool) -> Self {
        let recorder = Recorder::default();
        let mut options = ClientOptions::parse(uri).await.unwrap();
        let notes = recorder.clone();
        options.command_event_handler = Some(EventHandler::callback(move |event| notes.note(event)));
        let client = Client::with_options(options).unwrap();
        let database = format!("lzs_statements_{}", uuid::Uuid::new_v4().simple());
        let store = MongoStore::with_client(&client, &database, MongoStoreOptions::default()).await.unwrap();
        Self { store, client, database, recorder, is_real }
    }

    /// One statement of each shape that the store has sent, by collection and shape.
    fn statements(&self) -> BTreeMap<(String, String), Statement> {
        let sent = self.recorder.sent.lock().unwrap();
        let mut statements = BTreeMap::new();
        for statement in sent.iter().flat_map(Statement::of) {
            let collection = short(&statement.collection).to_owned();
            statements.entry((collection, statement.shape())).or_insert(statement);
        }
        statements
    }

    /// Asks a server how it carries out a statement.
    async fn explain(&self, statement: &Statement) -> Judgement {
        let explain = doc! { "explain": statement.explained.clone(), "verbosity": "executionStats" };
        let explained = self.client.database(&self.database).run_command(explain).await.unwrap();
        judge(&explained, statement.skip, statement.bound())
    }
}

/// The name of a collection without the part that all have.
fn short(collection: &str) -> &str {
    let name = collection.strip_prefix(crate::DEFAULT_COLLECTION).unwrap_or(collection);
    name.strip_prefix('_').unwrap_or("letters")
}

/// Why a statement needs no index.
fn needs_none(collection: &str, shape: &str) -> bool {
    SMALL.iter().any(|(of, small, _)| *of == collection && *small == shape)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_statement_goes_by_an_index() {
    let Some(recorded) = Recorded::open().await else { return };
    let letters = if recorded.is_real { LETTERS } else { FEW };
    Box::pin(calls::fill(&recorded.store, letters)).await;
    recorded.recorder.on.store(true, Ordering::SeqCst);
    Box::pin(calls::make(&recorded.store)).await;
    recorded.recorder.on.store(false, Ordering::SeqCst);
    let statements = recorded.statements();
    assert!(statements.len() > 60, "{} statements were recorded", statements.len());
    let all = indexes(recorded.store.db(), recorded.store.layout());
    let mut wrong = Vec::new();
    for ((collection, shape), statement) in &statements {
        let of = all.iter().find(|indexes| indexes.of.name() == statement.collection);
        let declared: Vec<Declared<'_>> = of.map_or_else(Vec::new, |Indexes { wanted, .. }| {
            wanted.iter().map(|Index { keys, only, .. }| Declared { keys, only: only.as_ref() }).collect()
        });
        if let Some(why) = uncovered(&statement.filter, &statement.sort, &declared)
            && !needs_none(collection, shape)
        {
            wrong.push(format!("{collection}: {shape}: {why}"));
        }
        if recorded.is_real {
            let Judgement { faults, numbers } = recorded.explain(statement).await;
            println!("{collection}: {shape}: {numbers}");
            if !faults.is_empty() && !needs_none(collection, shape) {
                wrong.push(format!("{collection}: {shape}: {}: {numbers}", faults.join(", ")));
            }
        }
    }
    if !recorded.is_real {
        println!(
            "not run: explaining statements; the wire server cannot do it, set LAZARET_TEST_MONGODB to a replica set"
        );
    }
    recorded.client.database(&recorded.database).drop().await.unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), statements.len(), wrong.join("\n"));
}

#[test]
fn a_statement_is_known_by_its_shape() {
    let find = doc! {
        "find": "lazaret_letters_sequences", "filter": { "queue": "a/b", "freeAt": { "$lte": 5_i64 } }, "sort": { "freeAt": 1 },
        "limit": 7, "lsid": {},
    };
    let [statement] = &Statement::of(&find)[..] else { panic!("it is one statement") };
    assert_eq!(statement.shape(), "find {queue:_,freeAt:{$lte:_}} {freeAt:1}");
    assert_eq!(short(&statement.collection), "sequences");
    assert!(!statement.explained.contains_key("lsid") && statement.explained.contains_key("limit"));
    let update =
        doc! { "update": "lazaret_letters", "updates": [{ "q": { "_id": 1 } }, { "q": { "_id": 2 } }] };
    let shapes: Vec<String> = Statement::of(&update).iter().map(Statement::shape).collect();
    assert_eq!(shapes, ["update {_id:_} {}", "update {_id:_} {}"]);
    assert!(Statement::of(&doc! { "insert": "lazaret_letters" }).is_empty());
}
