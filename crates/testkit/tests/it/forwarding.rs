//! Wrappers made with `forward_store!` keep the contract of the store inside.

use std::sync::{Arc, Mutex};

use lazaret_core::QueueName;
use lazaret_core::store::{Call, Counts, KeyValue, LetterStore, Limits, Operations, Outbox, Result, Store};
use lazaret_memory::MemoryStore;
use lazaret_testkit::{
    checkpoints_test_suite, dedupe_test_suite, locks_test_suite, outbox_test_suite, store_test_suite,
};

/// Runs every call in a task of its own.
struct Spawning<S>(Arc<S>);

lazaret_core::forward_store! {
    impl<S: Store> LetterStore for Spawning<S> {}
    impl<S: Store> Operations for Spawning<S> {}
    impl<S: Store> Triage for Spawning<S> {}
    impl<S: Store> Audit for Spawning<S> {}
    impl<S: KeyValue> KeyValue for Spawning<S> {}
    impl<S: Outbox> Outbox for Spawning<S> {}

    shared: |this| this.0.clone();
    around: |_this, _call, run| tokio::spawn(run).await.expect("no call panics");
}

store_test_suite!(letters_of, |clock| async move { Spawning(Arc::new(MemoryStore::new(clock))) });
checkpoints_test_suite!(checkpoints, |clock| async move { Spawning(Arc::new(MemoryStore::new(clock))) });
dedupe_test_suite!(dedupe, |clock| async move { Spawning(Arc::new(MemoryStore::new(clock))) });
locks_test_suite!(locks, |clock| async move { Spawning(Arc::new(MemoryStore::new(clock))) });
outbox_test_suite!(outbox, |clock| async move { Spawning(Arc::new(MemoryStore::new(clock))) });

/// Records every call that is not overridden.
#[derive(Default)]
struct Recording<S> {
    inner: S,
    calls: Mutex<Vec<Call>>,
}

lazaret_core::forward_store! {
    impl<S: Store> LetterStore for Recording<S> {
        counts => Self::one_sequence;
    }
    impl<S: Store> Operations for Recording<S> {}

    inner: |this| &this.inner;
    around: |this, call, run| {
        this.calls.lock().unwrap().push(call);
        run.await
    };
}

impl<S: Store> Recording<S> {
    async fn one_sequence(&self, queue: &QueueName) -> Result<Counts> {
        let counts = self.inner.counts(queue).await?;
        Ok(Counts { sequences: counts.sequences + 1, ..counts })
    }
}

#[tokio::test]
async fn a_wrapper_sees_each_call_but_those_that_it_overrides() {
    let store = Recording::<MemoryStore>::default();
    let queue = QueueName::of("orders", "orders");
    store.hand_off(&queue, &Limits::NONE, Vec::new()).await.unwrap();
    assert_eq!(store.counts(&queue).await.unwrap().sequences, 1);
    // A method with a default is forwarded too: the store inside may have its own.
    store.under_way(10).await.unwrap();
    let calls = store.calls.lock().unwrap();
    assert_eq!(*calls, [Call::new("hand_off", true), Call::new("under_way", false)]);
}
