//! The bounds of a search.

use std::sync::Arc;

use lazaret_core::store::{Act, Actor, HandOff, LetterStore, Limits, Placement, Triage};
use lazaret_core::{Clock, Failure, LetterId, LetterState, Message, Position, Reason};

use super::*;
use crate::{Durability, Options, SqliteStore};

async fn store(clock: Arc<dyn Clock>) -> SqliteStore {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { clock, durability: Durability::Normal, ..Options::default() };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

async fn fill(store: &SqliteStore, count: usize, payload: &str) {
    let queue = QueueName::of("orders", "orders");
    let items = (0..count).map(|n| {
        let id = format!("m{n}");
        let kind = if n == 0 { "Rare" } else { "Usual" };
        let mut message = Message::new(id.as_str(), "orders", Position::new(0, n as u64)).with_type(kind);
        message.payload = Some(payload.to_owned().into());
        let mut letter = Letter::new(
            queue.clone(),
            format!("s{}", n % 7).as_str().into(),
            message.into(),
            Timestamp::now(),
        );
        letter.state = LetterState::Dead;
        let reason = if n == 0 { Reason::CONFLICT } else { Reason::TIMEOUT };
        letter.cause = Some(Failure::new(reason, "HttpError", if n == 1 { "rare" } else { "usual" }));
        HandOff { letter, placement: Placement::Open, grant: None }
    });
    for placed in store.hand_off(&queue, &Limits::NONE, items.collect()).await.unwrap() {
        placed.unwrap();
    }
}

async fn filled(count: usize, payload: &str) -> SqliteStore {
    let store = store(Arc::new(lazaret_core::SystemClock)).await;
    fill(&store, count, payload).await;
    store
}

/// The pages of a search within bounds, as the number of letters on each.
async fn pages(store: &SqliteStore, text: &str, bounds: Bounds) -> Vec<usize> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let query = Query::parse(text).unwrap();
        let from: Option<String> = after.take();
        let question = move |view: &View<'_>| find_within(view, &query, from.as_deref(), 100, bounds);
        let page = store.ask("find", question).await.unwrap();
        pages.push(page.letters.len());
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}

#[tokio::test]
async fn a_page_reads_a_bounded_number_of_rows() {
    // I7
    let store = filled(50, "{}").await;
    let bounds = Bounds { rows: 20, bytes: usize::MAX };
    assert_eq!(pages(&store, "rare", bounds).await, [0, 0, 1], "no index applies");
    assert_eq!(pages(&store, "type:R*", bounds).await, [0, 0, 1]);
    assert_eq!(pages(&store, "", bounds).await, [20, 20, 10]);
    for text in ["type:Rare", "reason:CONFLICT", "message:m0", "type:Rare -error:x", "seq:s0 type:Rare"] {
        assert_eq!(pages(&store, text, bounds).await, [1], "an index applies: {text}");
    }
}

#[tokio::test]
async fn a_page_reads_a_bounded_number_of_bytes() {
    // I7
    let store = filled(10, &"x".repeat(1000)).await;
    let bounds = Bounds { rows: u64::MAX, bytes: 4000 };
    assert_eq!(pages(&store, "", bounds).await, [4, 4, 2], "returned letters count");
    assert_eq!(pages(&store, "payload./a:1", bounds).await, [0, 0, 0], "letters that were read count");
    assert_eq!(pages(&store, "error:rare", bounds).await, [1], "letters that were not read do not count");
}

#[tokio::test]
async fn a_count_beyond_its_bounds_is_inexact() {
    let store = filled(50, "{}").await;
    let bounds = Bounds { rows: 20, bytes: usize::MAX };
    let table = [
        ("usual", 20, false),
        ("type:Usual", 20, false),
        ("type:Rare", 1, true),
        ("", 50, true),
        ("state:dead queue:orders", 50, true),
    ];
    for (text, letters, exact) in table {
        let query = Query::parse(text).unwrap();
        let counted = store.ask("count", move |view| count_within(view, &query, bounds)).await.unwrap();
        assert_eq!(counted, Matches { letters, exact }, "{text}");
    }
}

