//! Axon's component and integration tests of the queue: groups H and I, as far as they concern a store.
//! The parts about handlers and policies are tested with the engine.

use std::collections::BTreeMap;

use lazaret_core::store::{HandOff, Limits, Placed, Placement, Requeue, Settlement, Store};
use lazaret_core::{Letter, LetterId, LetterState, QueueName};

use super::fixture::{Fixture, fail_again, failure, operator, requeued, resolve, seq};
use crate::suite::secs;

pub async fn h01_a_message_that_is_not_handed_off_leaves_no_trace<S: Store>(t: Fixture<S>) {
    assert_eq!(t.store.lookup(&t.queue, &["m".into()]).await.unwrap(), [None]);
    assert!(!t.contains("a").await);
}

pub async fn h02_the_next_message_of_a_blocked_sequence_is_appended<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert_eq!(t.behind(t.waiting("a", "2")).await, Placed::Appended);
    assert_eq!(t.size("a").await, 2);
    let follower = t.get("2").await;
    assert_eq!((follower.state, follower.cause), (LetterState::Waiting, None));
}

pub async fn h03_a_failed_message_is_contained<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(t.contains("a").await);
    assert_eq!(t.size("a").await, 1);
}

pub async fn h08_a_reset_empties_the_queue<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.store.clear(&t.queue, &operator()).await.unwrap();
    let counts = t.store.counts(&t.queue).await.unwrap();
    assert_eq!((counts.open(), counts.sequences), (0, 0));
    assert_eq!(counts.of(LetterState::Evicted), 2);
}

pub async fn h10_processing_an_empty_queue_does_nothing<S: Store>(t: Fixture<S>) {
    assert_eq!(t.process_all().await, (false, vec![]));
}

pub async fn h11_a_retry_that_succeeds_empties_its_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert_eq!(t.process_all().await, (true, vec!["1".into()]));
    assert!(!t.contains("a").await);
}

pub async fn h12_processing_one_of_two_sequences_removes_only_that<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    assert!(t.process(|head| head.sequence == seq("b"), |_| resolve()).await);
    assert!(t.contains("a").await && !t.contains("b").await);
}

pub async fn h13_a_retry_that_fails_leaves_the_letter<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(!t.process(|_| true, fail_again).await);
    assert_eq!(t.size("a").await, 1);
}

pub async fn h14_to_h16_cause_and_diagnostics_are_stored_as_the_policy_gave_them<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    letter.cause = Some(failure("the policy's text"));
    letter.diagnostics.insert("k".into(), "v".into());
    t.open(letter).await;
    let stored = t.get("1").await;
    assert_eq!(stored.cause, Some(failure("the policy's text")));
    assert_eq!(stored.diagnostics["k"], "v");
}

pub async fn h22_h23_a_policy_that_gives_up_on_retry_closes_the_letter<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(t.process(|_| true, |_| Settlement::Evict("given up".into())).await);
    assert_eq!(t.size("a").await, 0);
    assert_eq!(t.state("1").await, LetterState::Evicted);
}

pub async fn h24_a_policy_that_requeues_sets_the_new_cause<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let run = t.process(
        |_| true,
        |letter| {
            let mut requeue = Requeue::of(letter);
            requeue.cause = Some(failure("new"));
            requeued(requeue)
        },
    );
    assert!(!run.await);
    assert_eq!(t.get("1").await.cause, Some(failure("new")));
}

pub async fn h26_a_letter_is_requeued_twice_and_then_given_up<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let mut answers = Vec::new();
    for run in 1..=3 {
        let settle = |letter: &Letter| {
            let mut requeue = Requeue::of(letter);
            requeue.attempts += 1;
            if run < 3 { requeued(requeue) } else { Settlement::Evict("third time".into()) }
        };
        answers.push(t.process(|_| true, settle).await);
    }
    assert_eq!(answers, [false, false, true]);
    assert_eq!(t.size("a").await, 0);
    assert_eq!(t.get("1").await.attempts, 5, "three when it came, and two requeues");
}

pub async fn i02_the_followers_of_a_failed_message_wait_in_order<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "failed").await;
    t.behind(t.waiting("a", "next")).await;
    t.behind(t.waiting("a", "last")).await;
    assert_eq!(t.messages("a").await, ["failed", "next", "last"]);
}

pub async fn i03_all_three_succeed_on_retry_and_the_sequence_is_gone<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "failed").await;
    t.behind(t.waiting("a", "next")).await;
    t.behind(t.waiting("a", "last")).await;
    let (done, seen) = t.process_all().await;
    assert!(done);
    assert_eq!(seen, ["failed", "next", "last"]);
    assert!(!t.contains("a").await);
}

pub async fn i04_the_third_fails_on_retry_and_stays_alone<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    let run = t.process(
        |_| true,
        |letter| {
            if letter.message.id.as_str() == "a-2" { fail_again(letter) } else { resolve() }
        },
    );
    assert!(!run.await);
    assert_eq!(t.messages("a").await, ["a-2"]);
}

pub async fn i06_what_was_known_at_the_failure_is_there_at_the_retry<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    letter.context.insert("resume-token".into(), "8263".into());
    t.open(letter).await;
    let claim = t.claim("a", "w").await.unwrap();
    assert_eq!(claim.head.context["resume-token"], "8263");
}

