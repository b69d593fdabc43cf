//! Replay of many dead letters with a no-op handler.

use std::time::Instant;

use lazaret_core::LetterState;
use lazaret_engine::{Handle, ReplayReport};
use lazaret_store_sqlite::Durability;

use super::disk::{Disk, remove};
use super::{BENCH, open, open_with};
use crate::Scale;
use crate::consumer::{CONSUMER, consumer, let_go};
use crate::core::{options, rate};
use crate::letters::{Mould, fill};
use crate::operation::{Replayed, nothing, replay};
use crate::source::Plan;
use crate::table::Row;

const LETTERS: usize = 100_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 1024;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    vec![by_hand(letters, disk).await, by_operation(letters, disk).await]
}

/// Replays sequence by sequence with `process_all`.
async fn by_hand(letters: usize, disk: &Disk) -> Row {
    let file = disk.file();
    let mould = Mould::new(PAYLOAD);
    let sequences = letters / DEPTH;
    let dead = (0..letters).map(|number| {
        let state = if number < sequences { LetterState::Dead } else { LetterState::Waiting };
        mould.letter(number, &format!("order-{}", number % sequences), state)
    });
    fill(&*open_with(&file, Durability::Normal), dead).await;

    let store = open(&file);
    // The consumer does not run: its source and scheduler are idle.
    let consumer = consumer(&Plan::uniform(0, 1), &store, options(), nothing);
    let handle = consumer.handle();
    let started = Instant::now();
    let report = replay_all(&handle).await;
    let took = started.elapsed();
    assert_eq!((report.closed, report.held), (sequences as u64, 0), "every sequence was handled to its end");
    assert_eq!(handle.stats().resolved, letters as u64, "every letter was handled");
    drop((handle, consumer));
    let_go(store).await;
    remove(&file);
    Row::new(BENCH, "replay/no-op handler, sequences of 10", "letters/s", rate(letters, took))
        .with_note("one sequence after the other; each letter is durable before the next attempt")
}

/// Replays with a durable operation on a running consumer: frozen, claimed, attempted and settled letter by letter.
async fn by_operation(letters: usize, disk: &Disk) -> Row {
    let file = disk.file();
    let mould = Mould::new(PAYLOAD);
    let dead = (0..letters).map(|number| mould.letter(number, &format!("order-{number}"), LetterState::Dead));
    fill(&*open_with(&file, Durability::Normal), dead).await;

    let store = open(&file);
    let Replayed { frozen, took } = replay(&store, letters).await;
    let_go(store).await;
    remove(&file);
    let note = format!("freezing the plan took another {:.0} ms", frozen.as_secs_f64() * 1e3);
    Row::new(BENCH, "replay/no-op handler, as an operation", "letters/s", rate(letters, took)).with_note(note)
}

/// Replays all open sequences.
async fn replay_all(handle: &Handle) -> ReplayReport {
    let replayer = handle.replayer(CONSUMER).expect("the consumer has a component of its name");
    replayer.process_all("bench").await.expect("the replay goes through")
}
