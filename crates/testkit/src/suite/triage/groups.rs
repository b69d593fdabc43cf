//! Groups: which letters they count, when, and in what order they are listed.

use lazaret_core::store::{
    Act, Counts, ErrorKind, GROUP_MESSAGE_BYTES, GroupsRequest, Limits, Placement, Requeue, Store,
    TREND_BUCKETS,
};
use lazaret_core::{Failure, Letter, LetterState, QueueName, Reason};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{failure, kind, operator, requeued, resolve};
use crate::suite::secs;

const HOUR: u64 = 3600;

/// How many letters of a group stand in each of these states, and how many in all.
fn standing<const N: usize>(counts: &Counts, states: [LetterState; N]) -> ([u64; N], u64) {
    (states.map(|state| counts.of(state)), counts.by_state.iter().sum())
}

pub async fn a_failed_letter_is_counted_in_the_group_of_its_cause<S: Store>(t: Fixture<S>) {
    let (boom, other) = (failure("boom"), Failure::new(Reason::CONFLICT, "DbError", "no row"));
    let first = t.now();
    t.fail("a", "1", &boom).await;
    t.advance(secs(5));
    t.fail("b", "2", &boom).await;
    t.fail("c", "3", &other).await;
    let group = t.group(&boom).await.unwrap();
    assert_eq!((&group.id.queue, group.id.fingerprint), (&t.queue, boom.fingerprint));
    assert_eq!((group.reason, group.error_type.as_str()), (Reason::TIMEOUT, "HttpError"));
    assert_eq!(group.message, "boom");
    assert_eq!(standing(&group.counts, [LetterState::Dead]), ([2], 2));
    assert_eq!((group.counts.sequences, group.blocked_behind), (2, 0));
    assert_eq!((group.oldest, group.first_seen, group.last_seen), (Some(first), first, t.now()));
    assert_eq!(group.trend[TREND_BUCKETS - 1], 2);
    let group = t.group(&other).await.unwrap();
    assert_eq!((group.reason, group.error_type.as_str()), (Reason::CONFLICT, "DbError"));
    assert_eq!(standing(&group.counts, [LetterState::Dead]), ([1], 1));
    assert_eq!(t.groups().await.len(), 2);
}

pub async fn failures_that_differ_in_what_varies_share_a_group<S: Store>(t: Fixture<S>) {
    t.fail("a", "1", &failure("order 17 not found")).await;
    t.fail("b", "2", &failure("order 18 not found")).await;
    let groups = t.groups().await;
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].message, "order 18 not found", "the latest is shown");
}

pub async fn an_older_failure_does_not_replace_the_latest<S: Store>(t: Fixture<S>) {
    t.fail("a", "1", &failure("order 17 not found")).await;
    let mut old = t.dead("b", "2");
    (old.cause, old.last_failed_at) = (Some(failure("order 2 not found")), Some(t.now() - secs(60)));
    t.open(old).await;
    let group = t.group(&failure("order 1 not found")).await.unwrap();
    assert_eq!((group.message.as_str(), group.last_seen), ("order 17 not found", t.now()));
}

pub async fn a_group_keeps_only_the_beginning_of_a_long_message<S: Store>(t: Fixture<S>) {
    // I7
    let long = failure(&format!("x{}", "ä".repeat(GROUP_MESSAGE_BYTES)));
    t.fail("a", "1", &long).await;
    let group = t.group(&long).await.unwrap();
    assert_eq!(group.message.len(), GROUP_MESSAGE_BYTES - 1, "cut before half a character");
    assert!(long.message.starts_with(&group.message));
}

pub async fn a_group_keeps_the_exception_at_the_end_of_a_long_stack_trace<S: Store>(t: Fixture<S>) {
    // I7
    let frames = "  File \"handler.py\", line 9, in charge\n".repeat(100);
    let traced = |end: &str| failure(&format!("Traceback (most recent call last):\n{frames}{end}\n"));
    let (missing, late) = (traced("KeyError: 'USD'"), traced("TimeoutError: no answer"));
    t.fail("a", "1", &missing).await;
    t.fail("b", "2", &late).await;
    let (missing, late) = (t.group(&missing).await.unwrap(), t.group(&late).await.unwrap());
    assert!(missing.message.ends_with("\nKeyError: 'USD'"), "{}", missing.message);
    assert!(late.message.ends_with("\nTimeoutError: no answer"), "{}", late.message);
    assert!(missing.message.len() <= GROUP_MESSAGE_BYTES);
}

