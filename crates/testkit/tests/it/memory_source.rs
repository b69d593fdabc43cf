//! The memory source keeps the contract, and does what only it can do.

use async_trait::async_trait;
use lazaret_core::StreamName;
use lazaret_core::source::{Commit, Source, SourceEvent};
use lazaret_core::{Partition, Position};
use lazaret_memory::{MemberId, MemoryLog, MemorySource};
use lazaret_testkit::source_test_suite;
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};

struct MemoryHarness {
    log: MemoryLog,
    batch: usize,
    opened: Vec<MemberId>,
}

impl MemoryHarness {
    fn new(partitions: u32, batch: usize) -> Self {
        Self { log: MemoryLog::new("orders", partitions), batch, opened: Vec::new() }
    }
}

#[async_trait]
impl SourceHarness for MemoryHarness {
    fn capabilities(&self) -> Capabilities {
        Capabilities { groups: true, settled_ranges: true, finite: true }
    }

    fn stream(&self) -> StreamName {
        self.log.stream().clone()
    }

    fn partitions(&self) -> u32 {
        self.log.partitions()
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        self.log.push(partition, "key", payload.to_owned());
    }

    async fn finish(&mut self) {
        self.log.close();
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let source = self.log.join().with_batch(self.batch);
        self.opened.push(source.member());
        Box::new(source)
    }

    async fn expel(&mut self, nth: usize) {
        assert!(self.log.expel(self.opened[nth]), "it is in the group");
    }
}

source_test_suite!(memory, || async { MemoryHarness::new(4, 512) });
source_test_suite!(memory_one_by_one, || async { MemoryHarness::new(2, 1) });

/// The next event, which must be there already.
async fn now(source: &mut MemorySource) -> SourceEvent {
    tokio::time::timeout(std::time::Duration::from_millis(1), source.next())
        .await
        .expect("something is there")
        .expect("the source works")
}

fn commit(partition: u32, offset: u64) -> Vec<Commit> {
    let position = Position::new(partition, offset);
    vec![Commit {
        partition: Partition::new("orders", partition),
        position: Some(position),
        settled_beyond: vec![],
    }]
}

#[tokio::test(start_paused = true)]
async fn partitions_take_turns() {
    // I3: a partition with much to say does not starve the others.
    let log = MemoryLog::new("orders", 2);
    for _ in 0..100 {
        log.push(0, "k", "v");
    }
    log.push(1, "k", "v");
    let mut source = log.join().with_batch(10);
    now(&mut source).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let SourceEvent::Messages(messages) = now(&mut source).await else { panic!("messages") };
        seen.extend(messages.iter().map(|message| message.position.partition));
    }
    assert!(seen.contains(&1));
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_put_out_joins_again_when_it_asks() {
    let log = MemoryLog::new("orders", 1);
    log.push(0, "k", "v");
    let mut source = log.join();
    now(&mut source).await;
    now(&mut source).await;
    assert!(log.expel(source.member()));
    assert!(!log.expel(source.member()), "it is out already");
    assert!(matches!(now(&mut source).await, SourceEvent::Lost(lost) if lost.len() == 1));
    assert_eq!(log.owner(0), None);
    assert!(matches!(now(&mut source).await, SourceEvent::Assigned(_)));
    assert!(matches!(now(&mut source).await, SourceEvent::Messages(messages) if messages.len() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_member_that_never_heard_of_its_share_gives_it_up_silently() {
    let log = MemoryLog::new("orders", 2);
    let mut first = log.join();
    let mut second = log.join();
    assert!(matches!(now(&mut first).await, SourceEvent::Assigned(a) if a.len() == 1));
    assert!(matches!(now(&mut second).await, SourceEvent::Assigned(a) if a.len() == 1));
}

#[tokio::test(start_paused = true)]
async fn gaps_in_the_offsets_change_nothing() {
    let log = MemoryLog::new("orders", 1);
    log.push(0, "k", "a");
    log.skip(0, 10);
    assert_eq!(log.push(0, "k", "b").offset, 11);
    let mut first = log.join();
    now(&mut first).await;
    now(&mut first).await;
    first.commit(commit(0, 5)).await.unwrap();
    drop(first);
    let mut second = log.join();
    now(&mut second).await;
    let SourceEvent::Messages(messages) = now(&mut second).await else { panic!("one is left") };
    assert_eq!((messages.len(), messages[0].position.offset), (1, 11));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_forgets_what_is_committed_goes_on_as_before() {
    // I7
    let log = MemoryLog::new("orders", 1).forgetting_committed();
    let mut source = log.join().with_batch(3);
    now(&mut source).await;
    let mut seen = Vec::new();
    for round in 0..10 {
        for _ in 0..3 {
            log.push(0, "k", "v");
        }
        let SourceEvent::Messages(messages) = now(&mut source).await else { panic!("messages") };
        seen.extend(messages.iter().map(|message| message.position.offset));
        source.commit(commit(0, 3 * round + 1)).await.unwrap();
    }
    assert_eq!(seen, (0..30).collect::<Vec<u64>>());
    drop(source);
    let mut second = log.join();
    now(&mut second).await;
    let SourceEvent::Messages(messages) = now(&mut second).await else { panic!("one is left") };
    assert_eq!(messages.iter().map(|message| message.position.offset).collect::<Vec<_>>(), [29]);
}

#[tokio::test(start_paused = true)]
async fn a_new_share_of_a_finite_log_ends_again() {
    let log = MemoryLog::new("orders", 2);
    log.close();
    let mut first = log.join();
    now(&mut first).await;
    assert!(matches!(now(&mut first).await, SourceEvent::End));
    let mut second = log.join();
    assert!(matches!(now(&mut first).await, SourceEvent::Revoking(_)));
    first.revoked(&[Partition::new("orders", 1)]).await.unwrap();
    assert!(matches!(now(&mut second).await, SourceEvent::Assigned(_)));
    assert!(matches!(now(&mut second).await, SourceEvent::End));
    second.close().await.unwrap();
    assert!(second.next().await.is_err(), "it was closed");
    assert!(matches!(now(&mut first).await, SourceEvent::Assigned(_)));
    assert!(matches!(now(&mut first).await, SourceEvent::End));
}
