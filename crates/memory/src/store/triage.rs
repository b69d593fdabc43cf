//! Groups and queues, for operators.

use std::cmp::Reverse;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::rules::FIRST_INDEX;
use lazaret_core::store::{
    Actor, Change, ErrorKind, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches,
    QueueSummary, Result, StoreError, Triage, stored_digest_key,
};

use super::{MemoryStore, query};

/// A cursor: the sort key of the last item, and its id as tie-breaker.
fn place(text: &str, operation: &'static str) -> Result<(i128, String)> {
    let parts = text.split_once('/').and_then(|(rank, name)| Some((rank.parse().ok()?, name.to_owned())));
    parts.ok_or_else(|| {
        let context = format!("invalid cursor {text:?}");
        StoreError::not_done(ErrorKind::Invalid, operation, context)
    })
}

/// The first `limit` items of a sorted list behind a cursor; and the cursor of the last of them if
/// more follow.
fn page<T>(
    list: Vec<((i128, String), T)>,
    after: Option<(i128, String)>,
    limit: usize,
) -> (Vec<T>, Option<String>) {
    let behind = |place: &(i128, String)| {
        after.as_ref().is_none_or(|(rank, name)| (Reverse(place.0), &place.1) > (Reverse(*rank), name))
    };
    let mut rest = list.into_iter().filter(|(place, _)| behind(place));
    let (places, page): (Vec<_>, Vec<_>) = rest.by_ref().take(limit.max(1)).unzip();
    let more = rest.next().is_some();
    (page, places.last().filter(|_| more).map(|(rank, name)| format!("{rank}/{name}")))
}

#[async_trait]
impl Triage for MemoryStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let (state, now) = self.begin();
        query::find(&state, query, after, limit, now)
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let (state, now) = self.begin();
        Ok(query::count(&state, query, now))
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let after = request.after.as_deref().map(|after| place(after, "groups")).transpose()?;
        let (state, now) = self.begin();
        let queues = state.queues.values();
        let wanted = queues.filter(|queue| request.queue.as_ref().is_none_or(|name| queue.name == *name));
        let mut groups: Vec<_> = wanted
            .flat_map(|queue| queue.groups.keys().filter_map(|fingerprint| queue.group(*fingerprint, now)))
            .filter(|group| request.closed || group.counts.open() > 0)
            .map(|group| ((i128::from(group.counts.open()), group.id.to_string()), group))
            .collect();
        groups.sort_by(|(one, _), (other, _)| (Reverse(one.0), &one.1).cmp(&(Reverse(other.0), &other.1)));
        let (groups, next) = page(groups, after, request.limit);
        Ok(GroupsPage { groups, next })
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        let (state, now) = self.begin();
        Ok(state.queues.get(&id.queue).and_then(|queue| queue.group(id.fingerprint, now)))
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        let (state, _) = self.begin();
        // Every letter takes an index, so a queue without one never held a letter.
        let used = state.queues.values().filter(|queue| queue.index > FIRST_INDEX);
        Ok(used
            .map(|queue| QueueSummary {
                queue: queue.name.clone(),
                counts: queue.counts(),
                oldest: queue.oldest(|_| true),
                next_expiry: queue.next_expiry(|_| true),
            })
            .collect())
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let key = stored_digest_key(self).await?;
        Self::change(self, queue, |queue, step| queue.change(letter, change, by, &key, step))
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        Self::change(self, queue, |queue, step| queue.purge(letter, by, step))
    }

    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        Self::change(self, queue, |queue, step| queue.erase(letter, by, step))
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        Ok(Self::change(self, queue, |queue, step| queue.expire(closed_before, limit, step)))
    }
}
