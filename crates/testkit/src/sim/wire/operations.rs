//! Plans and operations over the wire.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, Operations, OperationsPage, Plan, PlanId, PlanRequest,
    PolledWork, Result, RolloutPolicy,
};

use super::Wire;

#[async_trait]
impl Operations for Wire {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        let (store, request, by) = (self.store.clone(), request.clone(), by.clone());
        self.call("freeze", true, async move { store.freeze(&request, &by).await }).await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        let store = self.store.clone();
        self.call("plan", false, async move { store.plan(id).await }).await
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        let store = self.store.clone();
        self.call("outcomes", false, async move { store.outcomes(plan, from, limit).await }).await
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        let (store, rollout, by) = (self.store.clone(), rollout.clone(), by.clone());
        self.call("begin", true, async move { Operations::begin(&*store, plan, &rollout, &by).await }).await
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        let store = self.store.clone();
        self.call("operations", false, async move { store.operations(before, limit).await }).await
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        let (store, by) = (self.store.clone(), by.clone());
        self.call("command", true, async move { store.command(id, command, &by).await }).await
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let (store, queue, owner) = (self.store.clone(), queue.clone(), owner.to_owned());
        self.call("poll_work", true, async move { store.poll_work(&queue, &owner, lease, limit).await }).await
    }
}
