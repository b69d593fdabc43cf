//! Replay of many letters with a no-op handler, against the statements of Axon's JDBC queue.

use lazaret_core::LetterState;

use super::BENCH;
use super::axon::Queue;
use super::server::Server;
use crate::Scale;
use crate::core::rate;
use crate::letters::{Mould, fill};
use crate::operation::{Replayed, replay};
use crate::table::{Bar, Compared, Row};

const LETTERS: usize = 100_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 1024;
/// The sequences that Axon's queue drains; the others stay, so that each pick sees almost all letters.
const DRAINED: usize = 20;

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    let (ours, note) = store_rate(server, letters).await;
    let axon = axon_rate(server, letters).await;
    let name = format!(
        "drain/{letters} letters in sequences of {DEPTH}, no-op handler, beside the statements of Axon's JDBC queue"
    );
    vec![
        Row::compared(BENCH, name, "letters/s", &Compared::new(&[ours], &[axon]))
            .with_bar(Bar::RatioAtLeast(50.0))
            .with_note(note),
    ]
}

/// Measures letters per second of an operation over all letters.
async fn store_rate(server: &Server, letters: usize) -> (f64, String) {
    let schema = server.schema().await;
    let store = schema.store().await;
    let (mould, sequences) = (Mould::new(PAYLOAD), letters / DEPTH);
    let dead = (0..letters)
        .map(|number| mould.letter(number, &format!("order-{}", number % sequences), LetterState::Dead));
    fill(&*store, dead).await;
    schema.vacuum().await;
    let Replayed { frozen, took } = replay(&store, letters).await;
    schema.drop(store).await;
    (rate(letters, took), format!("freezing the plan took another {:.0} ms", frozen.as_secs_f64() * 1e3))
}

async fn axon_rate(server: &Server, letters: usize) -> f64 {
    let schema = server.schema().await;
    let queue = Queue::filled(&schema, letters, letters / DEPTH, PAYLOAD).await;
    let rate = queue.drain(DRAINED).await;
    drop(queue);
    schema.clean_up().await;
    rate
}
