//! The inbox as a source: posted messages are delivered once, in order, until they are settled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::{Commit, Ingest, NewMessage, Source, SourceEvent, jsonl};
use lazaret_core::store::ErrorKind;
use lazaret_core::{Headers, Message, Partition, Position, StreamName};
use lazaret_store_sqlite::{
    Backlog, Durability, InboxLog, InboxOptions, InboxSource, Options, Posted, SqliteStore,
};
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{ManualClock, SideBySide, source_test_suite};
use rusqlite::Connection;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

/// A file, the clock of all stores on it, and the options of their inboxes.
struct Fixture {
    folder: TempDir,
    clock: ManualClock,
    options: InboxOptions,
    /// `true` if posts stay in the redo log until the next query.
    by_redo_log: bool,
}

impl Fixture {
    fn new() -> Self {
        let options = InboxOptions { window: HOUR, ..InboxOptions::default() };
        let folder = tempfile::tempdir().unwrap();
        Self { folder, clock: ManualClock::new(), options, by_redo_log: false }
    }

    fn store(&self) -> SqliteStore {
        let clock = Arc::new(self.clock.clone());
        let mut options = Options { clock, durability: Durability::Normal, ..Options::default() };
        if self.by_redo_log {
            (options.redo_from, options.redo_time) = (0, HOUR);
        }
        SqliteStore::open(self.folder.path().join("lazaret.db"), options).unwrap()
    }

    /// The inbox as another process sees it.
    fn inbox(&self) -> InboxLog {
        self.store().inbox_log("orders", self.options.clone())
    }
}

fn new(id: &str) -> NewMessage {
    NewMessage { id: Some(id.into()), payload: Some(format!("<{id}>").into()), ..NewMessage::default() }
}

fn taken(id: &str, offset: u64) -> Posted {
    Posted::Taken { id: id.into(), position: Position::new(0, offset) }
}

fn known(id: &str, offset: u64) -> Posted {
    Posted::Known { id: id.into(), position: Position::new(0, offset) }
}

async fn post(inbox: &InboxLog, ids: &[&str]) -> Vec<Posted> {
    inbox.post(ids.iter().map(|id| new(id)).collect()).await.unwrap()
}

async fn next(source: &mut InboxSource) -> SourceEvent {
    tokio::time::timeout(Duration::from_secs(240), source.next()).await.expect("something comes").unwrap()
}

async fn assigned(inbox: &InboxLog) -> InboxSource {
    let mut source = inbox.source();
    assert!(matches!(next(&mut source).await, SourceEvent::Assigned(_)));
    source
}

async fn messages(source: &mut InboxSource) -> Vec<Message> {
    match next(source).await {
        SourceEvent::Messages(messages) => messages,
        other => panic!("{other:?}"),
    }
}

async fn ids(source: &mut InboxSource) -> Vec<String> {
    messages(source).await.iter().map(|message| message.id.to_string()).collect()
}

async fn commit(source: &mut InboxSource, offset: u64) {
    let position = Some(Position::new(0, offset));
    let commit = Commit { partition: source.partition(), position, settled_beyond: vec![] };
    source.commit(vec![commit]).await.unwrap();
}

/// Two inboxes as two partitions.
struct Inboxes {
    _bed: Fixture,
    logs: Vec<InboxLog>,
}

impl Inboxes {
    fn new(batch: usize, by_redo_log: bool) -> Self {
        let fixture = Fixture { by_redo_log, ..Fixture::new() };
        let store = fixture.store();
        let options = InboxOptions { batch, ..fixture.options.clone() };
        let logs = ["even", "odd"].map(|consumer| store.inbox_log(consumer, options.clone())).into();
        Self { _bed: fixture, logs }
    }
}

#[async_trait]
impl SourceHarness for Inboxes {
    fn capabilities(&self) -> Capabilities {
        Capabilities { groups: false, settled_ranges: true, finite: false }
    }

    fn stream(&self) -> StreamName {
        "orders".into()
    }

    fn partitions(&self) -> u32 {
        2
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        let message = NewMessage { payload: Some(payload.to_owned().into()), ..NewMessage::default() };
        let posted = self.logs[partition as usize].post(vec![message]).await.unwrap();
        assert!(matches!(posted[0], Posted::Taken { .. }));
    }

    async fn finish(&mut self) {
        unreachable!("it is not finite")
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let sources = self.logs.iter().map(|log| {
            let source = log.source();
            let inner = source.partition();
            (Box::new(source) as Box<dyn Source>, inner)
        });
        Box::new(SideBySide::new(self.stream(), sources.collect()))
    }

