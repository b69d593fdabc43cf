//! Many retries due within one second: none runs early (I12), and the lateness is measured.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::{HandlerError, LetterState, Message, Timestamp};
use lazaret_store_sqlite::Durability;
use tokio_util::sync::CancellationToken;

use super::disk::{Disk, remove};
use super::letters::{Mould, fill};
use super::{BENCH, consumer, let_go, open, open_with, share_of};
use crate::Scale;
use crate::core::options;
use crate::source::Plan;
use crate::table::{Bar, Row};

const LETTERS: usize = 100_000;
/// The window of all due times.
const SPAN: Duration = Duration::from_secs(1);
/// The time from the start of filling to the first due time: long enough for slow machines.
const AHEAD: Duration = Duration::from_secs(15);

/// When each letter is due.
#[derive(Clone, Copy)]
struct Schedule {
    from: Timestamp,
    letters: usize,
}

impl Schedule {
    fn due(self, number: usize) -> Timestamp {
        self.from + SPAN.mul_f64(number as f64 / self.letters as f64)
    }
}

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let file = disk.file();
    let letters = scale.count(LETTERS);
    let schedule = Schedule { from: Timestamp::now() + AHEAD.div_f64(scale.divisor as f64), letters };
    let mould = Mould::new(128);
    let retrying = (0..letters).map(|number| {
        let mut letter = mould.letter(number, &format!("order-{number}"), LetterState::Retrying);
        letter.due_at = Some(schedule.due(number));
        letter
    });
    fill(&open_with(&file, Durability::Normal), retrying).await;
    assert!(Timestamp::now() < schedule.from, "the store is filled before the first letter is due");

    let store = open(&file);
    let late = Arc::new(Mutex::new(Vec::with_capacity(letters)));
    let noted = late.clone();
    // The source is empty; the run ends when no retry is left.
    let consumer = consumer(&Plan::uniform(0, 1), &store, options(), move |message: Message| {
        note_lateness(&message, schedule, &noted);
        std::future::ready(Ok::<(), HandlerError>(()))
    });
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(stats.resolved, letters as u64, "every letter was handled");
    let_go(store).await;
    remove(&file);

    let mut late = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
    late.sort_by(f64::total_cmp);
    let early = late.iter().filter(|late| **late < 0.0).count();
    assert_eq!(early, 0, "no retry runs early");
    let row = |name, share| Row::new(BENCH, name, "ms", share_of(&late, share));
    vec![
        Row::new(BENCH, "retries due within one second/early", "letters", early as f64)
            .with_bar(Bar::ValueIs(0.0)),
        row("retries due within one second/lateness, p50", 0.5),
        row("retries due within one second/lateness, p99", 0.99),
        row("retries due within one second/lateness, max", 1.0),
    ]
}

/// Records the lateness of an attempt, in milliseconds.
fn note_lateness(message: &Message, schedule: Schedule, noted: &Mutex<Vec<f64>>) {
    let due = schedule.due(message.position.offset as usize);
    let late = Timestamp::now().duration_since(due).as_secs_f64() * 1e3;
    noted.lock().unwrap_or_else(PoisonError::into_inner).push(late);
}
