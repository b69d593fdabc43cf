//! Cases for sources, with the harness that a source implements.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

mod fixture;

use fixture::numbered;
pub use fixture::{Capabilities, SourceFixture, SourceHarness};

/// Makes one test per case of the source contract, in a module of this name.
///
/// The second argument makes a fresh [`SourceHarness`](crate::suite::source::SourceHarness). See the tests of the
/// memory source for one. A source that waits for the network or the disk takes `io` before it, and its tests run in
/// real time. One that needs a service takes `io if READY`, where the function `READY` returns `true` when the service is
/// available, and otherwise prints why the cases were not run.
#[macro_export]
macro_rules! source_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__source_test_suite! { $name, [start_paused = true], $make, $crate::suite::always }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__source_test_suite! { $name, [], $make, $crate::suite::always }
    };
    ($name:ident, io if $ready:path, $make:expr) => {
        $crate::__source_test_suite! { $name, [], $make, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __source_test_suite {
    ($name:ident, $runtime:tt, $make:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::source::SourceFixture::new, $ready;
            source {
                messages_of_a_partition_come_in_order
                every_partition_is_assigned_before_its_messages
                messages_that_come_later_are_delivered
                a_new_consumer_goes_on_behind_the_committed_position
                after_a_crash_everything_uncommitted_comes_again
                a_message_comes_again_as_it_was
                a_cancelled_wait_loses_nothing
                a_paused_partition_is_quiet_and_the_others_are_not
                a_resumed_partition_goes_on_where_it_stopped
                a_pause_is_forgotten_at_the_next_assignment
                a_commit_never_moves_back
                a_commit_without_a_position_leaves_it_where_it_is
                a_rewound_partition_comes_again_from_behind_the_committed_position
                settled_ranges_are_given_to_the_next_owner
                what_is_settled_beyond_stays_bounded
                a_second_consumer_gets_its_share_after_the_first_gave_it_up
                a_consumer_that_leaves_gives_its_share_back
                a_crashed_consumer_loses_its_share_to_the_others
                a_lost_partition_cannot_be_committed
                a_finite_source_ends_after_its_last_message
                a_paused_partition_keeps_a_finite_source_from_ending
                an_empty_finite_source_ends
                the_lag_counts_what_was_not_delivered
            }
        }
    };
}

pub async fn messages_of_a_partition_come_in_order<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I2
    t.fill(0, 0..50).await;
    t.fill(1, 0..30).await;
    t.fill(0, 50..100).await;
    let mut consumer = t.open().await;
    consumer.until("all have come", |c| c.count() == 130).await;
    assert_eq!(consumer.payloads(0), numbered(0, 0..100));
    assert_eq!(consumer.payloads(1), numbered(1, 0..30));
    for messages in consumer.got.values() {
        assert!(messages.is_sorted_by_key(|message| message.position.offset));
    }
}

pub async fn every_partition_is_assigned_before_its_messages<H: SourceHarness>(mut t: SourceFixture<H>) {
    t.fill(0, 0..1).await;
    let mut consumer = t.open().await;
    let all = t.harness.partitions() as usize;
    // That none comes early is checked at every step.
    consumer.until("all partitions are assigned", |c| c.held.len() == all).await;
    consumer.until("the message has come", |c| c.count() == 1).await;
}

pub async fn messages_that_come_later_are_delivered<H: SourceHarness>(mut t: SourceFixture<H>) {
    let mut consumer = t.open_assigned().await;
    t.fill(1, 0..5).await;
    consumer.until("they have come", |c| c.count() == 5).await;
    assert_eq!(consumer.payloads(1), numbered(1, 0..5));
}

pub async fn a_new_consumer_goes_on_behind_the_committed_position<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I1: what is committed is not repeated, what is not comes again.
    t.fill(0, 0..10).await;
    t.fill(1, 0..3).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 13).await;
    first.commit(&t.partition(0), 6, vec![]).await;
    first.source.close().await.unwrap();
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 6).await;
    second.until_quiet().await;
    assert_eq!(second.payloads(0), numbered(0, 7..10));
    assert_eq!(second.payloads(1), numbered(1, 0..3));
}

