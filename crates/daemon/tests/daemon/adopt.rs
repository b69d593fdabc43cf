//! Dead-letter topics as Spring Kafka writes them: adopted by the daemon, once and continuously, and by the command. Needs a real broker.

use std::process::Command;

use lazaret_core::query::Query;
use lazaret_core::store::{LetterStore, Triage};
use lazaret_core::{LetterState, QueueName};
use lazaret_daemon::adopt::kafka::{DeadLetterTopics, Letters, TopicFormat, dead_letter_topics};
use lazaret_daemon::adopt::{AdoptionError, Tally};
use lazaret_store_sqlite::{Options, SqliteStore};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustix::process::Signal;

use crate::kafka::{broker, client, create, fill, folder, handled, topic};
use crate::support::{DEADLINE, Folder, get, wait_for};

const KEYS: i64 = 7;

/// Writes dead letters as Spring's recoverer does, for these offsets of `orders-0`. A key has every seventh of them.
fn write(brokers: &str, dlt: &str, group: &str, offsets: impl IntoIterator<Item = i64>) {
    let producer: BaseProducer = client(brokers).create().unwrap();
    for offset in offsets {
        let partition: [u8; 4] = 0_i32.to_be_bytes();
        let (position, time) = (offset.to_be_bytes(), 1_700_000_000_123_i64.to_be_bytes());
        let trace = "org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed\n\
            \tat org.springframework.kafka.listener.A.b(A.java:1)\n\
            Caused by: com.shop.PaymentException: card 17 declined\n\tat com.shop.Pay.charge(Pay.java:42)\n";
        let exception = "org.springframework.kafka.listener.ListenerExecutionFailedException";
        let headers: [(&str, &[u8]); 10] = [
            ("kafka_dlt-exception-fqcn", exception.as_bytes()),
            ("kafka_dlt-exception-cause-fqcn", b"com.shop.PaymentException"),
            ("kafka_dlt-exception-message", b"Listener failed; card 17 declined"),
            ("kafka_dlt-exception-stacktrace", trace.as_bytes()),
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", &partition),
            ("kafka_dlt-original-offset", &position),
            ("kafka_dlt-original-timestamp", &time),
            ("kafka_dlt-original-timestamp-type", b"CreateTime"),
            ("kafka_dlt-original-consumer-group", group.as_bytes()),
        ];
        let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(*value) })
        });
        let key = format!("k{}", offset % KEYS);
        let payload = format!("{{\"n\": {offset}, \"kind\": \"fine\"}}");
        // Retries have mixed the partitions.
        let partition = i32::try_from(offset % 2).unwrap();
        producer
            .send(BaseRecord::to(dlt).partition(partition).key(&key).payload(&payload).headers(headers))
            .unwrap();
    }
    producer.flush(DEADLINE).unwrap();
}

/// A folder with a consumer of `from` that adopts.
fn adopting(brokers: &str, from: &str, adopt: &str) -> Folder {
    let keys = format!("    dead-letter: {{ max-sequence-size: unlimited }}\n    adopt: {{ {adopt} }}\n");
    let folder = folder(brokers, from, &keys);
    // The command is called in this process, whose directory is another.
    let config = folder.read("lazaret.yaml");
    let store = format!("sqlite:{}", folder.path("lazaret.db").display());
    folder.write("lazaret.yaml", &config.replace("sqlite:lazaret.db", &store));
    folder
}

