//! Running operations beside acts, leases, pauses, the scheduler and other operations.

use std::collections::BTreeSet;

use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::{
    Act, Action, Change, Command, ErrorKind, HandOff, LeaseUse, Limits, OperationState, Outcome, PauseScope,
    Placement, Requeue, RolloutPolicy, Settled, Store,
};
use lazaret_core::{Letter, Message, Position, QueueName};

use super::fixture::{everything, names, ramp, request};
use crate::suite::letters::Fixture;
use crate::suite::letters::detached::leave;
use crate::suite::letters::fixture::{LEASE, kind, operator, requeued, resolve, seq};
use crate::suite::secs;

pub async fn a_letter_that_was_closed_or_overtaken_is_skipped<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.enqueue("b", "evicted").await;
    t.enqueue("c", "old").await;
    t.act("old", Act::Evict).await.unwrap();
    t.enqueue("c", "new").await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    t.act("evicted", Act::Evict).await.unwrap();
    t.act("old", Act::Restore).await.unwrap();
    let polled = t.poll(10).await;
    assert_eq!(names(&polled.items), ["a-1"]);
    assert_eq!(polled.settled, 3);
    let changed = Some(Outcome::SkippedChanged);
    assert_eq!(t.outcomes(id).await, [changed, None, changed, changed]);
    assert_eq!(t.messages("c").await, ["old", "new"], "I2: what was put in front goes first");
}

pub async fn a_letter_that_was_quarantined_meanwhile_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 2).await;
    t.act("a-000", Act::Quarantine).await.unwrap();
    let plan = t.freeze_named(Action::Retry, &["a-000", "a-001"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.act("a-001", Act::Quarantine).await.unwrap();
    assert_eq!(names(&t.poll(10).await.items), ["a-000"], "that one was asked for");
    assert_eq!(t.outcomes(id).await, [None, Some(Outcome::SkippedChanged)]);
}

pub async fn a_letter_that_lost_its_payload_meanwhile_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let claim = t.claim("a-000", "other").await.unwrap();
    let mut requeue = Requeue::of(&claim.head);
    requeue.leave_out_payload = true;
    t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    assert_eq!(t.poll(10).await.settled, 1);
    assert_eq!(t.outcomes(id).await, [Some(Outcome::SkippedChanged)]);
}

pub async fn a_letter_that_was_edited_meanwhile_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 3).await;
    for action in [Action::Release, Action::Retry] {
        let plan = t.freeze_named(action, &["a-000", "a-001"]).await;
        t.change("a-000", Change::Payload(Some(format!("[{action:?}]").into()))).await.unwrap();
        let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
        let polled = t.poll(10).await;
        assert_eq!(t.outcomes(id).await[0], Some(Outcome::SkippedChanged), "{action}");
        if action == Action::Retry {
            assert_eq!(names(&polled.items), ["a-001"]);
        } else {
            assert_eq!(t.outcomes(id).await[1], Some(Outcome::Ok));
        }
    }
    // What was edited before the freeze, and what was commented on, runs.
    t.change("a-002", Change::Payload(Some("[]".into()))).await.unwrap();
    let plan = t.freeze_named(Action::Retry, &["a-002"]).await;
    t.change("a-002", Change::Comment("looked at it".into())).await.unwrap();
    t.begin(&plan, &RolloutPolicy::unlimited()).await;
    assert_eq!(names(&t.poll(10).await.items), ["a-002"]);
}

pub async fn of_two_operations_the_first_has_the_letter<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let [one, other] = [t.freeze(Action::Retry).await, t.freeze(Action::Retry).await];
    let first = t.begin(&one, &RolloutPolicy::unlimited()).await;
    let late = t.begin(&other, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.tally(first).await, (2, 0, 0, 0));
    assert_eq!(t.tally(late).await, (0, 0, 2, 0));
}

pub async fn a_letter_that_the_first_operation_let_go_is_the_others<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let [one, other] = [t.freeze(Action::Retry).await, t.freeze(Action::Retry).await];
    let first = t.begin(&one, &RolloutPolicy::unlimited()).await;
    let later = Some(t.now() + secs(5));
    let late = t.begin(&other, &RolloutPolicy { start_at: later, ..RolloutPolicy::unlimited() }).await;
    t.command(first, Command::Cancel).await;
    t.advance(secs(5));
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.tally(late).await, (2, 0, 0, 0));
}

