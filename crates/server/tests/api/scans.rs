//! Reads that may examine many letters: one token does not take them from others, and none takes the rest of the API.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::request::Builder;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use lazaret_api::Scope;
use lazaret_core::QueueName;
use lazaret_core::query::Query;
use lazaret_core::store::{Counts, GroupsPage, GroupsRequest, Matches, QueueSummary, Result, Triage};
use lazaret_memory::MemoryStore;
use lazaret_server::{Limits, Options, Server, Token, Tokens};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::support::{secret, token};

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);

/// A store whose searches end when the test lets them. Lists of groups begin, and end.
struct Gated {
    inner: MemoryStore,
    /// Gets the text of each search that has begun.
    begun: mpsc::UnboundedSender<String>,
    /// One permit for each search that may end.
    gate: Arc<Semaphore>,
}

lazaret_core::forward_store! {
    impl LetterStore for Gated {}
    impl Operations for Gated {}
    impl Triage for Gated {
        count => Self::gated_count;
        groups => Self::told_groups;
    }
    impl Audit for Gated {}

    inner: |this| &this.inner;
    around: |_this, _call, run| run.await;
}

impl Gated {
    async fn gated_count(&self, query: &Query) -> Result<Matches> {
        if query.needs_scan() {
            self.begun.send(query.text().to_owned()).unwrap();
            self.gate.acquire().await.unwrap().forget();
        }
        self.inner.count(query).await
    }

    async fn told_groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        self.begun.send("groups".to_owned()).unwrap();
        self.inner.groups(request).await
    }
}

/// A server on such a store.
struct Bench {
    router: Router,
    begun: mpsc::UnboundedReceiver<String>,
    gate: Arc<Semaphore>,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let (begun, has_begun) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let store = Gated { inner: MemoryStore::default(), begun, gate: gate.clone() };
        let mut tokens = ["ada", "bob"].map(|name| token(name, &[Scope::Read, Scope::Triage])).to_vec();
        tokens.push(Token { consumers: vec!["shop".to_owned()], ..token("eve", &[Scope::Read]) });
        let server = Server::builder(Arc::new(store))
            .tokens(Tokens::new(tokens).unwrap())
            .options(Options { limits, ..Options::default() })
            .build();
        Self { router: server.router(), begun: has_begun, gate }
    }

    fn get(&self, who: &str, path: &str) -> impl Future<Output = Response<Body>> + Send + use<> {
        self.send(who, Request::get(path), Body::empty())
    }

    fn post(
        &self,
        who: &str,
        path: &str,
        body: &Value,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(who, request, Body::from(body.to_string()))
    }

    fn send(
        &self,
        who: &str,
        request: Builder,
        body: Body,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let request = request.header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {}", secret(who)));
        let response = self.router.clone().oneshot(request.body(body).unwrap());
        async move { response.await.unwrap() }
    }

    /// The text of the next search that begins.
    async fn next_search(&mut self) -> String {
        let begun = tokio::time::timeout(DEADLINE, self.begun.recv()).await;
        begun.expect("a search begins").unwrap()
    }
}

/// A store in which counting letters never ends.
struct Uncountable {
    inner: MemoryStore,
}

lazaret_core::forward_store! {
    impl LetterStore for Uncountable {
        counts => Self::endless_counts;
    }
    impl Operations for Uncountable {}
    impl Triage for Uncountable {
        count => Self::endless_count;
        queues => Self::endless_queues;
    }
    impl Audit for Uncountable {}

    inner: |this| &this.inner;
    around: |_this, _call, run| run.await;
}

impl Uncountable {
    async fn endless_counts(&self, _queue: &QueueName) -> Result<Counts> {
        std::future::pending().await
    }

    async fn endless_count(&self, _query: &Query) -> Result<Matches> {
        std::future::pending().await
    }

