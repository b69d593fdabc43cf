//! The cases of finding letters, and what the bounds do.

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

#[tokio::test]
async fn a_call_looks_at_a_bounded_number_of_letters() {
    // I7
    let store = MemoryStore::default();
    let queue = QueueName::of("orders", "orders");
    let items = (0..50).map(|n| {
        let message = Message::new(format!("m{n}"), "orders", Position::new(0, n)).into();
        let letter = Letter::new(queue.clone(), "s".into(), message, Timestamp::now());
        HandOff { letter, placement: Placement::Open, grant: None }
    });
    let placed = store.hand_off(&queue, &Limits::NONE, items.collect()).await.unwrap();
    assert!(placed.iter().all(Result::is_ok));
    let (state, now) = store.begin();
    let pages = |text: &str| {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let query = Query::parse(text).unwrap();
            let page = find_within(&state, &query, after.as_deref(), 100, now, 20).unwrap();
            pages.push(page.letters.len());
            after = page.next;
            if after.is_none() {
                return pages;
            }
        }
    };
    assert_eq!(pages("message:m0"), [0, 0, 1]);
    assert_eq!(pages(""), [20, 20, 10]);
    let counted = |text: &str, bound| count_within(&state, &Query::parse(text).unwrap(), now, bound);
    assert_eq!(counted("message:m*", 20), Matches { letters: 20, exact: false });
    assert_eq!(counted("message:m*", 50), Matches { letters: 50, exact: true });
    assert_eq!(counted("queue:orders", 20), Matches { letters: 50, exact: true });
}
