//! Records arrive unchanged: bytes, nulls, headers, times, and the gaps between them.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::source::Source;
use lazaret_source_kafka::KafkaSource;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};

use crate::support::{LONG, Reading, Topic, broker, client, numbers, unique};

#[tokio::test]
async fn keys_payloads_headers_and_times_come_byte_for_byte() {
    // I5
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let all: Vec<u8> = (0..=255).collect();
    let headers = OwnedHeaders::new()
        .insert(Header { key: "again", value: Some("1") })
        .insert(Header { key: "null", value: None::<&str> })
        .insert(Header { key: "empty", value: Some("") })
        .insert(Header { key: "again", value: Some(&all) })
        .insert(Header { key: "message-id", value: Some("m-1") })
        .insert(Header { key: "traceparent", value: Some("00-aa-bb-01") });
    type Bare<'a> = FutureRecord<'a, [u8], [u8]>;
    let bare = || Bare::to(&topic.name).partition(0).timestamp(1_700_000_000_123);
    let records = [
        bare().key(&all).payload(&all).headers(headers),
        bare(),
        bare().key(b"").payload(b""),
        bare().payload(&[0, 0, 0, 1, 2, b'x']),
    ];
    for record in records {
        topic.producer.send(record, LONG).await.unwrap();
    }
    let options = topic.options().with_id_headers(["ce_id", "message-id"]);
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("all have come", |r| r.count() == 4).await;
    let got = &reading.got[&0];
    assert_eq!((got[0].key.as_deref(), got[0].payload.as_deref()), (Some(&*all), Some(&*all)));
    let pairs: Vec<_> =
        got[0].headers.iter_nullable().map(|(name, v)| (name, v.map(|v| v.to_vec()))).collect();
    let expected = [
        ("again", Some(b"1".to_vec())),
        ("null", None),
        ("empty", Some(vec![])),
        ("again", Some(all)),
        ("message-id", Some(b"m-1".to_vec())),
        ("traceparent", Some(b"00-aa-bb-01".to_vec())),
    ];
    assert_eq!(pairs, expected);
    assert_eq!(got[0].id.as_str(), "m-1");
    assert_eq!(got[0].timestamp, Some(Timestamp::from_millisecond(1_700_000_000_123).unwrap()));
    assert_eq!((&got[1].key, &got[1].payload), (&None, &None), "a tombstone without a key");
    assert_eq!(got[1].id.as_str(), format!("{}/0/1", topic.name));
    assert_eq!((got[2].key.as_deref(), got[2].payload.as_deref()), (Some(&b""[..]), Some(&b""[..])));
    assert_eq!(got[3].schema.as_ref().unwrap().id.as_deref(), Some("258"));
}

#[tokio::test]
async fn every_compression_is_read() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 5).await;
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    // A producer stores a batch uncompressed if compression would not make it smaller.
    let payload = |codec: &str| format!("{codec} ").repeat(500);
    for (partition, codec) in codecs.iter().enumerate() {
        let producer: FutureProducer =
            client(&topic.brokers).set("compression.type", *codec).create().unwrap();
        let payload = payload(codec);
        let record = FutureRecord::<str, str>::to(&topic.name).partition(partition as i32).payload(&payload);
        producer.send(record, LONG).await.unwrap();
    }
    let mut reading = topic.open();
    reading
        .until("all have come, or one cannot", |r| r.count() == codecs.len() || !r.errors.is_empty())
        .await;
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    for (partition, codec) in codecs.iter().enumerate() {
        assert_eq!(reading.payloads(partition as u32), [payload(codec)]);
    }
}

#[tokio::test]
async fn the_position_passes_what_compaction_left_out() {
    let Some(broker) = broker() else { return };
    let config = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.001"),
        ("segment.ms", "200"),
        ("max.compaction.lag.ms", "200"),
        ("min.compaction.lag.ms", "0"),
    ];
    let topic = Topic::with_config(broker, &unique("compacted-"), 1, &config).await;
    topic.fill(0, 0..50).await;
    // All records have the same key. The cleaner keeps the last record of each log segment. Each push
    // may close a segment.
    let started = std::time::Instant::now();
    let mut pushed = 50_u32;
    let offsets = loop {
        topic.push(0, &pushed.to_string()).await;
        pushed += 1;
        let mut look = Reading::new(KafkaSource::open(topic.options().reading_to_end()).unwrap());
        look.until("it ends", |r| r.ends == 1).await;
        if look.count() < pushed as usize {
            break look.offsets(0);
        }
        assert!(started.elapsed() < LONG, "the log was not compacted");
    };
    assert!(offsets[0] > 0, "compaction removed records: {offsets:?}");
    let mut first = topic.open();
    first.until("what is left has come", |r| r.offsets(0).last() == Some(&u64::from(pushed - 1))).await;
    let last = *first.offsets(0).last().unwrap();
    first.commit(topic.partition(0), last, vec![]).await.unwrap();
    first.source.close().await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, last + 1);
    topic.push(0, "next").await;
    let mut second = topic.open();
    second.until("the next has come", |r| r.count() == 1).await;
    assert_eq!(second.payloads(0), ["next"]);
}

#[tokio::test]
async fn aborted_transactions_and_their_marks_are_passed() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 1).await;
    let producer: BaseProducer = client(&broker).set("transactional.id", unique("tx-")).create().unwrap();
    producer.init_transactions(LONG).unwrap();
    for (number, commit) in [(0, true), (1, false), (2, true), (3, false)] {
        producer.begin_transaction().unwrap();
        let payload = number.to_string();
        producer.send(BaseRecord::to(&topic.name).partition(0).key("k").payload(&payload)).unwrap();
        producer.flush(LONG).unwrap();
        match commit {
            true => producer.commit_transaction(LONG).unwrap(),
            false => producer.abort_transaction(LONG).unwrap(),
        }
    }
    // Each transaction is a record and a marker. Offsets 0, 2, 4 and 6 are records, and the log ends
    // with a marker.
    let mut first = Reading::new(KafkaSource::open(topic.options().reading_to_end()).unwrap());
    first.until("it ends", |r| r.ends == 1).await;
    assert_eq!((first.payloads(0), first.offsets(0)), (vec!["0".to_owned(), "2".to_owned()], vec![0, 4]));
    first.commit(topic.partition(0), 4, vec![]).await.unwrap();
    first.source.close().await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, 5);
    let uncommitted = topic.options().with_property("isolation.level", "read_uncommitted").reading_to_end();
    let mut second = Reading::new(KafkaSource::open(uncommitted).unwrap());
    second.until("it ends", |r| r.ends == 1).await;
    assert_eq!(second.payloads(0), ["3"], "the isolation level is passed on");
    second.source.close().await.unwrap();
    let mut third = Reading::new(KafkaSource::open(topic.options().reading_to_end()).unwrap());
    third.until("it ends", |r| r.ends == 1).await;
    assert_eq!(third.count(), 0, "there are only marks and what was aborted");
}

#[tokio::test]
async fn many_messages_come_in_batches_and_partitions_take_turns() {
    // I3
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    let producer: BaseProducer = client(&topic.brokers).create().unwrap();
    for number in 0..5_000 {
        let payload = number.to_string();
        producer.send(BaseRecord::<str, str>::to(&topic.name).partition(0).payload(&payload)).unwrap();
    }
    producer.flush(LONG).unwrap();
    topic.fill(1, 0..3).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 5_003).await;
    assert_eq!((reading.payloads(0), reading.payloads(1)), (numbers(0..5_000), numbers(0..3)));
    assert_eq!(reading.source.lag(), Some(0));
    reading.read_for(Duration::from_millis(1)).await;
}
