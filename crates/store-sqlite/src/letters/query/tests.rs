//! The cases of finding letters, and what the bounds do.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, HandOff, LetterStore, Limits,
    Placement, QueueSummary, Result, Triage,
};
use lazaret_core::{Clock, Failure, LetterId, LetterState, Message, Position, Reason};

use super::*;
use crate::{Durability, Options, SqliteStore};

/// The part of triage that is tested here.
#[async_trait]
impl Triage for SqliteStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let (query, after) = (query.clone(), after.map(str::to_owned));
        self.ask("find", move |view| find(view, &query, after.as_deref(), limit)).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let query = query.clone();
        self.ask("count", move |view| count(view, &query)).await
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

async fn store(clock: Arc<dyn Clock>) -> SqliteStore {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { clock, durability: Durability::Normal, ..Options::default() };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

lazaret_testkit::find_test_suite!(finding, io, super::store);
