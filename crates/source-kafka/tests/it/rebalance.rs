//! Members join and leave: nothing is lost, and no partition is reassigned before it is released.

use std::time::Duration;

use lazaret_core::source::Source;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};

use crate::support::{self, Reading, Topic, broker, numbers};

/// Reads with both members until the condition holds.
async fn both(a: &mut Reading, b: &mut Reading, what: &str, holds: impl Fn(&Reading, &Reading) -> bool) {
    let until = tokio::time::Instant::now() + support::LONG;
    while !holds(a, b) {
        tokio::select! {
            event = a.source.next() => a.take(event),
            event = b.source.next() => b.take(event),
            () = tokio::time::sleep_until(until) => panic!("timed out waiting until {what}: {a:?} {b:?}"),
        }
    }
}

/// Returns options with short timeouts, so that the group expels the member quickly.
fn with_short_timeouts(topic: &Topic) -> KafkaOptions {
    topic
        .options()
        .with_property("session.timeout.ms", "1000")
        .with_property("heartbeat.interval.ms", "100")
        .with_property("max.poll.interval.ms", "2000")
}

#[tokio::test]
async fn a_partition_stays_until_it_is_let_go_while_the_others_go_on() {
    // I1, I3
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    for partition in 0..3 {
        topic.fill(partition, 0..10).await;
    }
    let mut first = topic.open();
    first.until("all have come", |r| r.count() == 30).await;
    let mut second = topic.open();
    both(&mut first, &mut second, "something is revoked", |a, _| !a.revoking.is_empty()).await;
    let moving = first.revoking[0].clone();
    let staying = (0..3).find(|index| *index != moving.index).unwrap();
    topic.fill(moving.index as i32, 10..15).await;
    topic.fill(staying as i32, 10..15).await;
    both(&mut first, &mut second, "the others are read", |a, _| a.payloads(staying).len() == 15).await;
    assert_eq!(first.payloads(moving.index).len(), 10, "nothing more comes of what is revoked");
    assert!(second.held.is_empty(), "no partition is reassigned before it is released");
    // Offsets settled since then are committed, and the new owner continues there.
    first.commit(moving.clone(), 6, vec![8..=9]).await.unwrap();
    first.release().await;
    let index = moving.index;
    both(&mut first, &mut second, "the new owner has the rest", |_, b| b.payloads(index).len() == 8).await;
    assert_eq!(second.payloads(index), numbers(7..15));
    assert_eq!(second.held[&index], [8..=9]);
    assert!(first.errors.is_empty() && second.errors.is_empty(), "{:?} {:?}", first.errors, second.errors);
}

#[tokio::test]
async fn members_that_come_and_go_lose_nothing() {
    // I1
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    let mut first = topic.open();
    first.until("all is assigned", |r| r.held.len() == 3).await;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..3 {
        for partition in 0..3 {
            topic.fill(partition, round * 10..round * 10 + 10).await;
        }
        let mut second = topic.open();
        both(&mut first, &mut second, "something is revoked", |a, _| !a.revoking.is_empty()).await;
        let moving = first.revoking.clone();
        first.release().await;
        both(&mut first, &mut second, "it has its share", |_, b| b.held.len() == moving.len()).await;
        // Half of what the member reads is settled before it leaves. The other half must be redelivered.
        let index = moving[0].index;
        both(&mut first, &mut second, "it reads", |_, b| b.payloads(index).len() >= 10).await;
        let middle = second.offsets(index)[4];
        second.commit(moving[0].clone(), middle, vec![]).await.unwrap();
        seen.extend(second.got[&index][..5].iter().map(|m| m.id.clone()));
        second.source.close().await.unwrap();
        first.until("it has all again", |r| r.held.len() == 3).await;
    }
    let all = |r: &Reading| {
        let ids = r.got.values().flatten().map(|m| m.id.clone());
        ids.chain(seen.iter().cloned()).collect::<std::collections::BTreeSet<_>>().len() == 90
    };
    first.until("every message was read", all).await;
}

#[tokio::test]
async fn a_member_that_is_held_back_for_long_stays_a_member() {
    // Polling continues, so a pause that is longer than max.poll.interval costs nothing.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    let mut reading = Reading::new(KafkaSource::open(with_short_timeouts(&topic)).unwrap());
    reading.until("all is assigned", |r| r.held.len() == 3).await;
    reading.source.pause(&[topic.partition(0), topic.partition(1)]);
    for partition in 0..3 {
        topic.fill(partition, 0..5).await;
    }
    reading.read_for(Duration::from_secs(4)).await;
    assert_eq!((reading.payloads(0), reading.payloads(1)), (vec![], vec![]));
    assert_eq!(reading.payloads(2), numbers(0..5), "the others go on");
    assert!(reading.lost.is_empty() && reading.revoking.is_empty() && reading.errors.is_empty());
    reading.source.resume(&[topic.partition(0), topic.partition(1)]);
    reading.until("the rest has come", |r| r.count() == 15).await;
    assert_eq!((reading.payloads(0), reading.payloads(1)), (numbers(0..5), numbers(0..5)));
}