pub async fn two_operations_alternate<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    let one = t.freeze(Action::Retry).await;
    t.letters("b", 4).await;
    let other = t.freeze_named(Action::Retry, &["b-000", "b-001", "b-002", "b-003"]).await;
    t.begin(&one, &RolloutPolicy::unlimited()).await;
    t.begin(&other, &RolloutPolicy::unlimited()).await;
    let mut served = Vec::new();
    for _ in 0..4 {
        t.advance(secs(1));
        served.extend(t.poll(1).await.items.iter().map(|item| item.claim.head.message.id.to_string()));
    }
    assert_eq!(served, ["a-000", "b-000", "a-001", "b-001"]);
}

pub async fn a_leased_sequence_is_left_for_later<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let claim = t.claim("a", "other").await.unwrap();
    let polled = t.poll(10).await;
    assert_eq!(names(&polled.items), ["b-0"]);
    assert!(polled.again_at.is_some_and(|at| at > t.now()));
    t.succeed(&polled.items[0]).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 2));
    let next = t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(matches!(next, Settled::Next(_)), "the other's lease is not an operation's");
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.drain(|_| false).await, ["a-1"]);
    assert_eq!(t.tally(id).await, (2, 0, 1, 0), "the other one was handled meanwhile");
}

pub async fn a_paused_sequence_waits_for_its_end<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.pause("a").await;
    assert_eq!(t.drain(|_| false).await, ["b-0"]);
    assert!(t.poll(10).await.again_at.is_some(), "the pause may end");
    let scope = PauseScope::Sequence(seq("a"));
    t.store.resume(&t.consumer(), &scope, &operator()).await.unwrap();
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn released_work_is_offered_again<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let first = t.poll_one().await;
    assert!(t.poll(10).await.items.is_empty());
    t.store.release(&first.claim.lease).await.unwrap();
    assert_eq!(t.tally(id).await, (0, 0, 0, 2));
    let again = t.poll_one().await;
    assert_eq!(again.claim.head.id, first.claim.head.id);
    assert!(again.claim.lease.fence > first.claim.lease.fence);
    t.succeed(&again).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 1));
}