pub async fn i08_forty_sequences_are_retried_without_loss_or_repetition<S: Store>(t: Fixture<S>) {
    let (mut handled, mut failed) = (BTreeMap::<String, Vec<String>>::new(), 0);
    for arriving in [0..3, 3..4] {
        for (letter, sequence) in arriving.flat_map(|letter| (0..40).map(move |sequence| (letter, sequence)))
        {
            t.open(t.dead(&format!("s{sequence}"), &format!("s{sequence}-{letter}"))).await;
        }
        // The third letter of each sequence keeps failing.
        for _ in 0..40 {
            t.advance(secs(1));
            let run = t.process(
                |_| true,
                |letter| {
                    if letter.message.id.as_str().ends_with("-2") {
                        failed += 1;
                        return fail_again(letter);
                    }
                    handled
                        .entry(letter.sequence.to_string())
                        .or_default()
                        .push(letter.message.id.to_string());
                    resolve()
                },
            );
            assert!(!run.await);
        }
    }
    assert_eq!((handled.len(), failed), (40, 80));
    for sequence in 0..40 {
        let name = format!("s{sequence}");
        assert_eq!(handled[&name], [format!("{name}-0"), format!("{name}-1")]);
        assert_eq!(t.messages(&name).await, [format!("{name}-2"), format!("{name}-3")]);
    }
}

pub async fn i09_i10_a_replaced_or_shortened_cause_is_stored_as_given<S: Store>(t: Fixture<S>) {
    let long = failure(&"x".repeat(4000));
    let short = long.clone().truncated(100);
    let mut letter = t.dead("a", "1");
    letter.cause = Some(short.clone());
    t.open(letter).await;
    let stored = t.get("1").await.cause.unwrap();
    assert_eq!(stored, short);
    assert_eq!(stored.fingerprint, long.fingerprint, "one problem, however much of its text is kept");
}

/// Axon's test inserts rows directly. Here the index is the store's own, so letters are restored backwards.
pub async fn i12_letters_are_listed_by_index_whatever_the_order_of_their_return<S: Store>(t: Fixture<S>) {
    t.fill("a", 64).await;
    let expected = t.messages("a").await;
    t.store.clear(&t.queue, &operator()).await.unwrap();
    for n in (0..64).rev() {
        t.act(&format!("a-{n}"), lazaret_core::store::Act::Restore).await.unwrap();
    }
    assert_eq!(t.messages("a").await, expected);
    assert_eq!(t.heads(10).await[0].message.id.as_str(), "a-0");
}

async fn put_in<S: Store>(t: &Fixture<S>, queue: &QueueName, sequence: &str, message: &str) -> Placed {
    let mut letter = t.dead(sequence, message);
    letter.id = LetterId::of(queue, &letter.message.id);
    letter.queue = queue.clone();
    let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
    t.store.hand_off(queue, &Limits::NONE, items).await.unwrap().remove(0).unwrap()
}

pub async fn i13_a_letter_of_one_component_is_not_in_the_queue_of_another<S: Store>(t: Fixture<S>) {
    let (one, two) = (QueueName::of("orders", "one"), QueueName::of("orders", "two"));
    put_in(&t, &one, "s", "1").await;
    assert_eq!(t.store.sequence_size(&one, &seq("s")).await.unwrap(), 1);
    assert_eq!(t.store.sequence_size(&two, &seq("s")).await.unwrap(), 0);
    assert_eq!(t.store.lookup(&two, &["1".into()]).await.unwrap(), [None]);
}

pub async fn i14_followers_go_only_to_the_queue_that_is_blocked<S: Store>(t: Fixture<S>) {
    let (one, two) = (QueueName::of("orders", "one"), QueueName::of("orders", "two"));
    for message in ["1", "2", "3"] {
        put_in(&t, &one, "s", message).await;
    }
    assert_eq!(t.store.counts(&one).await.unwrap().open(), 3);
    assert_eq!(t.store.counts(&two).await.unwrap().open(), 0);
}

pub async fn i15_one_message_can_have_a_letter_in_each_queue<S: Store>(t: Fixture<S>) {
    let (one, two) = (QueueName::of("orders", "one"), QueueName::of("orders", "two"));
    assert_eq!(put_in(&t, &one, "s", "1").await, Placed::Opened);
    assert_eq!(put_in(&t, &two, "s", "1").await, Placed::Opened);
    assert_eq!(t.store.opened_since(&one, 0, 10).await.unwrap().sequences, [seq("s")]);
    assert_eq!(t.store.opened_since(&two, 0, 10).await.unwrap().sequences, [seq("s")]);
}

pub async fn i16_working_one_queue_down_leaves_the_other<S: Store>(t: Fixture<S>) {
    let other = QueueName::of("orders", "two");
    t.enqueue("s0", "1").await;
    put_in(&t, &other, "s1", "1").await;
    assert!(t.process_all().await.0);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 0);
    assert_eq!(t.store.counts(&other).await.unwrap().open(), 1);
}

pub async fn i17_clearing_one_queue_leaves_the_other<S: Store>(t: Fixture<S>) {
    let other = QueueName::of("orders", "two");
    t.enqueue("s", "1").await;
    put_in(&t, &other, "s", "1").await;
    t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 0);
    assert_eq!(t.store.counts(&other).await.unwrap().open(), 1);
}
