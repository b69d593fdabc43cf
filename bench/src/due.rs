//! Many retries due within one second: none runs early (I12), and the lateness is measured.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::{HandlerError, Letter, LetterState, Message, Store, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::Scale;
use crate::consumer::consumer;
use crate::core::options;
use crate::letters::Mould;
use crate::source::Plan;
use crate::table::{Bar, Compared, Row, median, share_of, spread};

const LETTERS: usize = 100_000;
/// The window of all due times.
const SPAN: Duration = Duration::from_secs(1);

/// When each letter is due.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    from: Timestamp,
    letters: usize,
}

impl Schedule {
    /// Letters whose first one is due after this time, which must be enough to store them.
    pub(crate) fn after(ahead: Duration, scale: Scale) -> Self {
        Self { from: Timestamp::now() + ahead.div_f64(scale.divisor as f64), letters: scale.count(LETTERS) }
    }

    /// The letters to store.
    pub(crate) fn letters(self) -> impl Iterator<Item = Letter> {
        let mould = Mould::new(128);
        (0..self.letters).map(move |number| {
            let mut letter = mould.letter(number, &format!("order-{number}"), LetterState::Retrying);
            letter.due_at = Some(self.due(number));
            letter
        })
    }

    fn due(self, number: usize) -> Timestamp {
        self.from + SPAN.mul_f64(number as f64 / self.letters as f64)
    }

    /// Runs a consumer on the filled store until no letter is left, and returns how late its letters were.
    pub(crate) async fn run<S: Store + 'static>(self, store: &Arc<S>) -> Lateness {
        assert!(Timestamp::now() < self.from, "the store is filled before the first letter is due");
        let late = Arc::new(Mutex::new(Vec::with_capacity(self.letters)));
        let noted = late.clone();
        // The source is empty; the run ends when no retry is left.
        let consumer = consumer(&Plan::uniform(0, 1), store, options(), move |message: Message| {
            self.note_lateness(&message, &noted);
            std::future::ready(Ok::<(), HandlerError>(()))
        });
        let run = tokio::spawn(consumer.run(CancellationToken::new()));
        let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
        assert_eq!(stats.resolved, self.letters as u64, "every letter was handled");

        let mut late = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
        late.sort_by(f64::total_cmp);
        let early = late.iter().filter(|late| **late < 0.0).count();
        assert_eq!(early, 0, "no retry runs early");
        Lateness { early, p50: share_of(&late, 0.5), p99: share_of(&late, 0.99), max: share_of(&late, 1.0) }
    }

    /// Records the lateness of an attempt, in milliseconds.
    fn note_lateness(self, message: &Message, noted: &Mutex<Vec<f64>>) {
        let due = self.due(message.position.offset as usize);
        let late = Timestamp::now().duration_since(due).as_secs_f64() * 1e3;
        noted.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }
}

/// How late the letters of a run were, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Lateness {
    early: usize,
    p50: f64,
    p99: f64,
    max: f64,
}

/// The rows of some runs: beside the times that the hand-offs of the same letters took, in milliseconds, if they are known.
pub(crate) fn rows(bench: &'static str, runs: &[Lateness], handed_off: Option<&[f64]>) -> Vec<Row> {
    let all = |of: fn(&Lateness) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let row = |name, of| Row::new(bench, name, "ms", median(&all(of)));
    let (name, p99) = ("retries due within one second/lateness, p99", all(|run| run.p99));
    let early: usize = runs.iter().map(|run| run.early).sum();
    vec![
        Row::new(bench, "retries due within one second/early", "letters", early as f64)
            .with_bar(Bar::ValueIs(0.0)),
        row("retries due within one second/lateness, p50", |run| run.p50),
        match handed_off {
            Some(handed_off) => Row::compared(bench, name, "ms", &Compared::new(&p99, handed_off))
                .with_bar(Bar::RatioAtMost(1.5))
                .with_note(format!(
                    "{} rounds; the ratios lie between {}",
                    runs.len(),
                    spread(&p99, handed_off)
                )),
            None => row(name, |run| run.p99),
        },
        row("retries due within one second/lateness, max", |run| run.max),
    ]
}