    async fn expel(&mut self, _nth: usize) {
        unreachable!("it has no groups")
    }
}

source_test_suite!(inboxes, io, || async { Inboxes::new(512, false) });
source_test_suite!(inboxes_one_by_one, io, || async { Inboxes::new(1, false) });
source_test_suite!(inboxes_by_redo_log, io, || async { Inboxes::new(512, true) });

#[tokio::test]
async fn a_message_is_delivered_as_posted() {
    // I5
    let fixture = Fixture::new();
    let mut headers = Headers::new();
    headers.push("tenant", "acme");
    headers.push("tenant", vec![0, 255]);
    let full = NewMessage {
        id: Some("evt-1".into()),
        key: Some("".into()),
        event_type: Some("OrderPlaced".into()),
        headers,
        payload: Some(vec![0, 159, 146].into()),
        content_type: Some("text/x".into()),
        timestamp: Some("2026-01-01T00:00:00.123456789Z".parse().unwrap()),
        correlation: Some("c".into()),
        undecodable: Some("no".into()),
    };
    let posted = fixture.inbox().post(vec![full.clone(), NewMessage::default()]).await.unwrap();
    assert_eq!(posted, [taken("evt-1", 0), taken("0:1", 1)]);
    let got = messages(&mut assigned(&fixture.inbox()).await).await;
    let at = |new: NewMessage, offset| new.at("orders".into(), Position::new(0, offset));
    assert_eq!(got[0], at(full, 0));
    let now = Some(lazaret_testkit::clock::test_epoch());
    assert_eq!(got[1], at(NewMessage { timestamp: now, ..NewMessage::default() }, 1), "taken now");
}

#[tokio::test]
async fn json_lines_are_posted() {
    let fixture = Fixture::new();
    let lines = ["{\"id\":\"e-1\",\"payload\":{\"a\": 1}}", "oops"];
    let new: Vec<NewMessage> = lines.iter().map(|line| jsonl::message((*line).into())).collect();
    fixture.inbox().post(new).await.unwrap();
    let got = messages(&mut assigned(&fixture.inbox()).await).await;
    assert_eq!((got[0].id.as_str(), got[0].payload.as_deref()), ("e-1", Some(&b"{\"a\": 1}"[..])));
    assert_eq!(
        (got[1].undecodable.as_deref(), got[1].payload.as_deref()),
        (Some("not a JSON object"), Some(&b"oops"[..]))
    );
}

#[tokio::test]
async fn the_same_id_is_not_taken_twice() {
    // I8
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    assert_eq!(post(&inbox, &["a", "b", "a"]).await, [taken("a", 0), taken("b", 1), known("a", 0)]);
    assert_eq!(
        post(&fixture.inbox(), &["b", "c"]).await,
        [known("b", 1), taken("c", 2)],
        "nor in another process"
    );
    assert_eq!(inbox.backlog().await.unwrap().messages, 3);
}

#[tokio::test]
async fn a_stored_digest_is_sealed_and_a_plain_one_of_an_earlier_version_still_matches() {
    let fixture = Fixture::new();
    let store = fixture.store();
    post(&store.inbox_log("orders", fixture.options.clone()), &["a"]).await;
    store.close().await.unwrap();
    let plain = Sha256::digest(b"\x01<a>");
    let plain = &plain[..16];
    {
        let file = Connection::open(fixture.folder.path().join("lazaret.db")).unwrap();
        let stored: Vec<u8> = file.query_row("SELECT digest FROM posts", [], |row| row.get(0)).unwrap();
        assert_ne!(stored, plain);
        assert_eq!(stored.len(), plain.len());
    }
    let changed = || NewMessage { payload: Some("other".into()), ..new("a") };
    let conflict = Posted::Conflict { id: "a".into(), position: Position::new(0, 0) };
    for version in ["this", "an earlier"] {
        let store = fixture.store();
        let inbox = store.inbox_log("orders", fixture.options.clone());
        assert_eq!(post(&inbox, &["a"]).await, [known("a", 0)], "{version}");
        assert_eq!(inbox.post(vec![changed()]).await.unwrap(), std::slice::from_ref(&conflict), "{version}");
        store.close().await.unwrap();
        let file = Connection::open(fixture.folder.path().join("lazaret.db")).unwrap();
        file.execute("UPDATE posts SET digest = ?1", [plain]).unwrap();
    }
}

