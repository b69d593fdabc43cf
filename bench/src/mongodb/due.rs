//! Due letters, claimed and settled by one consumer with default options, beside the same updates by the driver alone.
//!
//! To retry a letter that is alone in its sequence, the store makes four updates, one after the other: it leases the sequence, decides the
//! settlement in the sequence, closes the letter, and marks the sequence as finished. The bare loops make the same four updates of the same
//! documents, by id, in the same order, each acknowledged by the majority before the next one is sent, and with as many letters in work
//! as the engine has. They do not look for due letters, read documents, compare versions or count groups. So they show the limit of this server and
//! driver for a store that works in these steps, and the ratio shows what the store and the engine add. The bare updates of the first row share
//! commands, as the updates of the store do. The second row sends each update alone, as an application without a store would.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::{Letter, LetterState};
use mongodb::{Collection, Database};
use tokio_util::sync::CancellationToken;

use super::BENCH;
use super::server::{OwnStore, Server};
use crate::Scale;
use crate::consumer::{consumer, let_go};
use crate::core::{options, rate};
use crate::letters::{Mould, fill};
use crate::operation::nothing;
use crate::source::Plan;
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

/// Each in a sequence of its own.
const LETTERS: usize = 20_000;
const PAYLOAD: usize = 1024;
/// The letters that one consumer is to settle per second.
const TARGET: f64 = 1000.0;
/// The letters in work for each letter that an engine attempts at once: the others are claimed or settled meanwhile.
const RUNS_PER_PLACE: usize = 4;
/// The poll interval for the end of a run.
const LOOK: Duration = Duration::from_millis(1);

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let letters = scale.count(LETTERS);
    // Retries take at most half of an engine's attempts.
    let claimed = options().concurrency / 2;
    let in_work = claimed * RUNS_PER_PLACE;
    let (mut engine, mut together, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        engine.push(engine_rate(server, letters).await);
        together.push(bare_rate(server, letters, RUNS_PER_PLACE, claimed).await);
        alone.push(bare_rate(server, letters, in_work, 1).await);
    }
    let row = |name: String, bare: &[f64]| {
        let note = format!("{ROUNDS} rounds; the ratios lie between {}", spread(&engine, bare));
        Row::compared(BENCH, name, "letters/s", &Compared::new(&engine, bare)).with_note(note)
    };
    let name = format!("due/claims and settlements, beside the bare updates, {claimed} a command");
    let same = format!("due/the same, beside the bare updates, one a command in {in_work} loops");
    vec![row(name, &together).with_bar(Bar::ValueAtLeast(TARGET)), row(same, &alone)]
}

/// Letters that are due, each in a sequence of its own.
pub(super) fn due_letters(letters: usize) -> impl Iterator<Item = Letter> {
    let mould = Mould::new(PAYLOAD);
    (0..letters).map(move |number| {
        let mut letter = mould.letter(number, &format!("order-{number}"), LetterState::Retrying);
        letter.due_at = letter.first_failed_at;
        letter
    })
}

/// Letters per second from the start of a consumer to the last settlement.
async fn engine_rate(server: &Server, letters: usize) -> f64 {
    let OwnStore { store, .. } = server.store().await;
    fill(&*store, due_letters(letters)).await;
    // The source is empty; the run ends when no retry is left.
    let consumer = consumer(&Plan::uniform(0, 1), &store, options(), nothing);
    let handle = consumer.handle();
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    while handle.stats().resolved < letters as u64 && !run.is_finished() {
        tokio::time::sleep(LOOK).await;
    }
    let took = started.elapsed();
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(stats.resolved, letters as u64, "every letter is settled");
    drop(handle);
    let_go(store).await;
    rate(letters, took)
}

/// Letters per second by the driver alone: this many loops, each with so many letters in a command.
async fn bare_rate(server: &Server, letters: usize, loops: usize, at_once: usize) -> f64 {
    let OwnStore { store, collection } = server.store().await;
    fill(&*store, due_letters(letters)).await;
    let bare = Arc::new(Bare { database: server.database.clone(), collection });
    let documents = bare.documents().await;
    assert_eq!(documents.len(), letters, "every letter has a sequence");
    let shares: Vec<Vec<Stored>> =
        documents.chunks(letters.div_ceil(loops)).map(<[Stored]>::to_vec).collect();
    let started = Instant::now();
    let share = |share: Vec<Stored>| {
        let bare = bare.clone();
        tokio::spawn(async move {
            for letters in share.chunks(at_once) {
                bare.retry(letters).await;
            }
        })
    };
    let running: Vec<_> = shares.into_iter().map(share).collect();
    for share in running {
        share.await.expect("a loop does not panic");
    }
    rate(letters, started.elapsed())
}

