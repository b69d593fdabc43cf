//! Cases for locks: FlowWarden's contract (2.3), and what it leaves out.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

use lazaret_core::store::{LockState, Locks};

use super::{Backend, secs};

/// Makes one test per case of the lock contract, in a module of this name.
///
/// ```
/// use lazaret_memory::MemoryStore;
/// lazaret_testkit::locks_test_suite!(memory, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// A backend that waits for the network or the disk takes `io`, as in
/// [`store_test_suite!`](crate::store_test_suite).
#[macro_export]
macro_rules! locks_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__locks_test_suite! { $name, [start_paused = true], $make }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__locks_test_suite! { $name, [], $make }
    };
    ($name:ident, io, $make:expr, if $ready:path) => {
        $crate::__locks_test_suite! { $name, [], $make, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __locks_test_suite {
    ($name:ident, $runtime:tt, $make:expr) => {
        $crate::__locks_test_suite! { $name, $runtime, $make, $crate::suite::always }
    };
    ($name:ident, $runtime:tt, $make:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::Backend::new, $ready;
            locks {
                fw01_a_free_lock_is_taken
                fw02_a_held_lock_is_not_given_to_another
                fw03_the_holder_may_take_it_again
                fw04_the_holder_may_renew
                fw05_another_may_not_renew
                fw06_a_free_lock_cannot_be_renewed
                fw07_a_released_lock_may_be_taken
                fw08_another_may_not_release
                fw09_the_state_names_holder_and_times
                fw10_a_free_lock_has_no_state
                fw11_the_holder_is_the_leader
                fw12_after_a_release_the_lock_is_free
                fw13_two_locks_are_independent
                an_expired_lock_may_be_taken_by_another
                an_expired_lock_has_no_state
                an_expired_lock_cannot_be_renewed
                a_lock_that_changed_hands_cannot_be_renewed_by_the_old_holder
                renewing_keeps_a_lock_for_as_long_as_it_is_renewed
                the_fence_grows_each_time_the_lock_changes_hands
                of_many_who_try_at_once_one_gets_it
                a_clock_that_is_set_back_does_not_prolong_a_dead_lock
            }
        }
    };
}

const TTL: std::time::Duration = secs(60);

async fn take<S: Locks>(t: &Backend<S>, owner: &str) -> Option<LockState> {
    t.store.acquire("leader", owner, TTL).await.unwrap()
}

async fn renew<S: Locks>(t: &Backend<S>, owner: &str) -> Option<LockState> {
    t.store.renew("leader", owner, TTL).await.unwrap()
}

async fn state<S: Locks>(t: &Backend<S>) -> Option<LockState> {
    t.store.state("leader").await.unwrap()
}

pub async fn a_clock_that_is_set_back_does_not_prolong_a_dead_lock<S: Locks>(t: Backend<S>) {
    let dead = take(&t, "dead").await.unwrap();
    t.set_back(secs(3600));
    assert!(take(&t, "next").await.is_none(), "its holder may live, and renews in time");
    t.advance(TTL);
    let next = take(&t, "next").await.unwrap();
    assert!(next.fence > dead.fence);
}

pub async fn fw01_a_free_lock_is_taken<S: Locks>(t: Backend<S>) {
    assert!(take(&t, "a").await.is_some());
}

pub async fn fw02_a_held_lock_is_not_given_to_another<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    assert_eq!(take(&t, "b").await, None);
}

pub async fn fw03_the_holder_may_take_it_again<S: Locks>(t: Backend<S>) {
    let first = take(&t, "a").await.unwrap();
    t.advance(secs(10));
    let again = take(&t, "a").await.unwrap();
    // Without interruption: the same fence, since the same time, and longer.
    assert_eq!(again, LockState { expires_at: t.now() + TTL, ..first });
}

pub async fn fw04_the_holder_may_renew<S: Locks>(t: Backend<S>) {
    let first = take(&t, "a").await.unwrap();
    t.advance(secs(10));
    assert_eq!(renew(&t, "a").await.unwrap(), LockState { expires_at: t.now() + TTL, ..first });
}

pub async fn fw05_another_may_not_renew<S: Locks>(t: Backend<S>) {
    let held = take(&t, "a").await.unwrap();
    assert_eq!(renew(&t, "b").await, None);
    assert_eq!(state(&t).await, Some(held));
}

pub async fn fw06_a_free_lock_cannot_be_renewed<S: Locks>(t: Backend<S>) {
    assert_eq!(renew(&t, "a").await, None);
    assert_eq!(state(&t).await, None);
}