pub async fn letters_without_a_cause_belong_to_no_group<S: Store>(t: Fixture<S>) {
    t.open(t.waiting("a", "1")).await;
    t.behind(t.waiting("a", "2")).await;
    t.open(Letter { cause: None, ..t.dead("b", "3") }).await;
    assert!(
        t.groups_of(GroupsRequest { closed: true, limit: 9, ..GroupsRequest::default() }).await.is_empty()
    );
}

pub async fn a_skipped_message_with_a_cause_is_counted_as_closed<S: Store>(t: Fixture<S>) {
    let skipped = Letter { state: LetterState::Skipped, ..t.dead("a", "1") };
    t.put(skipped, Placement::Closed).await;
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!(standing(&group.counts, [LetterState::Skipped]), ([1], 1));
    assert_eq!((group.oldest, group.counts.sequences), (None, 0));
}

pub async fn a_message_handed_off_twice_is_counted_once<S: Store>(t: Fixture<S>) {
    // I8
    let letter = t.dead("a", "1");
    t.open(letter.clone()).await;
    t.open(letter).await;
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!((group.counts.open(), group.trend[TREND_BUCKETS - 1]), (1, 1));
}

pub async fn a_message_that_was_refused_is_counted_nowhere<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let limits = Limits { max_sequences: Some(1), max_sequence_size: Some(1) };
    let other = Letter { cause: Some(failure("no route")), ..t.dead("b", "2") };
    assert_eq!(kind(t.try_put(other, Placement::Open, &limits).await), ErrorKind::Full);
    assert_eq!(kind(t.try_put(t.dead("a", "3"), Placement::Open, &limits).await), ErrorKind::Full);
    let groups = t.groups().await;
    assert_eq!((groups.len(), groups[0].counts.open(), groups[0].blocked_behind), (1, 1, 0));
    assert!(t.group(&failure("no route")).await.is_none());
}

pub async fn the_counts_of_a_group_follow_every_act<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    for (act, state) in [
        (Act::Park, LetterState::Parked),
        (Act::Quarantine, LetterState::Quarantined),
        (Act::Release, LetterState::Retrying),
        (Act::Evict, LetterState::Evicted),
        (Act::Restore, LetterState::Dead),
        (Act::Resolve, LetterState::Resolved),
    ] {
        t.act("1", act).await.unwrap();
        let group = t.group(&failure("boom")).await.unwrap();
        let alone = if state == LetterState::Dead { [2, 2] } else { [1, 1] };
        assert_eq!(standing(&group.counts, [state, LetterState::Dead]), (alone, 2), "{act:?}");
        assert_eq!(group.counts.sequences, 1 + u64::from(state.is_open()), "{act:?}");
    }
    t.store.clear(&t.queue, &operator()).await.unwrap();
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!(standing(&group.counts, [LetterState::Evicted, LetterState::Resolved]), ([1, 1], 2));
    assert_eq!((group.counts.sequences, group.oldest), (0, None));
}

pub async fn settling_moves_a_letter_between_the_counts_of_its_group<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    t.store.release(&claim.lease).await.unwrap();
    t.requeue("a", |requeue| requeue.state = LetterState::Parked).await;
    let group = t.group(&failure("boom")).await.unwrap();
    let states = [LetterState::Resolved, LetterState::Parked, LetterState::Dead];
    assert_eq!(standing(&group.counts, states), ([1, 1, 1], 3));
    assert_eq!((group.counts.sequences, group.blocked_behind), (1, 1));
}

pub async fn a_letter_that_fails_in_another_way_moves_to_another_group<S: Store>(t: Fixture<S>) {
    let (boom, other) = (failure("boom"), failure("no route"));
    t.fail("a", "1", &boom).await;
    t.fail("b", "2", &boom).await;
    t.behind(t.waiting("a", "3")).await;
    t.advance(secs(HOUR));
    t.fail_again("a", &other).await;
    let (left, entered) = (t.group(&boom).await.unwrap(), t.group(&other).await.unwrap());
    assert_eq!((left.counts.open(), left.counts.sequences, left.blocked_behind), (1, 1, 0));
    assert_eq!((entered.counts.open(), entered.counts.sequences, entered.blocked_behind), (1, 1, 1));
    assert_eq!((entered.first_seen, entered.last_seen), (t.now(), t.now()));
    assert_eq!(entered.oldest, Some(t.now() - secs(HOUR)), "since when the letter is in the store");
    assert_eq!((left.trend[22..].to_vec(), entered.trend[22..].to_vec()), (vec![2, 0], vec![0, 1]));
    // The last one leaves: nothing of the group is there any more.
    t.fail_again("b", &other).await;
    assert!(t.group(&boom).await.is_none());
    t.fail_again("a", &boom).await;
    let back = t.group(&boom).await.unwrap();
    assert_eq!((back.counts.open(), back.blocked_behind, back.first_seen), (1, 1, t.now()));
}

