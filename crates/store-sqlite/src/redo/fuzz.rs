//! Fuzz targets: the calls in a record of the redo log, and a whole log beside its database.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::{Ingest, NewMessage};
use lazaret_core::store::{
    AttemptNote, HandOff, LeaseUse, LetterStore, Limits, Placement, Requeue, Settlement,
};
use lazaret_core::{Failure, Letter, LetterState, Message, Partition, Position, QueueName, Reason};
use lazaret_fuzz::Fuzz;
use lazaret_testkit::ManualClock;
use lazaret_testkit::clock::test_epoch;
use rusqlite::Connection;
use tempfile::TempDir;

use super::record::{HEADER_BYTES, Header};
use super::{Durability, Fields, Mark, RedoLog, path_of};
use crate::consistency;
use crate::hand_offs::{HandOffs, Notes};
use crate::inbox_source::Posts;
use crate::lease_calls::{ClaimDue, ClaimOne, PollWork, Release, Renew};
use crate::recorded::{Call, Repeatable};
use crate::settle_calls::{Settle, SettleAndContinue};
use crate::{InboxOptions, Options, SqliteStore};

fn options() -> Options {
    let clock = Arc::new(ManualClock::new());
    Options { clock, redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() }
}

/// A folder as a crash leaves it: a database without letters, and the redo log with all of them.
struct Crashed {
    folder: TempDir,
    mark: Mark,
    log: Vec<u8>,
}

impl Crashed {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db");
        let store = SqliteStore::open(&path, options()).unwrap();
        // The first post with an id would create it, and commit the records before it.
        store.create_digest_key().await.unwrap();
        let queue = QueueName::of("orders", "orders");
        for (id, offset) in [("m0", 0), ("m1", 1)] {
            let message =
                Message::new(id, "orders", Position::new(0, offset)).with_key("a").with_header("b", "c");
            let mut letter =
                Letter::new(queue.clone(), "a".into(), message.with_payload("{}").into(), test_epoch());
            letter.state = LetterState::Dead;
            letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
            let item = HandOff { letter, placement: Placement::Open, grant: None };
            store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
        }
        let note = AttemptNote {
            partition: Partition::new("orders", 0),
            offset: 7,
            message: "m7".into(),
            attempts: 2,
            first_failed_at: test_epoch(),
            failure: Failure::new(Reason::TIMEOUT, "HttpError", "slow"),
            same_failure: 1,
            due_at: test_epoch(),
        };
        store.note_attempts(&queue, vec![note]).await.unwrap();
        let inbox = store.inbox_log("orders", InboxOptions::default());
        let post = NewMessage { id: Some("p0".into()), payload: Some("1".into()), ..NewMessage::default() };
        inbox.post(vec![post, NewMessage::default()]).await.unwrap();
        let lease = Duration::from_secs(60);
        store.claim_due(&queue, "w", lease, 9).await.unwrap();
        let claim = store.claim(&queue, &"a".into(), "w", lease).await.unwrap().unwrap();
        store.renew(&claim.lease, lease, LeaseUse::Wait).await.unwrap();
        let requeue = Settlement::Requeue(Box::new(Requeue::of(&claim.head)));
        store.settle(&claim.lease, claim.head.id, requeue).await.unwrap();
        let claim = store.claim(&queue, &"a".into(), "w", lease).await.unwrap().unwrap();
        store.release(&claim.lease).await.unwrap();
        // A copy now is what a crash leaves behind.
        let copy = tempfile::tempdir().unwrap();
        copy_files(folder.path(), copy.path());
        let path = copy.path().join("lazaret.db");
        let mark = Mark::read(&Connection::open(&path).unwrap()).unwrap();
        let log = fs::read(path_of(&path)).unwrap();
        Self { folder: copy, mark, log }
    }

    /// The bodies of the records.
    fn records(&self) -> Vec<Vec<u8>> {
        let log = RedoLog::open(&self.folder.path().join("lazaret.db"), Durability::Full).unwrap();
        log.records(&self.mark).unwrap()
    }
}

