//! A store whose content is encrypted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Change, Claim, EndsPage, Group, GroupId, GroupsPage, GroupsRequest, HandOff,
    HeadsPage, Item, KeyValue, Lease, LettersPage, Limits, Matches, OperationId, Outbox, Placed, Plan,
    PlanId, PlanRequest, PolledWork, Result, Settled, Settlement, Store,
};
use lazaret_core::{Clock, Letter, LetterId, Partition, QueueName, SequenceId, SystemClock, Timestamp};

use crate::content::{seal_change, seal_letter, seal_note, seal_settlement};
use crate::key::EncryptionKey;
use crate::key_ring::{KeyError, KeyRing};
use crate::search;

/// A store that encrypts the content of letters before the store inside sees it, and decrypts it for callers.
///
/// It behaves as the store inside, with these differences: the digests of payloads in plans and in the audit are those of encrypted bytes,
/// so plans show none; the message of a group is shorter; and a condition on content is evaluated after the decryption, so an index of the
/// store inside does not help it.
///
/// A letter that cannot be decrypted, because it was changed in the store or needs a key that is not there, is shown without the content that is
/// missing, and the reason why its message cannot be decoded says so. It matches no condition on content, and is never executed.
///
/// ```
/// use std::sync::Arc;
/// use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
/// use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
/// use lazaret_memory::MemoryStore;
/// use lazaret_sealing::{EncryptionKey, SealedStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let inside = Arc::new(MemoryStore::default());
/// let store = SealedStore::open(inside.clone(), vec![EncryptionKey::new(&[7; 32])]).await.unwrap();
/// let queue = QueueName::of("orders", "orders");
/// let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_payload("secret");
/// let mut letter = Letter::new(queue.clone(), "order-7".into(), message.into(), Timestamp::now());
/// letter.state = LetterState::Dead;
/// let id = letter.id;
/// let item = HandOff { letter, placement: Placement::Open, grant: None };
/// store.hand_off(&queue, &Limits::default(), vec![item]).await.unwrap().remove(0).unwrap();
///
/// let payload = |letter: Option<Letter>| letter.unwrap().message.payload.clone().unwrap();
/// assert_eq!(payload(store.get(&queue, id).await.unwrap()), "secret");
/// assert_ne!(payload(inside.get(&queue, id).await.unwrap()), "secret");
/// # });
/// ```
pub struct SealedStore<S> {
    inner: Arc<S>,
    keys: Arc<KeyRing>,
    clock: Arc<dyn Clock>,
}

impl<S: Store + KeyValue> SealedStore<S> {
    /// Opens the data keys that a store keeps, with these keys, the first of which encrypts.
    ///
    /// # Errors
    /// As [`KeyRing::open`].
    pub async fn open(inner: Arc<S>, keys: Vec<EncryptionKey>) -> std::result::Result<Self, KeyError> {
        let keys = Arc::new(KeyRing::open(inner.clone(), keys).await?);
        Ok(Self { inner, keys, clock: Arc::new(SystemClock) })
    }
}

impl<S> SealedStore<S> {
    /// The same store with another clock, by which ages in queries count where the store inside has no clock of its own.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// The data keys.
    pub fn keys(&self) -> &Arc<KeyRing> {
        &self.keys
    }

    /// The store inside.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }
}

lazaret_core::forward_store! {
    impl<S: Store> LetterStore for SealedStore<S> {
        hand_off => Self::hand_off_sealed;
        note_attempts => Self::note_sealed;
        attempt_notes => Self::open_notes;
        claim_due => Self::claim_due_opened;
        claim => Self::claim_opened;
        settle => Self::settle_sealed;
        settle_and_continue => Self::settle_and_continue_sealed;
        act => Self::act_opened;
        get => Self::get_opened;
        sequence => Self::sequence_opened;
        heads => Self::heads_opened;
    }
    impl<S: Store> Operations for SealedStore<S> {
        freeze => Self::freeze_opened;
        outcomes => Self::outcomes_without_digests;
        plan_items => Self::plan_items_without_digests;
        items => Self::items_without_digests;
        poll_work => Self::poll_work_opened;
    }
    impl<S: Store> Triage for SealedStore<S> {
        find => Self::find_opened;
        count => Self::count_opened;
        groups => Self::groups_opened;
        group => Self::group_opened;
        change => Self::change_sealed;
        erase => Self::erase_opened;
    }
    impl<S: Store> Audit for SealedStore<S> {}
    impl<S: KeyValue> KeyValue for SealedStore<S> {}
    impl<S: Outbox> Outbox for SealedStore<S> {
        ends => Self::ends_opened;
    }

    inner: |this| &*this.inner;
    around: |_this, _call, run| run.await;
}