pub async fn work_of_an_expired_lease_is_offered_again_and_has_one_outcome<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let lost = t.poll_one().await;
    t.advance(LEASE - secs(1));
    let lost = lazaret_core::store::WorkItem {
        claim: lazaret_core::store::Claim {
            lease: t.store.renew(&lost.claim.lease, LEASE, LeaseUse::Attempt).await.unwrap(),
            ..lost.claim
        },
        ..lost
    };
    t.advance(secs(2));
    assert!(t.poll(10).await.items.is_empty(), "a renewed lease is still the operation's");
    t.advance(LEASE);
    let again = t.poll_one().await;
    assert_eq!(again.claim.head.id, lost.claim.head.id);
    assert_eq!(kind(t.settle(&lost.claim, &lost.claim.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.tally(id).await, (0, 0, 0, 2));
    t.fail_item(&again).await;
    assert_eq!(kind(t.settle(&again.claim, &again.claim.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.tally(id).await, (0, 1, 1, 0));
}

pub async fn work_of_an_expired_lease_that_the_scheduler_took_is_skipped<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.poll_one().await;
    t.advance(LEASE);
    let claim = t.due_one("scheduler").await;
    assert!(t.poll(10).await.items.is_empty());
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
    assert_eq!(t.tally(id).await, (0, 0, 0, 1), "that was not this operation's doing");
    assert_eq!(t.poll(10).await.settled, 1);
    assert_eq!(t.outcomes(id).await, [Some(Outcome::SkippedChanged)]);
}

pub async fn a_letter_in_work_is_not_taken_by_the_scheduler<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    assert!(t.due("scheduler", 10).await.is_empty());
    assert_eq!(kind(t.act("1", Act::Evict).await), ErrorKind::Conflict);
    t.fail_item(&item).await;
    assert_eq!(t.due("scheduler", 10).await.len(), 1);
}

pub async fn the_scheduler_leaves_letters_of_a_running_operation_alone<S: Store>(t: Fixture<S>) {
    // What waits behind a dead head is due as soon as the head is handled, but the operation has its stages.
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.behind(t.waiting("a", "3")).await;
    let plan = t.freeze(Action::Retry).await;
    t.behind(t.waiting("a", "late")).await;
    let id = t.begin(&plan, &ramp(&[1])).await;
    t.succeed(&t.poll_one().await).await;
    t.command(id, Command::Pause).await;
    assert!(t.due("scheduler", 10).await.is_empty());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
    t.pause("a").await;
    t.store.resume(&t.consumer(), &PauseScope::Sequence(seq("a")), &operator()).await.unwrap();
    assert!(t.due("scheduler", 10).await.is_empty(), "a pause that came and went changes nothing");
    t.command(id, Command::Resume).await;
    let lost = t.poll_one().await;
    t.advance(LEASE);
    assert!(t.due("scheduler", 10).await.is_empty(), "work of an expired lease is offered again");
    t.succeed(&t.poll_one().await).await;
    assert_eq!(kind(t.settle(&lost.claim, &lost.claim.head, resolve()).await), ErrorKind::Fenced);
    t.succeed(&t.poll_one().await).await;
    assert_eq!(t.state_of(id).await, OperationState::Done);
    assert_eq!(t.due_one("scheduler").await.head.message.id.as_str(), "late", "that was never its own");
}

pub async fn a_letter_that_was_purged_meanwhile_releases_those_behind_it<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.behind(t.waiting("a", "late")).await;
    let plan = t.freeze_named(Action::Retry, &["1", "2"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.succeed(&t.poll_one().await).await;
    t.act("2", Act::Evict).await.unwrap();
    t.store.purge(&t.queue, t.id_of("2"), &operator()).await.unwrap();
    let polled = t.poll(10).await;
    assert_eq!((polled.items.len(), polled.settled), (0, 1));
    assert_eq!(t.state_of(id).await, OperationState::Done);
    assert_eq!(t.due_one("scheduler").await.head.message.id.as_str(), "late", "nothing holds it any more");
}

/// A replay outside of operations takes the first letter of a sequence, which fails again and leaves.
async fn leave_in_a_replay<S: Store>(t: &Fixture<S>, sequence: &str) {
    let replay = t.claim(sequence, "ada").await.unwrap();
    let settled = t.settle(&replay, &replay.head, leave(&replay.head)).await;
    assert!(matches!(settled, Ok(Settled::Requeued)));
}

/// Letters that an operation reserves leave their sequence. Whatever becomes of them, the letter behind them runs at once, also if the
/// operation `goes_on` in another sequence.
async fn a_letter_that_left_releases<S: Store>(t: Fixture<S>, goes_on: bool) {
    for fate in ["handled", "failed", "quarantined", "closed", "purged"] {
        let name = |part: &str| format!("{fate}-{part}");
        let (first, second, late, other) = (name("1"), name("2"), name("late"), name("other"));
        t.enqueue(fate, &first).await;
        t.behind(t.waiting(fate, &second)).await;
        t.behind(t.waiting(fate, &late)).await;
        let mut planned = vec![first.as_str(), second.as_str()];
        if goes_on {
            t.enqueue(&other, &other).await;
            t.pause(&other).await;
            planned.push(&other);
        }
        let plan = t.freeze_named(Action::Retry, &planned).await;
        let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
        t.succeed(&t.poll_one().await).await;
        assert!(t.due("scheduler", 10).await.is_empty(), "the operation has the next one");
        leave_in_a_replay(&t, fate).await;
        match fate {
            "handled" => _ = t.succeed(&t.poll_one().await).await,
            "failed" => _ = t.fail_item(&t.poll_one().await).await,
            _ => {
                let act = if fate == "quarantined" { Act::Quarantine } else { Act::Evict };
                t.act(&second, act).await.unwrap();
                if fate == "purged" {
                    t.store.purge(&t.queue, t.id_of(&second), &operator()).await.unwrap();
                }
                let polled = t.poll(10).await;
                assert_eq!((polled.items.len(), polled.settled), (0, 1), "{fate}");
            }
        }
        let state = if goes_on { OperationState::Running } else { OperationState::Done };
        assert_eq!(t.state_of(id).await, state, "{fate}");
        let claim = t.due_one("scheduler").await;
        assert_eq!(claim.head.message.id.as_str(), late, "nothing holds it any more");
        assert!(matches!(t.settle(&claim, &claim.head, resolve()).await, Ok(Settled::Closed)));
        if goes_on {
            t.command(id, Command::Cancel).await;
        }
    }
}

pub async fn a_letter_that_left_its_sequence_meanwhile_releases_those_behind_it<S: Store>(t: Fixture<S>) {
    a_letter_that_left_releases(t, false).await;
}

pub async fn a_letter_that_left_releases_those_behind_it_before_the_operation_ends<S: Store>(t: Fixture<S>) {
    a_letter_that_left_releases(t, true).await;
}

pub async fn letters_skipped_behind_one_that_left_and_failed_again_run_by_themselves<S: Store>(
    t: Fixture<S>,
) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.behind(t.waiting("a", "3")).await;
    t.enqueue("b", "b").await;
    t.pause("b").await;
    let plan = t.freeze_named(Action::Retry, &["1", "2", "3", "b"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.succeed(&t.poll_one().await).await;
    leave_in_a_replay(&t, "a").await;
    t.fail_item(&t.poll_one().await).await;
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Running, (1, 1, 1, 1)));
    assert_eq!(t.due_one("scheduler").await.head.message.id.as_str(), "3");
}

pub async fn a_letter_that_had_left_before_the_freeze_releases_nothing_of_its_old_sequence<S: Store>(
    t: Fixture<S>,
) {
    for skipped in [true, false] {
        let (sequence, name) = (format!("{skipped}"), |part: &str| format!("{skipped}-{part}"));
        t.fill(&sequence, 2).await;
        t.behind(t.waiting(&sequence, &name("2"))).await;
        leave_in_a_replay(&t, &sequence).await;
        let apart = t.get(&name("0")).await.sequence;
        let plan = t.freeze_named(Action::Retry, &[&name("0"), &name("1"), &name("2")]).await;
        let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
        t.pause(apart.as_str()).await;
        t.succeed(&t.poll_one().await).await;
        t.pause(&sequence).await;
        if skipped {
            t.act(&name("0"), Act::Evict).await.unwrap();
            assert_eq!(t.poll(10).await.settled, 1);
        } else {
            t.store.resume(&t.consumer(), &PauseScope::Sequence(apart), &operator()).await.unwrap();
            t.succeed(&t.poll_one().await).await;
        }
        t.store.resume(&t.consumer(), &PauseScope::Sequence(seq(&sequence)), &operator()).await.unwrap();
        assert!(t.due("scheduler", 10).await.is_empty(), "the operation has the rest of the sequence");
        let last = t.poll_one().await;
        assert_eq!(last.claim.head.message.id.as_str(), name("2"));
        t.succeed(&last).await;
        assert_eq!(t.state_of(id).await, OperationState::Done);
    }
}

pub async fn letters_that_an_operation_released_run_by_themselves<S: Store>(t: Fixture<S>) {
    for sequence in ["cancelled", "failed", "changed"] {
        t.enqueue(sequence, &format!("{sequence}-1")).await;
        for n in 2..=4 {
            t.behind(t.waiting(sequence, &format!("{sequence}-{n}"))).await;
        }
        let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
        t.succeed(&t.poll_one().await).await;
        match sequence {
            "cancelled" => _ = t.command(id, Command::Cancel).await,
            "failed" => _ = t.fail_item(&t.poll_one().await).await,
            _ => {
                for n in 2..=4 {
                    t.act(&format!("{sequence}-{n}"), Act::Quarantine).await.unwrap();
                }
                assert_eq!(t.poll(10).await.settled, 3);
                t.act(&format!("{sequence}-2"), Act::Release).await.unwrap();
            }
        }
        let claim = t.due_one("scheduler").await;
        assert_eq!(claim.head.message.id.as_str(), format!("{sequence}-2"));
        t.act(&format!("{sequence}-3"), Act::Park).await.unwrap();
        assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Blocked));
        for n in 3..=4 {
            t.act(&format!("{sequence}-{n}"), Act::Evict).await.unwrap();
        }
    }
}

