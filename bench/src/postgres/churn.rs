//! Letters that come and go: the size of the tables and their dead rows, with the server's own autovacuum.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lazaret_core::store::Triage;
use lazaret_core::{LetterState, Timestamp};
use lazaret_engine::Options;
use lazaret_store_postgres::driver::Client;
use tokio_util::sync::CancellationToken;

use super::BENCH;
use super::server::Server;
use crate::Scale;
use crate::consumer::consumer;
use crate::core::options;
use crate::letters::{Mould, fill, queue};
use crate::operation::nothing;
use crate::source::Plan;
use crate::table::{Bar, Compared, Row, median};

const LETTERS: usize = 1_000_000;
/// The letters that are there at once.
const AT_ONCE: usize = 20_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 128;
/// The letters purged in one call, as the engine does it.
const PURGED: usize = 500;
/// The tables whose rows come and go with letters.
const HOT: [&str; 3] = ["payloads", "sequences", "counts"];
/// The table that keeps the id and the state of purged letters.
const LETTERS_TABLE: &str = "letters";

/// The sizes of the tables.
struct Sizes {
    /// Of the hot tables, in MiB.
    hot: f64,
    /// Of the letters, in bytes.
    letters: f64,
    /// Dead rows of all of them.
    dead: f64,
    detail: String,
}

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let schema = server.schema().await;
    let (store, client) = (schema.store().await, schema.client().await);
    let rounds = (scale.count(LETTERS) / AT_ONCE).max(4);
    let run = Options { until_idle: false, ..options() };
    let consumer = consumer(&Plan::uniform(0, 1), &store, run, nothing);
    let (handle, stop) = (consumer.handle(), CancellationToken::new());
    let running = tokio::spawn(consumer.run(stop.clone()));
    let mould = Mould::new(PAYLOAD);
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let mut times = Vec::new();
    let mut last = None;
    for round in 0..rounds {
        let (first, now, started) = (round * AT_ONCE, Timestamp::now(), Instant::now());
        let letters = (0..AT_ONCE).map(|place| {
            let sequences = AT_ONCE / DEPTH;
            let state = if place < sequences { LetterState::Retrying } else { LetterState::Waiting };
            let mut letter = mould.letter(first + place, &format!("order-{}", place % sequences), state);
            letter.due_at = (state == LetterState::Retrying).then_some(now);
            letter
        });
        fill(&*store, letters).await;
        handle.wake();
        while handle.stats().resolved < (first + AT_ONCE) as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let end = Timestamp::now() + Duration::from_secs(3600);
        while store.expire(&queue(), Some(end), PURGED).await.expect("the store purges").more {}
        times.push(started.elapsed().as_secs_f64());
        let sizes = sizes(&client, &schema.name).await;
        // The first quarter fills the tables to the size of one round and what autovacuum leaves for the next.
        match round * 4 / rounds {
            0 => {}
            1 => early.push(sizes.hot),
            _ => late.push(sizes.hot),
        }
        last = Some(sizes);
    }
    stop.cancel();
    running.await.expect("the engine does not panic").expect("the engine ends without an error");
    drop((client, handle));
    schema.drop(store).await;
    let last = last.expect("there are rounds");
    let letters = rounds * AT_ONCE;
    let of = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let half = times.len() / 2;
    vec![
        Row::compared(
            BENCH,
            format!("churn/size of the hot tables while {letters} letters come and go, second half beside the second quarter"),
            "MiB",
            &Compared::new(&[of(&late)], &[of(&early)]),
        )
        .with_bar(Bar::RatioAtMost(1.5))
        .with_note(format!("{AT_ONCE} letters at once; at the end {}", last.detail)),
        Row::new(BENCH, "churn/dead rows at the end", "rows", last.dead),
        Row::new(BENCH, "churn/what a purged letter leaves: id and state", "bytes", last.letters / letters as f64),
        Row::compared(
            BENCH,
            "churn/time of a round, second half beside the first",
            "s",
            &Compared::new(&[median(&times[half..])], &[median(&times[..half])]),
        )
        .with_bar(Bar::RatioAtMost(1.5)),
    ]
}

async fn sizes(client: &Client, schema: &str) -> Sizes {
    let sql = "SELECT c.relname::text, pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
        WHERE n.nspname = $1 AND c.relname = ANY($2) ORDER BY c.relname";
    let tables: Vec<&str> = HOT.into_iter().chain([LETTERS_TABLE]).collect();
    let rows = client.query(sql, &[&schema, &tables]).await.expect("the server answers");
    let mut sizes = Sizes { hot: 0.0, letters: 0.0, dead: 0.0, detail: String::new() };
    for row in rows {
        let (name, bytes, dead, live): (String, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        match name.as_str() {
            LETTERS_TABLE => sizes.letters = bytes as f64,
            _ => sizes.hot += mebibytes,
        }
        sizes.dead += dead as f64;
        let comma = if sizes.detail.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(
            sizes.detail,
            "{comma}{name} has {mebibytes:.1} MiB with {live} live and {dead} dead rows"
        );
    }
    sizes
}
