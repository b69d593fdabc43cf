//! The cases of finding letters, and what the bounds do.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, HandOff, LetterStore, Limits,
    Placement, QueueSummary, Triage,
};
use lazaret_core::{LetterId, Message, Position, QueueName};

use super::*;
use crate::MemoryStore;

/// The part of triage that is tested here.
#[async_trait]
impl Triage for MemoryStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let (state, now) = self.begin();
        find(&state, query, after, limit, now)
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let (state, now) = self.begin();
        Ok(count(&state, query, now))
    }

    async fn groups(&self, _: &GroupsRequest) -> Result<GroupsPage> {
        unreachable!("not part of these tests")
    }

    async fn group(&self, _: &GroupId) -> Result<Option<Group>> {
        unreachable!("not part of these tests")
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        unreachable!("not part of these tests")
    }

    async fn change(&self, _: &QueueName, _: LetterId, _: &Change, _: &Actor) -> Result<Letter> {
        unreachable!("not part of these tests")
    }

    async fn purge(&self, _: &QueueName, _: LetterId, _: &Actor) -> Result<()> {
        unreachable!("not part of these tests")
    }

    async fn expire(&self, _: &QueueName, _: Option<Timestamp>, _: usize) -> Result<Expired> {
        unreachable!("not part of these tests")
    }
}

lazaret_testkit::find_test_suite!(finding, |clock| async move { MemoryStore::new(clock) });