#[tokio::test]
async fn a_consumed_id_is_a_duplicate_within_the_window() {
    // I8
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    post(&inbox, &["a", "b"]).await;
    fixture.clock.advance(10 * HOUR);
    assert_eq!(post(&inbox, &["a"]).await, [known("a", 0)], "it still waits");
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b"]);
    commit(&mut source, 1).await;
    fixture.clock.advance(HOUR - Duration::from_secs(1));
    assert_eq!(post(&fixture.inbox(), &["a", "b"]).await, [known("a", 0), known("b", 1)]);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(post(&inbox, &["a"]).await, [taken("a", 2)], "the window has passed");
    assert_eq!(ids(&mut source).await, ["a"]);
    commit(&mut source, 2).await;
    assert_eq!(post(&inbox, &["a"]).await, [known("a", 2)]);
}

#[tokio::test]
async fn expired_ids_do_not_accumulate() {
    // I7
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    let mut source = assigned(&inbox).await;
    for round in 0..20_u64 {
        let new: Vec<NewMessage> = (0..100).map(|n| new(&format!("{round}-{n}"))).collect();
        inbox.post(new).await.unwrap();
        messages(&mut source).await;
        commit(&mut source, round * 100 + 99).await;
        fixture.clock.advance(HOUR);
    }
    let file = Connection::open(fixture.folder.path().join("lazaret.db")).unwrap();
    let kept: i64 = file.query_row("SELECT count(*) FROM consumed_posts", [], |row| row.get(0)).unwrap();
    assert!(kept <= 100, "{kept} ids are kept");
}

#[tokio::test]
async fn an_explicit_id_is_never_that_of_a_message_without_one() {
    // I1, I8: as a duplicate, one of two messages would be lost.
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    assert_eq!(post(&inbox, &["0:1"]).await, [taken("=0:1", 0)]);
    let posted = inbox.post(vec![NewMessage::default()]).await.unwrap();
    assert_eq!(posted, [taken("0:1", 1)], "the position is the id");
    assert_eq!(post(&inbox, &["0:1", "=0:1"]).await, [known("=0:1", 0), taken("==0:1", 2)]);
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["=0:1", "0:1", "==0:1"]);
}

