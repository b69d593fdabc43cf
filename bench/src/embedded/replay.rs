//! Replay of many dead letters with a handler that does nothing.

use std::time::Instant;

use lazaret_core::{HandlerError, LetterState};
use lazaret_engine::{Handle, ReplayReport};
use lazaret_store_sqlite::Durability;

use super::disk::{Disk, remove};
use super::letters::{Mould, fill};
use super::{BENCH, CONSUMER, consumer, let_go, open, open_with};
use crate::Scale;
use crate::core::{options, rate};
use crate::source::Plan;
use crate::table::Row;

const LETTERS: usize = 100_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 1024;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let file = disk.file();
    let (letters, mould) = (scale.count(LETTERS), Mould::new(PAYLOAD));
    let sequences = letters / DEPTH;
    let dead = (0..letters).map(|number| {
        let state = if number < sequences { LetterState::Dead } else { LetterState::Waiting };
        mould.letter(number, &format!("order-{}", number % sequences), state)
    });
    fill(&open_with(&file, Durability::Normal), dead).await;

    let store = open(&file);
    // It does not run: nothing comes from its source, and its scheduler stands still.
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
    vec![
        Row::new(BENCH, "replay/no-op handler, sequences of 10", "letters/s", rate(letters, took))
            .with_note("one sequence after the other, and each letter durable before the next one is tried"),
    ]
}

/// Replays whatever is open. The one place to change when replays get another way in.
async fn replay_all(handle: &Handle) -> ReplayReport {
    let replayer = handle.replayer(CONSUMER).expect("the consumer has a component of its name");
    replayer.process_all("bench").await.expect("the replay goes through")
}

async fn nothing() -> Result<(), HandlerError> {
    Ok(())
}
