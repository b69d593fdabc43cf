//! Tests that every statement of the store goes by an index, and to the shards that it concerns.
//!
//! The statements are those that the driver sends while the store does all that it can do, so none is forgotten here. On any server, each is
//! compared with the declared indexes (`coverage`) and shard keys (`routing`). A real server also explains each one, beside thousands of
//! letters: it must not read a whole collection, sort, or look at many more entries than it returns.

mod calls;
mod coverage;
mod routing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bson::{Bson, Document, doc};
use lazaret_mongodb_testkit::Cluster;
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;

use self::coverage::{Declared, uncovered};
use self::routing::{Route, first_field, route, wrong_writes};
use crate::indexes::{Index, Indexes, indexes};
use crate::sharding::{ShardKey, shard_key};
use crate::{MongoStore, MongoStoreOptions};

/// Letters beside which a real server explains the statements.
const LETTERS: usize = 20_000;
/// Letters beside which the statements are recorded on a server that cannot explain them.
const FEW: usize = 300;
/// How many entries more than twice the returned ones a server may look at: it looks one further at the end of each range, and a `$in` has some.
const MORE: i64 = 30;

/// Statements that go by no index, and why they need none.
const SMALL: [(&str, &str, &str); 2] = [
    ("batches", "find {} {}", "the hand-offs under way"),
    ("plans", "find {pending:{$gt:_}} {servedAt:1,operation.id:1}", "the operations under way"),
];

/// What is read from all shards: the collection, the first field of the filter, and the purpose.
const ALL_SHARDS: [(&str, &str, &str); 9] = [
    ("letters", "lazaret.queue", "letters of a sequence, a state or a group; what expires; counts"),
    ("letters", "lazaret.sequence", "searches for a sequence"),
    ("letters", "lazaret.open", "all other searches"),
    ("sequences", "queue", "what is due, heads, what was opened, counts"),
    ("sequences", "row.lease.operation", "leases of an operation that is cancelled"),
    ("sequences", "unfinished", "what is left to do by processes that ended"),
    ("batches", "", "the hand-offs under way"),
    ("values", "expires", "expired values"),
    ("plan_items", "letter", "the operations that have a letter before them"),
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

    /// What is wrong with how a server carries out a statement, and the numbers.
    async fn explain(&self, statement: &Statement) -> (Vec<&'static str>, String) {
        let explain = doc! { "explain": statement.explained.clone(), "verbosity": "executionStats" };
        let explained = self.client.database(&self.database).run_command(explain).await.unwrap();
        // An aggregation states them for the cursor that it reads from.
        let cursor = explained.get_array("stages").ok().and_then(|stages| stages.first()?.as_document());
        let found = cursor.map_or_else(|| explained.clone(), |stage| part(stage, "$cursor"));
        let (plan, stats) = (part(&found, "queryPlanner"), part(&found, "executionStats"));
        let (mut stages, mut changed) = (Vec::new(), 0);
        walk(&part(&plan, "winningPlan"), &mut |stage| {
            stages.push(stage.get_str("stage").unwrap_or_default().to_owned());
        });
        walk(&part(&stats, "executionStages"), &mut |stage| {
            for name in ["nMatched", "nWouldModify", "nWouldDelete"] {
                changed = changed.max(number(stage.get(name)));
            }
        });
        let returned = number(stats.get("nReturned")).max(changed) + statement.skip;
        let (keys, docs) = (number(stats.get("totalKeysExamined")), number(stats.get("totalDocsExamined")));
        let numbers = format!(
            "{keys} keys and {docs} documents for {returned}, {} ms, {}",
            number(stats.get("executionTimeMillis")),
            stages.join(" < "),
        );
        let mut wrong = Vec::new();
        if stages.iter().any(|stage| stage == "COLLSCAN") {
            wrong.push("reads the whole collection");
        }
        if stages.iter().any(|stage| stage == "SORT") {
            wrong.push("sorts");
        }
        if keys.max(docs) > 2 * returned + MORE {
            wrong.push("looks at too much");
        }
        (wrong, numbers)
    }
}

