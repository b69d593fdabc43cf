//! Server-sent events: delivery, resume, gaps and limits.

use std::sync::Arc;
use std::time::Duration;

use lazaret_api::Scope;
use lazaret_core::Clock;
use lazaret_core::query::Query;
use lazaret_core::store::{Action, Actor, Command, Operations, PlanRequest, RolloutPolicy, Selection};
use lazaret_server::{Limits, Token};
use lazaret_testkit::ManualClock;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::support::{Bench, Setup, secret, token};

/// One connection to the event stream.
pub(crate) struct Listener {
    response: Response,
    text: String,
}

/// One received event.
#[derive(Debug)]
pub(crate) struct Heard {
    id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Listener {
    async fn new(bench: &Bench, path: &str, last: Option<&str>) -> Self {
        let mut request = bench.client.get(format!("{}{path}", bench.base));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Self::open(request).await
    }

    /// Sends a request for a stream, and waits until it is one.
    pub(crate) async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        let mut listener = Self { response, text: String::new() };
        assert_eq!(
            listener.block().await.as_deref(),
            Some("retry: 2000"),
            "the subscription is active after this block"
        );
        listener
    }

    /// The next block; `None` at the end of the stream.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk = tokio::time::timeout(Duration::from_secs(240), self.response.chunk()).await;
            match chunk.expect("data arrives") {
                Ok(Some(chunk)) => self.text.push_str(std::str::from_utf8(&chunk).unwrap()),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next event, without comments.
    pub(crate) async fn next(&mut self, bench: &Bench) -> Heard {
        loop {
            let block = self.block().await.expect("the stream goes on");
            if block.starts_with(':') {
                continue;
            }
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let data = serde_json::from_str(&field("data: ").expect("data")).unwrap();
            bench.contract.validate_named("Event", &data);
            let event = field("event: ").expect("a name");
            assert_eq!(data["kind"], event.as_str());
            return Heard { id: field("id: "), event, data };
        }
    }

    /// The next event of this kind.
    pub(crate) async fn next_of(&mut self, bench: &Bench, kind: &str) -> Heard {
        let found = async {
            loop {
                let heard = self.next(bench).await;
                if heard.event == kind {
                    return heard;
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(240), found).await;
        found.unwrap_or_else(|_| panic!("no {kind} was heard"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_an_imported_letter_name_that_letter() {
    let from = Bench::new().await;
    from.letters(&[("a", "bad1")], 1).await;
    let lines = from.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = from.send(lines).await.expect(200).text;
    let bench = Bench::new().await;
    let import = bench.request(Method::POST, "/v1/letters/import");
    let import = import.header("content-type", "application/x-ndjson").body(export);
    assert_eq!(bench.send(import).await.expect(200).json["taken"], 1);
    let imported = bench.open_letters(1).await[0]["id"].clone();
    let mut listener = Listener::new(&bench, "/v1/events", None).await;
    let begin = json!({"action": "retry", "query": "", "all": true, "reason": "mended"});
    bench.post("/v1/operations", begin).await.expect(201);
    let failed = listener.next_of(&bench, "failed").await;
    assert_eq!(failed.data["letter"], imported, "its message has no letter of its own");
    let stored = listener.next_of(&bench, "letter-stored").await;
    assert_eq!(stored.data["letter"], imported);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_contain_no_payloads_keys_or_error_texts() {
    let bench = Bench::new().await;
    let mut listener = Listener::new(&bench, "/v1/events", None).await;
    bench.feed(&[("secret-key", "bad secret-payload")]).await;
    let failed = listener.next_of(&bench, "failed").await;
    assert_eq!(
        (&failed.data["consumer"], &failed.data["reason"]),
        (&json!("orders"), &json!("DOMAIN_INVALID"))
    );
    let stored = listener.next_of(&bench, "letter-stored").await;
    assert_eq!((&stored.data["state"], &stored.data["type"]), (&json!("dead"), &json!("OrderPlaced")));
    for data in [&failed.data, &stored.data] {
        let text = data.to_string();
        assert!(!text.contains("secret") && !text.contains("it is bad"), "{text}");
    }
    let letters = bench.open_letters(1).await;
    assert_eq!(stored.data["letter"], letters[0]["id"], "the letter can be looked at");
    let path = format!("/v1/letters/{}/park", letters[0]["id"].as_str().unwrap());
    bench.post(&path, json!({"reason": "x"})).await.expect(200);
    let changed = listener.next_of(&bench, "letter-changed").await;
    assert_eq!((&changed.data["action"], &changed.data["who"]), (&json!("park"), &json!("local")));
    bench
        .post("/v1/consumers/orders/pause", json!({"sequence": "secret-key", "reason": "why"}))
        .await
        .expect(200);
    let paused = listener.next_of(&bench, "paused").await;
    assert_eq!((&paused.data["scope"], &paused.data["why"]), (&json!("sequence"), &json!("why")));
    assert!(!paused.data.to_string().contains("secret"));
    bench
        .post("/v1/consumers/orders/resume", json!({"sequence": "secret-key", "reason": "why"}))
        .await
        .expect(200);
    bench.fix_handler();
    let begin = json!({"action": "retry", "query": "", "all": true, "reason": "mended"});
    bench.post("/v1/operations", begin).await.expect(201);
    loop {
        let told = listener.next_of(&bench, "operation").await.data["operation"].clone();
        if told["state"] == "done" {
            assert_eq!(told["ok"], 1);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_changes_are_dated_by_the_server_clock() {
    let clock = ManualClock::new();
    let bench = Bench::built(Setup::default(), |builder| builder.clock(Arc::new(clock.clone()))).await;
    let id = bench.letters(&[("a", "bad")], 1).await[0]["id"].clone();
    let mut listener = Listener::new(&bench, "/v1/events?kind=letter-changed", None).await;
    bench
        .post(&format!("/v1/letters/{}/park", id.as_str().unwrap()), json!({"reason": "x"}))
        .await
        .expect(200);
    let changed = listener.next_of(&bench, "letter-changed").await;
    assert_eq!(changed.data["at"], clock.now().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_reported_until_it_ends_however_many_follow() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad")], 1).await;
    // Before the operation begins: earlier changes are not reported, however long the requests take.
    let mut listener = Listener::new(&bench, "/v1/events?kind=operation", None).await;
    // Changed directly in the store, not over this API, so that only the watch of the store can report it.
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(3600),
        max_letters: 10,
    };
    let by = Actor::new("grace", "library", "try");
    let plan = bench.store.freeze(&request, &by).await.unwrap();
    let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::default() };
    let waiting = bench.store.begin(plan.id, &rollout, &by).await.unwrap().id;
    let mut state = async || loop {
        let told = listener.next_of(&bench, "operation").await.data["operation"].clone();
        if told["id"] == waiting.to_string() {
            return told["state"].clone();
        }
    };
    assert_eq!(state().await, "awaiting-approval");
    for _ in 0..60 {
        let nothing = json!({"action": "retry", "ids": [], "reason": "nothing"});
        assert_eq!(bench.post("/v1/operations", nothing).await.expect(201).json["state"], "done");
    }
    let other = Actor::new("ada", "library", "no");
    bench.store.command(waiting, Command::Reject, &other).await.unwrap();
    assert_eq!(state().await, "rejected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_client_receives_each_missed_event_once() {
    let bench = Bench::new().await;
    let only_stored = "/v1/events?kind=letter-stored,poison&consumer=orders";
    let mut listener = Listener::new(&bench, only_stored, None).await;
    bench.letters(&[("a", "bad1")], 1).await;
    let first = listener.next(&bench).await;
    drop(listener);
    bench.letters(&[("b", "bad2"), ("c", "bad3")], 3).await;
    let mut back = Listener::new(&bench, only_stored, first.id.as_deref()).await;
    let (second, third) = (back.next(&bench).await, back.next(&bench).await);
    let heard = [&first, &second, &third].map(|heard| heard.data["letter"].as_str().unwrap().to_owned());
    let stored: Vec<String> =
        bench.open_letters(3).await.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(heard.iter().collect::<std::collections::BTreeSet<_>>(), stored.iter().collect());
    bench.letters(&[("d", "bad4")], 4).await;
    assert_eq!(back.next(&bench).await.event, "letter-stored");
    // Clients that cannot set headers use the query parameter.
    let address = format!("{only_stored}&last-event-id={}", third.id.unwrap());
    let mut again = Listener::new(&bench, &address, None).await;
    assert!(!heard.contains(&again.next(&bench).await.data["letter"].as_str().unwrap().to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_reported() {
    // I7
    let bench = Bench::with(Setup::limits(Limits { events: 4, ..Limits::default() })).await;
    let mut listener = Listener::new(&bench, "/v1/events", None).await;
    bench.letters(&[("a", "bad1")], 1).await;
    let first = listener.next(&bench).await;
    drop(listener);
    let more: Vec<(String, String)> = (0..10).map(|n| (format!("k{n}"), format!("bad{n}"))).collect();
    let more: Vec<(&str, &str)> =
        more.iter().map(|(key, payload)| (key.as_str(), payload.as_str())).collect();
    bench.letters(&more, 11).await;
    for last in [first.id.as_deref(), Some("0-1"), Some("nonsense")] {
        let mut back = Listener::new(&bench, "/v1/events?kind=poison", last).await;
        assert_eq!(back.next(&bench).await.event, "reset", "{last:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_client_is_disconnected_and_the_others_go_on() {
    // I7
    let bench = Bench::new().await;
    let mut deaf = Listener::new(&bench, "/v1/events", None).await;
    // More than fits into the channel and the connection buffers.
    for _ in 0..60_000 {
        bench.registry.failed("flapping", "x".repeat(200));
    }
    let mut heard = 0;
    while deaf.block().await.is_some() {
        heard += 1;
    }
    assert!(heard < 60_000, "{heard}: it has lost something, so it must come back");
    let mut other = Listener::new(&bench, "/v1/events", None).await;
    bench.registry.stopped("flapping");
    assert_eq!(other.next(&bench).await.data["consumer-state"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_send_keep_alives_are_limited_and_end_with_the_server() {
    let limits = Limits { heartbeat: Duration::from_millis(20), streams: 1, ..Limits::default() };
    let mut bench = Bench::with(Setup::limits(limits)).await;
    let mut listener = Listener::new(&bench, "/v1/events?kind=poison", None).await;
    assert_eq!(listener.block().await.as_deref(), Some(": still here"));
    let second = bench.get("/v1/events").await.problem(429, "LZ0214");
    assert_eq!(second.header("retry-after"), Some("5"));
    bench.stop().await;
    while listener.block().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_expires() {
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1500);
    let short = Token { expires_at: Some(end), ..token("short", &[Scope::Read]) };
    let bench = Bench::with(Setup { tokens: vec![short], ..Setup::default() }).await;
    let request = bench.client.get(format!("{}/v1/events", bench.base)).bearer_auth(secret("short"));
    let response = request.send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let ended = tokio::time::timeout(Duration::from_secs(240), response.text()).await;
    assert!(ended.is_ok(), "it ends although nothing happens");
    assert!(jiff::Timestamp::now() >= end);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_events_are_those_that_the_token_may_see() {
    let limited = |name: &str, consumer: &str| Token {
        consumers: vec![consumer.to_owned()],
        ..token(name, &[Scope::Read])
    };
    let tokens = vec![token("all", &[Scope::Read]), limited("shop", "shop"), limited("mail", "mail")];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let mut listeners = Vec::new();
    for name in ["all", "shop", "mail"] {
        let path = "/v1/events?latest=true&kind=consumer";
        let request = bench.client.get(format!("{}{path}", bench.base)).bearer_auth(secret(name));
        listeners.push((name, Listener::open(request).await));
    }
    for why in ["first", "second"] {
        bench.registry.failed("mail", why);
        bench.registry.failed("shop", why);
    }
    // The first look may come between two of the events; the latest of each consumer is the last that is told.
    for (name, listener) in &mut listeners {
        let mut told = std::collections::BTreeMap::new();
        let wanted = if *name == "all" { vec!["shop", "mail"] } else { vec![*name] };
        while wanted.iter().any(|consumer| told.get(*consumer) != Some(&json!("second"))) {
            let heard = listener.next(&bench).await;
            let consumer = heard.data["consumer"].as_str().unwrap().to_owned();
            assert!(*name == "all" || consumer == *name, "{name} was told of {consumer}");
            told.insert(consumer, heard.data["why"].clone());
        }
    }
}