pub async fn many_workers_never_share_a_letter<S: Store>(t: Fixture<S>) {
    // I6
    workers_share_no_letter(t, false).await;
}

/// Workers poll an operation of several stages. With `continues`, each settlement may take the next letter of its sequence.
pub(super) async fn workers_share_no_letter<S: Store>(t: Fixture<S>, continues: bool) {
    for n in 0..12 {
        t.fill(&format!("s{n}"), 5).await;
    }
    let id = t.start(Action::Retry, &ramp(&[7, 20])).await;
    let takers: Vec<_> = (0..6)
        .map(|n| {
            let (store, queue) = (t.store.clone(), t.queue.clone());
            tokio::spawn(async move {
                let mut tried: Vec<LetterId> = Vec::new();
                loop {
                    let polled = store.poll_work(&queue, &format!("w{n}"), LEASE, 1 + n % 3).await.unwrap();
                    for item in &polled.items {
                        let (lease, mut next) = (&item.claim.lease, Some(item.claim.head.id));
                        while let Some(letter) = next {
                            tried.push(letter);
                            tokio::task::yield_now().await;
                            let settled = match continues {
                                true => store.settle_and_continue(lease, letter, resolve()).await.unwrap(),
                                false => store.settle(lease, letter, resolve()).await.unwrap(),
                            };
                            next = match settled {
                                Settled::Next(next) if continues => Some(next.id),
                                _ => None,
                            };
                        }
                    }
                    if polled.items.is_empty() && polled.again_at.is_none() {
                        return tried;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut tried = Vec::new();
    for taker in takers {
        tried.extend(taker.await.unwrap());
    }
    assert_eq!((tried.len(), tried.iter().collect::<BTreeSet<_>>().len()), (60, 60));
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (60, 0, 0, 0)));
}

pub async fn an_operation_may_be_about_several_queues<S: Store>(t: Fixture<S>) {
    let mail = QueueName::of("orders", "mail");
    t.letters("a", 3).await;
    for n in 0..3 {
        let message =
            Message::new(format!("m-{n}"), "orders", Position::new(0, n)).with_key(format!("m-{n}"));
        let mut letter = Letter::new(mail.clone(), seq(&format!("m-{n}")), message.into(), t.now());
        letter.state = LetterState::Dead;
        let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
        t.store.hand_off(&mail, &Limits::NONE, items).await.unwrap().remove(0).unwrap();
        t.advance(secs(1));
    }
    let plan = t.store.freeze(&request(Action::Retry, everything()), &operator()).await.unwrap();
    assert_eq!((plan.letters, plan.sequences), (6, 6));
    let id = t.begin(&plan, &ramp(&[4])).await;
    let mine = t.poll(10).await;
    assert_eq!(names(&mine.items).len(), 3);
    let theirs = t.poll_queue(&mail, 10).await;
    assert_eq!(names(&theirs.items), ["m-0"], "a stage is one over all queues");
    assert!(theirs.items.iter().all(|item| item.claim.lease.queue == mail));
    for item in &mine.items {
        t.succeed(item).await;
    }
    assert_eq!(t.poll(10).await.again_at, None, "this queue has nothing to do with the rest");
    assert!(t.poll_queue(&mail, 10).await.items.is_empty());
    t.succeed(&theirs.items[0]).await;
    for item in t.poll_queue(&mail, 10).await.items {
        t.succeed(&item).await;
    }
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (6, 0, 0, 0)));
}

pub async fn a_limit_of_none_takes_nothing<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let polled = t.poll(0).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, Some(t.now())));
    assert_eq!(t.poll(1).await.items.len(), 1);
}

