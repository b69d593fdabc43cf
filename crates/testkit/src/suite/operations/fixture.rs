//! What the cases about plans and operations share.

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Command, Exclusion, Operation, OperationId, OperationState, Outcome, Plan, PlanId,
    PlanRequest, PolledWork, Result, RolloutPolicy, Selection, Settled, Store, WorkItem,
};
use lazaret_core::{LetterId, QueueName};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{LEASE, fail_again, operator, resolve};
use crate::suite::secs;

/// The person who approves.
pub(super) fn second() -> Actor {
    Actor::new("bob", "console", "looks right")
}

/// The letters of an operation by outcome: ok, failed again, skipped, and without an outcome.
pub(super) type Tally = (u64, u64, u64, u64);

pub(super) fn everything() -> Selection {
    Selection::Query(Query::everything())
}

pub(super) fn request(action: Action, selection: Selection) -> PlanRequest {
    PlanRequest { action, selection, valid_for: secs(3600), max_letters: 1_000_000 }
}

/// These stages, without a rate and a stop rule.
pub(super) fn ramp(stages: &[u64]) -> RolloutPolicy {
    RolloutPolicy { ramp: stages.to_vec(), ..RolloutPolicy::unlimited() }
}

/// The message ids of the letters that are to be tried.
pub(super) fn names(items: &[WorkItem]) -> Vec<&str> {
    items.iter().map(|item| item.claim.head.message.id.as_str()).collect()
}

impl<S: Store> Fixture<S> {
    /// Opens as many sequences with one dead letter each: `a-000` and so on.
    pub(super) async fn letters(&self, prefix: &str, count: usize) {
        for n in 0..count {
            let name = format!("{prefix}-{n:03}");
            self.enqueue(&name, &name).await;
        }
    }

    pub(super) async fn freeze(&self, action: Action) -> Plan {
        self.store.freeze(&request(action, everything()), &operator()).await.unwrap()
    }

    pub(super) fn named(&self, messages: &[&str]) -> Selection {
        let named = messages.iter().map(|message| (self.queue.clone(), self.id_of(message)));
        Selection::Letters(named.collect())
    }

    pub(super) async fn freeze_named(&self, action: Action, messages: &[&str]) -> Plan {
        self.store.freeze(&request(action, self.named(messages)), &operator()).await.unwrap()
    }

    /// What a plan of all open letters excludes.
    pub(super) async fn excluded(&self, action: Action) -> Vec<(Exclusion, u64)> {
        self.freeze(action).await.excluded
    }

    /// The messages of a plan, in order.
    pub(super) async fn planned(&self, id: PlanId) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.store.plan_items(id, 0, 10_000).await.unwrap() {
            assert_eq!((item.ordinal, item.outcome), (names.len() as u64, None));
            let letter = self.store.get(&item.queue, item.letter).await.unwrap().unwrap();
            assert_eq!(letter.sequence, item.sequence);
            names.push(letter.message.id.to_string());
        }
        names
    }

    pub(super) async fn begin(&self, plan: &Plan, rollout: &RolloutPolicy) -> OperationId {
        self.store.begin(plan.id, rollout, &operator()).await.unwrap().id
    }

    /// Freezes all open letters and begins the operation.
    pub(super) async fn start(&self, action: Action, rollout: &RolloutPolicy) -> OperationId {
        self.begin(&self.freeze(action).await, rollout).await
    }

    pub(super) async fn send_command(
        &self,
        id: OperationId,
        command: Command,
        by: &Actor,
    ) -> Result<Operation> {
        let answer = self.store.command(id, command, by).await;
        self.tally(id).await;
        answer
    }

    pub(super) async fn command(&self, id: OperationId, command: Command) -> OperationState {
        self.send_command(id, command, &operator()).await.unwrap().state
    }

    pub(super) async fn operation(&self, id: OperationId) -> Operation {
        self.store.operation(id).await.unwrap().expect("the operation was begun")
    }

    pub(super) async fn state_of(&self, id: OperationId) -> OperationState {
        self.operation(id).await.state
    }

    pub(super) async fn outcomes(&self, id: OperationId) -> Vec<Option<Outcome>> {
        let items = self.store.items(id, 0, 100_000).await.unwrap();
        items.iter().map(|item| item.outcome).collect()
    }

    /// The counts of an operation, after a check that they are those of its letters.
    pub(super) async fn tally(&self, id: OperationId) -> Tally {
        let Some(operation) = self.store.operation(id).await.unwrap() else { return (0, 0, 0, 0) };
        let outcomes = self.outcomes(id).await;
        let count = |fits: fn(Outcome) -> bool| {
            outcomes.iter().flatten().filter(|outcome| fits(**outcome)).count() as u64
        };
        let ok = count(|outcome| outcome == Outcome::Ok);
        let failed = count(|outcome| outcome == Outcome::FailedAgain);
        let skipped = outcomes.iter().flatten().count() as u64 - ok - failed;
        assert_eq!((operation.ok, operation.failed_again, operation.skipped), (ok, failed, skipped));
        assert_eq!(operation.letters, outcomes.len() as u64);
        let left = operation.letters - ok - failed - skipped;
        match operation.state {
            OperationState::Done | OperationState::Rejected => assert_eq!(left, 0, "{}", operation.state),
            OperationState::Cancelled => {}
            state => assert!(left > 0, "nothing is left, but it is {state}"),
        }
        assert_eq!(operation.ended_at.is_some(), operation.state.is_over());
        (ok, failed, skipped, left)
    }

    pub(super) async fn poll_queue(&self, queue: &QueueName, limit: usize) -> PolledWork {
        let polled = self.store.poll_work(queue, "worker", LEASE, limit).await.unwrap();
        assert!(polled.items.len() <= limit, "at most the limit");
        for item in &polled.items {
            assert_eq!(item.claim.lease.until, self.now() + LEASE);
            assert_eq!(item.claim.lease.owner, "worker");
            self.tally(item.operation).await;
        }
        polled
    }

    pub(super) async fn poll(&self, limit: usize) -> PolledWork {
        self.poll_queue(&self.queue, limit).await
    }

    /// Polls the only letter that is to be tried now.
    pub(super) async fn poll_one(&self) -> WorkItem {
        let mut items = self.poll(10).await.items;
        assert_eq!(items.len(), 1, "exactly one letter is to be tried");
        items.remove(0)
    }

    pub(super) async fn succeed(&self, item: &WorkItem) -> Settled {
        let settled = self.settle(&item.claim, &item.claim.head, resolve()).await.unwrap();
        self.tally(item.operation).await;
        settled
    }

    pub(super) async fn fail_item(&self, item: &WorkItem) -> Settled {
        let head = &item.claim.head;
        let settled = self.settle(&item.claim, head, fail_again(head)).await.unwrap();
        self.tally(item.operation).await;
        settled
    }

    /// Polls and tries letters until there are none. Returns the tried messages, in order.
    pub(super) async fn drain(&self, fails: impl Fn(&str) -> bool) -> Vec<String> {
        let mut tried = Vec::new();
        loop {
            let polled = self.poll(7).await;
            if polled.items.is_empty() && polled.settled == 0 {
                return tried;
            }
            for item in &polled.items {
                let name = item.claim.head.message.id.to_string();
                if fails(&name) {
                    self.fail_item(item).await
                } else {
                    self.succeed(item).await
                };
                tried.push(name);
            }
        }
    }

    /// The ids of messages in this queue.
    pub(super) fn ids_of(&self, messages: &[&str]) -> Vec<LetterId> {
        messages.iter().map(|message| self.id_of(message)).collect()
    }
}
