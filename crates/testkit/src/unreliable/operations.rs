//! Plans and operations of an unreliable store.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, Operations, OperationsPage, Plan, PlanId, PlanRequest,
    PolledWork, Result, RolloutPolicy,
};

use super::Unreliable;

#[async_trait]
impl<S: Operations> Operations for Unreliable<S> {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        self.call("freeze", self.inner.freeze(request, by)).await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        self.call("plan", self.inner.plan(id)).await
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.call("outcomes", self.inner.outcomes(plan, from, limit)).await
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        self.call("begin", self.inner.begin(plan, rollout, by)).await
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        self.call("operations", self.inner.operations(before, limit)).await
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        self.call("command", self.inner.command(id, command, by)).await
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.call("poll_work", self.inner.poll_work(queue, owner, lease, limit)).await
    }
}