/// The number of dead letters that the metrics report.
fn dead(address: &str) -> Option<u64> {
    let (_, metrics) = get(address, "/metrics");
    let line = metrics.lines().find(|line| {
        line.starts_with("lazaret_letters{") && line.contains("state=\"dead\"") && line.contains("shop")
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A counter of adopted records by outcome.
fn counted(address: &str, outcome: &str) -> u64 {
    let (_, metrics) = get(address, "/metrics");
    let label = format!("outcome=\"{outcome}\"");
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("lazaret_adopt_records_total{") && line.contains(&label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Asserts that these offsets have one dead letter each, in order by key.
async fn assert_adopted(folder: &Folder, count: i64) {
    let store = SqliteStore::open(folder.path("lazaret.db"), Options::default()).unwrap();
    let queue = QueueName::of("shop", "shop");
    let counts = store.counts(&queue).await.unwrap();
    assert_eq!((counts.of(LetterState::Dead), counts.open()), (count as u64, count as u64));
    for key in 0..KEYS {
        let letters = store.sequence(&queue, &format!("k{key}").as_str().into(), 0, 10_000).await.unwrap();
        let offsets: Vec<i64> = letters.iter().map(|letter| letter.message.position.offset as i64).collect();
        let expected: Vec<i64> = (0..count).filter(|offset| offset % KEYS == key).collect();
        assert_eq!(offsets, expected, "k{key}");
    }
}

#[tokio::test]
async fn a_dlt_is_adopted_once_by_a_run_until_idle() {
    // I8
    let Some(brokers) = broker() else { return };
    let (from, dlt) = (topic(&brokers).await, topic(&brokers).await);
    // Keys k0 to k2. The first has a dead letter, so its live message waits behind it.
    fill(&brokers, &from, &["fine", "fine", "fine"]).await;
    write(&brokers, &dlt, "shop", [0, 7, 3]);
    let folder = adopting(&brokers, &from, &format!("spring-dlt: {{ topic: {dlt}, mode: once }}"));
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    assert_eq!(handled(&folder), [1, 2]);
    let states = |state| folder.open_letters().iter().filter(|letter| letter.1 == state).count();
    assert_eq!((states(LetterState::Dead), states(LetterState::Waiting)), (3, 1));
    assert!(folder.read("stderr.log").contains("adopted=3"), "{}", folder.read("stderr.log"));
    // Again: the topic is read from where the first run stopped.
    assert_eq!(folder.run(&["run", "--until-idle"]), 3);
    assert_eq!((states(LetterState::Dead), states(LetterState::Waiting)), (3, 1));
    let log = folder.read("stderr.log");
    let last = log.lines().rfind(|line| line.contains("adoption ended")).unwrap();
    assert!(last.contains("adopted=0 already_there=0"), "{last}");
}

#[tokio::test]
async fn a_daemon_that_is_killed_while_it_adopts_loses_and_doubles_nothing() {
    // I1, I2, I8
    const ROUND: i64 = 400;
    const ROUNDS: i64 = 5;
    let Some(brokers) = broker() else { return };
    let (from, dlt) = (topic(&brokers).await, topic(&brokers).await);
    let folder = adopting(&brokers, &from, &format!("spring-dlt: {{ topic: {dlt} }}"));
    for round in 0..ROUNDS {
        // In reverse: the order is that of the original offsets.
        write(&brokers, &dlt, "shop", (round * ROUND..(round + 1) * ROUND).rev());
        let before = folder.read("stderr.log").matches("dead letters adopted").count();
        let mut daemon = folder.start(&["run"]);
        daemon.logs("dead letters adopted", before + 1);
        daemon.kill();
    }
    // The address of the next one, not of those before.
    folder.write("stderr.log", "");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let all = ROUNDS * ROUND;
    wait_for("all are adopted", || (dead(&address) == Some(all as u64)).then_some(()));
    // New dead letters are adopted while it runs, and a copy makes no second letter.
    write(&brokers, &dlt, "shop", [all, all + 1, 0]);
    wait_for("the new ones", || (dead(&address) == Some(all as u64 + 2)).then_some(()));
    wait_for("the copy is counted", || (counted(&address, "already-there") >= 1).then_some(()));
    assert!(counted(&address, "adopted") >= 2 && counted(&address, "unknown") == 0);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    assert_adopted(&folder, all + 2).await;
}

#[tokio::test]
async fn a_topic_that_does_not_exist_yet_does_not_hold_the_consumer() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let dlt = format!("{from}-dlt");
    fill(&brokers, &from, &["fine", "fine"]).await;
    let folder = adopting(&brokers, &from, &format!("spring-dlt: {{ topic: {dlt} }}"));
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    daemon.logs("adoption failed, retry scheduled", 1);
    wait_for("the consumer goes on", || (handled(&folder) == [0, 1]).then_some(()));
    let failed = format!("lazaret_adopt_failed{{consumer=\"shop\",topic=\"{dlt}\"}} 1");
    wait_for("the metric says so", || get(&address, "/metrics").1.contains(&failed).then_some(()));
    create(&brokers, &dlt).await;
    write(&brokers, &dlt, "shop", [3, 4]);
    wait_for("it is adopted", || (dead(&address) == Some(2)).then_some(()));
}

/// What the command adopts, or would adopt.
async fn command(folder: &Folder, request: DeadLetterTopics) -> Result<(Tally, Letters), AdoptionError> {
    let config = folder.path("lazaret.yaml");
    let mut adopted = dead_letter_topics(&DeadLetterTopics { config, ..request }, |_| ()).await?;
    assert_eq!(adopted.len(), 1);
    let letters = adopted.remove(0).letters;
    let counts = match &letters {
        Letters::Done(report) => report.run,
        Letters::Preview(preview) => preview.counts,
    };
    Ok((counts, letters))
}

fn request(topics: &[&str]) -> DeadLetterTopics {
    DeadLetterTopics {
        config: "lazaret.yaml".into(),
        consumer: "shop".into(),
        format: TopicFormat::SpringDlt,
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        brokers: None,
        group: None,
        adopt_unknown: false,
        separate_sequences: false,
        from_beginning: false,
        dry_run: false,
    }
}

#[tokio::test]
async fn the_command_previews_then_adopts_each_record_once() {
    // I8, I11
    let Some(brokers) = broker() else { return };
    let (from, dlt) = (topic(&brokers).await, topic(&brokers).await);
    write(&brokers, &dlt, "shop", [0, 1, 2, 2]);
    write(&brokers, &dlt, "shipping", [3]);
    fill(&brokers, &dlt, &["fine"]).await;
    let folder = adopting(&brokers, &from, &format!("spring-dlt: {{ topic: {dlt}, group: shop }}"));

    // The topic and the group are those of the configuration.
    let dry = DeadLetterTopics { dry_run: true, ..request(&[]) };
    for _ in 0..2 {
        let (counts, letters) = command(&folder, dry.clone()).await.unwrap();
        let expected =
            Tally { read: 6, adopted: 3, already_there: 1, foreign: 1, unknown: 1, ..Tally::default() };
        assert_eq!(counts, expected, "a preview changes nothing");
        let Letters::Preview(preview) = letters else { panic!("{letters:?}") };
        let origins: Vec<_> =
            preview.origins.iter().map(|origin| (origin.group.as_deref().unwrap(), origin.records)).collect();
        assert_eq!(origins, [("shop", 4), ("shipping", 1)]);
        assert_eq!(
            (preview.origins[0].topic.as_str(), preview.origins[0].format.as_str()),
            ("orders", "spring")
        );
        let [cause] = preview.causes.as_slice() else { panic!("{:?}", preview.causes) };
        assert_eq!((cause.error_type.as_str(), cause.records), ("com.shop.PaymentException", 5));
        assert_eq!(preview.unknown_at.len(), 1);
    }
    assert!(folder.open_letters().is_empty());

    let (counts, _) = command(&folder, request(&[])).await.unwrap();
    assert_eq!((counts.adopted, counts.already_there, counts.foreign, counts.unknown), (3, 1, 1, 1));
    let (counts, _) = command(&folder, request(&[])).await.unwrap();
    assert_eq!(counts, Tally::default(), "it continues where the first run stopped");
    let again = DeadLetterTopics { from_beginning: true, ..request(&[]) };
    let (counts, _) = command(&folder, again).await.unwrap();
    assert_eq!((counts.adopted, counts.already_there), (0, 4));
    assert_eq!(folder.open_letters().len(), 3);

    // A live message of the key would wait behind them. In sequences of their own, it does not.
    let apart = adopting(&brokers, &from, "connect: { topic: unused }");
    let separate = DeadLetterTopics { separate_sequences: true, ..request(&[&dlt]) };
    command(&apart, separate).await.unwrap();
    let store = SqliteStore::open(apart.path("lazaret.db"), Options::default()).unwrap();
    let page = store.find(&Query::parse("").unwrap(), None, 10).await.unwrap();
    assert!(page.letters.iter().all(|letter| letter.sequence.as_str().starts_with("~dlt:k")));
}

#[tokio::test]
async fn the_command_says_what_is_missing() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let folder = adopting(&brokers, &from, "connect: { topic: unused }");
    let said = |result: Result<_, AdoptionError>| result.unwrap_err().to_string();
    let no_topic = said(command(&folder, request(&[])).await);
    assert!(no_topic.contains("pass --topic, or configure `adopt.spring-dlt`"), "{no_topic}");
    let missing = said(command(&folder, request(&["no-such-topic"])).await);
    assert!(missing.contains("no-such-topic"), "{missing}");
    let nobody = DeadLetterTopics { consumer: "nobody".into(), ..request(&["t"]) };
    assert!(matches!(command(&folder, nobody).await, Err(AdoptionError::NoConsumer(..))));
}

#[tokio::test]
async fn the_doctor_checks_the_topics_that_are_adopted() {
    let Some(brokers) = broker() else { return };
    let (from, dlt) = (topic(&brokers).await, topic(&brokers).await);
    let folder = adopting(&brokers, &from, &format!("spring-dlt: {{ topics: [{dlt}, no-such-topic] }}"));
    let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output();
    let said = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(said.contains(&format!("ok    shop adopt spring-dlt: {dlt} has 2 partitions")), "{said}");
    assert!(said.contains("FAIL  shop adopt spring-dlt: no-such-topic does not exist"), "{said}");
}
