//! Dead letters that leave their sequence, so that those behind them go on.

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Claim, Counts, ErrorKind, Expired, Limits, Placed, Placement, Requeue, Settled, Settlement, Store,
};
use lazaret_core::{Letter, LetterState};

use super::fixture::{Fixture, LEASE, failure, ids, kind, operator, requeued, resolve};
use crate::suite::secs;

/// The settlement of a letter that dies and leaves its sequence.
pub(in crate::suite) fn leave(letter: &Letter) -> Settlement {
    requeued(Requeue { state: LetterState::Dead, due_at: None, detach: true, ..Requeue::of(letter) })
}

fn next(settled: Settled) -> Letter {
    match settled {
        Settled::Next(letter) => *letter,
        other => panic!("the lease should go on, not {other:?}"),
    }
}

/// A sequence `a` whose head is due, with some letters that wait behind it, in work.
async fn in_work<S: Store>(t: &Fixture<S>, behind: &[&str]) -> Claim {
    t.open(t.retrying("a", "1", secs(0))).await;
    for message in behind {
        t.behind(t.waiting("a", message)).await;
    }
    t.due_one("w").await
}

/// The same, after the head has left.
async fn left<S: Store>(t: &Fixture<S>, behind: &[&str]) -> Settled {
    let claim = in_work(t, behind).await;
    t.settle(&claim, &claim.head, leave(&claim.head)).await.unwrap()
}

impl<S: Store> Fixture<S> {
    /// The letters in the sequence of a letter that left its own.
    async fn beside(&self, message: &str) -> Vec<String> {
        let sequence = self.get(message).await.sequence;
        self.messages(sequence.as_str()).await
    }
}

pub async fn a_letter_that_leaves_lets_those_behind_it_go_on<S: Store>(t: Fixture<S>) {
    let claim = in_work(&t, &["2", "3"]).await;
    t.advance(secs(1));
    let second = next(t.settle(&claim, &claim.head, leave(&claim.head)).await.unwrap());
    assert_eq!(second.message.id.as_str(), "2");
    let gone = t.get("1").await;
    assert_eq!((gone.state, gone.due_at, gone.last_touched_at), (LetterState::Dead, None, t.now()));
    assert_eq!(gone.sequence, claim.head.sequence.detached(gone.id));
    assert_eq!(gone.message, claim.head.message, "I5: its message is the same");
    assert_eq!(t.messages("a").await, ["2", "3"]);
    assert_eq!(t.beside("1").await, ["1"]);
    // I2: those behind it keep their order.
    let third = next(t.settle(&claim, &second, resolve()).await.unwrap());
    assert!(matches!(t.settle(&claim, &third, resolve()).await, Ok(Settled::Closed)));
    assert_eq!(t.state("1").await, LetterState::Dead);
}

pub async fn the_last_letter_that_leaves_closes_its_sequence<S: Store>(t: Fixture<S>) {
    assert!(matches!(left(&t, &[]).await, Settled::Closed));
    assert!(!t.contains("a").await);
    assert!(matches!(t.behind(t.waiting("a", "2")).await, Placed::NotOpen(_)));
    let sequence = t.get("1").await.sequence;
    assert_eq!(
        t.opened(10).await,
        [sequence.as_str()],
        "a new owner is told of the sequence that it went to"
    );
    assert_eq!(ids(&t.heads(10).await), ["1"]);
}

pub async fn a_letter_that_left_is_known_by_its_message_and_its_key<S: Store>(t: Fixture<S>) {
    left(&t, &["2"]).await;
    // I8
    assert_eq!(t.open(t.dead("a", "1")).await, Placed::Held(LetterState::Dead));
    assert_eq!(t.behind(t.waiting("a", "1")).await, Placed::Held(LetterState::Dead));
    let query = Query::parse("key:a state:dead").unwrap();
    let found = t.store.find(&query, None, 10).await.unwrap().letters;
    assert_eq!(ids(found.iter()), ["1"]);
    let sequence = t.get("1").await.sequence;
    let query = Query::parse(&format!("seq:\"{sequence}\"")).unwrap();
    assert_eq!(ids(t.store.find(&query, None, 10).await.unwrap().letters.iter()), ["1"]);
}

pub async fn a_letter_that_left_is_replayed_beside_its_old_sequence<S: Store>(t: Fixture<S>) {
    let claim = in_work(&t, &["2"]).await;
    let second = next(t.settle(&claim, &claim.head, leave(&claim.head)).await.unwrap());
    let sequence = t.get("1").await.sequence;
    // Nobody waits for the other.
    let replay = t.claim(sequence.as_str(), "ada").await.unwrap();
    assert_eq!(replay.head.message.id.as_str(), "1");
    assert!(matches!(t.settle(&claim, &second, resolve()).await, Ok(Settled::Closed)));
    assert!(matches!(t.settle(&replay, &replay.head, resolve()).await, Ok(Settled::Closed)));
    assert_eq!(t.state("1").await, LetterState::Resolved);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().sequences, 0);
    // I8
    assert_eq!(t.open(t.dead("a", "1")).await, Placed::Held(LetterState::Resolved));
}

pub async fn a_letter_that_left_does_not_return_to_its_sequence<S: Store>(t: Fixture<S>) {
    left(&t, &["2"]).await;
    let sequence = t.get("1").await.sequence;
    for (act, state) in [
        (Act::Park, LetterState::Parked),
        (Act::Evict, LetterState::Evicted),
        (Act::Restore, LetterState::Dead),
        (Act::Release, LetterState::Retrying),
    ] {
        let acted = t.act("1", act).await.unwrap();
        assert_eq!((acted.state, &acted.sequence), (state, &sequence), "{act:?}");
        assert_eq!(t.messages("a").await, ["2"]);
    }
    let claim = t.due_one("w").await;
    assert_eq!((claim.head.message.id.as_str(), &claim.lease.sequence), ("1", &sequence));
    assert!(matches!(t.settle(&claim, &claim.head, leave(&claim.head)).await, Ok(Settled::Requeued)));
    assert_eq!(t.get("1").await.sequence, sequence, "it stands alone, and stays");
}

