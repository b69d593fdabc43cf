//! To which shards of a cluster a router sends a statement: to those that have some values of the shard key, or to all.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use bson::{Bson, Document, doc};
use lazaret_mongodb_testkit::Cluster;

use super::{FEW, Recorded, Statement, calls, part, short};
use crate::sharding::{ShardKey, shard_key};

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

/// Where a statement goes, from what its filter says about the shard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    /// To the shard that has this value.
    One,
    /// To the shards that have these values.
    Some,
    All,
}

/// Where a statement with this filter goes.
fn route(filter: &Document, key: &str) -> Route {
    let of = |(name, condition): (&String, &Bson)| match (name.as_str(), condition) {
        ("$and", Bson::Array(parts)) => {
            let parts = parts.iter().filter_map(Bson::as_document);
            parts.map(|part| route(part, key)).min().unwrap_or(Route::All)
        }
        ("$or", Bson::Array(ways)) => {
            let ways = ways.iter().filter_map(Bson::as_document).map(|way| route(way, key));
            // Each way may name another value.
            ways.max().map_or(Route::All, |worst| worst.max(Route::Some))
        }
        (name, condition) if name == key => match condition {
            Bson::Document(operators) if operators.contains_key("$in") => Route::Some,
            Bson::Document(operators) if operators.contains_key("$eq") => Route::One,
            Bson::Document(operators) if operators.keys().any(|name| name.starts_with('$')) => Route::All,
            _ => Route::One,
        },
        _ => Route::All,
    };
    filter.iter().map(of).min().unwrap_or(Route::All)
}

/// The first field that a filter names.
fn first_field(filter: &Document) -> Option<&str> {
    let (name, condition) = filter.iter().next()?;
    match condition {
        Bson::Array(parts) if name.starts_with('$') => first_field(parts.first()?.as_document()?),
        _ => Some(name.as_str()),
    }
}

/// What a router would refuse of the writes of a command, or carry out on all shards.
fn wrong_writes(command: &Document, key: &str) -> Vec<String> {
    let Some((name, _)) = command.iter().next() else { return Vec::new() };
    let each = |list: &str| {
        let list = command.get_array(list).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Bson::as_document)
    };
    let wrong: Vec<String> = match name.as_str() {
        "insert" => each("documents").filter_map(|document| wrong_insert(document, key)).collect(),
        "update" => {
            let of = |update: &Document| wrong_update(&part(update, "q"), &part(update, "u"), update, key);
            each("updates").filter_map(of).collect()
        }
        "delete" => {
            let of = |delete: &Document| wrong_filter(&part(delete, "q"), is_one(delete.get("limit")), key);
            each("deletes").filter_map(of).collect()
        }
        "findAndModify" | "findandmodify" => {
            wrong_filter(&part(command, "query"), true, key).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let tell = |why: String| format!("{name} in {}: {why}", command.get_str(name).unwrap_or_default());
    wrong.into_iter().map(tell).collect()
}

fn is_one(limit: Option<&Bson>) -> bool {
    matches!(limit, Some(Bson::Int32(1) | Bson::Int64(1)))
}

fn wrong_insert(document: &Document, key: &str) -> Option<String> {
    let has_key = document.get(key).is_some_and(|value| *value != Bson::Null);
    (!has_key).then(|| format!("a document has no {key}"))
}

fn wrong_filter(filter: &Document, is_single: bool, key: &str) -> Option<String> {
    let allowed = if is_single { Route::One } else { Route::Some };
    (route(filter, key) > allowed).then(|| format!("{filter} does not name {key}"))
}

fn wrong_update(filter: &Document, update: &Document, statement: &Document, key: &str) -> Option<String> {
    let is = |name: &str| statement.get_bool(name).unwrap_or(false);
    let wrong = wrong_filter(filter, !is("multi") || is("upsert"), key);
    if wrong.is_some() {
        return wrong;
    }
    let is_replacement = update.keys().next().is_some_and(|first| !first.starts_with('$'));
    let keeps_key = match is_replacement {
        true => update.get(key) == filter.get(key),
        false => !update.values().filter_map(Bson::as_document).any(|fields| fields.contains_key(key)),
    };
    (!keeps_key).then(|| format!("{filter} changes {key}"))
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
            let Some(cluster) = Cluster::for_test("explaining statements on a cluster", &[1, 1]).await else {
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
fn a_statement_goes_where_the_values_of_its_key_are() {
    for (filter, expected) in [
        (doc! { "_id": "a", "version": 7 }, Route::One),
        (doc! { "_id": { "$eq": "a" } }, Route::One),
        (doc! { "version": 7, "_id": { "$in": ["a", "b"] } }, Route::Some),
        (doc! { "$and": [{ "x": 1 }, { "_id": "a" }] }, Route::One),
        (doc! { "$or": [{ "_id": "a" }, { "_id": "b", "x": 1 }] }, Route::Some),
        (doc! { "$or": [{ "_id": "a" }, { "x": 1 }] }, Route::All),
        (doc! { "_id": { "$gt": "a" } }, Route::All),
        (doc! { "queue": "a" }, Route::All),
        (doc! {}, Route::All),
    ] {
        assert_eq!(route(&filter, "_id"), expected, "{filter}");
    }
}

#[test]
fn the_first_field_of_a_filter_is_that_of_its_first_part() {
    assert_eq!(first_field(&doc! { "queue": 1, "open": true }), Some("queue"));
    assert_eq!(first_field(&doc! { "$or": [{ "$and": [{ "plan": 1 }] }, { "x": 1 }] }), Some("plan"));
    assert_eq!(first_field(&doc! {}), None);
}

#[test]
fn a_write_without_its_key_is_wrong() {
    let updates = |update: Document| doc! { "update": "letters", "updates": [update] };
    let deletes = |filter: Document, limit: i32| {
        doc! { "delete": "letters", "deletes": [{ "q": filter, "limit": limit }] }
    };
    let some = || doc! { "_id": { "$in": ["a", "b"] } };
    let set = || doc! { "$set": { "x": 1 } };
    for right in [
        doc! { "find": "letters", "filter": {} },
        doc! { "insert": "letters", "documents": [{ "_id": "a" }] },
        updates(
            doc! { "q": { "_id": "a", "version": 1 }, "u": { "_id": "a", "version": 2 }, "upsert": true },
        ),
        updates(doc! { "q": some(), "u": set(), "multi": true }),
        deletes(some(), 0),
        deletes(doc! { "_id": "a" }, 1),
        doc! { "findAndModify": "letters", "query": { "_id": "a" } },
    ] {
        assert_eq!(wrong_writes(&right, "_id"), [] as [String; 0], "{right}");
    }
    for wrong in [
        doc! { "insert": "letters", "documents": [{ "x": 1 }] },
        updates(doc! { "q": { "x": 1 }, "u": set() }),
        updates(doc! { "q": some(), "u": set() }),
        updates(doc! { "q": some(), "u": set(), "multi": true, "upsert": true }),
        updates(doc! { "q": { "x": 1 }, "u": set(), "multi": true }),
        updates(doc! { "q": { "_id": "a" }, "u": { "_id": "b" } }),
        updates(doc! { "q": { "_id": "a" }, "u": { "$set": { "_id": "b" } } }),
        deletes(doc! { "x": 1 }, 0),
        deletes(some(), 1),
        doc! { "findAndModify": "letters", "query": { "x": 1 } },
    ] {
        assert_eq!(wrong_writes(&wrong, "_id").len(), 1, "{wrong}");
    }
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
