//! Durable hand-off against a bare SQLite loop, one transaction per letter, and the disk itself.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lazaret_core::LetterState;
use lazaret_core::store::{Counts, LetterStore};
use lazaret_store_sqlite::SqliteStore;
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::disk::{Disk, remove};
use super::{BENCH, open};
use crate::Scale;
use crate::core::rate;
use crate::letters::{Mould, open_with, put, queue};
use crate::table::{Bar, Compared, ROUNDS, Row};
use crate::zipf::Random;

/// The number of concurrent callers.
const IN_FLIGHT: usize = 64;
const PAYLOAD: usize = 1024;
const LETTERS: usize = 30_000;
/// The number of appends; each costs one fsync.
const SINGLE: usize = 3_000;
const APPENDS: usize = 2_000;
const APPEND_BYTES: usize = 64 * 1024;
/// The number of sequences.
const SEQUENCES: u32 = 1_000_000;
const SEED: u64 = 0x5e9_0e2c;
/// The most requests in one commit, as in the store.
const GROUP: usize = 256;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    let (mut ours, mut bare, mut single) = (Vec::new(), Vec::new(), Vec::new());
    let (mut payload_rate, mut append_rate) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        append_rate.push(appends(&disk.file(), scale.count(APPENDS)));
        single.push(bare_rate(disk, scale.count(SINGLE), 1).await);
        bare.push(bare_rate(disk, letters, GROUP).await);
        let rate = store_rate(disk, letters).await;
        ours.push(rate);
        payload_rate.push(rate * PAYLOAD as f64 / MIB);
    }
    let row =
        |name, baseline: &[f64]| Row::compared(BENCH, name, "letters/s", &Compared::new(&ours, baseline));
    vec![
        row("hand-off/64 in flight, 1 KiB, beside a bare group-committed loop", &bare)
            .with_bar(Bar::RatioAtLeast(0.5)),
        row("hand-off/the same, beside one transaction a letter", &single).with_bar(Bar::RatioAtLeast(3.0)),
        Row::compared(
            BENCH,
            "hand-off/payload, beside 64 KiB appends with fdatasync",
            "MiB/s",
            &Compared::new(&payload_rate, &append_rate),
        )
        .with_note(
            "the aim is 0.3. Between the two stand: a letter's other bytes (its cause and history, columns, message id); the work \
             of one thread on its rows and indexes (id, sequence name, place, time of touch, revision and those of triage); \
             and that every letter is written three times: to the redo log, to SQLite's log, and by the checkpoint",
        ),
    ]
}

const MIB: f64 = (1 << 20) as f64;

/// Measures letters per second into a new store.
async fn store_rate(disk: &Disk, letters: usize) -> f64 {
    let file = disk.file();
    let store = open(&file);
    let (_, rate) = fill(&store, letters, sequence_of).await;
    drop(store);
    remove(&file);
    rate
}

/// Hands letters off into an empty store, durably and one by one, until all are in its tables: work deferred to the redo log is included.
/// Returns the counts of the store, and letters per second.
pub(super) async fn fill(
    store: &Arc<SqliteStore>,
    letters: usize,
    sequence_of: fn(usize) -> String,
) -> (Counts, f64) {
    let mould = Mould::new(PAYLOAD);
    let started = Instant::now();
    in_flight(letters, {
        let store = store.clone();
        move |number| {
            let (store, mould) = (store.clone(), mould.clone());
            async move {
                let letter = mould.letter(number, &sequence_of(number), LetterState::Dead);
                put(&*store, vec![open_with(letter)]).await;
            }
        }
    })
    .await;
    let counts = store.counts(&queue()).await.expect("the store answers");
    let took = started.elapsed();
    assert_eq!(counts.open(), letters as u64, "every letter is there");
    (counts, rate(letters, took))
}

/// Returns a pseudorandom sequence for a number.
fn sequence_of(number: usize) -> String {
    format!("order-{}", Random::new(SEED ^ number as u64).below(SEQUENCES))
}

/// Runs all work items with [`IN_FLIGHT`] concurrent callers.
pub(super) async fn in_flight<F>(
    count: usize,
    work: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
) -> std::time::Duration
where
    F: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (next, work) = (next.clone(), work.clone());
        callers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                work(number).await;
            }
        });
    }
    callers.join_all().await;
    started.elapsed()
}

struct Insert {
    id: [u8; 16],
    bytes: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// Measures rows per second into one table with one index: the same payloads, causes and pragmas, one writer for all callers,
/// at most `group` rows per transaction.
async fn bare_rate(disk: &Disk, letters: usize, group: usize) -> f64 {
    let file = disk.file();
    let connection = bare_table(&file).expect("a bare table can be made");
    let (inserts, waiting) = mpsc::channel(1024);
    let writer = std::thread::spawn(move || write(&connection, waiting, group));
    let mould = Mould::new(PAYLOAD);
    let took = in_flight(letters, move |number| {
        let (inserts, mould) = (inserts.clone(), mould.clone());
        async move {
            // The parts of a letter that the store keeps outside of columns: payload, cause and history.
            let letter = mould.letter(number, &sequence_of(number), LetterState::Dead);
            let id = letter.id.as_uuid().into_bytes();
            let mut bytes =
                serde_json::to_vec(&(&letter.cause, &letter.history)).expect("a cause is plain data");
            bytes.extend_from_slice(letter.message.payload.as_deref().unwrap_or_default());
            let (done, is_done) = oneshot::channel();
            let sent = inserts.send(Insert { id, bytes, done }).await;
            assert!(sent.is_ok(), "the writer lives");
            is_done.await.expect("the writer answers");
        }
    })
    .await;
    writer.join().expect("the writer does not panic").expect("the bare table takes every row");
    remove(&file);
    rate(letters, took)
}

fn bare_table(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -16 * 1024)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 8000, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(()))?;
    connection.execute_batch(
        "CREATE TABLE letters (lid INTEGER PRIMARY KEY, id BLOB NOT NULL, bytes BLOB NOT NULL);
         CREATE UNIQUE INDEX letters_id ON letters (id);",
    )?;
    Ok(connection)
}

fn write(connection: &Connection, mut waiting: mpsc::Receiver<Insert>, group: usize) -> rusqlite::Result<()> {
    let mut insert = connection.prepare("INSERT INTO letters (id, bytes) VALUES (?1, ?2)")?;
    let mut done = Vec::with_capacity(group);
    while let Some(first) = waiting.blocking_recv() {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut next = Some(first);
        while let Some(row) = next {
            insert.execute(params![row.id, row.bytes])?;
            done.push(row.done);
            next = if done.len() < group { waiting.try_recv().ok() } else { None };
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        for caller in done.drain(..) {
            caller.send(()).expect("every caller waits");
        }
    }
    Ok(())
}

/// Measures MiB per second of large appends, each followed by fdatasync.
fn appends(path: &Path, count: usize) -> f64 {
    let bytes = vec![b'x'; APPEND_BYTES];
    let mut file = File::create(path).expect("a file can be made");
    let started = Instant::now();
    for _ in 0..count {
        file.write_all(&bytes).expect("the disk takes an append");
        file.sync_data().expect("the disk keeps an append");
    }
    let took = started.elapsed();
    std::fs::remove_file(path).expect("the file can be removed");
    (count * APPEND_BYTES) as f64 / MIB / took.as_secs_f64()
}