pub async fn after_a_crash_everything_uncommitted_comes_again<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I1
    t.fill(0, 0..10).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 10).await;
    first.commit(&t.partition(0), 2, vec![]).await;
    drop(first);
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 7).await;
    assert_eq!(second.payloads(0), numbered(0, 3..10));
}

pub async fn a_message_comes_again_as_it_was<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I5
    t.fill(0, 0..5).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 5).await;
    let before = std::mem::take(&mut first.got);
    drop(first);
    let mut second = t.open().await;
    second.until("all have come again", |c| c.count() == 5).await;
    assert_eq!(second.got, before);
}

pub async fn a_cancelled_wait_loses_nothing<H: SourceHarness>(mut t: SourceFixture<H>) {
    let mut consumer = t.open_assigned().await;
    for number in 0..20 {
        {
            // Polled once, and cancelled while it waits.
            let next = consumer.source.next();
            tokio::pin!(next);
            let polled = futures_util::poll!(next.as_mut());
            assert!(polled.is_pending(), "there is nothing yet");
            t.fill(0, number..number + 1).await;
        }
        consumer.until("the message has come", |c| c.count() == number as usize + 1).await;
    }
    assert_eq!(consumer.payloads(0), numbered(0, 0..20));
}

pub async fn a_paused_partition_is_quiet_and_the_others_are_not<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I3
    let mut consumer = t.open_assigned().await;
    consumer.source.pause(&[t.partition(0)]);
    consumer.source.pause(&[t.partition(0)]);
    t.fill(0, 0..5).await;
    t.fill(1, 0..5).await;
    consumer.until("the other partition has come", |c| c.count() == 5).await;
    consumer.until_quiet().await;
    assert_eq!(consumer.payloads(0), numbered(0, 0..0));
    assert_eq!(consumer.payloads(1), numbered(1, 0..5));
}

pub async fn a_resumed_partition_goes_on_where_it_stopped<H: SourceHarness>(mut t: SourceFixture<H>) {
    t.fill(0, 0..5).await;
    let mut consumer = t.open().await;
    consumer.until("the first have come", |c| c.count() == 5).await;
    consumer.source.pause(&[t.partition(0)]);
    t.fill(0, 5..10).await;
    consumer.until_quiet().await;
    consumer.source.resume(&[t.partition(0)]);
    consumer.until("the rest has come", |c| c.count() == 10).await;
    assert_eq!(consumer.payloads(0), numbered(0, 0..10));
}

pub async fn a_pause_is_forgotten_at_the_next_assignment<H: SourceHarness>(mut t: SourceFixture<H>) {
    let mut first = t.open_assigned().await;
    first.source.pause(&[t.partition(0)]);
    drop(first);
    t.fill(0, 0..3).await;
    let mut second = t.open().await;
    second.until("they have come", |c| c.count() == 3).await;
}

pub async fn a_commit_never_moves_back<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I1
    t.fill(0, 0..10).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 10).await;
    first.commit(&t.partition(0), 7, vec![]).await;
    first.commit(&t.partition(0), 3, vec![]).await;
    first.source.close().await.unwrap();
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 2).await;
    second.until_quiet().await;
    assert_eq!(second.payloads(0), numbered(0, 8..10));
}

pub async fn a_commit_without_a_position_leaves_it_where_it_is<H: SourceHarness>(mut t: SourceFixture<H>) {
    t.fill(0, 0..6).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 6).await;
    first.commit(&t.partition(0), 1, vec![]).await;
    let settled = vec![first.offset(0, 4)..=first.offset(0, 5)];
    first.commit_beyond(&t.partition(0), settled.clone()).await;
    drop(first);
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 4).await;
    assert_eq!(second.payloads(0), numbered(0, 2..6));
    if t.harness.capabilities().settled_ranges {
        assert_eq!(second.held[&t.partition(0)], settled);
    }
}

