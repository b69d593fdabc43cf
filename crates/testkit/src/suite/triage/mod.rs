//! Cases for triage, on the fixture of the letter cases.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod changes;
pub mod erasure;
pub mod expiry;
pub mod find;
pub mod groups;
pub mod payloads;
pub mod purge;
pub mod queues;

pub use changes::*;
pub use erasure::*;
pub use expiry::*;
pub use find::*;
pub use groups::*;
pub use payloads::*;
pub use purge::*;
pub use queues::*;

use lazaret_core::store::{Change, Expired, Group, GroupId, GroupsRequest, Requeue, Result, Store};
use lazaret_core::{Failure, Letter, Timestamp};

use super::letters::Fixture;
use super::letters::fixture::{operator, requeued};

impl<S: Store> Fixture<S> {
    /// All groups that fit, page by page.
    pub(super) async fn groups_of(&self, wanted: GroupsRequest) -> Vec<Group> {
        let (mut groups, mut request) = (Vec::new(), wanted);
        loop {
            let page = self.store.groups(&request).await.unwrap();
            assert!(page.groups.len() <= request.limit, "a page holds at most its limit");
            groups.extend(page.groups);
            request.after = page.next;
            if request.after.is_none() {
                return groups;
            }
        }
    }

    /// All groups with open letters.
    pub(super) async fn groups(&self) -> Vec<Group> {
        self.groups_of(GroupsRequest { limit: 100, ..GroupsRequest::default() }).await
    }

    /// The group of a failure in the fixture's queue.
    pub(super) async fn group(&self, failure: &Failure) -> Option<Group> {
        let id = GroupId { queue: self.queue.clone(), fingerprint: failure.fingerprint };
        self.store.group(&id).await.unwrap()
    }

    /// Opens a sequence with a dead letter that failed like this, or appends one.
    pub(super) async fn fail(&self, sequence: &str, message: &str, failure: &Failure) {
        self.open(Letter { cause: Some(failure.clone()), ..self.dead(sequence, message) }).await;
    }

    /// Runs the head of a sequence, which fails again like this.
    pub(super) async fn fail_again(&self, sequence: &str, failure: &Failure) {
        self.requeue(sequence, |requeue| requeue.cause = Some(failure.clone())).await;
    }

    /// Runs the head of a sequence, which stays in its state but for what the case sets.
    pub(super) async fn requeue(&self, sequence: &str, set: impl FnOnce(&mut Requeue)) {
        let claim = self.claim(sequence, "w").await.unwrap();
        let mut requeue = Requeue::of(&claim.head);
        set(&mut requeue);
        self.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    }

    pub(super) async fn change(&self, message: &str, change: Change) -> Result<Letter> {
        self.store.change(&self.queue, self.id_of(message), &change, &operator()).await
    }

    pub(super) async fn purge(&self, message: &str) -> Result<()> {
        self.store.purge(&self.queue, self.id_of(message), &operator()).await
    }

    pub(super) async fn expire(&self, closed_before: Option<Timestamp>, limit: usize) -> Expired {
        self.store.expire(&self.queue, closed_before, limit).await.unwrap()
    }
}
