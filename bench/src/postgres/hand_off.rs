//! Durable hand-off with 64 letters in flight, which the engine writes with one call, against bare statements.

use std::time::Instant;

use futures_util::future::join5;
use lazaret_core::LetterState;
use lazaret_core::store::HandOff;

use super::BENCH;
use super::axon::Queue;
use super::server::{Schema, Server};
use crate::Scale;
use crate::core::rate;
use crate::letters::{Mould, open_with, put};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};
use crate::zipf::Random;

/// The letters in flight: those of one call, and the rows of one insert.
const IN_FLIGHT: usize = 64;
const PAYLOAD: usize = 1024;
const LETTERS: usize = 32_000;
const SEQUENCES: u32 = 1_000_000;
const SEED: u64 = 0x5e9_0e2c;
/// The letters that Axon's queue holds, and those that are enqueued.
const HELD: usize = 5_000;
const ENQUEUED: usize = 1_000;

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    let (mut ours, mut bare, mut copied, mut axon) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_rate(server, letters).await);
        let (handed_off, rows) = store_rates(server, letters).await;
        ours.push(handed_off);
        copied.push(rows);
        axon.push(axon_rate(server, scale).await);
    }
    let row =
        |name, baseline: &[f64]| Row::compared(BENCH, name, "letters/s", &Compared::new(&ours, baseline));
    let range =
        |baseline: &[f64]| format!("{ROUNDS} rounds; the ratios lie between {}", spread(&ours, baseline));
    vec![
        row("hand-off/64 in flight, 1 KiB, beside a bare INSERT of 64 rows by unnest", &bare)
            .with_bar(Bar::RatioAtLeast(0.5))
            .with_note(range(&bare)),
        row("hand-off/the same, beside a copy of its rows and index entries by the server alone", &copied)
            .with_note(range(&copied)),
        row("hand-off/the same, beside the statements of Axon's JDBC queue with 5,000 letters", &axon)
            .with_bar(Bar::RatioAtLeast(50.0))
            .with_note(range(&axon)),
    ]
}

fn letters_of(call: usize) -> Vec<HandOff> {
    let mould = Mould::new(PAYLOAD);
    let numbers = call * IN_FLIGHT..(call + 1) * IN_FLIGHT;
    let letters = numbers.map(|number| {
        let sequence = format!("order-{}", Random::new(SEED ^ number as u64).below(SEQUENCES));
        open_with(mould.letter(number, &sequence, LetterState::Dead))
    });
    letters.collect()
}

/// Measures letters per second into a new store, and how fast the server copies what they left.
async fn store_rates(server: &Server, letters: usize) -> (f64, f64) {
    let schema = server.schema().await;
    let store = schema.store().await;
    let calls: Vec<_> = (0..letters / IN_FLIGHT).map(letters_of).collect();
    let started = Instant::now();
    for call in calls {
        put(&*store, call).await;
    }
    let took = started.elapsed();
    let copied = copied_rate(&schema, letters).await;
    schema.drop(store).await;
    (rate(letters, took), copied)
}

/// Measures letters per second when the server copies their rows into empty tables with the same indexes, with a commit for each 64:
/// nothing is sent, looked up or counted. No store with these tables is faster.
async fn copied_rate(schema: &Schema<'_>, letters: usize) -> f64 {
    let client = schema.client().await;
    let copies = ["letters", "payloads", "sequences"]
        .map(|table| format!("CREATE TABLE {table}_copied (LIKE {table} INCLUDING ALL);"));
    client.batch_execute(&copies.concat()).await.expect("the server creates tables");
    let of_letters = "INSERT INTO letters_copied SELECT * FROM letters WHERE lid BETWEEN $1 AND $2";
    let of_payloads = "INSERT INTO payloads_copied SELECT * FROM payloads WHERE lid BETWEEN $1 AND $2";
    let of_sequences = "INSERT INTO sequences_copied SELECT * FROM sequences WHERE sid IN (
        SELECT sid FROM letters WHERE lid BETWEEN $1 AND $2) ON CONFLICT DO NOTHING";
    let prepare = async |sql: &str| client.prepare(sql).await.expect("the statement is valid");
    let (of_letters, of_payloads, of_sequences) =
        (prepare(of_letters).await, prepare(of_payloads).await, prepare(of_sequences).await);
    let rows = client.query("SELECT lid FROM letters ORDER BY lid", &[]).await;
    let numbers = rows.expect("the server answers").into_iter().map(|row| row.get(0));
    let numbers: Vec<i64> = numbers.collect();
    let started = Instant::now();
    for call in numbers.chunks(IN_FLIGHT) {
        let (first, last) = (call.first().copied(), call.last().copied());
        // Sent together, in this order.
        let (begun, letters, payloads, sequences, committed) = join5(
            client.batch_execute("BEGIN"),
            client.execute(&of_letters, &[&first, &last]),
            client.execute(&of_payloads, &[&first, &last]),
            client.execute(&of_sequences, &[&first, &last]),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun
            .and(letters)
            .and(payloads)
            .and(sequences)
            .and(committed.map(|()| 0))
            .expect("the server copies");
    }
    rate(letters, started.elapsed())
}

/// Measures rows per second into one table with one index: the same payloads and causes, a commit for each insert.
async fn bare_rate(server: &Server, letters: usize) -> f64 {
    let schema = server.schema().await;
    let client = schema.client().await;
    let table = "CREATE TABLE letters (id uuid PRIMARY KEY, bytes bytea NOT NULL)";
    client.batch_execute(table).await.expect("the server creates tables");
    let sql = "INSERT INTO letters SELECT * FROM unnest($1::uuid[], $2::bytea[])";
    let insert = client.prepare(sql).await.expect("the statement is valid");
    let calls: Vec<_> = (0..letters / IN_FLIGHT).map(letters_of).collect();
    let started = Instant::now();
    for call in calls {
        let rows = call.into_iter().map(|HandOff { letter, .. }| {
            // The parts of a letter that the store keeps outside of columns: payload, cause and history.
            let mut bytes =
                serde_json::to_vec(&(&letter.cause, &letter.history)).expect("a cause is plain data");
            bytes.extend_from_slice(letter.message.payload.as_deref().unwrap_or_default());
            (letter.id.as_uuid(), bytes)
        });
        let (ids, bytes): (Vec<_>, Vec<_>) = rows.unzip();
        client.execute(&insert, &[&ids, &bytes]).await.expect("the server takes rows");
    }
    let took = started.elapsed();
    drop(client);
    schema.clean_up().await;
    rate(letters, took)
}

async fn axon_rate(server: &Server, scale: Scale) -> f64 {
    let schema = server.schema().await;
    let mut queue = Queue::filled(&schema, HELD, HELD, PAYLOAD).await;
    let rate = queue.enqueue(scale.count(ENQUEUED)).await;
    drop(queue);
    schema.clean_up().await;
    rate
}