pub async fn a_letter_that_fails_in_the_same_way_stays_in_its_group<S: Store>(t: Fixture<S>) {
    t.fail("a", "1", &failure("order 17 not found")).await;
    let first = t.now();
    t.advance(secs(60));
    t.fail_again("a", &failure("order 18 not found")).await;
    let group = t.group(&failure("order 1 not found")).await.unwrap();
    assert_eq!((group.first_seen, group.last_seen), (first, t.now()));
    assert_eq!(group.message, "order 18 not found");
    assert_eq!((group.counts.open(), group.trend[TREND_BUCKETS - 1]), (1, 1), "it came only once");
}

pub async fn a_failed_attempt_without_a_new_cause_is_seen<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.advance(secs(60));
    let at = t.now();
    let attempt = t.failed_attempt(4, "boom");
    t.requeue("a", |requeue| requeue.attempt = Some(attempt)).await;
    assert_eq!(t.group(&failure("boom")).await.unwrap().last_seen, at);
    // One that made no attempt has not failed.
    t.advance(secs(60));
    t.requeue("a", |_| ()).await;
    assert_eq!(t.group(&failure("boom")).await.unwrap().last_seen, at);
}

pub async fn a_waiting_letter_that_fails_comes_into_a_group<S: Store>(t: Fixture<S>) {
    t.open(t.waiting("a", "1")).await;
    t.behind(t.waiting("a", "2")).await;
    let claim = t.due_one("w").await;
    let mut requeue = Requeue::of(&claim.head);
    (requeue.state, requeue.cause) = (LetterState::Dead, Some(failure("boom")));
    t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!(standing(&group.counts, [LetterState::Dead]), ([1], 1));
    assert_eq!((group.counts.sequences, group.blocked_behind, group.trend[TREND_BUCKETS - 1]), (1, 1, 1));
}

pub async fn those_behind_a_head_are_blocked_by_its_group<S: Store>(t: Fixture<S>) {
    let (boom, other) = (failure("boom"), failure("no route"));
    t.fail("a", "1", &boom).await;
    t.behind(t.waiting("a", "2")).await;
    t.fail("a", "3", &other).await;
    t.behind(t.waiting("a", "4")).await;
    let blocked = async || {
        let of = async |failure| {
            t.group(failure).await.map(|group| (group.counts.sequences, group.blocked_behind))
        };
        (of(&boom).await.unwrap(), of(&other).await.unwrap())
    };
    assert_eq!(blocked().await, ((1, 3), (0, 0)), "whatever the state and the cause of those behind");
    t.act("4", Act::Evict).await.unwrap();
    assert_eq!(blocked().await, ((1, 2), (0, 0)));
    // The head leaves: what is next blocks the rest, and a letter that only waits blocks for no group.
    t.act("1", Act::Evict).await.unwrap();
    assert_eq!(blocked().await, ((0, 0), (0, 0)));
    t.act("2", Act::Evict).await.unwrap();
    assert_eq!(blocked().await, ((0, 0), (1, 0)));
    t.act("4", Act::Restore).await.unwrap();
    assert_eq!(blocked().await, ((0, 0), (1, 1)));
    t.act("1", Act::Restore).await.unwrap();
    assert_eq!(blocked().await, ((1, 2), (0, 0)), "a restored head blocks again");
}

pub async fn a_message_delivered_again_blocks_the_later_ones<S: Store>(t: Fixture<S>) {
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap()[0].fence;
    let early = Letter { cause: Some(failure("no route")), ..t.dead("a", "early") };
    t.under_grant(t.dead("a", "late"), Placement::Open, fence).await.unwrap();
    t.under_grant(early, Placement::Open, fence).await.unwrap();
    assert_eq!(t.messages("a").await, ["early", "late"]);
    assert_eq!(t.group(&failure("no route")).await.unwrap().blocked_behind, 1);
    assert_eq!(t.group(&failure("boom")).await.unwrap().counts.sequences, 0);
}