impl<S: Outbox> SealedStore<S> {
    async fn ends_opened(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        let mut page = self.inner.ends(queue, after, limit).await?;
        self.keys.open_ends(&mut page, "ends").await?;
        Ok(page)
    }
}

/// Letters are sealed on the way in, and opened on the way out.
impl<S: Store> SealedStore<S> {
    async fn hand_off_sealed(
        &self,
        queue: &QueueName,
        limits: &Limits,
        mut items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let keys = self.keys.current();
        items.iter_mut().for_each(|item| seal_letter(&keys, &mut item.letter));
        self.inner.hand_off(queue, limits, items).await
    }

    async fn note_sealed(&self, queue: &QueueName, mut notes: Vec<AttemptNote>) -> Result<()> {
        let keys = self.keys.current();
        notes.iter_mut().for_each(|note| seal_note(&keys, queue, note));
        self.inner.note_attempts(queue, notes).await
    }

    async fn open_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        let notes = self.inner.attempt_notes(queue, partitions).await?;
        self.keys.open_notes(queue, notes).await
    }

    async fn claim_due_opened(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let claims = self.inner.claim_due(queue, owner, lease, limit).await?;
        self.keys.open_claims(claims, "claim_due").await
    }

    async fn claim_opened(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        match self.inner.claim(queue, sequence, owner, lease).await? {
            Some(claim) => self.keys.open_claim(claim, "claim").await.map(Some),
            None => Ok(None),
        }
    }

    async fn settle_sealed(
        &self,
        lease: &Lease,
        letter: LetterId,
        mut settlement: Settlement,
    ) -> Result<Settled> {
        seal_settlement(&self.keys.current(), &lease.queue, letter, &mut settlement);
        let settled = self.inner.settle(lease, letter, settlement).await?;
        Ok(self.keys.open_next(settled).await)
    }

    async fn settle_and_continue_sealed(
        &self,
        lease: &Lease,
        letter: LetterId,
        mut settlement: Settlement,
    ) -> Result<Settled> {
        seal_settlement(&self.keys.current(), &lease.queue, letter, &mut settlement);
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

    async fn freeze_opened(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        match search::content_query(&request.selection) {
            Some(query) => {
                let selection = search::select(self, request, query).await?;
                self.inner.freeze(&PlanRequest { selection, ..request.clone() }, by).await
            }
            None => self.inner.freeze(request, by).await,
        }
    }

    async fn outcomes_without_digests(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.inner.outcomes(plan, from, limit).await.map(without_digests)
    }

    async fn plan_items_without_digests(&self, id: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.inner.plan_items(id, from, limit).await.map(without_digests)
    }

    async fn items_without_digests(&self, id: OperationId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.inner.items(id, from, limit).await.map(without_digests)
    }

    async fn poll_work_opened(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let work = self.inner.poll_work(queue, owner, lease, limit).await?;
        self.keys.open_work(work, "poll_work").await
    }

    pub(crate) async fn find_opened(
        &self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Result<LettersPage> {
        let Some(weaker) = query.without_content() else {
            let mut page = self.inner.find(query, after, limit).await?;
            self.keys.open_shown(&mut page.letters, "find").await?;
            return Ok(page);
        };
        let mut page = self.inner.find(&weaker, after, limit).await?;
        // Nobody knows whether unreadable content matches: nothing is done to such a letter because of its content.
        self.keys.open_readable(&mut page.letters, "find").await?;
        let now = self.now().await?;
        page.letters.retain(|letter| query.matches(letter, now));
        Ok(page)
    }

    async fn count_opened(&self, query: &Query) -> Result<Matches> {
        match query.without_content() {
            Some(_) => search::count(self, query).await,
            None => self.inner.count(query).await,
        }
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

    async fn change_sealed(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let stored = if change.is_edit() { self.inner.get(queue, letter).await? } else { None };
        let change = seal_change(&self.keys.current(), queue, letter, stored.as_ref(), change);
        let mut letter = self.inner.change(queue, letter, &change, by).await?;
        self.keys.open_changed(&mut letter, "change").await?;
        Ok(letter)
    }

    async fn erase_opened(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        let mut letter = self.inner.erase(queue, letter, by).await?;
        self.keys.open_changed(&mut letter, "erase").await?;
        Ok(letter)
    }

    /// The time by which the store inside goes.
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.inner.server_time().await?.unwrap_or_else(|| self.clock.now()))
    }
}

fn without_digests(mut items: Vec<Item>) -> Vec<Item> {
    items.iter_mut().for_each(|item| item.digest = None);
    items
}

impl<S> fmt::Debug for SealedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStore").field("keys", &self.keys).finish_non_exhaustive()
    }
}