pub async fn a_letter_that_left_its_sequence_after_the_freeze_is_replayed<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.behind(t.waiting("a", "2")).await;
    let plan = t.freeze_named(Action::Retry, &["1"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    let claim = t.due_one("w").await;
    assert!(matches!(t.settle(&claim, &claim.head, leave(&claim.head)).await, Ok(Settled::Next(_))));
    let item = t.poll_one().await;
    assert_eq!((item.claim.head.id, &item.claim.lease.sequence), (claim.head.id, &t.get("1").await.sequence));
    t.succeed(&item).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 0));
    assert_eq!((t.state("1").await, t.messages("a").await), (LetterState::Resolved, vec!["2".to_owned()]));
}

pub async fn what_a_letter_of_an_operation_leaves_behind_keeps_to_the_rate<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "0").await;
    for message in ["1", "2", "3"] {
        t.behind(t.waiting("a", message)).await;
    }
    let plan = t.freeze_named(Action::Retry, &["0"]).await;
    let id = t.begin(&plan, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let item = t.poll_one().await;
    let settled = t.settle(&item.claim, &item.claim.head, leave(&item.claim.head)).await;
    assert!(matches!(settled, Ok(Settled::Requeued)));
    assert_eq!(t.tally(id).await, (0, 1, 0, 0), "it failed again");
    for message in ["1", "2", "3"] {
        assert!(t.due("w", 10).await.is_empty(), "{message} has to wait for its turn");
        t.advance(secs(1));
        let claim = t.due_one("w").await;
        assert_eq!(claim.head.message.id.as_str(), message);
        t.settle(&claim, &claim.head, resolve()).await.unwrap();
    }
    assert_eq!((t.state("0").await, t.contains("a").await), (LetterState::Dead, false));
}
