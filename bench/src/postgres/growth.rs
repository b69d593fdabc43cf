//! The cost of a letter as the store grows: hand-off and drain of the same letters, beside a million others and beside none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::{Letter, LetterState, Timestamp};
use lazaret_store_postgres::PostgresStore;
use tokio_util::sync::CancellationToken;

use super::BENCH;
use super::server::Server;
use crate::Scale;
use crate::consumer::consumer;
use crate::core::options;
use crate::letters::{Mould, fill};
use crate::operation::nothing;
use crate::source::Plan;
use crate::table::{Bar, Compared, Row};

const LARGE: usize = 1_000_000;
/// The letters that come and go in a round.
const LETTERS: usize = 1_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 128;
const ROUNDS: usize = 9;
/// The time from the start of a round to the due time of its letters: long enough to store them, and to start.
const AHEAD: Duration = Duration::from_secs(3);
/// The due time of letters that stay.
const LATER: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let (small, large) = (server.schema().await, server.schema().await);
    let (small_store, large_store) = (small.store().await, large.store().await);
    let held = scale.count(LARGE);
    let started = Instant::now();
    fill(&*large_store, retrying(0..held, Timestamp::now() + LATER)).await;
    eprintln!("filled {held} letters in {:.0} s", started.elapsed().as_secs_f64());
    large.vacuum().await;
    let mut costs = [(); 2].map(|()| (Vec::new(), Vec::new()));
    let mut next = held;
    // The first round warms the caches and does not count.
    for round in 0..=ROUNDS {
        let of_small = come_and_go(&small_store, next).await;
        let of_large = come_and_go(&large_store, next).await;
        next += LETTERS;
        if round > 0 {
            for ((large, small), (of_large, of_small)) in
                costs.iter_mut().zip(of_large.into_iter().zip(of_small))
            {
                large.push(of_large.as_secs_f64() * 1e6 / LETTERS as f64);
                small.push(of_small.as_secs_f64() * 1e6 / LETTERS as f64);
            }
        }
    }
    small.drop(small_store).await;
    large.drop(large_store).await;
    let rows = ["hand-off", "drain"].iter().zip(&costs).map(|(name, (large, small))| {
        let name = format!("growth/{name} of {LETTERS} letters beside {held} others, and beside none");
        Row::compared(BENCH, name, "us a letter", &Compared::new(large, small))
            .with_bar(Bar::RatioAtMost(1.5))
    });
    rows.collect()
}

/// Letters in sequences whose heads are due at this time.
fn retrying(numbers: std::ops::Range<usize>, due: Timestamp) -> impl Iterator<Item = Letter> {
    let mould = Mould::new(PAYLOAD);
    let sequences = numbers.len() / DEPTH;
    let first = numbers.start;
    numbers.map(move |number| {
        let place = number - first;
        let state = if place < sequences { LetterState::Retrying } else { LetterState::Waiting };
        let mut letter = mould.letter(number, &format!("order-{first}-{}", place % sequences), state);
        letter.due_at = (state == LetterState::Retrying).then_some(due);
        letter
    })
}

/// Hands off letters, and handles them all when they are due. Returns the times of both.
///
/// The consumer starts before: it reads which sequences are open, and that grows with them, once a start.
async fn come_and_go(store: &Arc<PostgresStore>, first: usize) -> [Duration; 2] {
    let (begun, started) = (Timestamp::now(), Instant::now());
    let letters: Vec<Letter> = retrying(first..first + LETTERS, begun + AHEAD).collect();
    fill(&**store, letters.into_iter()).await;
    let handed_off = started.elapsed();
    let stop = CancellationToken::new();
    let run = lazaret_engine::Options { until_idle: false, ..options() };
    let consumer = consumer(&Plan::uniform(0, 1), store, run, nothing);
    let handle = consumer.handle();
    let running = tokio::spawn(consumer.run(stop.clone()));
    tokio::time::sleep(AHEAD.saturating_sub(started.elapsed())).await;
    assert_eq!(handle.stats().resolved, 0, "none is handled before it is due");
    while handle.stats().resolved < LETTERS as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let drained = started.elapsed() - AHEAD;
    stop.cancel();
    running.await.expect("the engine does not panic").expect("the engine ends without an error");
    [handed_off, drained]
}
