//! Replay of many dead letters by an operation, beside the hand-off of the same letters.

use std::time::Instant;

use lazaret_core::LetterState;

use super::BENCH;
use super::server::{OwnStore, Server};
use crate::Scale;
use crate::consumer::let_go;
use crate::core::rate;
use crate::letters::{Mould, open_with, put};
use crate::operation::{Replayed, replay};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

/// Each in a sequence of its own.
const LETTERS: usize = 10_000;
/// The letters per hand-off.
const BATCH: usize = 500;
const PAYLOAD: usize = 1024;

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    let (mut replayed, mut handed_off, mut frozen) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (hand_off, replay) = round(server, letters).await;
        handed_off.push(hand_off);
        replayed.push(rate(letters, replay.took));
        frozen.push(format!("{:.0} ms", replay.frozen.as_secs_f64() * 1e3));
    }
    let note = format!(
        "{ROUNDS} rounds; the ratios lie between {}; freezing the plans took another {}",
        spread(&replayed, &handed_off),
        frozen.join(", ")
    );
    let name = format!("replay/no-op handler, as an operation, beside the hand-off, {BATCH} a call");
    vec![
        Row::compared(BENCH, name, "letters/s", &Compared::new(&replayed, &handed_off))
            .with_bar(Bar::RatioAtLeast(0.3))
            .with_note(note),
    ]
}

/// Hands off dead letters, and replays them. Returns the letters handed off per second, and the times of the replay.
async fn round(server: &Server, letters: usize) -> (f64, Replayed) {
    let OwnStore { store, .. } = server.store().await;
    let mould = Mould::new(PAYLOAD);
    let items: Vec<_> = (0..letters)
        .map(|number| open_with(mould.letter(number, &format!("order-{number}"), LetterState::Dead)))
        .collect();
    let batches: Vec<_> = items.chunks(BATCH).map(<[_]>::to_vec).collect();
    let started = Instant::now();
    for batch in batches {
        put(&*store, batch).await;
    }
    let handed_off = rate(letters, started.elapsed());
    let replayed = replay(&store, letters).await;
    let_go(store).await;
    (handed_off, replayed)
}
