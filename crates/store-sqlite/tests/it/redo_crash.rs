//! A store whose process is killed during many hand-offs, and one with a full disk: acknowledged letters are in the redo log.
//!
//! The tests run this binary a second time, with only a victim in it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lazaret_core::store::{Act, Actor, Certainty, HandOff, LetterStore, Limits, Placed, Placement};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Position, QueueName, Reason, Timestamp,
};
use lazaret_store_sqlite::{Options, SqliteStore};

const FILE: &str = "LAZARET_REDO_VICTIM_FILE";
const ROUND: &str = "LAZARET_REDO_VICTIM_ROUND";
/// Number of concurrent callers, each with a sequence of its own.
const CALLERS: u64 = 32;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn letter(sequence: &str, message: &str, offset: u64, payload: usize) -> HandOff {
    let message = Message::new(message, "orders", Position::new(0, offset)).with_payload(vec![b'x'; payload]);
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    HandOff { letter, placement: Placement::Open, grant: None }
}

fn file_of_victim() -> PathBuf {
    PathBuf::from(std::env::var_os(FILE).expect("only the other tests start this one"))
}

fn victim(name: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("redo_crash::{name}");
    command.args(["--exact", &test, "--ignored", "--nocapture", "--test-threads=1"]).env(FILE, file);
    command
}

/// Hands off one letter after the other in each sequence, and prints each durable one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test, in a process of its own"]
async fn many_callers() {
    let round = std::env::var(ROUND).unwrap();
    let options = Options { redo_from: 0, ..Options::default() };
    let store = SqliteStore::open(file_of_victim(), options).unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (store, round) = (store.clone(), round.clone());
        callers.spawn(async move {
            for number in 0.. {
                let items =
                    vec![letter(&format!("s{caller}"), &format!("{round}-{caller}-{number}"), number, 100)];
                store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "\nanswered {caller} {number}").unwrap();
                out.flush().unwrap();
            }
        });
    }
    callers.join_all().await;
}

/// Runs a victim until it has printed this many lines, kills it, and returns the last number of each caller.
fn killed_after(lines: usize, round: usize, file: &Path) -> BTreeMap<u64, u64> {
    let mut child =
        victim("many_callers", file).env(ROUND, round.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let reported = output.filter_map(|line| {
        let mut words = line.strip_prefix("answered ")?.split(' ').map(|word| word.parse::<u64>());
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    let (mut answered, mut killed) = (BTreeMap::new(), false);
    for (count, (caller, number)) in reported.enumerate() {
        if count == lines {
            child.kill().unwrap();
            killed = true;
        }
        answered.insert(caller, number);
    }
    child.wait().unwrap();
    assert!(killed, "it crashed by itself");
    answered
}

#[tokio::test]
async fn every_acknowledged_hand_off_survives_kill_9() {
    // I1, I2, I8
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    // It keeps running while the others are killed.
    let witness = SqliteStore::open(&path, Options::default()).unwrap();
    for (round, lines) in [1, 40, 333, 1000, 2500, 2501].into_iter().enumerate() {
        let answered = killed_after(lines, round, &path);
        assert!(answered.values().map(|last| last + 1).sum::<u64>() > lines as u64, "all output was read");
        assert!(std::fs::metadata(path.with_extension("db-redo")).unwrap().len() > 0, "it wrote a redo log");
        let opened;
        let store = if round % 2 == 0 {
            &witness
        } else {
            opened = SqliteStore::open(&path, Options::default()).unwrap();
            &opened
        };
        for (caller, last) in answered {
            let name = format!("s{caller}").as_str().into();
            let letters = store.sequence(&queue(), &name, 0, usize::MAX).await.unwrap();
            let mine =
                letters.iter().filter(|letter| letter.message.id.as_str().starts_with(&format!("{round}-")));
            let stored: Vec<u64> = mine.map(|letter| letter.message.position.offset).collect();
            let expected: Vec<u64> = (0..stored.len() as u64).collect();
            assert_eq!(stored, expected, "in order and without gaps");
            assert!(
                stored.len() as u64 > last,
                "{} letters of {caller}, and {last} was acknowledged",
                stored.len()
            );
        }
    }
}

#[tokio::test]
async fn another_process_gets_the_lock_under_load_and_sees_acknowledged_writes() {
    // I3: other processes need not wait until the store is idle.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    let mut child = victim("many_callers", &path).env(ROUND, "0").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for round in 0..20 {
        let reported = output.by_ref().skip(50).find(|line| line.starts_with("answered ")).unwrap();
        let words: Vec<&str> = reported.split(' ').collect();
        let id = MessageId::from(format!("0-{}-{}", words[1], words[2]));
        let state = store.lookup(&queue(), std::slice::from_ref(&id)).await.unwrap();
        assert_eq!(state, [Some(LetterState::Dead)], "round {round}");
        let by = Actor::new("ada", "cli", "seen");
        store.act(&queue(), LetterId::of(&queue(), &id), Act::Park, &by).await.unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn large(number: u64) -> Vec<HandOff> {
    vec![letter("a", &format!("m{number}"), number, 10_000)]
}

/// Hands off until neither the redo log nor the database has space.
#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn small_disk() {
    let options = Options { redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() };
    let store = SqliteStore::open(file_of_victim(), options).unwrap();
    let mut answered = 0;
    let error = loop {
        match store.hand_off(&queue(), &Limits::NONE, large(answered)).await {
            Ok(_) => answered += 1,
            Err(error) => break error,
        }
        assert!(answered < 1000, "the files are not limited");
    };
    // It may be complete in the redo log.
    assert_eq!(error.certainty(), Certainty::MaybeDone, "{error}");
    std::fs::write(store.path().with_extension("answered"), answered.to_string()).unwrap();
    // Acknowledged letters cannot be committed, so queries fail instead of missing them.
    store.counts(&queue()).await.unwrap_err();
    let error = store.hand_off(&queue(), &Limits::NONE, large(answered + 1)).await.unwrap_err();
    assert_eq!(error.certainty(), Certainty::NotDone, "{error}");
}

#[tokio::test]
async fn a_failed_commit_loses_nothing_acknowledged_before() {
    // I1, I9
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    // Beyond the limit a write fails as on a full disk; without the trap it would kill the process instead.
    let script = r#"trap "" XFSZ; ulimit -f 1000; exec "$0" "$@""#;
    let victim = victim("small_disk", &path);
    let mut limited = Command::new("sh");
    limited.args(["-c", script]).arg(victim.get_program()).args(victim.get_args()).env(FILE, &path);
    assert!(limited.stdout(Stdio::null()).status().unwrap().success());
    let answered: u64 = std::fs::read_to_string(path.with_extension("answered")).unwrap().parse().unwrap();
    assert!(answered > 10, "{answered} were written before the limit");
    let letters = store.sequence(&queue(), &"a".into(), 0, usize::MAX).await.unwrap();
    let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
    assert!(offsets.len() as u64 >= answered, "{} of {answered}", offsets.len());
    assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<u64>>());
    let placed =
        store.hand_off(&queue(), &Limits::NONE, large(offsets.len() as u64)).await.unwrap().remove(0);
    assert_eq!(placed.unwrap(), Placed::Appended, "with free space it continues");
}