pub async fn fw07_a_released_lock_may_be_taken<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.store.release("leader", "a").await.unwrap();
    assert!(take(&t, "b").await.is_some());
}

pub async fn fw08_another_may_not_release<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.store.release("leader", "b").await.unwrap();
    assert!(renew(&t, "a").await.is_some());
}

pub async fn fw09_the_state_names_holder_and_times<S: Locks>(t: Backend<S>) {
    let taken = take(&t, "a").await.unwrap();
    let held = state(&t).await.unwrap();
    assert_eq!(held, taken);
    assert_eq!((held.name.as_str(), held.owner.as_str()), ("leader", "a"));
    assert_eq!((held.acquired_at, held.expires_at), (t.now(), t.now() + TTL));
}

pub async fn fw10_a_free_lock_has_no_state<S: Locks>(t: Backend<S>) {
    assert_eq!(state(&t).await, None);
}

pub async fn fw11_the_holder_is_the_leader<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    take(&t, "b").await;
    assert_eq!(state(&t).await.unwrap().owner, "a");
}

pub async fn fw12_after_a_release_the_lock_is_free<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.store.release("leader", "a").await.unwrap();
    assert_eq!(state(&t).await, None);
}

pub async fn fw13_two_locks_are_independent<S: Locks>(t: Backend<S>) {
    t.store.acquire("one", "a", TTL).await.unwrap().unwrap();
    t.store.acquire("two", "b", TTL).await.unwrap().unwrap();
    assert_eq!(t.store.state("one").await.unwrap().unwrap().owner, "a");
    assert_eq!(t.store.state("two").await.unwrap().unwrap().owner, "b");
}

pub async fn an_expired_lock_may_be_taken_by_another<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.advance(TTL - secs(1));
    assert_eq!(take(&t, "b").await, None);
    t.advance(secs(1));
    assert_eq!(take(&t, "b").await.unwrap().owner, "b");
}

pub async fn an_expired_lock_has_no_state<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.advance(TTL);
    assert_eq!(state(&t).await, None);
}

pub async fn an_expired_lock_cannot_be_renewed<S: Locks>(t: Backend<S>) {
    // I6: another owner may have held it in between.
    take(&t, "a").await.unwrap();
    t.advance(TTL);
    assert_eq!(renew(&t, "a").await, None);
    assert_eq!(state(&t).await, None);
}

pub async fn a_lock_that_changed_hands_cannot_be_renewed_by_the_old_holder<S: Locks>(t: Backend<S>) {
    take(&t, "a").await.unwrap();
    t.advance(TTL);
    take(&t, "b").await.unwrap();
    assert_eq!(renew(&t, "a").await, None);
    t.store.release("leader", "a").await.unwrap();
    assert_eq!(state(&t).await.unwrap().owner, "b");
}

pub async fn renewing_keeps_a_lock_for_as_long_as_it_is_renewed<S: Locks>(t: Backend<S>) {
    let first = take(&t, "a").await.unwrap();
    for _ in 0..10 {
        t.advance(TTL - secs(1));
        assert_eq!(renew(&t, "a").await.unwrap().fence, first.fence);
        assert_eq!(take(&t, "b").await, None);
    }
    assert_eq!(state(&t).await.unwrap().acquired_at, first.acquired_at);
}

pub async fn the_fence_grows_each_time_the_lock_changes_hands<S: Locks>(t: Backend<S>) {
    // I6: after a release, after an expiry, and when the old holder comes back.
    let mut fences = vec![take(&t, "a").await.unwrap().fence];
    t.store.release("leader", "a").await.unwrap();
    fences.push(take(&t, "b").await.unwrap().fence);
    t.advance(TTL);
    fences.push(take(&t, "a").await.unwrap().fence);
    t.advance(TTL);
    let back = take(&t, "a").await.unwrap();
    assert_eq!(back.acquired_at, t.now(), "it was interrupted");
    fences.push(back.fence);
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

pub async fn of_many_who_try_at_once_one_gets_it<S: Locks>(t: Backend<S>) {
    let tries: Vec<_> = (0..20)
        .map(|n| {
            let store = t.store.clone();
            tokio::spawn(async move { store.acquire("leader", &format!("w{n}"), TTL).await.unwrap() })
        })
        .collect();
    let mut won = Vec::new();
    for one in tries {
        won.extend(one.await.unwrap());
    }
    assert_eq!(won.len(), 1);
    assert_eq!(state(&t).await, won.pop());
}
