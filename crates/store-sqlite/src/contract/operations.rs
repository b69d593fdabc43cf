//! Plans and operations.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, Operations, OperationsPage, Plan, PlanId, PlanRequest,
    PolledWork, Result, RolloutPolicy,
};

use crate::lease_calls::PollWork;
use crate::operations::{commanding, freezing, table};
use crate::recorded::Repeatable;
use crate::store::SqliteStore;

#[async_trait]
impl Operations for SqliteStore {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        freezing::freeze(self, request, by).await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        self.ask("plan", move |view| table::plan(view.connection, id)).await
    }

    async fn drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        self.ask("drafts", move |view| table::drafts(view.connection, before, limit, view.now)).await
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        self.ask("outcomes", move |view| table::items(view.connection, plan, from, limit)).await
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        let (rollout, by) = (rollout.clone(), by.clone());
        self.write("begin", move |step| commanding::begin(step, plan, &rollout, &by)).await
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let machine = self.ask("operation", move |view| table::machine(view.connection, id)).await?;
        Ok(machine.map(|machine| machine.operation))
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        self.ask("operations", move |view| table::operations(view.connection, before, limit)).await
    }

    async fn under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        self.ask("under_way", move |view| table::under_way(view.connection, limit)).await
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        commanding::command(self, id, command, by).await
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        // Consumers poll frequently: without an operation, a poll does not involve the writer. The redo log holds no call by which
        // one begins, so the committed state suffices. After a poll that found letters, the next one goes to the writer at once: it may share
        // the group of the settlement that it follows.
        let name = queue.clone();
        if !self.is_busy(queue)
            && !self.ask_committed("poll_work", move |view| table::has_live(view.connection, &name)).await?
        {
            return Ok(PolledWork::default());
        }
        let work = self.record(PollWork::new(queue, owner, lease, limit)).await?;
        self.set_busy(queue, !work.bodies.is_empty());
        work.decode(PollWork::OPERATION)
    }
}
