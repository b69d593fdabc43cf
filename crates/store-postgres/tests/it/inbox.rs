//! The inbox as a source: posted messages are delivered once, in order, until they are settled, by one instance at a time.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::{Backlog, Commit, Ingest, NewMessage, Posted, Source, SourceEvent};
use lazaret_core::store::ErrorKind;
use lazaret_core::{Headers, Message, Partition, Position, StreamName};
use lazaret_store_postgres::{InboxLog, InboxOptions, InboxSource, InboxStatus};
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{ManualClock, SideBySide, source_test_suite};

use crate::support::{TestSchema, server, server_is_there};

const HOUR: Duration = Duration::from_secs(3600);
/// Only a notification can arrive within the time that a test waits.
const NEVER: Duration = Duration::from_secs(36_000);

fn options() -> InboxOptions {
    InboxOptions { window: HOUR, poll: Duration::from_millis(20), ..InboxOptions::default() }
}

/// A schema, and the options of its inboxes.
struct Fixture {
    schema: TestSchema,
    options: InboxOptions,
}

impl Fixture {
    fn new() -> Option<Self> {
        Some(Self { schema: TestSchema::new(server()?), options: options() })
    }

    /// The inbox as another process sees it.
    async fn inbox(&self) -> InboxLog {
        self.schema.open(None).await.inbox_log("orders", self.options.clone())
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
    tokio::time::timeout(Duration::from_secs(240), source.next()).await.expect("an event comes").unwrap()
}

async fn assigned(inbox: &InboxLog) -> InboxSource {
    let mut source = inbox.source();
    assert!(matches!(next(&mut source).await, SourceEvent::Assigned(_)));
    source
}

async fn messages(source: &mut InboxSource) -> Vec<Message> {
    match next(source).await {
        SourceEvent::Messages(messages) => messages,
        other => panic!("no messages but {other:?}"),
    }
}

async fn ids(source: &mut InboxSource) -> Vec<String> {
    messages(source).await.iter().map(|message| message.id.to_string()).collect()
}

fn up_to(source: &InboxSource, offset: u64) -> Commit {
    Commit {
        partition: source.partition(),
        position: Some(Position::new(0, offset)),
        settled_beyond: Vec::new(),
    }
}

async fn commit(source: &mut InboxSource, offset: u64) {
    let commit = up_to(source, offset);
    source.commit(vec![commit]).await.unwrap();
}

/// Two inboxes as two partitions.
struct Inboxes {
    _schema: TestSchema,
    logs: Vec<InboxLog>,
}

impl Inboxes {
    async fn new(batch: usize) -> Self {
        let schema = TestSchema::new(server().expect("the suite runs only with a server"));
        let store = schema.open(None).await;
        let options = InboxOptions { batch, ..options() };
        let logs = ["even", "odd"].map(|consumer| store.inbox_log(consumer, options.clone())).into();
        Self { _schema: schema, logs }
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

source_test_suite!(inboxes, io if server_is_there, || async { Inboxes::new(512).await });
source_test_suite!(inboxes_one_by_one, io if server_is_there, || async { Inboxes::new(1).await });

#[tokio::test]
async fn a_message_is_delivered_as_posted() {
    // I5
    let Some(fixture) = Fixture::new() else { return };
    let mut headers = Headers::new();
    headers.push("a", "1");
    headers.push_null("b");
    let full = NewMessage {
        id: Some("e\\1".into()),
        key: Some("".into()),
        event_type: Some("Placed".into()),
        headers,
        payload: Some(vec![0, 255].into()),
        content_type: Some("x/y".into()),
        timestamp: Some("2026-01-01T00:00:00.5Z".parse().unwrap()),
        correlation: Some("c".into()),
        undecodable: Some("broken\0".into()),
    };
    let inbox = fixture.inbox().await;
    inbox.post(vec![full.clone(), NewMessage::default()]).await.unwrap();
    let mut source = assigned(&inbox).await;
    let stream = source.stream();
    let got = messages(&mut source).await;
    assert_eq!(got[0], full.at(stream, Position::new(0, 0)));
    assert_eq!((got[1].id.as_str(), &got[1].key, &got[1].payload), ("0:1", &None, &None));
}

#[tokio::test]
async fn the_same_id_is_not_taken_twice() {
    // I8
    let Some(fixture) = Fixture::new() else { return };
    let inbox = fixture.inbox().await;
    assert_eq!(post(&inbox, &["a", "b", "a"]).await, [taken("a", 0), taken("b", 1), known("a", 0)]);
    let other = fixture.inbox().await;
    assert_eq!(post(&other, &["b", "c"]).await, [known("b", 1), taken("c", 2)], "nor by another process");
    let changed = NewMessage { payload: Some("other".into()), ..new("a") };
    let conflict = Posted::Conflict { id: "a".into(), position: Position::new(0, 0) };
    assert_eq!(inbox.post(vec![changed]).await.unwrap(), [conflict]);
    assert_eq!(inbox.backlog().await.unwrap().messages, 3);
    let refused = inbox.post(vec![new("")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_consumed_id_is_a_duplicate_within_the_window_and_then_forgotten() {
    // I7, I8
    let Some(fixture) = Fixture::new() else { return };
    let clock = ManualClock::new();
    let store = fixture.schema.open(Some(std::sync::Arc::new(clock.clone()))).await;
    let inbox = store.inbox_log("orders", fixture.options.clone());
    post(&inbox, &["a", "b"]).await;
    clock.advance(10 * HOUR);
    assert_eq!(post(&inbox, &["a"]).await, [known("a", 0)], "it still waits");
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b"]);
    commit(&mut source, 1).await;
    clock.advance(HOUR - Duration::from_secs(1));
    assert_eq!(post(&inbox, &["a", "b"]).await, [known("a", 0), known("b", 1)]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(post(&inbox, &["a"]).await, [taken("a", 2)], "the window has passed");
    commit(&mut source, 2).await;
    let rows = fixture.schema.client().await.query("SELECT position FROM inbox_ids", &[]).await.unwrap();
    let left: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [2], "expired ids are removed");
}

#[tokio::test]
async fn a_full_inbox_takes_nothing_more_and_nothing_overtakes() {
    // I9
    let Some(mut fixture) = Fixture::new() else { return };
    (fixture.options.max_messages, fixture.options.max_bytes) = (3, 100);
    let inbox = fixture.inbox().await;
    let sized = |id: &str, bytes: usize| NewMessage {
        id: Some(id.into()),
        payload: Some(vec![b'x'; bytes - id.len()].into()),
        ..NewMessage::default()
    };
    let many = vec![sized("a", 60), sized("b", 41), sized("c", 1), sized("d", 101), sized("a", 60)];
    let expected = [taken("a", 0), Posted::Full, Posted::Full, Posted::TooLarge, known("a", 0)];
    assert_eq!(inbox.post(many).await.unwrap(), expected);
    assert_eq!(inbox.backlog().await.unwrap(), Backlog { messages: 1, bytes: 60 });
    let few = vec![sized("b", 1), sized("c", 1), sized("d", 1)];
    assert_eq!(inbox.post(few).await.unwrap(), [taken("b", 1), taken("c", 2), Posted::Full]);
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b", "c"]);
    assert_eq!(inbox.post(vec![sized("d", 1)]).await.unwrap(), [Posted::Full], "delivered is not consumed");
    commit(&mut source, 2).await;
    assert_eq!(inbox.backlog().await.unwrap(), Backlog::default());
    assert_eq!(inbox.post(vec![sized("d", 1)]).await.unwrap(), [taken("d", 3)]);
}

#[tokio::test]
async fn after_a_crash_exactly_the_rest_is_delivered() {
    // I1
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.options.batch = 4;
    let inbox = fixture.inbox().await;
    post(&inbox, &["a", "b", "c", "d", "e", "f"]).await;
    let mut source = assigned(&inbox).await;
    assert_eq!(ids(&mut source).await, ["a", "b", "c", "d"]);
    let beyond = Commit { settled_beyond: vec![3..=3], ..up_to(&source, 1) };
    source.commit(vec![beyond]).await.unwrap();
    drop(source);
    let other = fixture.inbox().await;
    assert_eq!(post(&other, &["a", "f", "g"]).await, [known("a", 0), known("f", 5), taken("g", 6)]);
    let mut source = other.source();
    let SourceEvent::Assigned(assignments) = next(&mut source).await else { panic!("assigned first") };
    assert_eq!(assignments[0].settled, [3..=3]);
    assert_eq!(source.lag(), Some(5));
    assert_eq!(ids(&mut source).await, ["c", "d", "e", "f"]);
    assert_eq!(ids(&mut source).await, ["g"]);
    commit(&mut source, 99).await;
    assert_eq!(post(&other, &["h"]).await, [taken("h", 7)], "positions are never reused");
    assert_eq!(ids(&mut source).await, ["h"], "a commit beyond the end settles no later message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_of_another_process_wakes_the_source_at_once() {
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.options.poll = NEVER;
    let (inbox, other) = (fixture.inbox().await, fixture.inbox().await);
    let mut source = assigned(&inbox).await;
    for round in 0..20 {
        let id = format!("m-{round}");
        let (got, posted) = tokio::join!(ids(&mut source), other.post(vec![new(&id)]));
        assert_eq!((got, posted.unwrap().len()), (vec![id], 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_reads_and_another_takes_over_when_it_leaves() {
    // I6
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.options.instance = "one".to_owned();
    let first = fixture.inbox().await;
    // The end of the lease is told, not found by looking.
    (fixture.options.poll, fixture.options.instance) = (NEVER, "two".to_owned());
    let second = fixture.inbox().await;
    post(&first, &["a", "b"]).await;
    let mut reader = assigned(&first).await;
    assert_eq!(ids(&mut reader).await, ["a", "b"]);
    commit(&mut reader, 0).await;
    let mut standby = second.source();
    let mut status = standby.status();
    let taking_over = tokio::spawn(async move {
        assert!(matches!(next(&mut standby).await, SourceEvent::Assigned(_)));
        ids(&mut standby).await
    });
    let is_standby = |status: &InboxStatus| *status == InboxStatus::Standby { reader: "one".to_owned() };
    status.wait_for(is_standby).await.unwrap();
    reader.close().await.unwrap();
    assert_eq!(taking_over.await.unwrap(), ["b"], "what was not committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_was_late_is_fenced_and_commits_nothing() {
    // I6
    let Some(fixture) = Fixture::new() else { return };
    let (first, second) = (fixture.inbox().await, fixture.inbox().await);
    post(&first, &["a", "b"]).await;
    let mut late = assigned(&first).await;
    assert_eq!(ids(&mut late).await, ["a", "b"]);
    // As if it had been stopped for longer than its lease.
    let client = fixture.schema.client().await;
    client.batch_execute("UPDATE inboxes SET lease_until = 0").await.unwrap();
    let mut reader = assigned(&second).await;
    assert_eq!(ids(&mut reader).await, ["a", "b"]);
    commit(&mut late, 1).await;
    assert_eq!(second.backlog().await.unwrap().messages, 2, "the late commit was ignored");
    let lost = vec![Partition::new("orders", 0)];
    assert!(matches!(next(&mut late).await, SourceEvent::Lost(partitions) if partitions == lost));
    assert_eq!(late.lag(), None);
    commit(&mut late, 1).await;
    commit(&mut reader, 0).await;
    assert_eq!(second.backlog().await.unwrap().messages, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_posts_at_once_are_all_taken_once() {
    let Some(fixture) = Fixture::new() else { return };
    let logs = [fixture.inbox().await, fixture.inbox().await];
    let posts = (0..64).map(|n| {
        let inbox = logs[n % 2].clone();
        // Each id is posted twice.
        tokio::spawn(async move { post(&inbox, &[&format!("m-{}", n / 2)]).await.remove(0) })
    });
    let mut taken = 0;
    for answer in posts.collect::<Vec<_>>() {
        taken += usize::from(matches!(answer.await.unwrap(), Posted::Taken { .. }));
    }
    assert_eq!((taken, logs[0].backlog().await.unwrap().messages), (32, 32));
    let got = messages(&mut assigned(&logs[0]).await).await;
    assert!(got.iter().enumerate().all(|(n, message)| message.position.offset == n as u64));
}
