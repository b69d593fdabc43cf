//! A member of a group that is stopped for longer than its session, as a process of its own: `SIGSTOP` and `SIGCONT`.
//!
//! The test runs itself again as the members. A member that goes on has messages in its lanes that another one has handled
//! meanwhile. It learns that from the group, and may call no handler before.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Message;
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_kafka::KafkaSource;
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use rdkafka::producer::FutureRecord;
use support::{LONG, Topic, broker};
use tokio_util::sync::CancellationToken;

/// Says to a process of this test that it is a member, and all that it needs: `number brokers topic folder`.
const MEMBER: &str = "LAZARET_STOPPED_MEMBER";
const PARTITIONS: i32 = 4;
/// The messages of each partition before the stop, each with a key of its own.
const MESSAGES: u32 = 30;
/// The attempts of a member that run at once.
const CONCURRENCY: usize = 4;

/// A member that does not outlive the test.
struct Member(Child);

impl Member {
    fn start(number: u32, topic: &Topic, folder: &Path) -> Self {
        let arguments = format!("{number} {} {} {}", topic.brokers, topic.name, folder.display());
        let mut member = Command::new(std::env::current_exe().unwrap());
        member.args(["--ignored", "--exact", "member", "--nocapture"]).env(MEMBER, arguments);
        Self(member.stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write(journal: &File, line: String) {
    (&*journal).write_all(line.as_bytes()).unwrap();
}

/// A member. Each call of its handler lasts until there is a file `go-NUMBER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test, in its own process"]
async fn member() {
    let arguments = std::env::var(MEMBER).expect("the test that starts it sets its arguments");
    let [number, brokers, topic, folder] = arguments.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        panic!("{arguments:?}")
    };
    let (number, folder) = (number.to_owned(), PathBuf::from(folder));
    let topic = Topic::existing(brokers.to_owned(), topic);
    let journal = OpenOptions::new().create(true).append(true).open(folder.join("journal")).unwrap();
    let journal = Arc::new(journal);
    let (noted, go, by) = (journal.clone(), folder.join(format!("go-{number}")), number.clone());
    let handler = move |message: Message| {
        let (noted, go, by) = (noted.clone(), go.clone(), by.clone());
        async move {
            let place = format!("{}/{}", message.position.partition, message.position.offset);
            write(&noted, format!("{by} begins {place}\n"));
            while !go.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            write(&noted, format!("{by} ends {place}\n"));
            Ok::<_, lazaret_core::HandlerError>(())
        }
    };
    let options = Options {
        concurrency: CONCURRENCY,
        commit_interval: Duration::from_millis(50),
        instance: format!("member-{number}"),
        ..Options::default()
    };
    let store = SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap();
    let consumer = Consumer::builder("stopped")
        .source(KafkaSource::open(topic.options()).unwrap())
        .store(Arc::new(store))
        .options(options)
        .observer(move |event: &Event<'_>| match event {
            Event::Assigned { partition } => write(&journal, format!("{number} gets {}\n", partition.index)),
            Event::Revoked { partition, lost: true } => {
                write(&journal, format!("{number} loses {}\n", partition.index));
            }
            _ => {}
        })
        .handler(handler)
        .build()
        .unwrap();
    consumer.run(CancellationToken::new()).await.unwrap();
}

/// The lines of the members.
struct Journal(PathBuf);

impl Journal {
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        // The last line may not be complete.
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// What a member did, from this line on.
    fn of(&self, what: &str, from: usize) -> Vec<String> {
        let lines = self.lines();
        lines.iter().skip(from).filter_map(|line| line.strip_prefix(what)).map(str::to_owned).collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < LONG, "waited in vain for {what}: {:?}", self.lines());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn fill(topic: &Topic, numbers: std::ops::Range<u32>) {
    for partition in 0..PARTITIONS {
        for number in numbers.clone() {
            let key = format!("{partition}-{number}");
            topic.send(FutureRecord::to(&topic.name).partition(partition).payload("").key(&key)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_stopped_for_longer_than_its_session_starts_nothing_that_others_have_handled() {
    // I6
    let Some(broker) = broker() else { return };
    let folder = tempfile::tempdir().unwrap();
    let topic = Topic::new(broker, PARTITIONS).await;
    fill(&topic, 0..MESSAGES).await;
    let all = MESSAGES as usize * PARTITIONS as usize;
    let journal = Journal(folder.path().join("journal"));
    let first = Member::start(1, &topic, folder.path());
    journal.until("the first calls", |journal| journal.of("1 begins ", 0).len() == CONCURRENCY).await;
    let begun = journal.of("1 begins ", 0);
    // All its calls wait, so it is stopped within a call, and the other messages are in its lanes.
    first.signal("STOP");
    std::fs::write(folder.path().join("go-2"), "").unwrap();
    let _second = Member::start(2, &topic, folder.path());
    journal.until("the other member to handle all", |journal| journal.of("2 ends ", 0).len() == all).await;
    // Its calls can return as soon as it goes on.
    std::fs::write(folder.path().join("go-1"), "").unwrap();
    let woken = journal.lines().len();
    first.signal("CONT");
    let partitions = PARTITIONS as usize;
    journal.until("its losses", |journal| journal.of("1 loses ", woken).len() == partitions).await;
    journal.until("its new partitions", |journal| !journal.of("1 gets ", woken).is_empty()).await;
    fill(&topic, MESSAGES..MESSAGES + 5).await;
    let old = |place: &&String| place.split_once('/').unwrap().1.parse::<u32>().unwrap() < MESSAGES;
    let is_handled = |journal: &Journal| {
        let ended = [journal.of("1 ends ", woken), journal.of("2 ends ", woken)].concat();
        ended.iter().filter(|place| !old(place)).count() >= 5 * partitions
    };
    journal.until("both to go on", is_handled).await;
    let again: Vec<String> = journal.of("1 begins ", woken).iter().filter(old).cloned().collect();
    assert_eq!(again, [""; 0], "the other one has handled them; begun before the stop: {begun:?}");
    assert!(!journal.of("1 ends ", woken).iter().all(|place| old(&place)), "it takes part again");
}
