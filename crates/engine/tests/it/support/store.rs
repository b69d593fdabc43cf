//! A store that fails, waits and counts on request, and otherwise behaves like the memory store.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use lazaret_core::store::{ErrorKind, LetterStore, Occupancy, Result, StoreError, Triage};
use lazaret_memory::MemoryStore;

/// A memory store behind an unreliable connection.
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    behaviour: Mutex<Behaviour>,
}

#[derive(Default)]
struct Behaviour {
    failing: BTreeMap<&'static str, ErrorKind>,
    all_failing: bool,
    slow: BTreeMap<&'static str, Duration>,
    late: BTreeMap<&'static str, Duration>,
    calls: BTreeMap<&'static str, usize>,
    /// The size of the store's disk. Each letter takes some of it.
    disk: Option<u64>,
}

impl FaultyStore {
    /// The disk space of a letter.
    pub(crate) const LETTER_ON_DISK: u64 = 8192;

    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self { inner, behaviour: Mutex::default() }
    }

    /// Returns the underlying store, which never fails.
    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.inner
    }

    /// Makes every call fail as unavailable, or succeed again.
    pub(crate) fn set_down(&self, down: bool) {
        self.lock().all_failing = down;
    }

    /// Makes one kind of call fail in this way.
    pub(crate) fn fail(&self, operation: &'static str, kind: ErrorKind) {
        self.lock().failing.insert(operation, kind);
    }

    /// Makes one kind of call succeed again.
    pub(crate) fn mend(&self, operation: &'static str) {
        self.lock().failing.remove(operation);
    }

    /// Delays one kind of call before it does anything.
    pub(crate) fn slow_down(&self, operation: &'static str, by: Duration) {
        self.lock().slow.insert(operation, by);
    }

    /// Delays the response to one kind of call.
    pub(crate) fn answer_late(&self, operation: &'static str, by: Duration) {
        self.lock().late.insert(operation, by);
    }

    /// Puts the store on a disk of this size.
    pub(crate) fn set_disk(&self, size: u64) {
        self.lock().disk = Some(size);
    }

    async fn room(&self) -> Result<Occupancy> {
        let Some(size) = self.lock().disk else { return self.inner.occupancy().await };
        let letters: u64 = self.inner.queues().await?.iter().map(|queue| queue.counts.open()).sum();
        let used = letters * Self::LETTER_ON_DISK;
        Ok(Occupancy { used: Some(used), free: Some(size.saturating_sub(used)), ..Occupancy::default() })
    }

    async fn file(&self) -> Result<Option<String>> {
        Ok(self.lock().disk.map(|_| "/data/lazaret.db".to_owned()))
    }

    /// Returns how often a call was made.
    pub(crate) fn calls(&self, operation: &str) -> usize {
        self.lock().calls.get(operation).copied().unwrap_or(0)
    }

    /// Counts the call, delays it and makes it fail.
    async fn before(&self, operation: &'static str) -> Result<()> {
        let slow = {
            let mut behaviour = self.lock();
            *behaviour.calls.entry(operation).or_default() += 1;
            behaviour.slow.get(operation).copied()
        };
        if let Some(delay) = slow {
            tokio::time::sleep(delay).await;
        }
        let behaviour = self.lock();
        let kind = match behaviour.failing.get(operation) {
            Some(kind) => *kind,
            None if behaviour.all_failing => ErrorKind::Unavailable,
            None => return Ok(()),
        };
        Err(StoreError::not_done(kind, operation, "broken on purpose"))
    }

    /// Delays the response.
    async fn after(&self, operation: &'static str) {
        let late = self.lock().late.get(operation).copied().unwrap_or_default();
        if !late.is_zero() {
            tokio::time::sleep(late).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("no test panics here")
    }
}

lazaret_core::forward_store! {
    impl LetterStore for FaultyStore {
        occupancy => Self::room;
        place => Self::file;
    }
    impl Operations for FaultyStore {}
    impl Triage for FaultyStore {}
    impl Audit for FaultyStore {}

    inner: |this| &this.inner;
    around: |this, call, run| {
        this.before(call.operation).await?;
        let answer = run.await;
        this.after(call.operation).await;
        answer
    };
}
