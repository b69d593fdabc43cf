//! The Kafka source fulfills the contract of all sources.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lazaret_core::StreamName;
use lazaret_core::source::Source;
use lazaret_source_kafka::KafkaSource;
use lazaret_testkit::source_test_suite;
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::support::{self, LONG, Topic, broker, client};

const PARTITIONS: u32 = 3;

struct KafkaHarness {
    topic: Topic,
    opened: usize,
}

impl KafkaHarness {
    async fn new() -> Self {
        let brokers = broker().expect("the suite runs only with a broker");
        Self { topic: Topic::new(brokers, PARTITIONS as i32).await, opened: 0 }
    }

    /// Returns the group's member id of a client.
    fn member_id(&self, client_id: &str) -> Option<String> {
        let consumer: BaseConsumer = client(&self.topic.brokers).create().unwrap();
        let groups = consumer.fetch_group_list(Some(&self.topic.group), LONG).unwrap();
        let member =
            groups.groups().iter().flat_map(|group| group.members()).find(|m| m.client_id() == client_id)?;
        Some(member.id().to_owned())
    }
}

#[async_trait]
impl SourceHarness for KafkaHarness {
    fn capabilities(&self) -> Capabilities {
        // A topic has no end. Reading up to its current end is tested separately.
        Capabilities { groups: true, settled_ranges: true, finite: false }
    }

    fn stream(&self) -> StreamName {
        self.topic.name.as_str().into()
    }

    fn partitions(&self) -> u32 {
        PARTITIONS
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        self.topic.push(partition as i32, payload).await;
    }

    async fn finish(&mut self) {
        unreachable!("it is not finite");
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let client_id = format!("client-{}", self.opened);
        self.opened += 1;
        let options = self.topic.options().with_property("client.id", client_id);
        Box::new(KafkaSource::open(options).unwrap())
    }

    /// Removes the member from its group, as an operator can.
    async fn expel(&mut self, nth: usize) {
        let started = Instant::now();
        let member = loop {
            if let Some(id) = self.member_id(&format!("client-{nth}")) {
                break id;
            }
            assert!(started.elapsed() < LONG, "it never joined");
        };
        // A member that is asked for messages rejoins at once, and may get its partitions back. It is
        // therefore expelled after it was not asked for so long that it stopped polling, as after the
        // crash of an engine.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let answer = leave_group(&self.topic.brokers, &self.topic.group, &member);
        assert_eq!(answer, 0, "the broker refuses to put it out");
    }
}

/// Sends LeaveGroup in version 2 and returns the error code of the response.
fn leave_group(broker: &str, group: &str, member: &str) -> i16 {
    let text = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
    let header = [0, 13, 0, 2, 0, 0, 0, 1, 0xff, 0xff];
    let request = [&header[..], &text(group), &text(member)].concat();
    let mut stream = TcpStream::connect(broker).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    // The response holds length, number, throttle time and error.
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).unwrap();
    i16::from_be_bytes([answer[12], answer[13]])
}

source_test_suite!(kafka, io if support::broker_is_there, KafkaHarness::new);
