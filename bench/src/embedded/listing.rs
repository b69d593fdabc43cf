//! Listing, grouping and counting a million letters.

use std::time::Instant;

use lazaret_core::query::Query;
use lazaret_core::store::{GroupsRequest, Triage};

use super::million::{Million, sequence};
use super::{BENCH, open};
use crate::table::{Bar, Row, share_of};

/// The repetitions of each query.
const TIMES: usize = 200;
/// The page size.
const PAGE: usize = 50;
/// The number of pages before the deep page.
const DEEP: usize = 20;
const LIMIT_MS: f64 = 50.0;

pub(super) async fn run(million: &Million) -> Vec<Row> {
    let store = open(million.path().await);
    let one_sequence = format!("seq:{}", sequence(1));
    let queries = [
        ("all open", ""),
        ("by state", "state:dead"),
        ("by reason", "reason:TIMEOUT"),
        ("by error", "error:ledger"),
        ("one sequence", &*one_sequence),
    ];
    let mut rows = Vec::new();
    for (name, text) in queries {
        let query = Query::parse(text).expect("the queries of the benchmarks are right");
        let found = timed(async || {
            store.find(&query, None, PAGE).await.expect("the store finds");
        });
        rows.push(row(format!("listing/find, {name}"), found.await));
        let counted = timed(async || {
            store.count(&query).await.expect("the store counts");
        });
        rows.push(row(format!("listing/count, {name}"), counted.await));
    }
    let everything = Query::everything();
    let mut after = None;
    for _ in 0..DEEP {
        after = store.find(&everything, after.as_deref(), PAGE).await.expect("the store finds").next;
    }
    let deep = timed(async || {
        store.find(&everything, after.as_deref(), PAGE).await.expect("the store finds");
    });
    rows.push(row("listing/find, a page in the depth".to_owned(), deep.await));
    let request = GroupsRequest { limit: PAGE, ..GroupsRequest::default() };
    let groups = timed(async || {
        let page = store.groups(&request).await.expect("the store groups");
        assert!(!page.groups.is_empty(), "the letters have groups");
    });
    rows.push(row("listing/groups".to_owned(), groups.await));
    let queues = timed(async || {
        store.queues().await.expect("the store sums up");
    });
    rows.push(row("listing/queues".to_owned(), queues.await));
    rows
}

fn row(name: String, p99: f64) -> Row {
    Row::new(BENCH, format!("{name}, p99"), "ms", p99).with_bar(Bar::ValueAtMost(LIMIT_MS))
}

/// Repeats a query and returns the 99th percentile of its duration, in milliseconds.
async fn timed(question: impl AsyncFn()) -> f64 {
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let started = Instant::now();
        question().await;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    share_of(&times, 0.99)
}