/// The documents of a letter: the ids.
#[derive(Clone)]
struct Stored {
    sequence: String,
    letter: String,
}

/// The driver on the collections of a store.
struct Bare {
    database: Database,
    collection: String,
}

impl Bare {
    /// The name of the collection of sequences.
    fn sequences(&self) -> String {
        format!("{}_sequences", self.collection)
    }

    /// The ids of all letters and their sequences.
    async fn documents(&self) -> Vec<Stored> {
        let letters = self.ids(&self.collection, "lazaret.sequence").await;
        let sequences = self.ids(&self.sequences(), "sequence").await;
        let stored = |((letter, of), (sequence, name)): ((String, String), (String, String))| {
            assert_eq!(of, name, "every letter is alone in its sequence");
            Stored { sequence, letter }
        };
        letters.into_iter().zip(sequences).map(stored).collect()
    }

    /// The ids of documents and the sequences that they name in this field, in the order of these.
    async fn ids(&self, collection: &str, field: &str) -> Vec<(String, String)> {
        let documents: Collection<Document> = self.database.collection(collection);
        let found = documents.find(doc! {}).projection(doc! { "name": format!("${field}") }).await;
        let found: Vec<Document> =
            found.expect("the server answers").try_collect().await.expect("the server answers");
        let text =
            |document: &Document, field: &str| document.get_str(field).expect("it is a text").to_owned();
        let mut ids: Vec<_> =
            found.iter().map(|document| (text(document, "_id"), text(document, "name"))).collect();
        ids.sort_by(|(_, one), (_, other)| one.cmp(other));
        ids
    }

    /// Claims letters, settles them, and finishes their sequences.
    async fn retry(&self, letters: &[Stored]) {
        let now = bson::DateTime::now().timestamp_millis() * 1_000_000;
        let until = now + 30_000_000_000;
        let lease = doc! { "owner": "bench", "fence": 1_i64, "until": until, "kind": "due", "waits": false };
        let claimed = doc! {
            "$set": { "row.lease": lease, "freeAt": until, "latest": until },
            "$inc": { "version": 1, "fence": 1 },
        };
        let decided = doc! {
            "$set": { "open": false, "unfinished": true },
            "$unset": { "row": "", "freeAt": "", "touched": "", "latest": "" },
            "$inc": { "version": 1 },
        };
        let closed = doc! {
            "$set": { "lazaret.state": "resolved", "lazaret.open": false, "lazaret.touched": now, "lazaret.closed": now },
            "$unset": { "lazaret.due": "" },
        };
        let finished = doc! { "$set": { "unfinished": false }, "$inc": { "version": 1 } };
        let of_sequences: Vec<&str> = letters.iter().map(|stored| stored.sequence.as_str()).collect();
        let of_letters: Vec<&str> = letters.iter().map(|stored| stored.letter.as_str()).collect();
        let sequences = self.sequences();
        self.update(&sequences, &of_sequences, &claimed).await;
        self.update(&sequences, &of_sequences, &decided).await;
        self.update(&self.collection, &of_letters, &closed).await;
        self.update(&sequences, &of_sequences, &finished).await;
    }

    /// Updates each of these documents, in one command that the majority acknowledges.
    async fn update(&self, collection: &str, ids: &[&str], update: &Document) {
        let updates: Vec<Document> = ids.iter().map(|id| doc! { "q": { "_id": *id }, "u": update }).collect();
        let count = i32::try_from(updates.len()).expect("a few");
        let command = doc! {
            "update": collection,
            "updates": updates,
            "ordered": false,
            "writeConcern": { "w": "majority" },
        };
        let answer = self.database.run_command(command).await.expect("the server takes updates");
        assert_eq!(answer.get_i32("nModified").ok(), Some(count), "every document is changed: {answer}");
    }
}