fn copy_files(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if !file.file_name().to_str().unwrap().ends_with("-shm") {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

/// Decodes a call. What can be decoded is written as it can be read again. `reaches_disk` changes what was written.
fn check_call<C: Repeatable>(bytes: &[u8], reaches_disk: impl Fn(&mut Vec<u8>)) -> Result<(), String> {
    let Ok(call) = C::decode(&mut Fields::of(bytes)) else { return Ok(()) };
    let (mut written, mut again) = (Vec::new(), Vec::new());
    call.encode(&mut written);
    let mut on_disk = written.clone();
    reaches_disk(&mut on_disk);
    let read = C::decode(&mut Fields::of(&on_disk)).map_err(|_| "not read again".to_owned())?;
    read.encode(&mut again);
    if written == again { Ok(()) } else { Err(format!("{} changed", C::OPERATION)) }
}

async fn record_target() -> Fuzz {
    let records = Crashed::new().await.records();
    assert_eq!(records.len(), 10);
    Fuzz::target("redo-record").corpus(records)
}

/// A check of records; `reaches_disk` changes what was written.
fn record_check(reaches_disk: impl Fn(&mut Vec<u8>)) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        for call in Call::all(input).into_iter().flatten() {
            match call.kind {
                HandOffs::KIND => check_call::<HandOffs>(call.encoded(), &reaches_disk)?,
                Notes::KIND => check_call::<Notes>(call.encoded(), &reaches_disk)?,
                Posts::KIND => check_call::<Posts>(call.encoded(), &reaches_disk)?,
                ClaimDue::KIND => check_call::<ClaimDue>(call.encoded(), &reaches_disk)?,
                ClaimOne::KIND => check_call::<ClaimOne>(call.encoded(), &reaches_disk)?,
                Renew::KIND => check_call::<Renew>(call.encoded(), &reaches_disk)?,
                Release::KIND => check_call::<Release>(call.encoded(), &reaches_disk)?,
                Settle::KIND => check_call::<Settle>(call.encoded(), &reaches_disk)?,
                PollWork::KIND => check_call::<PollWork>(call.encoded(), &reaches_disk)?,
                SettleAndContinue::KIND => check_call::<SettleAndContinue>(call.encoded(), &reaches_disk)?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn redo_record() {
    record_target().await.run(record_check(|_| {}));
}

#[tokio::test]
async fn a_planted_bug_of_redo_records_is_found() {
    // The largest numbers are lost.
    record_target().await.finds(record_check(|bytes| {
        if let Some(at) = bytes.windows(4).position(|number| number == [0xff; 4]) {
            bytes[at..at + 4].fill(0);
        }
    }));
}

/// Gives every record that its header names a valid checksum, so that mutations reach the calls.
fn with_checksums(log: &[u8]) -> Vec<u8> {
    let mut log = log.to_vec();
    let mut at = 0;
    while let Some(header) =
        log.get(at..).and_then(<[u8]>::first_chunk::<HEADER_BYTES>).and_then(Header::parse)
    {
        let (start, end) = (at + HEADER_BYTES, at + HEADER_BYTES + header.length as usize);
        let Some(body) = log.get(start..end) else { break };
        let sealed = header.bytes(body);
        log[at..start].copy_from_slice(&sealed);
        at = end;
    }
    log
}

/// Checks a log beside the database of a crash; `opened` runs when the store was opened with it.
fn log_check(crashed: &Crashed, opened: impl Fn(&Connection)) -> impl Fn(&[u8]) -> Result<(), String> {
    let check = move |log: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        copy_files(crashed.folder.path(), folder.path());
        let path = folder.path().join("lazaret.db");
        fs::write(path_of(&path), log).unwrap();
        match SqliteStore::open(&path, options()) {
            // What was repeated is consistent.
            Ok(store) => {
                drop(store);
                let file = Connection::open(&path).unwrap();
                opened(&file);
                consistency::check(&file);
                Ok(())
            }
            Err(error) if error.context().is_empty() => Err("an error without a place".to_owned()),
            Err(_) => Ok(()),
        }
    };
    move |input| {
        check(input)?;
        check(&with_checksums(input))
    }
}

/// Each input opens a database.
fn log_target(crashed: &Crashed) -> Fuzz {
    Fuzz::target("redo-log").corpus([&crashed.log]).count(60)
}

#[tokio::test]
async fn redo_log() {
    let crashed = Crashed::new().await;
    log_target(&crashed).run(log_check(&crashed, |_| {}));
}

#[tokio::test]
async fn a_planted_bug_of_the_redo_log_is_found() {
    let crashed = Crashed::new().await;
    // A log that is cut between two letters loses the payload of the first one.
    let half = "DELETE FROM payloads WHERE (SELECT count(*) FROM letters) = 1";
    log_target(&crashed).finds(log_check(&crashed, |file| _ = file.execute(half, []).unwrap()));
}
