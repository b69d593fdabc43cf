//! The baseline: a loop around the Kafka client that calls the handler and commits at intervals.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, StreamConsumer};
use rdkafka::message::Message;

use super::topic::{Topic, client, fresh_group};
use super::{COMMIT_INTERVAL, TOO_LONG};

/// Returns the client settings of a loop: manual commits, and the queue sizes of the source, which are faster than the defaults.
pub(super) fn settings(topic: &Topic) -> ClientConfig {
    let mut client = client(&topic.brokers);
    client
        .set("group.id", fresh_group())
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.queue.backoff.ms", "20");
    client
}

/// Commits handled messages, at most once per interval.
struct Committer {
    last: Instant,
}

impl Committer {
    fn new() -> Self {
        Self { last: Instant::now() }
    }

    fn commit<C: rdkafka::consumer::ConsumerContext>(
        &mut self,
        consumer: &impl Consumer<C>,
        mode: CommitMode,
    ) {
        consumer.commit_consumer_state(mode).expect("a commit can be sent");
        self.last = Instant::now();
    }

    /// Reading the clock costs as much as a message, so it is read only now and then.
    fn is_due(&self, handled: usize) -> bool {
        handled.is_multiple_of(64) && self.last.elapsed() >= COMMIT_INTERVAL
    }
}

/// The poll timeout.
const WAIT: Duration = Duration::from_millis(100);

/// Polls in a separate thread and handles each message there.
pub(super) async fn polling(topic: &Topic) -> Duration {
    let consumer: BaseConsumer = settings(topic).create().expect("the settings are valid");
    consumer.subscribe(&[&topic.name]).expect("the topic is there");
    let messages = topic.messages;
    let run = tokio::task::spawn_blocking(move || {
        let (mut started, mut handled, mut waits) = (None, 0, 0);
        let mut committer = Committer::new();
        while handled < messages {
            let Some(record) = consumer.poll(WAIT) else {
                waits += 1;
                assert!(WAIT * waits < TOO_LONG, "the run hangs");
                continue;
            };
            let record = record.expect("the broker delivers");
            started.get_or_insert_with(Instant::now);
            black_box(record.payload());
            handled += 1;
            if committer.is_due(handled) {
                committer.commit(&consumer, CommitMode::Async);
            }
        }
        let took = started.map(|started| started.elapsed()).unwrap_or_default();
        committer.commit(&consumer, CommitMode::Sync);
        took
    });
    run.await.expect("the baseline does not panic")
}

/// Receives in a task and handles each message there.
pub(super) async fn streaming(topic: &Topic) -> Duration {
    let consumer: StreamConsumer = settings(topic).create().expect("the settings are valid");
    consumer.subscribe(&[&topic.name]).expect("the topic is there");
    let messages = topic.messages;
    let run = tokio::spawn(async move {
        let (mut started, mut handled) = (None, 0);
        let mut committer = Committer::new();
        while handled < messages {
            let record = consumer.recv().await.expect("the broker delivers");
            started.get_or_insert_with(Instant::now);
            black_box(record.payload());
            handled += 1;
            if committer.is_due(handled) {
                committer.commit(&consumer, CommitMode::Async);
            }
        }
        started.map(|started: Instant| started.elapsed()).unwrap_or_default()
    });
    let run = tokio::time::timeout(TOO_LONG, run).await;
    run.expect("the run does not hang").expect("the baseline does not panic")
}