#[tokio::test]
async fn the_scan_uses_an_index_and_sorts_only_small_results() {
    let store = filled(50, "{}").await;
    store.assign(&QueueName::of("other", "other"), &[]).await.unwrap();
    let table = [
        ("", "letters_oldest", false),
        ("state:dead,parked x", "letters_oldest", false),
        ("queue:other", "letters_oldest (qid=? AND rowid<?)", false),
        ("type:Rare", "letters_type", false),
        ("type:Rare,Usual", "MERGE (UNION ALL)", false),
        ("type:Rare reason:CONFLICT", "letters_reason", false),
        ("seq:s1", "letters_place", true),
        ("message:m1", "letters_id", true),
        ("state:closed message:m1", "letters_id", true),
        ("state:closed type:Rare", "INTEGER PRIMARY KEY", false),
        ("state:dead or x", "INTEGER PRIMARY KEY", false),
    ];
    for (text, way, sorts) in table {
        let query = Query::parse(text).unwrap();
        let plan = store.ask("explain", move |view| {
            let search = Search::new(view.connection, view.now, &query)?;
            let way = in_order(compile::walk(&query, &search.queues, view.connection)?, 9);
            let mut select = view.connection.prepare(&format!("EXPLAIN QUERY PLAN {}", way.text))?;
            let steps = select.query_map(params_from_iter(way.parameters), |row| row.get::<_, String>(3))?;
            Ok(steps.collect::<rusqlite::Result<Vec<_>>>()?.join("; "))
        });
        let plan = plan.await.unwrap();
        assert!(plan.contains(way), "{text}: {plan}");
        assert_eq!(plan.contains("TEMP B-TREE"), sorts, "{text}: {plan}");
        assert!(plan.contains("SEARCH"), "{text}: {plan}");
    }
}

#[tokio::test]
async fn a_complete_group_is_looked_up_and_decided_by_the_row() {
    let store = filled(50, "{}").await;
    let rare = Failure::new(Reason::TIMEOUT, "HttpError", "rare").fingerprint;
    let by = Actor::new("ada", "cli", "done");
    let queue = QueueName::of("orders", "orders");
    store.act(&queue, LetterId::of(&queue, &"m3".into()), Act::Resolve, &by).await.unwrap();
    // Named as a whole, by its beginning, and not at all: the same letters.
    let all = [format!("group:{rare}@orders/orders"), format!("group:{rare}"), "error:rare".to_owned()];
    let table = [("", "", 1), ("-", "", 48), ("", " state:closed", 0), ("-", " state:closed", 1)];
    for (not, state, letters) in table {
        for named in &all {
            let text = format!("{not}{named}{state}");
            let query = Query::parse(&text).unwrap();
            let found = store.find(&query, None, 100).await.unwrap();
            assert_eq!(found.letters.len(), letters, "{text}");
            assert_eq!(store.count(&query).await.unwrap().letters, letters as u64, "{text}");
        }
    }
    let twice = format!("group:{rare}@orders/orders,{rare}@orders/orders");
    assert_eq!(pages(&store, &twice, FIND).await, [1], "a letter is found once");
    let elsewhere = format!("group:{rare}@orders/other");
    assert_eq!(pages(&store, &elsewhere, FIND).await, [0]);
    for (named, exact) in [(&all[0], true), (&all[1], false)] {
        let (query, named) = (Query::parse(named).unwrap(), named.clone());
        let decided = store.ask("explain", move |view| {
            let search = Search::new(view.connection, view.now, &query)?;
            Ok(Condition::of(&query, &search.queues, search.now).exact)
        });
        assert_eq!(decided.await.unwrap(), exact, "{named}");
    }
}

#[tokio::test]
async fn letters_of_a_file_of_version_1_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1.db");
    std::fs::write(&path, std::fs::read(fixture).unwrap()).unwrap();
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    for (text, letters) in
        [("reason:TIMEOUT", 1), ("-reason:*", 1), ("type:OrderPlaced", 1), ("state:closed", 1)]
    {
        let page = store.find(&Query::parse(text).unwrap(), None, 10).await.unwrap();
        assert_eq!(page.letters.len(), letters, "{text}");
    }
}

#[tokio::test]
async fn a_purged_letter_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("lazaret.db"), Options::default()).unwrap();
    fill(&store, 3, "{}").await;
    let queue = QueueName::of("orders", "orders");
    for message in ["m0", "m1"] {
        let (letter, by) = (LetterId::of(&queue, &message.into()), Actor::new("ada", "cli", "done"));
        store.act(&queue, letter, Act::Resolve, &by).await.unwrap();
    }
    let file = Connection::open(store.path()).unwrap();
    let trace = "DELETE FROM payloads WHERE lid = (SELECT lid FROM letters WHERE message = 'm0')";
    assert_eq!(file.execute(trace, []).unwrap(), 1);
    for text in ["state:closed attempts:0", "state:closed usual or rare", "state:closed payload.:* or rare"] {
        let query = Query::parse(&format!("state:resolved ({text})")).unwrap();
        let page = store.find(&query, None, 10).await.unwrap();
        let found: Vec<&str> = page.letters.iter().map(|letter| letter.message.id.as_str()).collect();
        assert_eq!(found, ["m1"], "{text}");
        assert_eq!(store.count(&query).await.unwrap(), Matches { letters: 1, exact: true }, "{text}");
    }
}