pub async fn the_oldest_open_letter_tells_the_age_of_a_group<S: Store>(t: Fixture<S>) {
    let start = t.now();
    for (n, message) in ["1", "2", "3"].iter().enumerate() {
        t.enqueue(&n.to_string(), message).await;
        t.advance(secs(10));
    }
    let oldest = async || t.group(&failure("boom")).await.unwrap().oldest;
    assert_eq!(oldest().await, Some(start));
    t.act("1", Act::Evict).await.unwrap();
    assert_eq!(oldest().await, Some(start + secs(10)));
    t.act("1", Act::Restore).await.unwrap();
    assert_eq!(oldest().await, Some(start), "it was there all the time");
    t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!(oldest().await, None);
}

pub async fn the_trend_counts_what_came_in_each_of_the_last_hours<S: Store>(t: Fixture<S>) {
    let trend = async || t.group(&failure("boom")).await.unwrap().trend;
    t.fill("a", 3).await;
    t.advance(secs(2 * HOUR));
    t.enqueue("b", "b").await;
    let mut expected = [0; TREND_BUCKETS];
    (expected[21], expected[23]) = (3, 1);
    assert_eq!(trend().await, expected);
    t.act("b", Act::Resolve).await.unwrap();
    t.advance(secs(21 * HOUR));
    (expected, expected[0], expected[2]) = ([0; TREND_BUCKETS], 3, 1);
    assert_eq!(trend().await, expected, "what left has come all the same");
    t.advance(secs(HOUR));
    t.enqueue("c", "c").await;
    (expected, expected[1], expected[23]) = ([0; TREND_BUCKETS], 1, 1);
    assert_eq!(trend().await, expected, "what is older than a day is dropped");
}

pub async fn groups_come_in_pages_those_with_the_most_open_letters_first<S: Store>(t: Fixture<S>) {
    let names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"];
    for (n, name) in names.iter().enumerate() {
        // 1, 1, 2, 2, 3, 3, 4 letters.
        for letter in 0..=n / 2 {
            t.fail(&format!("{name}-{letter}"), &format!("{name}-{letter}"), &failure(name)).await;
        }
    }
    let all = t.groups().await;
    assert_eq!(all.iter().map(|group| group.counts.open()).collect::<Vec<_>>(), [4, 3, 3, 2, 2, 1, 1]);
    for limit in 1..=8 {
        let paged = t.groups_of(GroupsRequest { limit, ..GroupsRequest::default() }).await;
        assert_eq!(paged, all, "in pages of {limit}");
    }
    // What changes is in its new place at once.
    t.act("zeta-0", Act::Evict).await.unwrap();
    t.act("zeta-1", Act::Evict).await.unwrap();
    let messages: Vec<String> = t.groups().await.into_iter().map(|group| group.message).collect();
    assert_eq!(messages[..2], ["eta", "epsilon"]);
}

pub async fn groups_without_open_letters_are_listed_on_demand<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.fail("b", "2", &failure("no route")).await;
    t.act("1", Act::Resolve).await.unwrap();
    let messages = async |closed| {
        let groups = t.groups_of(GroupsRequest { closed, limit: 1, ..GroupsRequest::default() }).await;
        groups.into_iter().map(|group| group.message).collect::<Vec<_>>()
    };
    assert_eq!(messages(false).await, ["no route"]);
    assert_eq!(messages(true).await, ["no route", "boom"]);
}

pub async fn groups_of_one_cause_are_kept_apart_by_queue<S: Store>(t: Fixture<S>) {
    let other = QueueName::of("orders", "mails");
    t.fill("a", 2).await;
    let mut letter = t.dead("a", "1");
    (letter.queue, letter.id) = (other.clone(), lazaret_core::LetterId::of(&other, &"1".into()));
    t.open(letter).await;
    let of = async |queue: Option<QueueName>| {
        let groups = t.groups_of(GroupsRequest { queue, limit: 1, ..GroupsRequest::default() }).await;
        groups.into_iter().map(|group| (group.id.queue, group.counts.open())).collect::<Vec<_>>()
    };
    let (ours, theirs) = ((t.queue.clone(), 2), (other.clone(), 1));
    assert_eq!(of(None).await, [ours.clone(), theirs.clone()]);
    assert_eq!(of(Some(t.queue.clone())).await, [ours]);
    assert_eq!(of(Some(other)).await, [theirs]);
    assert!(of(Some("nobody/nothing".into())).await.is_empty());
}

pub async fn what_names_no_group_finds_none<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(t.group(&failure("something else")).await.is_none());
    let after = Some("nonsense".to_owned());
    let request = GroupsRequest { after, limit: 1, ..GroupsRequest::default() };
    assert_eq!(kind(t.store.groups(&request).await), ErrorKind::Invalid);
}
