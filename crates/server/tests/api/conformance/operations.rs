//! Plans and operations through the API: freezing, beginning, commands, and their letters. Work is polled from the store.

use axum::http::Method;
use lazaret_api as api;
use lazaret_core::store::{
    Actor, Command, Item, Operation, OperationId, Operations, OperationsPage, Plan, PlanId, PlanRequest,
    Result, RolloutPolicy, Selection, Store,
};
use lazaret_server::Limits;

use crate::conformance::store::ThroughApi;
use crate::conformance::words::{self, if_there, refused};

impl<S: Store> ThroughApi<S> {
    pub(crate) async fn freeze_over_http(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        assert_eq!(request.valid_for.subsec_nanos(), 0, "a plan is good for whole seconds");
        let wire = api::PlanRequest {
            action: request.action.into(),
            selection: selection(&request.selection),
            valid_for_seconds: Some(request.valid_for.as_secs()),
            reason: Some(by.why.clone()),
        };
        let route = (Method::POST, "/v1/plans");
        let answer = if request.max_letters == Limits::default().plan_letters {
            self.api.change(route, by, &wire).await
        } else {
            self.planning_at_most(request.max_letters).await.change(route, by, &wire).await
        };
        let plan = self.as_stored(answer.map_err(refused("freeze"))?.typed()).await?;
        assert_eq!(self.plan(plan.id).await?.as_ref(), Some(&plan), "the answer is what is stored");
        Ok(plan)
    }

    pub(crate) async fn plan_over_http(&self, id: PlanId) -> Result<Option<Plan>> {
        let found = if_there(self.api.get(&format!("/v1/plans/{id}"), &[]).await).map_err(refused("plan"))?;
        let plan = match found {
            Some(shown) => Some(self.as_stored(shown).await?),
            None => None,
        };
        assert_eq!(plan, self.inner.plan(id).await?, "the API shows what is stored");
        Ok(plan)
    }

    pub(crate) async fn drafts_over_http(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        let wanted =
            |plan: &api::Plan| before.is_none_or(|before| plan.id.parse::<PlanId>().unwrap() < before);
        let walked = self.api.walk::<api::PlanPage>("/v1/plans", &[], limit, wanted).await;
        let (shown, _) = walked.map_err(refused("drafts"))?;
        let mut plans = Vec::with_capacity(shown.len());
        for plan in shown {
            plans.push(self.as_stored(plan).await?);
        }
        Ok(plans)
    }

