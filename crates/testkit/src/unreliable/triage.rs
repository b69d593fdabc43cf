//! The operators' side of a store that fails by a seed.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Triage,
};
use lazaret_core::{Letter, LetterId, QueueName};

use super::Unreliable;

#[async_trait]
impl<S: Triage> Triage for Unreliable<S> {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        self.call("find", self.inner.find(query, after, limit)).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        self.call("count", self.inner.count(query)).await
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        self.call("groups", self.inner.groups(request)).await
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.call("group", self.inner.group(id)).await
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.call("queues", self.inner.queues()).await
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        self.call("change", self.inner.change(queue, letter, change, by)).await
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        self.call("purge", self.inner.purge(queue, letter, by)).await
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        self.call("expire", self.inner.expire(queue, closed_before, limit)).await
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{Certainty, ErrorKind, HandOff, LetterStore, Limits, Placement};
    use lazaret_core::{LetterState, Message, Position};
    use lazaret_memory::MemoryStore;

    use super::*;
    use crate::Profile;

    #[tokio::test(start_paused = true)]
    async fn a_purge_whose_answer_was_lost_has_happened() {
        let store = Unreliable::new(MemoryStore::default(), 7);
        let queue = QueueName::of("c", "c");
        let message = Message::new("m", "s", Position::new(0, 0));
        let mut letter = Letter::new(queue.clone(), "a".into(), message.into(), Timestamp::UNIX_EPOCH);
        letter.state = LetterState::Skipped;
        let (id, by) = (letter.id, Actor::engine("test"));
        let item = HandOff { letter, placement: Placement::Closed, grant: None };
        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
        store.set_profile(Profile { error: 1.0, ..Profile::default() });
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().certainty(), Certainty::NotDone);
        store.set_profile(Profile { error_after: 1.0, ..Profile::default() });
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().certainty(), Certainty::MaybeDone);
        store.set_profile(Profile::default());
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
