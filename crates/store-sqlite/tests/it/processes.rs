//! Two processes on one file: this test program starts itself again as the second.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use lazaret_core::store::{Audit, Certainty, ErrorKind, HandOff, LetterStore, Limits, Placed, Placement};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_store_sqlite::{Options, SqliteStore};

/// Marks the second process, and names its file.
const FILE: &str = "LAZARET_TEST_FILE";
/// Number of batches of each writer.
const BATCHES: u64 = 40;
const BATCH: u64 = 5;
const SEQUENCES: u64 = 4;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// Starts this program again, to run only this test, as the second process.
fn second_process(test: &str, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The store of this process; the folder is `None` in the second one.
fn open() -> (SqliteStore, Option<tempfile::TempDir>) {
    match std::env::var_os(FILE) {
        Some(file) => (SqliteStore::open(file, Options::default()).unwrap(), None),
        None => {
            let folder = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(folder.path().join("lazaret.db"), Options::default()).unwrap();
            (store, Some(folder))
        }
    }
}

/// Batches of letters, the same in every process except for the name of the writer.
async fn write(store: &SqliteStore, who: &str) {
    for batch in 0..BATCHES {
        let items = (0..BATCH).flat_map(|n| {
            let number = batch * BATCH + n;
            (0..SEQUENCES).map(move |sequence| {
                let id = format!("{who}-{sequence}-{number}");
                let message = Message::new(id, who, Position::new(0, number * SEQUENCES + sequence));
                let sequence = format!("s{sequence}").as_str().into();
                let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::now());
                letter.state = LetterState::Dead;
                HandOff { letter, placement: Placement::Open, grant: None }
            })
        });
        for placed in store.hand_off(&queue(), &Limits::NONE, items.collect()).await.unwrap() {
            assert!(matches!(placed.unwrap(), Placed::Opened | Placed::Appended));
        }
    }
}

#[tokio::test]
async fn a_second_process_reads_whole_batches_while_the_first_writes() {
    const PER_BATCH: u64 = BATCH * SEQUENCES;
    let (store, folder) = open();
    if folder.is_none() {
        write(&store, "second").await;
        return;
    }
    let mut writer =
        second_process("a_second_process_reads_whole_batches_while_the_first_writes", store.path());
    let mut last = 0;
    loop {
        let ended = writer.try_wait().unwrap();
        let counts = store.counts(&queue()).await.unwrap();
        assert_eq!(counts.open() % PER_BATCH, 0, "a batch is there as a whole or not at all");
        assert!(counts.open() >= last, "visible letters stay");
        last = counts.open();
        if let Some(status) = ended {
            assert!(status.success());
            assert_eq!((counts.open(), counts.sequences), (BATCHES * PER_BATCH, SEQUENCES));
            return;
        }
    }
}

#[tokio::test]
async fn two_processes_write_concurrently_without_interference() {
    // I2, I8
    let (store, folder) = open();
    if folder.is_none() {
        write(&store, "second").await;
        return;
    }
    let mut second = second_process("two_processes_write_concurrently_without_interference", store.path());
    write(&store, "first").await;
    assert!(second.wait().unwrap().success());
    let each = BATCHES * BATCH;
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.sequences), (2 * each * SEQUENCES, SEQUENCES));
    for sequence in 0..SEQUENCES {
        let name = format!("s{sequence}").as_str().into();
        let letters = store.sequence(&queue(), &name, 0, usize::MAX).await.unwrap();
        assert!(letters.is_sorted_by(|a, b| a.index < b.index), "no two letters have the same index");
        for who in ["first", "second"] {
            let mine = letters.iter().filter(|letter| letter.message.stream.as_str() == who);
            let offsets: Vec<u64> = mine.map(|letter| letter.message.position.offset).collect();
            let expected: Vec<u64> = (0..each).map(|number| number * SEQUENCES + sequence).collect();
            assert_eq!(offsets, expected, "the letters of {who} are in order");
        }
    }
    assert!(store.audit(0, 1).await.unwrap().is_empty(), "there were no acts");
}

/// Starts this program again under a limit on the size of files: beyond it, a write fails as on a full disk.
fn limited_process(test: &str, file: &Path) -> Child {
    // Without the trap the limit would kill the process instead.
    let script = r#"trap "" XFSZ; ulimit -f 1000; exec "$0" "$@""#;
    Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn large(number: u64) -> Vec<HandOff> {
    let message = Message::new(format!("m{number}"), "orders", Position::new(0, number));
    let message = message.with_payload(vec![b'x'; 10_000]);
    let mut letter = Letter::new(queue(), "a".into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    vec![HandOff { letter, placement: Placement::Open, grant: None }]
}

#[tokio::test]
async fn a_failed_commit_has_an_unknown_outcome_and_loses_nothing_acknowledged() {
    // I1, I9
    let (store, folder) = open();
    let Some(folder) = folder else {
        let mut answered = 0;
        let error = loop {
            match store.hand_off(&queue(), &Limits::NONE, large(answered)).await {
                Ok(_) => answered += 1,
                Err(error) => break error,
            }
            assert!(answered < 1000, "the file is not limited");
        };
        // The log may contain the whole commit.
        assert_eq!(error.certainty(), Certainty::MaybeDone, "{error}");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full), "{error}");
        // The store keeps running: reads work, and writes keep failing.
        let found = store.counts(&queue()).await.unwrap().open();
        assert!((answered..=answered + 1).contains(&found), "{found} of {answered}");
        for _ in 0..3 {
            store.hand_off(&queue(), &Limits::NONE, large(answered + 1)).await.unwrap_err();
        }
        std::fs::write(store.path().with_extension("answered"), answered.to_string()).unwrap();
        return;
    };
    let test = "a_failed_commit_has_an_unknown_outcome_and_loses_nothing_acknowledged";
    assert!(limited_process(test, store.path()).wait().unwrap().success());
    let answered = std::fs::read_to_string(folder.path().join("lazaret.answered")).unwrap();
    let answered: u64 = answered.parse().unwrap();
    assert!(answered > 0, "something was written before the limit");
    let ids: Vec<_> = (0..answered).map(|number| format!("m{number}").into()).collect();
    let states = store.lookup(&queue(), &ids).await.unwrap();
    assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
    // With free space, the same hand-offs succeed.
    for number in answered..answered + 2 {
        store.hand_off(&queue(), &Limits::NONE, large(number)).await.unwrap().remove(0).unwrap();
    }
    let letters = store.sequence(&queue(), &"a".into(), 0, usize::MAX).await.unwrap();
    let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
    assert_eq!(offsets, (0..answered + 2).collect::<Vec<u64>>());
}