    pub(crate) async fn plan_items_over_http(
        &self,
        id: PlanId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Item>> {
        let stored = self.inner.plan_items(id, from, limit).await?;
        self.items_of(&format!("/v1/plans/{id}/items"), from, limit, stored).await
    }

    pub(crate) async fn begin_over_http(
        &self,
        plan: PlanId,
        rollout: &RolloutPolicy,
        by: &Actor,
    ) -> Result<Operation> {
        let request = api::BeginRequest {
            plan: Some(plan.to_string()),
            rate: Some(rollout.rate.unwrap_or(0.0)),
            ramp: Some(rollout.ramp.clone()),
            // No stop rule is said as one that never stops.
            stop_at: Some(rollout.stop_at.unwrap_or(1.0)),
            at: rollout.start_at,
            needs_approval: rollout.needs_approval,
            reason: Some(by.why.clone()),
            ..api::BeginRequest::default()
        };
        let answer = self.api.change((Method::POST, "/v1/operations"), by, &request).await;
        let begun = words::operation(answer.map_err(refused("begin"))?.typed());
        assert_eq!(self.operation(begun.id).await?.as_ref(), Some(&begun), "the answer is what is stored");
        Ok(begun)
    }

    pub(crate) async fn operation_over_http(&self, id: OperationId) -> Result<Option<Operation>> {
        let path = format!("/v1/operations/{id}");
        let found = if_there(self.api.get(&path, &[]).await).map_err(refused("operation"))?;
        let operation = found.map(words::operation);
        assert_eq!(operation, self.inner.operation(id).await?, "the API shows what is stored");
        Ok(operation)
    }

    pub(crate) async fn operations_over_http(
        &self,
        before: Option<OperationId>,
        limit: usize,
    ) -> Result<OperationsPage> {
        let wanted = |operation: &api::Operation| {
            before.is_none_or(|before| operation.id.parse::<OperationId>().unwrap() < before)
        };
        let walked = self.api.walk::<api::OperationPage>("/v1/operations", &[], limit, wanted).await;
        let (operations, more) = walked.map_err(refused("operations"))?;
        let operations: Vec<Operation> = operations.into_iter().map(words::operation).collect();
        let next = operations.last().filter(|_| more).map(|last| last.id);
        Ok(OperationsPage { operations, next })
    }

    /// The status shows them.
    pub(crate) async fn under_way_over_http(&self, limit: usize) -> Result<Vec<Operation>> {
        let status: api::Status = self.api.get("/v1/status", &[]).await.map_err(refused("under_way"))?;
        Ok(status.operations.into_iter().map(words::operation).take(limit).collect())
    }

    pub(crate) async fn items_over_http(
        &self,
        id: OperationId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Item>> {
        let stored = self.inner.items(id, from, limit).await?;
        self.items_of(&format!("/v1/operations/{id}/items"), from, limit, stored).await
    }

    pub(crate) async fn command_over_http(
        &self,
        id: OperationId,
        command: Command,
        by: &Actor,
    ) -> Result<Operation> {
        let path = format!("/v1/operations/{id}/{}", command.as_str());
        let request = api::CommandRequest { reason: Some(by.why.clone()) };
        let answer = self.api.change((Method::POST, &path), by, &request).await;
        Ok(words::operation(answer.map_err(refused("command"))?.typed()))
    }
}

impl<S: Store> ThroughApi<S> {
    /// A plan as it is stored. Its hash leaves the server sealed by the key of the store.
    async fn as_stored(&self, mut shown: api::Plan) -> Result<Plan> {
        let stored =
            self.inner.plan(shown.id.parse().unwrap()).await?.expect("a plan that is shown is stored");
        let sealed = self.inner.digest_key().await?.seal_plan_hash(&stored.hash);
        assert_eq!(shown.hash, sealed, "the hash is sealed");
        shown.hash = stored.hash;
        Ok(words::plan(shown))
    }

    /// The letters of a plan or an operation, of which these are stored; none where there is no such thing. The digests of their payloads
    /// leave the server sealed by the key of the store.
    async fn items_of(&self, path: &str, from: u64, limit: usize, stored: Vec<Item>) -> Result<Vec<Item>> {
        let wanted = |item: &api::Item| item.ordinal >= from;
        let walked = self.api.walk::<api::ItemPage>(path, &[], limit, wanted).await;
        let found = if_there(walked).map_err(refused("items"))?;
        let (items, _) = found.unwrap_or_default();
        let key = self.inner.digest_key().await?;
        let digest = |item: &api::Item| {
            let stored = stored.iter().find(|stored| stored.ordinal == item.ordinal)?.digest;
            assert_eq!(item.digest, stored.map(|digest| key.seal(digest)), "the digest is sealed");
            stored
        };
        let mut found = Vec::with_capacity(items.len());
        for item in items {
            let digest = digest(&item);
            found.push(words::item(item, digest));
        }
        Ok(found)
    }
}

/// Which letters are meant. An empty query is meant where one is given.
fn selection(selection: &Selection) -> api::Selection {
    match selection {
        Selection::Query(query) => {
            api::Selection { query: Some(query.text().to_owned()), ids: None, all: query.is_everything() }
        }
        Selection::Letters(letters) => api::Selection {
            query: None,
            ids: Some(letters.iter().map(|(_, id)| id.to_string()).collect()),
            all: false,
        },
    }
}