/// All stages of a plan, the outer ones first.
fn walk(plan: &Document, visit: &mut impl FnMut(&Document)) {
    if plan.contains_key("stage") {
        visit(plan);
    }
    for (_, inner) in plan {
        match inner {
            Bson::Document(inner) => walk(inner, visit),
            Bson::Array(list) => {
                list.iter().filter_map(Bson::as_document).for_each(|inner| walk(inner, visit))
            }
            _ => {}
        }
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
            let (faults, numbers) = recorded.explain(statement).await;
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

impl Recorded {
    /// The shard key of the collection of a command; `None` if the collection stays on one shard.
    fn shard_key_of(&self, command: &Document) -> Option<ShardKey> {
        let name = command.iter().next()?.1.as_str()?;
        let db = self.store.db();
        shard_key(db, db.collections().into_iter().find(|of| of.name() == name)?)
    }

    /// What is wrong with the writes of these commands, and the collection and first field of each read from all shards.
    fn routes(&self, commands: &[Document]) -> (Vec<String>, BTreeSet<(String, String)>) {
        let (mut wrong, mut all_shards) = (Vec::new(), BTreeSet::new());
        for command in commands {
            let Some(key) = self.shard_key_of(command) else { continue };
            wrong.extend(wrong_writes(command, key.field));
            for Statement { name, collection, filter, .. } in Statement::of(command) {
                if !["update", "delete"].contains(&name) && route(&filter, key.field) == Route::All {
                    let first = first_field(&filter).unwrap_or_default();
                    all_shards.insert((short(&collection).to_owned(), first.to_owned()));
                }
            }
        }
        (wrong, all_shards)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_names_the_shard_key_and_reads_from_all_shards_are_known() {
    let Some(recorded) = Recorded::open().await else { return };
    recorded.recorder.on.store(true, Ordering::SeqCst);
    Box::pin(calls::fill(&recorded.store, FEW)).await;
    Box::pin(calls::make(&recorded.store)).await;
    recorded.recorder.on.store(false, Ordering::SeqCst);
    let (wrong, all_shards) = recorded.routes(&recorded.recorder.take());
    recorded.client.database(&recorded.database).drop().await.unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let known: BTreeSet<(String, String)> =
        ALL_SHARDS.iter().map(|(of, field, _)| ((*of).to_owned(), (*field).to_owned())).collect();
    let unknown: Vec<_> = all_shards.difference(&known).collect();
    assert!(unknown.is_empty(), "read from all shards: {unknown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consumer_does_goes_to_the_shards_of_its_letters_and_only_a_claim_asks_all() {
    let Some(recorded) = Recorded::open().await else { return };
    recorded.recorder.on.store(true, Ordering::SeqCst);
    let asked = |what: &str| {
        let commands = recorded.recorder.take();
        assert!(!commands.is_empty(), "{what}");
        let (wrong, all_shards) = recorded.routes(&commands);
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        all_shards
    };
    let nothing = BTreeSet::new;
    calls::hand_off_apart(&recorded.store).await;
    assert_eq!(asked("hand-off"), nothing());
    let claims = calls::claim(&recorded.store).await;
    let due = BTreeSet::from([("sequences".to_owned(), "queue".to_owned())]);
    assert_eq!(asked("claim"), due);
    calls::renew(&recorded.store, &claims).await;
    assert_eq!(asked("renewal"), nothing());
    calls::settle(&recorded.store, &claims).await;
    assert_eq!(asked("settlement"), nothing());
    calls::get(&recorded.store, &claims).await;
    assert_eq!(asked("get"), nothing());
    calls::note(&recorded.store).await;
    assert_eq!(asked("note"), nothing());
    recorded.client.database(&recorded.database).drop().await.unwrap();
}

impl Recorded {
    /// Spreads the collections of the store over the shards of a cluster.
    async fn shard(&self) {
        let admin = self.client.database("admin");
        admin.run_command(doc! { "enableSharding": &self.database }).await.unwrap();
        let db = self.store.db();
        for of in db.collections() {
            let Some(key) = shard_key(db, of) else { continue };
            let namespace = of.namespace().to_string();
            admin.run_command(doc! { "shardCollection": namespace, "key": key.document() }).await.unwrap();
        }
    }

    /// Asks a router to how many shards it sends a statement about the first of the values that it names.
    async fn shards_of(&self, statement: &Statement, key: &str) -> (usize, Document) {
        let explain = doc! { "explain": about_one(&statement.explained, key), "verbosity": "queryPlanner" };
        let explained = self.client.database(&self.database).run_command(explain).await.unwrap();
        let shards = match explained.get_document("shards") {
            // Of an aggregation.
            Ok(shards) => shards.len(),
            Err(_) => {
                let plan = part(&part(&explained, "queryPlanner"), "winningPlan");
                plan.get_array("shards").map_or(0, Vec::len)
            }
        };
        (shards, explained)
    }
}

/// A command in which the field has only the first of the values that it may have.
fn about_one(command: &Document, key: &str) -> Document {
    let narrow = |(name, value): (&String, &Bson)| {
        let first = match value {
            Bson::Document(of) if name == key => {
                of.get_array("$in").ok().and_then(|values| values.first()).cloned()
            }
            _ => None,
        };
        let value = match (first, value) {
            (Some(first), _) => first,
            (None, Bson::Document(inner)) => Bson::Document(about_one(inner, key)),
            (None, Bson::Array(list)) => {
                let inner =
                    |value: &Bson| value.as_document().map(|inner| Bson::Document(about_one(inner, key)));
                Bson::Array(list.iter().map(|value| inner(value).unwrap_or_else(|| value.clone())).collect())
            }
            (None, value) => value.clone(),
        };
        (name.clone(), value)
    };
    command.iter().map(narrow).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_sends_a_statement_about_one_key_to_one_shard() {
    let own;
    let uri = match std::env::var("LAZARET_TEST_MONGODB_SHARDED") {
        Ok(uri) => uri,
        Err(_) => {
            let Some(cluster) = Cluster::for_test("explaining statements on a cluster", 2).await else {
                return;
            };
            own = cluster;
            own.uri()
        }
    };
    let recorded = Recorded::at(uri, true).await;
    recorded.shard().await;
    Box::pin(calls::fill(&recorded.store, FEW)).await;
    recorded.recorder.on.store(true, Ordering::SeqCst);
    Box::pin(calls::make(&recorded.store)).await;
    recorded.recorder.on.store(false, Ordering::SeqCst);
    let (mut explained, mut wrong) = (0, Vec::new());
    for ((collection, shape), statement) in &recorded.statements() {
        let key = recorded.shard_key_of(&statement.explained);
        let Some(key) = key.filter(|key| route(&statement.filter, key.field) != Route::All) else { continue };
        let (shards, answer) = recorded.shards_of(statement, key.field).await;
        explained += 1;
        if shards != 1 {
            wrong.push(format!("{collection}: {shape}: {shards} shards: {answer}"));
        }
    }
    recorded.client.database(&recorded.database).drop().await.unwrap();
    assert!(explained > 12, "{explained} statements were explained");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_is_narrowed_to_one_value_of_its_key() {
    let find =
        doc! { "find": "letters", "filter": { "_id": { "$in": ["a", "b"] }, "open": true }, "limit": 7 };
    assert_eq!(
        about_one(&find, "_id"),
        doc! { "find": "letters", "filter": { "_id": "a", "open": true }, "limit": 7 }
    );
    let update = doc! { "updates": [{ "q": { "$and": [{ "plan": { "$in": [1] } }] }, "multi": true }] };
    let narrowed = doc! { "updates": [{ "q": { "$and": [{ "plan": 1 }] }, "multi": true }] };
    assert_eq!(about_one(&update, "plan"), narrowed);
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