#[tokio::test]
async fn an_empty_id_is_refused() {
    let fixture = Fixture::new();
    let error = fixture.inbox().post(vec![new("a"), new("")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(fixture.inbox().backlog().await.unwrap(), Backlog::default(), "none was taken");
}

#[tokio::test]
async fn a_full_inbox_takes_nothing_more_until_something_is_consumed() {
    // I9
    let mut fixture = Fixture::new();
    fixture.options.max_messages = 2;
    let inbox = fixture.inbox();
    assert_eq!(post(&inbox, &["a", "b", "c"]).await, [taken("a", 0), taken("b", 1), Posted::Full]);
    assert_eq!(post(&inbox, &["c", "a"]).await, [Posted::Full, known("a", 0)]);
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b"]);
    assert_eq!(post(&inbox, &["c"]).await, [Posted::Full], "delivered is not consumed");
    commit(&mut source, 0).await;
    assert_eq!(post(&inbox, &["c", "d"]).await, [taken("c", 2), Posted::Full]);
    assert_eq!(inbox.backlog().await.unwrap().messages, 2);
}

#[tokio::test]
async fn bytes_are_limited_and_nothing_overtakes() {
    let mut fixture = Fixture::new();
    fixture.options.max_bytes = 100;
    let inbox = fixture.inbox();
    let sized = |id: &str, bytes: usize| NewMessage {
        id: Some(id.into()),
        payload: Some(vec![b'x'; bytes - id.len()].into()),
        ..NewMessage::default()
    };
    let posted = inbox
        .post(vec![sized("a", 60), sized("b", 41), sized("c", 1), sized("d", 101), sized("a", 60)])
        .await
        .unwrap();
    assert_eq!(posted, [taken("a", 0), Posted::Full, Posted::Full, Posted::TooLarge, known("a", 0)]);
    assert_eq!(inbox.backlog().await.unwrap(), Backlog { messages: 1, bytes: 60 });
    assert_eq!(inbox.post(vec![sized("b", 40)]).await.unwrap(), [taken("b", 1)]);
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b"]);
    commit(&mut source, 1).await;
    assert_eq!(inbox.backlog().await.unwrap(), Backlog::default());
}

#[tokio::test]
async fn after_a_crash_exactly_the_rest_is_delivered() {
    // I1
    let mut fixture = Fixture::new();
    fixture.options.batch = 4;
    {
        let inbox = fixture.inbox();
        post(&inbox, &["a", "b", "c", "d", "e", "f"]).await;
        let mut source = assigned(&inbox).await;
        assert_eq!(ids(&mut source).await, ["a", "b", "c", "d"]);
        let commit = Commit {
            partition: source.partition(),
            position: Some(Position::new(0, 1)),
            settled_beyond: vec![3..=3],
        };
        source.commit(vec![commit]).await.unwrap();
    }
    let inbox = fixture.inbox();
    assert_eq!(post(&inbox, &["a", "f", "g"]).await, [known("a", 0), known("f", 5), taken("g", 6)]);
    let mut source = inbox.source();
    let SourceEvent::Assigned(assignments) = next(&mut source).await else { panic!("assigned first") };
    assert_eq!(assignments[0].settled, [3..=3]);
    assert_eq!(source.lag(), Some(5));
    assert_eq!(ids(&mut source).await, ["c", "d", "e", "f"]);
    assert_eq!(ids(&mut source).await, ["g"]);
    assert_eq!(source.lag(), Some(0));
}

#[tokio::test]
async fn positions_are_never_reused() {
    let fixture = Fixture::new();
    let mut source = assigned(&fixture.inbox()).await;
    post(&fixture.inbox(), &["a"]).await;
    assert_eq!(ids(&mut source).await, ["a"]);
    commit(&mut source, 0).await;
    drop(source);
    assert_eq!(post(&fixture.inbox(), &["b"]).await, [taken("b", 1)], "though the inbox is empty");
}

#[tokio::test]
async fn a_commit_beyond_the_end_settles_no_later_message() {
    // I1
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    let mut source = assigned(&inbox).await;
    commit(&mut source, 99).await;
    post(&inbox, &["a"]).await;
    commit(&mut source, 99).await;
    post(&inbox, &["b"]).await;
    drop(source);
    assert_eq!(ids(&mut assigned(&inbox).await).await, ["b"]);
}

#[tokio::test]
async fn a_post_wakes_the_source_at_once() {
    let mut fixture = Fixture::new();
    // Only a notification can arrive within the time that the test waits.
    fixture.options.poll = Duration::from_secs(3600);
    let inbox = fixture.inbox();
    let mut source = assigned(&inbox).await;
    for round in 0..20 {
        let id = format!("m-{round}");
        let (got, posted) = tokio::join!(ids(&mut source), inbox.post(vec![new(&id)]));
        assert_eq!((got, posted.unwrap().len()), (vec![id], 1));
    }
}

#[tokio::test]
async fn posts_of_another_process_are_found_by_polling() {
    let mut fixture = Fixture::new();
    fixture.options.poll = Duration::from_millis(5);
    let mut source = assigned(&fixture.inbox()).await;
    let other = fixture.inbox();
    let (got, _) = tokio::join!(ids(&mut source), post(&other, &["a"]));
    assert_eq!(got, ["a"]);
}

#[tokio::test]
async fn inboxes_of_two_consumers_are_apart() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let [orders, mails] = ["orders", "mails"].map(|name| store.inbox_log(name, fixture.options.clone()));
    assert_eq!(post(&orders, &["a"]).await, [taken("a", 0)]);
    assert_eq!(post(&mails, &["a", "b"]).await, [taken("a", 0), taken("b", 1)]);
    let mut source = assigned(&mails).await;
    let got = messages(&mut source).await;
    assert_eq!((got.len(), got[0].partition()), (2, Partition::new("mails", 0)));
    source.pause(&[Partition::new("orders", 0)]);
    commit(&mut source, 1).await;
    assert_eq!((orders.backlog().await.unwrap().messages, mails.backlog().await.unwrap().messages), (1, 0));
}

#[tokio::test]
async fn many_posts_at_once_are_all_taken_once() {
    let fixture = Fixture::new();
    let inbox = fixture.inbox();
    let posts = (0..64).map(|n| {
        let inbox = inbox.clone();
        // Each id is posted twice.
        tokio::spawn(async move { post(&inbox, &[&format!("m-{}", n / 2)]).await.remove(0) })
    });
    let mut taken = 0;
    for answer in posts.collect::<Vec<_>>() {
        taken += usize::from(matches!(answer.await.unwrap(), Posted::Taken { .. }));
    }
    assert_eq!((taken, inbox.backlog().await.unwrap().messages), (32, 32));
    let got = messages(&mut assigned(&inbox).await).await;
    assert!(got.iter().enumerate().all(|(n, message)| message.position.offset == n as u64));
}