#[tokio::test]
async fn a_member_that_does_not_poll_loses_its_partitions_and_commits_nothing() {
    // I6
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..10).await;
    let mut first = Reading::new(KafkaSource::open(with_short_timeouts(&topic)).unwrap());
    first.until("all have come", |r| r.count() == 10).await;
    let mut second = topic.open();
    // The first member is not asked for anything in the meantime.
    second.until("it has taken over", |r| r.held.len() == 2 && r.count() == 10).await;
    second.commit(topic.partition(0), 3, vec![]).await.unwrap();
    first.commit(topic.partition(0), 8, vec![]).await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, 4, "the late commit was ignored");
    let lost = |r: &Reading| r.lost.len() == 2 && r.held.is_empty();
    both(&mut first, &mut second, "it learns of its loss", |a, _| lost(a)).await;
    assert!(first.errors.is_empty(), "{:?}", first.errors);
    // Then the first member takes part again.
    while first.held.is_empty() {
        let moves = |a: &Reading, b: &Reading| !b.revoking.is_empty() || !a.held.is_empty();
        both(&mut first, &mut second, "it has a share", moves).await;
        second.release().await;
    }
}

#[tokio::test]
async fn a_partition_that_is_not_let_go_in_time_is_lost() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    let mut first = Reading::new(KafkaSource::open(with_short_timeouts(&topic)).unwrap());
    first.until("all is assigned", |r| r.held.len() == 2).await;
    let mut second = topic.open();
    both(&mut first, &mut second, "something is revoked", |a, _| a.revoking.len() == 1).await;
    both(&mut first, &mut second, "it is given on all the same", |_, b| b.held.len() == 1).await;
    assert_eq!(first.lost, first.revoking);
    assert_eq!(first.held.len(), 1, "the rest stays");
    first.release().await;
}

#[tokio::test]
async fn a_static_member_rejoins_without_a_rebalance() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    let open = |name: &str| {
        let options = topic.options().with_property("group.instance.id", name);
        Reading::new(KafkaSource::open(options).unwrap())
    };
    let (mut first, mut second) = (open("a"), open("b"));
    let shared = |a: &Reading, b: &Reading| {
        a.revoking.len() + b.revoking.len() > 0 || (a.held.len() == 1 && b.held.len() == 1)
    };
    both(&mut first, &mut second, "both are there", shared).await;
    first.release().await;
    second.release().await;
    both(&mut first, &mut second, "both have a share", |a, b| a.held.len() == 1 && b.held.len() == 1).await;
    let share: Vec<u32> = first.held.keys().copied().collect();
    first.source.close().await.unwrap();
    let mut again = open("a");
    both(&mut again, &mut second, "it is back", |a, _| !a.held.is_empty()).await;
    assert_eq!(again.held.keys().copied().collect::<Vec<_>>(), share);
    assert!(second.revoking.is_empty() && second.lost.is_empty() && second.held.len() == 1);
}

#[tokio::test]
async fn the_eager_protocol_works_too() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..5).await;
    topic.fill(1, 0..5).await;
    let open = || {
        let options = topic.options().with_property("partition.assignment.strategy", "range");
        Reading::new(KafkaSource::open(options).unwrap())
    };
    let mut first = open();
    first.until("all have come", |r| r.count() == 10).await;
    let mut second = open();
    both(&mut first, &mut second, "all is revoked", |a, _| a.revoking.len() == 2).await;
    first.commit(topic.partition(0), 4, vec![]).await.unwrap();
    first.commit(topic.partition(1), 4, vec![]).await.unwrap();
    first.release().await;
    both(&mut first, &mut second, "both have a share", |a, b| a.held.len() == 1 && b.held.len() == 1).await;
    topic.fill(0, 5..6).await;
    topic.fill(1, 5..6).await;
    first.got.clear();
    both(&mut first, &mut second, "both read", |a, b| a.count() == 1 && b.count() == 1).await;
}

#[tokio::test]
async fn the_new_group_protocol_works_too() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..5).await;
    topic.fill(1, 0..5).await;
    let open = || {
        let options = KafkaOptions::new(&topic.brokers, &topic.group, [&topic.name]);
        Reading::new(KafkaSource::open(options.with_property("group.protocol", "consumer")).unwrap())
    };
    let mut first = open();
    first.until("all have come", |r| r.count() == 10).await;
    let mut second = open();
    both(&mut first, &mut second, "something is revoked", |a, _| a.revoking.len() == 1).await;
    let moving = first.revoking[0].clone();
    first.commit(moving.clone(), 2, vec![4..=4]).await.unwrap();
    first.release().await;
    both(&mut first, &mut second, "the rest has come", |_, b| b.count() == 2).await;
    assert_eq!(second.payloads(moving.index), numbers(3..5));
    assert_eq!(second.held[&moving.index], [4..=4]);
}
