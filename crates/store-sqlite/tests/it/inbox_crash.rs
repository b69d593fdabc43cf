//! An inbox whose process is killed during posts and consumption.
//!
//! The test runs this binary a second time, with only [`victim`] in it, and kills it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lazaret_core::Position;
use lazaret_core::source::{Commit, Ingest, NewMessage, Source, SourceEvent};
use lazaret_store_sqlite::{InboxLog, InboxOptions, Options, Posted, SqliteStore};

const FILE: &str = "LAZARET_INBOX_VICTIM_FILE";
const FIRST: &str = "LAZARET_INBOX_VICTIM_FIRST";
const REDO: &str = "LAZARET_INBOX_VICTIM_REDO";

fn inbox(path: &Path, options: Options) -> InboxLog {
    let inbox = InboxOptions { batch: 7, poll: Duration::from_millis(5), ..InboxOptions::default() };
    SqliteStore::open(path, options).unwrap().inbox_log("orders", inbox)
}

fn numbered(number: u64) -> NewMessage {
    NewMessage { id: Some(number.to_string().into()), payload: Some("{}".into()), ..NewMessage::default() }
}

/// Posts one message after the other and prints each durable one; concurrently consumes, commits and prints.
#[tokio::test]
#[ignore = "started by the other test, in a process of its own"]
async fn victim() {
    let path = PathBuf::from(std::env::var_os(FILE).expect("only the other test starts this one"));
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let mut options = Options::default();
    if std::env::var_os(REDO).is_some() {
        options.redo_from = 0;
    }
    let inbox = inbox(&path, options);
    let mut source = inbox.source();
    let posting = async {
        for number in first.. {
            inbox.post(vec![numbered(number)]).await.unwrap();
            say("posted", number);
        }
    };
    let consuming = async {
        loop {
            if let SourceEvent::Messages(messages) = source.next().await.unwrap() {
                for message in messages {
                    say("handled", message.position.offset);
                    let position = Some(message.position);
                    let commit = Commit { partition: source.partition(), position, settled_beyond: vec![] };
                    source.commit(vec![commit]).await.unwrap();
                }
            }
        }
    };
    tokio::join!(posting, consuming);
}

fn say(what: &str, number: u64) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{what} {number}").unwrap();
    out.flush().unwrap();
}

#[tokio::test]
async fn no_acknowledged_post_is_lost_or_duplicated() {
    survives_kill_9(false).await;
}

#[tokio::test]
async fn no_post_in_the_redo_log_alone_is_lost() {
    survives_kill_9(true).await;
}

/// I1, I8
async fn survives_kill_9(by_redo_log: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let mut handled: Vec<u64> = Vec::new();
    let mut posted: Option<u64> = None;
    for lines in [3, 40, 90, 400] {
        // The client did not get the last response, and posts again.
        let first = posted.unwrap_or(0);
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim
            .args(["inbox_crash::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILE, &path)
            .env(FIRST, first.to_string());
        if by_redo_log {
            victim.env(REDO, "yes");
        }
        let mut child = victim.stdout(Stdio::piped()).spawn().unwrap();
        let mut before: Option<u64> = None;
        let output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let reported = output.filter_map(|line| {
            let (what, number) = line.split_once(' ')?;
            Some((what.to_owned(), number.parse::<u64>().ok()?))
        });
        let mut killed = false;
        for (count, (what, number)) in reported.enumerate() {
            if count == lines {
                child.kill().unwrap();
                killed = true;
            }
            match what.as_str() {
                "posted" => posted = Some(number),
                "handled" => {
                    assert!(before.is_none_or(|before| number == before + 1), "in order, without gaps");
                    before = Some(number);
                    handled.push(number);
                }
                _ => {}
            }
        }
        child.wait().unwrap();
        assert!(killed, "it crashed by itself");
    }
    // Committed messages are gone; exactly the others are delivered.
    let inbox = inbox(&path, Options::default());
    let posted = posted.unwrap();
    let mut source = inbox.source();
    source.next().await.unwrap();
    while source.lag() != Some(0) {
        let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("messages") };
        for message in messages {
            assert_eq!(message.id.as_str(), message.position.offset.to_string(), "each was taken once");
            handled.push(message.position.offset);
        }
    }
    handled.sort_unstable();
    // One message per crash may have been handled and not committed.
    handled.dedup();
    assert!(handled.len() as u64 > posted, "{} of {posted}", handled.len());
    assert!(handled.iter().copied().eq(0..handled.len() as u64), "none is missing");
    let again = inbox.post((0..=posted).map(numbered).collect()).await.unwrap();
    for (number, answer) in (0..).zip(again) {
        let position = Position::new(0, number);
        assert_eq!(answer, Posted::Known { id: number.to_string().into(), position });
    }
}
