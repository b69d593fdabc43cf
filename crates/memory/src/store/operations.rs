//! Plans and operations: [`freezing`] freezes plans, [`polling`] returns their letters and performs acts, [`table`] stores
//! both.

mod freezing;
mod polling;
mod table;

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, OperationMachine, Operations, OperationsPage, Plan, PlanId,
    PlanRequest, PolledWork, Result, RolloutPolicy,
};

use super::MemoryStore;
pub(super) use table::OperationTable;

#[async_trait]
impl Operations for MemoryStore {
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        let (mut state, now) = self.begin();
        state.freeze(request, by, now)
    }

    async fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        Ok(self.begin().0.operations.plan(id).cloned())
    }

    async fn drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        let (state, now) = MemoryStore::begin(self);
        Ok(state.operations.drafts(before, limit, now))
    }

    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        Ok(self.begin().0.operations.items(plan, from, limit))
    }

    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation> {
        let (mut state, now) = MemoryStore::begin(self);
        let (frozen, carried_out) = (state.operations.plan(plan), state.operations.is_carried_out(plan));
        let id = state.operations.next_operation();
        let machine = OperationMachine::begin_plan((plan, frozen), carried_out, id, rollout, by, now)?;
        let operation = machine.operation.clone();
        state.operations.insert(machine);
        state.audit.write(now, operation.audit(by, "begin", None));
        Ok(operation)
    }

    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage> {
        Ok(self.begin().0.operations.page(before, limit))
    }

    async fn under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        Ok(self.begin().0.operations.under_way(limit))
    }

    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation> {
        let (mut state, now) = self.begin();
        let mut machine = OperationMachine::found(state.operations.machine(id).cloned(), id)?;
        let line = match machine.command(command, by, now) {
            Ok(line) => line,
            Err(error) => {
                state.operations.refused(id);
                return Err(error);
            }
        };
        if machine.operation.state.is_over() {
            state.cancel_pending(&mut machine, now);
        }
        let operation = machine.operation.clone();
        state.operations.write(machine);
        state.audit.write(now, line);
        Ok(operation)
    }

    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let (mut state, now) = self.begin();
        state.poll_work(queue, now, owner, lease, limit)
    }
}
