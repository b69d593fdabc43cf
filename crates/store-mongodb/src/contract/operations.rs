//! The contract for plans and operations.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, Operations, OperationsPage, Plan, PlanId, PlanRequest,
    PolledWork, Result, RolloutPolicy,
};

use crate::store::MongoStore;

#[async_trait]
impl Operations for MongoStore {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        self.freeze_plan(request, by).await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        self.plan_by_id(id).await
    }

    async fn drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        self.list_drafts(before, limit).await
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.list_items(plan, from, limit).await
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        self.begin_plan(plan, rollout, by).await
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        self.list_operations(before, limit).await
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        self.command_operation(id, command, by).await
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.poll(queue, owner, lease, limit).await
    }

    async fn under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        self.list_under_way(limit).await
    }
}