pub async fn a_rewound_partition_comes_again_from_behind_the_committed_position<H: SourceHarness>(
    mut t: SourceFixture<H>,
) {
    // I1: a grant that was taken over must not cost what was read under it.
    t.fill(0, 0..8).await;
    t.fill(1, 0..3).await;
    let mut only = t.open().await;
    only.until("all have come", |c| c.count() == 11).await;
    only.commit(&t.partition(0), 2, vec![]).await;
    only.rewind(&t.partition(0));
    only.until("it comes again", |c| c.payloads(0).len() == 5).await;
    only.until_quiet().await;
    assert_eq!(only.payloads(0), numbered(0, 3..8));
    assert_eq!(only.payloads(1), numbered(1, 0..3), "the other one goes on");
}

pub async fn settled_ranges_are_given_to_the_next_owner<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("settled ranges", t.harness.capabilities().settled_ranges) {
        return;
    }
    t.fill(0, 0..10).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 10).await;
    let settled = vec![first.offset(0, 4)..=first.offset(0, 5), first.offset(0, 8)..=first.offset(0, 8)];
    first.commit(&t.partition(0), 1, vec![first.offset(0, 3)..=first.offset(0, 3)]).await;
    first.commit(&t.partition(0), 2, vec![first.offset(0, 4)..=first.offset(0, 4)]).await;
    // The position stays while a message before them waits for its retry.
    first.commit(&t.partition(0), 2, settled.clone()).await;
    drop(first);
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 7).await;
    assert_eq!(second.held[&t.partition(0)], settled, "as the last commit said");
    assert_eq!(second.payloads(0), numbered(0, 3..10), "the engine leaves them out, not the source");
}

pub async fn what_is_settled_beyond_stays_bounded<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I7
    t.fill(0, 0..2).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 2).await;
    let base = first.offset(0, 0);
    let many: Vec<_> = (0..5000).map(|n| base + 2 + 2 * n..=base + 2 + 2 * n).collect();
    first.commit(&t.partition(0), 0, many.clone()).await;
    drop(first);
    let mut second = t.open().await;
    second.until("the rest has come", |c| c.count() == 1).await;
    let ranges = &second.held[&t.partition(0)];
    assert!(ranges.len() <= 4096, "{} ranges are too many", ranges.len());
    assert_eq!(*ranges, many[..ranges.len()], "the first ones are kept: they are what is repeated first");
}

pub async fn a_second_consumer_gets_its_share_after_the_first_gave_it_up<H: SourceHarness>(
    mut t: SourceFixture<H>,
) {
    if t.lacks("groups", t.harness.capabilities().groups) {
        return;
    }
    let all = t.harness.partitions();
    for partition in 0..all {
        t.fill(partition, 0..4).await;
    }
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 4 * all as usize).await;
    let mut second = t.open().await;
    // The group rebalances only when the new member polls.
    second.until_quiet().await;
    assert!(second.held.is_empty(), "a consumer keeps what it has not given up");
    first.until("something is revoked", |c| !c.revoking.is_empty()).await;
    let moving = first.revoking.clone();
    for partition in &moving {
        t.fill(partition.index, 4..5).await;
    }
    // That it gets no more messages of them is checked at every step.
    first.until_quiet().await;
    for partition in &moving {
        first.commit(partition, 1, vec![]).await;
    }
    first.give_up().await;
    second.until("they are assigned", |c| c.held.len() == moving.len()).await;
    assert!(moving.iter().all(|partition| second.held.contains_key(partition)));
    assert!(!first.held.is_empty(), "the first keeps its own share");
    second.until("the uncommitted have come", |c| c.count() == 3 * moving.len()).await;
    for partition in moving {
        assert_eq!(second.payloads(partition.index), numbered(partition.index, 2..5));
    }
}