pub async fn a_letter_that_leaves_in_a_replay_ends_it<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.behind(t.waiting("a", "2")).await;
    let replay = t.claim("a", "ada").await.unwrap();
    assert!(matches!(t.settle(&replay, &replay.head, leave(&replay.head)).await, Ok(Settled::Requeued)));
    let stale = t.settle(&replay, &t.get("a-1").await, resolve()).await;
    assert_eq!(kind(stale), ErrorKind::Fenced, "the lease has ended");
    assert_eq!(t.messages("a").await, ["a-1", "2"]);
    let again = t.claim("a", "ada").await.unwrap();
    assert!(matches!(t.settle(&again, &again.head, leave(&again.head)).await, Ok(Settled::Requeued)));
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "2", "what waited runs by itself");
}

pub async fn only_a_dead_letter_leaves<S: Store>(t: Fixture<S>) {
    let claim = in_work(&t, &["2"]).await;
    for state in [LetterState::Retrying, LetterState::Parked, LetterState::Quarantined] {
        let requeue = requeued(Requeue { state, detach: true, ..Requeue::of(&claim.head) });
        assert_eq!(kind(t.settle(&claim, &claim.head, requeue).await), ErrorKind::Invalid, "{state}");
    }
    assert_eq!(t.messages("a").await, ["1", "2"]);
    assert_eq!(t.get("1").await.sequence.as_str(), "a");
}

pub async fn counts_and_groups_follow_a_letter_that_leaves<S: Store>(t: Fixture<S>) {
    let claim = in_work(&t, &["2", "3"]).await;
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!((group.counts.sequences, group.blocked_behind), (1, 2));
    let settlement = match leave(&claim.head) {
        Settlement::Requeue(mut requeue) => {
            (requeue.cause, requeue.attempts) = (Some(failure("no route")), 2);
            requeue.attempt = Some(t.failed_attempt(2, "no route"));
            Settlement::Requeue(requeue)
        }
        other => other,
    };
    next(t.settle(&claim, &claim.head, settlement).await.unwrap());
    let counts: Counts = t.store.counts(&t.queue).await.unwrap();
    let of = |state| counts.of(state);
    assert_eq!((counts.sequences, of(LetterState::Dead), of(LetterState::Waiting)), (2, 1, 2));
    assert_eq!(of(LetterState::Retrying), 0);
    let emptied = t.group(&failure("boom")).await;
    assert!(emptied.is_none_or(|group| group.counts.open() == 0), "its letter is in another group");
    let group = t.group(&failure("no route")).await.unwrap();
    assert_eq!((group.counts.sequences, group.blocked_behind), (1, 0), "it blocks nobody");
    let letter = t.get("1").await;
    assert_eq!((letter.attempts, letter.history.len()), (2, 1));
    t.act("1", Act::Evict).await.unwrap();
    assert_eq!(t.store.counts(&t.queue).await.unwrap().sequences, 1);
    let group = t.group(&failure("no route")).await.unwrap();
    assert_eq!((group.counts.sequences, group.counts.open()), (0, 0));
}

pub async fn a_full_queue_refuses_no_letter_that_leaves<S: Store>(t: Fixture<S>) {
    let limits = Limits { max_sequences: Some(1), max_sequence_size: Some(2) };
    next(left(&t, &["2"]).await);
    // Nothing was added: only a new message is refused.
    let refused = t.try_put(t.dead("b", "b1"), Placement::Open, &limits).await;
    assert_eq!(kind(refused), ErrorKind::Full);
    assert!(t.try_put(t.waiting("a", "3"), Placement::Behind, &limits).await.is_ok());
}

pub async fn a_letter_that_left_expires_and_is_purged<S: Store>(t: Fixture<S>) {
    let expires_at = Some(t.now() + secs(60));
    t.open(Letter { expires_at, ..t.retrying("a", "1", secs(0)) }).await;
    let claim = t.due_one("w").await;
    t.settle(&claim, &claim.head, leave(&claim.head)).await.unwrap();
    t.open(t.dead("a", "2")).await;
    t.advance(secs(61));
    assert_eq!(t.expire(None, 10).await, Expired { expired: 1, purged: 0, more: false });
    assert_eq!((t.state("1").await, t.messages("a").await), (LetterState::Expired, vec!["2".to_owned()]));
    t.store.purge(&t.queue, t.id_of("1"), &operator()).await.unwrap();
    assert_eq!(t.open(t.dead("a", "1")).await, Placed::Held(LetterState::Expired), "I8");
}

pub async fn a_letter_that_left_can_be_cleared<S: Store>(t: Fixture<S>) {
    next(left(&t, &["2"]).await);
    t.advance(LEASE);
    let cleared = t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!((cleared.evicted, cleared.busy), (2, 0));
    assert_eq!(t.store.counts(&t.queue).await.unwrap().sequences, 0);
}

pub async fn a_message_delivered_again_goes_before_those_behind_a_letter_that_left<S: Store>(t: Fixture<S>) {
    // I2: the message before theirs was never stored, and is delivered again after the head has left.
    let earlier = t.waiting("a", "0");
    next(left(&t, &["2"]).await);
    t.advance(LEASE);
    t.open(Letter { state: LetterState::Parked, ..earlier }).await;
    assert_eq!(t.messages("a").await, ["0", "2"]);
    assert_eq!(t.beside("1").await, ["1"]);
}
