//! Durable hand-off in batches, against `insert_many` of the same documents.

use std::time::Instant;

use bson::Document;
use futures_util::TryStreamExt;
use lazaret_core::LetterState;
use lazaret_core::store::{LetterStore, Limits};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use mongodb::Collection;
use mongodb::options::WriteConcern;

use super::BENCH;
use super::server::Server;
use crate::Scale;
use crate::core::rate;
use crate::letters::{Mould, open_with, queue};
use crate::table::{Bar, Compared, Row, spread};

/// Few enough for the wire server of the tests: it keeps all that was ever written in memory.
const LETTERS: usize = 4_000;
/// Many short rounds, so that other load on the machine affects both alike.
const ROUNDS: usize = 7;
const WARM_UP: usize = 3;
/// The letters per call, and documents per insert.
const BATCH: usize = 500;
const PAYLOAD: usize = 1024;

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    let (mut own_sequences, mut one_sequence, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    // Warm-up: a server that has just started compiles while it works.
    for _ in 0..WARM_UP {
        let (_, documents) = store_rate(server, letters, letters).await;
        insert_rate(&server.collection(), &documents).await;
    }
    for _ in 0..ROUNDS {
        let (rate, documents) = store_rate(server, letters, letters).await;
        own_sequences.push(rate);
        one_sequence.push(store_rate(server, letters, 1).await.0);
        bare.push(insert_rate(&server.collection(), &documents).await);
    }
    let row = |name, rates: &[f64]| Row::compared(BENCH, name, "letters/s", &Compared::new(rates, &bare));
    let note = format!("{ROUNDS} rounds; the ratios lie between {}", spread(&own_sequences, &bare));
    vec![
        row("letters/1 KiB, 500 a call, each in a sequence of its own, beside insert_many", &own_sequences)
            .with_bar(Bar::RatioAtLeast(0.5))
            .with_note(note),
        row("letters/the same in one sequence", &one_sequence),
    ]
}

/// Measures letters per second into a new store. Returns the documents of the letters, too.
async fn store_rate(server: &Server, letters: usize, sequences: usize) -> (f64, Vec<Document>) {
    let collection = server.new_name();
    let options = MongoStoreOptions { collection: collection.clone(), ..MongoStoreOptions::default() };
    let store = MongoStore::with_client(&server.client, server.database.name(), options).await;
    let store = store.expect("the server takes a store");
    let mould = Mould::new(PAYLOAD);
    let items: Vec<_> = (0..letters)
        .map(|number| {
            let sequence = format!("order-{}", number % sequences);
            open_with(mould.letter(number, &sequence, LetterState::Dead))
        })
        .collect();
    let batches: Vec<_> = items.chunks(BATCH).map(<[_]>::to_vec).collect();
    let started = Instant::now();
    for batch in batches {
        let answers = store.hand_off(&queue(), &Limits::NONE, batch).await;
        for answer in answers.expect("the store takes letters") {
            answer.expect("the store takes every letter");
        }
    }
    let rate = rate(letters, started.elapsed());
    let stored = server.database.collection::<Document>(&collection).find(Document::new()).await;
    let documents = stored.expect("the server answers").try_collect().await.expect("the server answers");
    (rate, documents)
}

/// Measures documents per second by `insert_many`, with the write concern of the store.
async fn insert_rate(collection: &Collection<Document>, documents: &[Document]) -> f64 {
    let started = Instant::now();
    for batch in documents.chunks(BATCH) {
        let insert = collection.insert_many(batch).write_concern(WriteConcern::majority());
        insert.await.expect("the server takes documents");
    }
    rate(documents.len(), started.elapsed())
}
