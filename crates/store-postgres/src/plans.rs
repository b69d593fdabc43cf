//! Tests that the statements which are run most go by the indexes that the guide names.
//!
//! The sessions are those of the store, with its settings of the planner (see [`PostgresStoreOptions::session`]): what is asserted is what
//! the server does for a store.

use deadpool_postgres::Object;
use lazaret_core::query::Query;
use tokio_postgres::SimpleQueryMessage;

use crate::options::PostgresStoreOptions;
use crate::store::PostgresStore;
use crate::transaction::Transaction;
use crate::{audit, group_expiry, group_notes, groups, intake, leases, listing, retention, views};

/// A statement, what it is for, and the indexes that it must go by.
const STATEMENTS: &[(&str, &str, &[&str])] = &[
    ("claim what is due", leases::DUE, &["sequences_free"]),
    ("heads of what was claimed", leases::HEADS, &["letters_place"]),
    ("the next due time", listing::NEXT_DUE, &["sequences_free"]),
    ("lock sequences to claim, settle or hand off", views::LOCK_SEQUENCES, &["sequences_name"]),
    ("settle", leases::HEADS_AND_NEXT, &["sequences_name", "letters_place"]),
    ("letters of redelivered messages", intake::HELD, &["letters_id"]),
    ("places of redelivered messages", intake::later::FIRST_LATER, &["letters_place"]),
    ("look letters up", listing::LOOKUP, &["letters_id"]),
    ("heads", listing::HEADS, &["sequences_touched", "letters_place"]),
    ("opened sequences", listing::OPENED, &["sequences_revision"]),
    ("the oldest letter of a group", groups::ONE, &["letters_group"]),
    ("letters of queues that expire next", group_expiry::NEXT, &["letters_expiring"]),
    ("expiries of the oldest letters of groups", group_expiry::OF_OLDEST, &["letters_group"]),
    ("notes about groups, to be added", group_notes::TAKE, &["group_notes_pkey"]),
    ("the oldest letter of each queue", groups::QUEUES, &["letters_open", "letters_expiring"]),
    ("the audit of a subject", audit::ABOUT, &["audit_subject"]),
    ("letters whose TTL has passed", retention::EXPIRING, &["letters_expiring"]),
    ("closed letters to purge", retention::CLOSED_BEFORE, &["letters_closed"]),
];

/// A search, and the index that its scan must go by.
const SEARCHES: &[(&str, &str)] = &[
    ("queue:orders", "letters_open"),
    ("state:dead", "letters_open"),
    ("group:g1_0000000000000000@orders/orders", "letters_group"),
    ("reason:TIMEOUT", "letters_reason"),
    ("type:t1", "letters_type"),
];

/// How often a plan names this index.
fn uses(plan: &str, index: &str) -> usize {
    plan.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| *word == index).count()
}

/// The plan of a prepared statement, which does not depend on its parameters.
async fn explain(client: &Object, sql: &str) -> String {
    let parameters = (1..).take_while(|number| sql.contains(&format!("${number}"))).count();
    let given = match parameters {
        0 => String::new(),
        some => format!("({})", vec!["NULL"; some].join(", ")),
    };
    let explain =
        format!("PREPARE explained AS {sql}; EXPLAIN EXECUTE explained{given}; DEALLOCATE explained");
    let said = client.simple_query(&explain).await.unwrap();
    let lines = said.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is wrong with the plans of a store whose tables are filled.
async fn complaints(store: &PostgresStore) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, plan: &str, indexes: &[&str], by_number: usize| {
        let missing = indexes.iter().any(|index| uses(plan, index) == 0);
        if missing || plan.contains("Seq Scan") || uses(plan, "letters_pkey") > by_number {
            wrong.push(format!("{what}: {indexes:?}\n{plan}"));
        }
    };
    let client = store.client("explain").await.unwrap();
    for &(what, sql, indexes) in STATEMENTS {
        check(what, &explain(&client, sql).await, indexes, 0);
    }
    drop(client);
    for &(query, index) in SEARCHES {
        let mut transaction = Transaction::begin(store, "explain").await.unwrap();
        let plan = transaction.explain(&Query::parse(query).unwrap()).await.unwrap();
        // The rows that were found are read by number, and nothing else.
        check(query, &plan, &[index], 1);
    }
    wrong
}

#[tokio::test]
async fn the_hot_statements_go_by_the_indexes_that_the_guide_names() {
    let Ok(dsn) = std::env::var("LAZARET_TEST_POSTGRES") else {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
        );
        return;
    };
    let schema = format!("lzp_plans_{}", std::process::id());
    let options = PostgresStoreOptions {
        schema: schema.clone(),
        max_connections: 2,
        ..PostgresStoreOptions::default()
    };
    let store = PostgresStore::connect(&dsn, options).await.unwrap();
    let client = store.client("fill").await.unwrap();
    client.batch_execute(include_str!("../tests/it/support/fill.sql")).await.unwrap();
    let wrong = complaints(&store).await;
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