pub async fn a_consumer_that_leaves_gives_its_share_back<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("groups", t.harness.capabilities().groups) {
        return;
    }
    let all = t.harness.partitions() as usize;
    let mut first = t.open_assigned().await;
    let mut second = t.open().await;
    second.until_quiet().await;
    first.until("something is revoked", |c| !c.revoking.is_empty()).await;
    first.give_up().await;
    second.until("it has a share", |c| !c.held.is_empty()).await;
    second.source.close().await.unwrap();
    first.until("it has all again", |c| c.held.len() == all).await;
}

pub async fn a_crashed_consumer_loses_its_share_to_the_others<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("groups", t.harness.capabilities().groups) {
        return;
    }
    let all = t.harness.partitions() as usize;
    let mut first = t.open_assigned().await;
    let mut second = t.open().await;
    second.until_quiet().await;
    first.until("something is revoked", |c| !c.revoking.is_empty()).await;
    drop(first);
    second.until("it has all", |c| c.held.len() == all).await;
}

pub async fn a_lost_partition_cannot_be_committed<H: SourceHarness>(mut t: SourceFixture<H>) {
    // I6
    if t.lacks("groups", t.harness.capabilities().groups) {
        return;
    }
    t.fill(0, 0..10).await;
    let mut first = t.open().await;
    first.until("all have come", |c| c.count() == 10).await;
    let mut second = t.open().await;
    t.harness.expel(0).await;
    first.commit(&t.partition(0), 8, vec![]).await;
    second.until("the messages have come", |c| c.count() == 10).await;
    assert_eq!(second.payloads(0), numbered(0, 0..10), "the late commit was ignored");
    second.commit(&t.partition(0), 3, vec![]).await;
    first.until("it learns that all is lost", |c| c.held.is_empty()).await;
    first.commit(&t.partition(0), 9, vec![]).await;
    drop(first);
    drop(second);
    let mut third = t.open().await;
    third.until("the rest has come", |c| c.count() == 6).await;
    assert_eq!(third.payloads(0), numbered(0, 4..10));
}

pub async fn a_finite_source_ends_after_its_last_message<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("finite", t.harness.capabilities().finite) {
        return;
    }
    t.fill(0, 0..3).await;
    t.fill(1, 0..3).await;
    t.harness.finish().await;
    let mut consumer = t.open().await;
    consumer.until("it ends", |c| c.ends == 1).await;
    assert_eq!(consumer.count(), 6);
    consumer.until_quiet().await;
    assert_eq!(consumer.ends, 1, "it ends once");
}

pub async fn a_paused_partition_keeps_a_finite_source_from_ending<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("finite", t.harness.capabilities().finite) {
        return;
    }
    let mut consumer = t.open_assigned().await;
    consumer.source.pause(&[t.partition(0)]);
    t.fill(0, 0..3).await;
    t.harness.finish().await;
    consumer.until_quiet().await;
    assert_eq!(consumer.ends, 0);
    consumer.source.resume(&[t.partition(0)]);
    consumer.until("it ends", |c| c.ends == 1).await;
    assert_eq!(consumer.count(), 3);
}

pub async fn an_empty_finite_source_ends<H: SourceHarness>(mut t: SourceFixture<H>) {
    if t.lacks("finite", t.harness.capabilities().finite) {
        return;
    }
    t.harness.finish().await;
    let mut consumer = t.open().await;
    consumer.until("it ends", |c| c.ends == 1).await;
}

pub async fn the_lag_counts_what_was_not_delivered<H: SourceHarness>(mut t: SourceFixture<H>) {
    t.fill(0, 0..5).await;
    let mut consumer = t.open().await;
    consumer.until("all have come", |c| c.count() == 5).await;
    consumer.source.pause(&[t.partition(0)]);
    let Some(lag) = consumer.source.lag() else { return };
    assert_eq!(lag, 0);
    t.fill(0, 5..12).await;
    consumer.until_quiet().await;
    assert_eq!(consumer.source.lag(), Some(7));
}
