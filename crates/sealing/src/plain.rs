//! A store without keys, which may hold what other instances encrypt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Certainty, Change, Claim, EndsPage, Group, GroupId, GroupsPage, GroupsRequest,
    HandOff, HeadsPage, KeyValue, Lease, LettersPage, Limits, Outbox, Placed, PolledWork, Result, Settled,
    Settlement, Store,
};
use lazaret_core::{Letter, LetterId, Partition, QueueName, SequenceId};

use crate::error::NotOpened;
use crate::key_ring::KeyRing;

/// A store that is used without keys, while other instances may encrypt what they store in it.
///
/// It behaves as the store inside until another instance adds a key ring. From then on nothing is executed and no content is stored here, with an
/// error that names the missing key: the handler would get encrypted bytes, and content that is meant to be encrypted would be stored in
/// the clear. Letters that are encrypted are shown without their content. Work that has begun is settled.
///
/// ```
/// use std::sync::Arc;
/// use lazaret_core::store::{LetterStore, Limits};
/// use lazaret_core::QueueName;
/// use lazaret_memory::MemoryStore;
/// use lazaret_sealing::{EncryptionKey, KeyRing, PlainStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let inside = Arc::new(MemoryStore::default());
/// let store = PlainStore::new(inside.clone());
/// KeyRing::open(inside, vec![EncryptionKey::new(&[7; 32])]).await.unwrap();
/// let queue = QueueName::of("orders", "orders");
/// let error = store.hand_off(&queue, &Limits::default(), Vec::new()).await.unwrap_err();
/// assert!(error.to_string().contains("no key is configured"));
/// # });
/// ```
pub struct PlainStore<S> {
    inner: Arc<S>,
    keys: Arc<KeyRing>,
}

impl<S: KeyValue> PlainStore<S> {
    /// Watches a store. [`KeyRing::require_none`] shows whether it needs keys already.
    pub fn new(inner: Arc<S>) -> Self {
        let keys = Arc::new(KeyRing::without_keys(inner.clone()));
        Self { inner, keys }
    }
}

impl<S> PlainStore<S> {
    /// The ring of data keys that other instances may add.
    pub fn keys(&self) -> &Arc<KeyRing> {
        &self.keys
    }

    /// Verifies that no other instance encrypts.
    async fn require_plain(&self, operation: &'static str) -> Result<()> {
        let plain = self.keys.require_plain().await;
        plain.map_err(|error| NotOpened::Keys(error).during(operation, Certainty::NotDone))
    }
}

lazaret_core::forward_store! {
    impl<S: Store> LetterStore for PlainStore<S> {
        hand_off => Self::hand_off_plain;
        note_attempts => Self::note_plain;
        attempt_notes => Self::open_notes;
        claim_due => Self::claim_due_plain;
        claim => Self::claim_plain;
        settle => Self::settle_opened;
        settle_and_continue => Self::settle_and_continue_opened;
        act => Self::act_opened;
        get => Self::get_opened;
        sequence => Self::sequence_opened;
        heads => Self::heads_opened;
    }
    impl<S: Store> Operations for PlainStore<S> {
        poll_work => Self::poll_work_plain;
    }
    impl<S: Store> Triage for PlainStore<S> {
        find => Self::find_opened;
        groups => Self::groups_opened;
        group => Self::group_opened;
        change => Self::change_plain;
        erase => Self::erase_opened;
    }
    impl<S: Store> Audit for PlainStore<S> {}
    impl<S: KeyValue> KeyValue for PlainStore<S> {}
    impl<S: Outbox> Outbox for PlainStore<S> {
        ends => Self::ends_opened;
    }

    inner: |this| &*this.inner;
    around: |_this, _call, run| run.await;
}

impl<S: Outbox> PlainStore<S> {
    async fn ends_opened(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        let mut page = self.inner.ends(queue, after, limit).await?;
        self.keys.open_ends(&mut page, "ends").await?;
        Ok(page)
    }
}

/// Nothing is stored or claimed beside a ring of data keys.
impl<S: Store> PlainStore<S> {
    async fn hand_off_plain(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        self.require_plain("hand_off").await?;
        self.inner.hand_off(queue, limits, items).await
    }

    async fn note_plain(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.require_plain("note_attempts").await?;
        self.inner.note_attempts(queue, notes).await
    }

    async fn claim_due_plain(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        self.require_plain("claim_due").await?;
        let claims = self.inner.claim_due(queue, owner, lease, limit).await?;
        self.keys.open_claims(claims, "claim_due").await
    }

    async fn claim_plain(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        self.require_plain("claim").await?;
        match self.inner.claim(queue, sequence, owner, lease).await? {
            Some(claim) => self.keys.open_claim(claim, "claim").await.map(Some),
            None => Ok(None),
        }
    }

    async fn poll_work_plain(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.require_plain("poll_work").await?;
        let work = self.inner.poll_work(queue, owner, lease, limit).await?;
        self.keys.open_work(work, "poll_work").await
    }

    async fn change_plain(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        if change.is_edit() {
            self.require_plain("change").await?;
        }
        let mut letter = self.inner.change(queue, letter, change, by).await?;
        self.keys.open_changed(&mut letter, "change").await?;
        Ok(letter)
    }
}

/// Letters that another instance has encrypted are shown without their content.
impl<S: Store> PlainStore<S> {
    async fn open_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        let notes = self.inner.attempt_notes(queue, partitions).await?;
        self.keys.open_notes(queue, notes).await
    }

    async fn settle_opened(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        let settled = self.inner.settle(lease, letter, settlement).await?;
        Ok(self.keys.open_next(settled).await)
    }

    async fn settle_and_continue_opened(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        let settled = self.inner.settle_and_continue(lease, letter, settlement).await?;
        Ok(self.keys.open_next(settled).await)
    }

    async fn act_opened(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let mut letter = self.inner.act(queue, letter, act, by).await?;
        self.keys.open_changed(&mut letter, "act").await?;
        Ok(letter)
    }

    async fn get_opened(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        let mut found = self.inner.get(queue, letter).await?;
        self.keys.open_shown(&mut found, "get").await?;
        Ok(found)
    }

    async fn sequence_opened(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        let mut letters = self.inner.sequence(queue, sequence, from, limit).await?;
        self.keys.open_shown(&mut letters, "sequence").await?;
        Ok(letters)
    }

    async fn heads_opened(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let mut page = self.inner.heads(queue, after, limit).await?;
        self.keys.open_shown(&mut page.heads, "heads").await?;
        Ok(page)
    }

    async fn find_opened(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let mut page = self.inner.find(query, after, limit).await?;
        self.keys.open_shown(&mut page.letters, "find").await?;
        Ok(page)
    }

    async fn groups_opened(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let mut page = self.inner.groups(request).await?;
        self.keys.open_shown(&mut page.groups, "groups").await?;
        Ok(page)
    }

    async fn group_opened(&self, id: &GroupId) -> Result<Option<Group>> {
        let mut found = self.inner.group(id).await?;
        self.keys.open_shown(&mut found, "group").await?;
        Ok(found)
    }

    async fn erase_opened(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        let mut letter = self.inner.erase(queue, letter, by).await?;
        self.keys.open_changed(&mut letter, "erase").await?;
        Ok(letter)
    }
}

impl<S> fmt::Debug for PlainStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainStore").field("keys", &self.keys).finish_non_exhaustive()
    }
}