    async fn endless_queues(&self) -> Result<Vec<QueueSummary>> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_counts_no_letters() {
    let server = Server::builder(Arc::new(Uncountable { inner: MemoryStore::default() })).build();
    let request = Request::get("/readyz").header("host", "localhost").body(Body::empty()).unwrap();
    let response = server.router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
}

#[tokio::test]
async fn the_searches_of_one_token_take_no_turn_of_others_and_no_health_check() {
    let limits = Limits { scans: 3, scans_per_token: 2, scans_waiting_per_token: 4, ..Limits::default() };
    let mut bench = Bench::new(limits);
    // Two run, four wait, and there is no place for the seventh.
    let mut flood = JoinSet::new();
    for _ in 0..7 {
        flood.spawn(bench.get("ada", "/v1/letters/count?q=type:ada"));
    }
    let refused = tokio::time::timeout(DEADLINE, flood.join_next()).await;
    let refused = refused.expect("one is refused").unwrap().unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    let problem = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!(problem["code"], "LZ0214", "{problem}");
    for _ in 0..2 {
        assert_eq!(bench.next_search().await, "type:ada");
    }

    let other = tokio::spawn(bench.get("bob", "/v1/letters/count?q=type:bob"));
    assert_eq!(bench.next_search().await, "type:bob", "it does not wait behind those of ada");
    for (who, path) in [
        ("bob", "/readyz"),
        ("bob", "/healthz"),
        ("ada", "/v1/letters/count"),
        ("ada", "/v1/status"),
        ("ada", "/v1/operations"),
    ] {
        assert_eq!(bench.get(who, path).await.status().as_u16(), 200, "{who} {path}");
    }
    assert!(bench.begun.try_recv().is_err(), "two searches of ada at a time");

    bench.gate.add_permits(7);
    assert_eq!(other.await.unwrap().status().as_u16(), 200);
    while let Some(response) = flood.join_next().await {
        assert_eq!(response.unwrap().status().as_u16(), 200, "those that waited are served");
    }
}

#[tokio::test]
async fn a_caller_who_searches_once_is_next_after_one_search_of_a_flood() {
    let limits = Limits { scans: 1, scans_per_token: 1, ..Limits::default() };
    let mut bench = Bench::new(limits);
    let mut flood = JoinSet::new();
    for _ in 0..8 {
        flood.spawn(bench.get("ada", "/v1/letters/count?q=type:ada"));
    }
    assert_eq!(bench.next_search().await, "type:ada");
    let other = tokio::spawn(bench.get("bob", "/v1/letters/count?q=type:bob"));
    // The one thread of the test runs all tasks in order: now all of them wait, that of bob last.
    tokio::task::yield_now().await;
    bench.gate.add_permits(1);
    let mut before = 0;
    while bench.next_search().await != "type:bob" {
        before += 1;
        bench.gate.add_permits(1);
    }
    assert!(before <= 1, "{before} searches of ada came first");
    bench.gate.add_permits(9);
    assert_eq!(other.await.unwrap().status().as_u16(), 200);
    while let Some(response) = flood.join_next().await {
        assert_eq!(response.unwrap().status().as_u16(), 200);
    }
}

#[tokio::test]
async fn a_search_whose_client_has_gone_gives_its_turn_back() {
    let limits = Limits { scans: 1, scans_per_token: 1, ..Limits::default() };
    let mut bench = Bench::new(limits);
    let first = tokio::spawn(bench.get("ada", "/v1/letters/count?q=type:first"));
    assert_eq!(bench.next_search().await, "type:first");
    let next = tokio::spawn(bench.get("ada", "/v1/letters/count?q=type:next"));
    first.abort();
    assert_eq!(bench.next_search().await, "type:next");
    bench.gate.add_permits(1);
    assert_eq!(next.await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn a_list_of_groups_waits_for_a_turn_and_is_never_refused() {
    let limits = Limits { scans: 2, scans_per_token: 1, scans_waiting_per_token: 0, ..Limits::default() };
    let mut bench = Bench::new(limits);
    let search = tokio::spawn(bench.get("ada", "/v1/letters/count?q=type:ada"));
    assert_eq!(bench.next_search().await, "type:ada");
    let list = tokio::spawn(bench.get("ada", "/v1/groups?limit=5"));
    let other = tokio::spawn(bench.get("bob", "/v1/letters/count?q=type:bob"));
    // The one thread of the test runs all tasks in order: without a turn, the list would have begun before.
    assert_eq!(bench.next_search().await, "type:bob");
    // With a query, it is a search like every other: one that may not wait is refused.
    assert_eq!(bench.get("ada", "/v1/groups?q=reason:TIMEOUT").await.status().as_u16(), 429);
    bench.gate.add_permits(2);
    assert_eq!(bench.next_search().await, "groups");
    for response in [search, list, other] {
        assert_eq!(response.await.unwrap().status().as_u16(), 200);
    }
}

#[tokio::test]
async fn a_bulk_change_by_a_query_and_a_filtered_audit_take_a_turn() {
    let limits = Limits { scans: 2, scans_per_token: 1, scans_waiting_per_token: 0, ..Limits::default() };
    let mut bench = Bench::new(limits);
    let searches = ["ada", "eve"].map(|who| tokio::spawn(bench.get(who, "/v1/letters/count?q=type:x")));
    for _ in 0..2 {
        bench.next_search().await;
    }
    // A token whose turn is taken, and who may not wait, is refused.
    let by_query = json!({"query": "type:x", "reason": "done"});
    let by_id = json!({"ids": ["00000000-0000-8000-8000-000000000000"], "reason": "done"});
    let resolve = "/v1/letters/resolve";
    assert_eq!(bench.post("ada", resolve, &by_query).await.status().as_u16(), 429);
    assert_eq!(bench.post("ada", resolve, &by_id).await.status().as_u16(), 200, "it searches for nothing");
    let audits = ["/v1/audit", "/v1/audit?order=latest", "/v1/audit?subject=x"];
    for path in audits {
        // Those of eve, who is limited to a consumer, are filtered.
        assert_eq!(bench.get("eve", path).await.status().as_u16(), 429, "{path}");
        assert_eq!(bench.get("ada", path).await.status().as_u16(), 200, "{path}");
    }
    bench.gate.add_permits(2);
    for search in searches {
        assert_eq!(search.await.unwrap().status().as_u16(), 200);
    }
    assert_eq!(bench.post("ada", resolve, &by_query).await.status().as_u16(), 200);
    for path in audits {
        assert_eq!(bench.get("eve", path).await.status().as_u16(), 200, "{path}");
    }
}
