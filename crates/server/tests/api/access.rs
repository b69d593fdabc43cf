//! Access control: closed by default, scopes, token expiry, host names and origins.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use jiff::Timestamp;
use lazaret_api::Scope;
use lazaret_core::store::{Instance, Instances};
use lazaret_core::{Clock, Partition};
use lazaret_memory::MemoryStore;
use lazaret_server::{Error, Options, Peer, Server, StoreNotice, Token, Tokens, Transport};
use lazaret_testkit::ManualClock;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{Bench, ORDERS, Setup, encoded, eventually, secret, token, with_json};

/// One token per scope, with the name of the scope.
fn one_each() -> Setup {
    let tokens = Scope::ALL.iter().map(|scope| token(scope.as_str(), &[*scope])).collect();
    Setup { tokens, ..Setup::default() }
}

/// Sends a harmless request to a route, with or without a token.
async fn ask(
    bench: &Bench,
    method: &Method,
    template: &str,
    operation: &Value,
    name: Option<&str>,
) -> (u16, String) {
    let nobody = "00000000-0000-8000-8000-000000000000";
    let path = template.replace("{id}", nobody).replace("{name}", "nobody").replace("{consumer}", "nobody");
    let mut request = bench.request(method.clone(), &path);
    if let Some(name) = name {
        request = request.bearer_auth(secret(name));
    }
    if !operation["requestBody"].is_null() {
        request = with_json(request, &json!("nonsense"));
    }
    if template == "/v1/events" {
        // The stream never ends.
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = if status == 200 { String::new() } else { answer.text().await.unwrap() };
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        return (status, problem["code"].as_str().unwrap_or_default().to_owned());
    }
    let answer = bench.send(request).await;
    (answer.status, answer.code().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_enforces_the_documented_scopes() {
    let bench = Bench::with(one_each()).await;
    let open = ["/healthz", "/readyz"];
    for (method, template, operation) in bench.contract.operations() {
        let shown = format!("{method} {template}");
        let (status, code) = ask(&bench, &method, &template, &operation, None).await;
        let security = &operation["security"];
        if open.contains(&template.as_str()) {
            assert!(security.is_null() && status == 200, "{shown}");
            continue;
        }
        assert_eq!(status, 401, "{shown} is served without a token: {code}");
        let needed = security[0]["token"].as_array().unwrap_or_else(|| panic!("{shown} names no permission"));
        for scope in Scope::ALL {
            let (status, code) = ask(&bench, &method, &template, &operation, Some(scope.as_str())).await;
            let may = needed.is_empty() || needed.contains(&json!(scope.as_str())) || scope == Scope::Admin;
            assert_ne!(status, 401, "{shown} does not know the token {scope}");
            assert_eq!(status == 403 && code == "LZ0207", !may, "{shown} with {scope}: {status} {code}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_expired_tokens_are_rejected() {
    let ended = Token { expires_at: Some(Timestamp::now()), ..token("ended", &[Scope::Admin]) };
    let coming = Token {
        expires_at: Some("2999-01-01T00:00:00Z".parse().unwrap()),
        ..token("coming", &[Scope::Read])
    };
    let bench = Bench::with(Setup { tokens: vec![ended, coming], ..Setup::default() }).await;
    let with = |secret: &str| bench.request(Method::GET, "/v1/whoami").bearer_auth(secret);
    let refused = bench.send(with("lz_guess")).await.problem(401, "LZ0205");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"lazaret\""));
    bench.send(with("")).await.problem(401, "LZ0205");
    bench.send(with(&secret("ended"))).await.problem(401, "LZ0206");
    let basic = bench.request(Method::GET, "/v1/whoami").basic_auth("coming", Some(secret("coming")));
    bench.send(basic).await.problem(401, "LZ0205");
    let twice = with(&secret("coming")).header("authorization", "Bearer other");
    bench.send(twice).await.problem(401, "LZ0205");
    let known = bench.send(with(&secret("coming"))).await.expect(200);
    assert_eq!((&known.json["name"], &known.json["authenticated"]), (&json!("coming"), &json!(true)));
    // A claimed name is ignored where tokens are configured.
    let claimed = with(&secret("coming")).header("lazaret-actor", "somebody-else");
    assert_eq!(bench.send(claimed).await.json["name"], "coming");
}

/// Starts an export of more than one page. Returns its body after the first page.
async fn export(bench: &Bench, name: &str) -> axum::body::Body {
    let request = axum::http::Request::get("/v1/letters?view=full")
        .header("host", "localhost")
        .header("accept", "application/x-ndjson")
        .header("authorization", format!("Bearer {}", secret(name)))
        .body(axum::body::Body::empty())
        .unwrap();
    let response = bench.server.router().oneshot(request).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let mut body = response.into_body();
    assert!(matches!(body.frame().await, Some(Ok(_))), "the first page");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_ends_when_its_token_is_revoked_or_expires() {
    let clock = ManualClock::default();
    let end = clock.now() + jiff::SignedDuration::from_secs(60);
    let scopes = [Scope::Read, Scope::Payload, Scope::Ingest];
    let (ada, bob) = (token("ada", &scopes), Token { expires_at: Some(end), ..token("bob", &scopes) });
    let setup = Setup { tokens: vec![ada.clone(), bob.clone()], ..Setup::default() };
    let bench = Bench::built(setup, |builder| builder.clock(Arc::new(clock.clone()))).await;
    let lines: Vec<String> =
        (0..20).map(|n| json!({"key": format!("k{n}"), "payload": format!("bad{n}")}).to_string()).collect();
    let post = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret("ada"));
    bench.send(post.body(lines.join("\n"))).await.expect(202);
    eventually("20 letters", || async {
        let count = bench.request(Method::GET, "/v1/letters/count").bearer_auth(secret("ada"));
        bench.send(count).await.json["letters"] == 20
    })
    .await;
    let (mut of_ada, mut of_bob, mut expiring) =
        (export(&bench, "ada").await, export(&bench, "bob").await, export(&bench, "bob").await);
    clock.set(end);
    assert!(matches!(expiring.frame().await, Some(Err(_))), "expired");
    assert!(bench.server.set_tokens(Tokens::new(vec![ada]).unwrap()).unwrap());
    assert!(matches!(of_bob.frame().await, Some(Err(_))), "revoked");
    assert!(matches!(of_ada.frame().await, Some(Ok(_))), "its token is unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_non_loopback_address_needs_tokens() {
    let store = Arc::new(MemoryStore::default());
    let everywhere = || async { TcpListener::bind("0.0.0.0:0").await.unwrap() };
    let stop = CancellationToken::new();
    stop.cancel();
    let open = Server::builder(store.clone()).build();
    let refused = open.serve(everywhere().await, stop.clone()).await.unwrap_err();
    assert!(matches!(refused, Error::OpenToTheWorld { .. }), "{refused}");
    assert!(refused.to_string().starts_with("LZ0240: 0.0.0.0:"), "{refused}");
    let tokens = Tokens::new(vec![token("ada", &[Scope::Read])]).unwrap();
    Server::builder(store).tokens(tokens).build().serve(everywhere().await, stop).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_cross_site_requests_are_rejected() {
    let bench = Bench::new().await;
    let host = |host: &str| bench.request(Method::GET, "/v1/status").header("host", host);
    bench.send(host("evil.example:7117")).await.problem(421, "LZ0208");
    bench.send(host("localhost:7117")).await.expect(200);
    let pause = |name: &'static str, value: &'static str| {
        let request = bench.request(Method::POST, "/v1/consumers/orders/pause").header(name, value);
        with_json(request, &json!({"replay": true, "reason": "csrf"}))
    };
    bench.send(pause("origin", "https://evil.example")).await.problem(403, "LZ0209");
    bench.send(pause("sec-fetch-site", "cross-site")).await.problem(403, "LZ0209");
    assert!(bench.handle.pauses().is_empty());
    // No CORS header lets another site read either.
    let answer =
        bench.send(bench.request(Method::GET, "/v1/status").header("origin", "https://evil.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let preflight = bench
        .send(bench.request(Method::OPTIONS, "/v1/status").header("origin", "https://evil.example"))
        .await;
    assert!(preflight.status >= 400 && preflight.header("access-control-allow-origin").is_none());
    let named = Setup {
        options: Options { hosts: vec!["lazaret.example".into()], ..Options::default() },
        ..Setup::default()
    };
    let named = Bench::with(named).await;
    let host = |host: &str| named.request(Method::GET, "/v1/status").header("host", host);
    named.send(host("lazaret.example")).await.expect(200);
    named.send(host("evil.example")).await.problem(421, "LZ0208");
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_and_headers_need_the_payload_scope() {
    let tokens = vec![
        token("reader", &[Scope::Read]),
        token("seer", &[Scope::Read, Scope::Payload]),
        token("admin", &[Scope::Admin]),
    ];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let line = r#"{"id":"x","key":"k","headers":{"tenant":"acme-secret"},"payload":{"bad":"card-secret"}}"#;
    let post = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret("admin"));
    bench.send(post.header("content-type", "application/x-ndjson").body(line)).await.expect(202);
    let get = |name: &str, path: &str| bench.request(Method::GET, path).bearer_auth(secret(name));
    eventually("the letter is there", || async {
        bench.send(get("reader", "/v1/letters/count")).await.json["letters"] == 1
    })
    .await;
    let list = bench.send(get("reader", "/v1/letters")).await.expect(200);
    let id = list.json["letters"][0]["id"].as_str().unwrap().to_owned();
    let export = "/v1/letters?view=full";
    for (name, sees) in [("reader", false), ("seer", true)] {
        let one = bench.send(get(name, &format!("/v1/letters/{id}"))).await.expect(200);
        let all = bench.send(get(name, export).header("accept", "application/x-ndjson")).await.expect(200);
        for text in [&one.text, &all.text] {
            assert_eq!(text.contains("card-secret") && text.contains("acme-secret"), sees, "{name}: {text}");
            assert!(sees || !text.contains("-secret"), "{name}: {text}");
        }
        let bytes = bench.send(get(name, &format!("/v1/letters/{id}/payload"))).await;
        assert_eq!(bytes.status, if sees { 200 } else { 403 });
        // Queries must not reveal them either.
        for query in ["payload./bad:card-secret", "header.tenant:acme*", "-payload./x:1"] {
            let answer = bench.send(get(name, &format!("/v1/letters/count?q={}", encoded(query)))).await;
            assert_eq!(answer.status, if sees { 200 } else { 403 }, "{name} {query}");
        }
    }
    let plan = bench.request(Method::POST, "/v1/plans").bearer_auth(secret("reader"));
    bench.send(with_json(plan, &json!({"action": "retry", "query": "x"}))).await.problem(403, "LZ0207");
}

#[tokio::test(flavor = "multi_thread")]
async fn triage_does_not_grant_evict_and_evict_does_not_grant_replay() {
    let tokens = vec![
        token("carer", &[Scope::Read, Scope::Triage]),
        token("cleaner", &[Scope::Read, Scope::Evict]),
        token("admin", &[Scope::Admin]),
    ];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let ask = |name: &str, path: &str, body: Value| {
        with_json(bench.request(Method::POST, path).bearer_auth(secret(name)), &body)
    };
    for (name, action, status) in [
        ("carer", "retry", 201),
        ("carer", "evict", 403),
        ("cleaner", "evict", 201),
        ("cleaner", "release", 403),
    ] {
        let body = json!({"action": action, "query": "", "all": true});
        let answer = bench.send(ask(name, "/v1/plans", body.clone())).await;
        assert_eq!(answer.status, status, "{name} {action}");
        if status == 201 {
            // A plan of one caller does not extend the scopes of another.
            let other = if name == "carer" { "cleaner" } else { "carer" };
            let begin = json!({"plan": answer.json["id"], "reason": "test"});
            bench.send(ask(other, "/v1/operations", begin)).await.problem(403, "LZ0207");
        }
    }
    // The audit records the name of the token and the client.
    let pause = ask("admin", "/v1/consumers/orders/pause", json!({"reason": "deployment"}))
        .header("lazaret-via", "cli");
    bench.send(pause).await.expect(200);
    let audit =
        bench.send(bench.request(Method::GET, "/v1/audit").bearer_auth(secret("admin"))).await.expect(200);
    let last = audit.json["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["who"], &last["via"], &last["why"]),
        (&json!("admin"), &json!("cli"), &json!("deployment"))
    );
    assert_eq!(last["action"], "pause");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_consumer_sees_and_changes_nothing_of_another() {
    let limited = |name: &str, consumer: &str| Token {
        consumers: vec![consumer.to_owned()],
        ..token(name, &[Scope::Admin])
    };
    let tokens = vec![token("admin", &[Scope::Admin]), limited("own", ORDERS), limited("other", "billing")];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let ask = |name: &str, method: Method, path: &str, body: Option<Value>| {
        let request = bench.request(method, path).bearer_auth(secret(name));
        match body {
            Some(body) => with_json(request, &body),
            None => request,
        }
    };
    let get = |name: &str, path: &str| ask(name, Method::GET, path, None);
    bench.send(ask("own", Method::POST, "/v1/inbox/orders", Some(json!("bad")))).await.expect(202);
    bench
        .send(ask("other", Method::POST, "/v1/inbox/orders", Some(json!("bad"))))
        .await
        .problem(403, "LZ0207");
    eventually("the letter is there", || async {
        bench.send(get("own", "/v1/letters/count")).await.json["letters"] == 1
    })
    .await;
    let id =
        bench.send(get("own", "/v1/letters")).await.json["letters"][0]["id"].as_str().unwrap().to_owned();
    let plan = json!({"action": "retry", "ids": [id]});
    let plan = bench.send(ask("own", Method::POST, "/v1/plans", Some(plan.clone()))).await.expect(201).json;
    assert_eq!(plan["letters"], 1);
    let plan = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
    for (path, status) in [
        ("/v1/letters/count".to_owned(), 200),
        (format!("/v1/letters/{id}"), 404),
        (format!("/v1/letters/{id}/payload"), 404),
        ("/v1/sequences?queue=orders%2Forders&sequence=x".to_owned(), 403),
        ("/v1/consumers/orders".to_owned(), 403),
        ("/v1/inbox/orders".to_owned(), 403),
        (plan.clone(), 404),
        (format!("{plan}/items"), 404),
        ("/v1/audit".to_owned(), 200),
        ("/v1/audit/verify".to_owned(), 403),
        ("/metrics".to_owned(), 403),
        ("/v1/operations".to_owned(), 200),
    ] {
        let answer = bench.send(get("other", &path)).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        assert!(!answer.text.contains(ORDERS) || status == 403, "{path}: {}", answer.text);
    }
    let instance = Instance {
        name: "host-7".to_owned(),
        version: "1.2.3".to_owned(),
        started_at: Timestamp::UNIX_EPOCH,
        consumers: [(ORDERS.into(), vec![Partition::new("topic", 3)])].into(),
    };
    bench.store.report(&instance, Duration::from_secs(3600)).await.unwrap();
    let listed = bench.send(get("admin", "/v1/instances")).await.expect(200).json["instances"][0].clone();
    let partition = json!({"consumer": ORDERS, "stream": "topic", "partition": 3});
    assert_eq!((&listed["instance"], &listed["version"]), (&json!("host-7"), &json!("1.2.3")));
    assert_eq!((&listed["consumers"], &listed["partitions"]), (&json!([ORDERS]), &json!([partition])));
    assert!(listed["last-seen"].is_string(), "{listed}");
    for (path, field) in [
        ("/v1/letters", "letters"),
        ("/v1/groups", "groups"),
        ("/v1/status", "consumers"),
        ("/v1/status", "instances"),
        ("/v1/instances", "instances"),
    ] {
        assert_eq!(bench.send(get("other", path)).await.expect(200).json[field], json!([]), "{path}");
        assert_ne!(bench.send(get("own", path)).await.expect(200).json[field], json!([]), "{path}");
    }
    for body in
        [json!({"action": "retry", "ids": [id]}), json!({"action": "evict", "query": "", "all": true})]
    {
        let plan = bench.send(ask("other", Method::POST, "/v1/plans", Some(body))).await.expect(201);
        assert_eq!(plan.json["letters"], 0, "{}", plan.text);
    }
    let reason = || Some(json!({"reason": "x"}));
    let evict = format!("/v1/letters/{id}/evict");
    bench.send(ask("other", Method::POST, &evict, reason())).await.problem(404, "LZ0203");
    bench
        .send(ask("other", Method::POST, "/v1/consumers/orders/pause", reason()))
        .await
        .problem(403, "LZ0207");
    bench.send(ask("own", Method::POST, &evict, reason())).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_the_caller_claims_a_name_except_the_reserved_one() {
    let bench = Bench::new().await;
    let who = |name: &str| bench.request(Method::GET, "/v1/whoami").header("lazaret-actor", name);
    assert_eq!(bench.send(who("ada")).await.json["name"], "ada");
    for wrong in ["lazaret", "", " ", &"x".repeat(200)] {
        let answer = bench.send(who(wrong)).await.expect(200);
        assert_eq!(
            (&answer.json["name"], &answer.json["authenticated"]),
            (&json!("local"), &json!(false)),
            "{wrong}"
        );
    }
    // An unknown client is recorded as `api`.
    let pause =
        bench.request(Method::POST, &format!("/v1/consumers/{ORDERS}/pause")).header("lazaret-via", "engine");
    let pause = bench.send(with_json(pause, &json!({"replay": true, "reason": "x"}))).await.expect(200);
    assert_eq!((&pause.json["via"], &pause.json["who"]), (&json!("api"), &json!("local")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_the_person_and_the_token() {
    let of_ada = Token { person: Some("ada".into()), ..token("ada-2027", &[Scope::Pause, Scope::Read]) };
    let bob = token("bob", &[Scope::Pause]);
    let bench = Bench::with(Setup { tokens: vec![of_ada, bob], ..Setup::default() }).await;
    for (name, claim) in [("ada-2027", "ada@laptop"), ("bob", "bob"), ("bob", "lazaret")] {
        let pause = bench.request(Method::POST, &format!("/v1/consumers/{ORDERS}/pause"));
        let pause =
            pause.bearer_auth(secret(name)).header("lazaret-via", "cli").header("lazaret-actor", claim);
        bench.send(with_json(pause, &json!({"replay": true, "reason": "x"}))).await.expect(200);
    }
    let audit = bench.request(Method::GET, "/v1/audit").bearer_auth(secret("ada-2027"));
    let audit = bench.send(audit).await.expect(200);
    let by = |entry: &Value| (entry["who"].clone(), entry["via"].clone());
    let found: Vec<_> = audit.json["entries"].as_array().unwrap().iter().map(by).collect();
    // The claim stands beside the person, and nobody can claim to be the engine.
    let bob = (json!("bob"), json!("cli"));
    assert_eq!(found, [(json!("ada"), json!("cli:ada-2027 from ada@laptop")), bob.clone(), bob]);
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_reasons_need_the_read_scope() {
    let bench =
        Bench::with(Setup { tokens: vec![token("reader", &[Scope::Read])], ..Setup::default() }).await;
    bench.get("/readyz").await.expect(200);
    bench.registry.failed("billing", "the topic is gone");
    let blind = bench.get("/readyz").await.expect(503);
    assert_eq!((&blind.json["ready"], &blind.json["reasons"]), (&json!(false), &json!([])));
    let told =
        bench.send(bench.request(Method::GET, "/readyz").bearer_auth(secret("reader"))).await.expect(503);
    assert_eq!(told.json["reasons"], json!(["billing has failed: the topic is gone"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_reasons_of_other_consumers_are_hidden_from_a_limited_token() {
    let limited = Token { consumers: vec![ORDERS.to_owned()], ..token("limited", &[Scope::Read]) };
    let bench = Bench::with(Setup { tokens: vec![limited], ..Setup::default() }).await;
    let ask = || bench.send(bench.request(Method::GET, "/readyz").bearer_auth(secret("limited")));
    bench.registry.failed("billing", "the topic is gone");
    let told = ask().await.expect(503);
    assert_eq!((&told.json["ready"], &told.json["reasons"]), (&json!(false), &json!([])), "{}", told.text);
    bench.registry.failed(ORDERS, "its own topic is gone");
    let told = ask().await.expect(503);
    assert_eq!(told.json["reasons"], json!(["orders has failed: its own topic is gone"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_cannot_be_decrypted_are_in_the_status_and_missing_keys_make_it_not_ready() {
    let bench = Bench::with(Setup::default()).await;
    bench.get("/readyz").await.expect(200);
    for (is_ready, status) in [(true, 200), (false, 503)] {
        bench.registry.store_notice(move |consumer| {
            (consumer == ORDERS).then(|| StoreNotice { why: "no key".to_owned(), is_ready })
        });
        let told = bench.get("/readyz").await.expect(status);
        let reasons = if is_ready { json!([]) } else { json!(["orders is held: no key"]) };
        assert_eq!((&told.json["ready"], &told.json["reasons"]), (&json!(is_ready), &reasons));
        let shown = bench.get("/v1/consumers/orders").await.expect(200);
        assert_eq!(shown.json["error"], json!("no key"));
    }
}

#[tokio::test]
async fn browsers_are_told_to_use_tls_by_a_server_that_ends_it() {
    let strict_transport = Some(Duration::from_secs(3600));
    let header = async |options: Options, transport: Transport, host: &str| {
        let server = Server::builder(Arc::new(MemoryStore::default())).options(options).build();
        let request = axum::http::Request::get("/healthz").header("host", host);
        let request = request.extension(Peer { address: None, transport });
        let response =
            server.router().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        let header = response.headers().get("strict-transport-security");
        header.map(|header| header.to_str().unwrap().to_owned())
    };
    let hosts = vec!["lazaret.example.com".to_owned()];
    let options = Options { strict_transport, hosts, ..Options::default() };
    let host = "lazaret.example.com:7117";
    assert_eq!(header(options.clone(), Transport::Tls, host).await.as_deref(), Some("max-age=3600"));
    assert_eq!(header(options.clone(), Transport::Tcp, host).await, None, "a proxy that ends TLS tells them");
    for local in ["localhost:7117", "127.0.0.1", "[::1]:7117"] {
        assert_eq!(header(options.clone(), Transport::Tls, local).await, None, "{local} has other programs");
    }
    let off = Options { strict_transport: None, ..options };
    assert_eq!(header(off, Transport::Tls, host).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_router_works_with_any_store_and_stops() {
    let store = Arc::new(MemoryStore::default());
    let server = Server::builder(store).build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let serving =
        axum::serve(listener, server.router()).with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(serving.into_future());
    let client = crate::support::http_client();
    let get = |path: &str| client.get(format!("{base}{path}")).send();
    let status: Value =
        serde_json::from_str(&get("/v1/status").await.unwrap().text().await.unwrap()).unwrap();
    assert_eq!((&status["consumers"], &status["operations"]), (&json!([]), &json!([])));
    assert_eq!(status["store"]["durable"], json!(false));
    // Parts that were not configured are reported as unsupported.
    for path in ["/metrics", "/v1/audit/verify"] {
        let answer = get(path).await.unwrap();
        assert_eq!(answer.status().as_u16(), 501, "{path}");
        assert!(answer.text().await.unwrap().contains("LZ0228"), "{path}");
    }
    let events = get("/v1/events").await.unwrap();
    server.stop();
    events.text().await.expect("the stream has ended");
    let late = get("/v1/status").await.unwrap();
    assert_eq!((late.status().as_u16(), late.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    assert!(late.text().await.unwrap().contains("LZ0230"));
    assert_eq!(get("/healthz").await.unwrap().status().as_u16(), 200);
    stop.cancel();
    drop(client);
    tokio::time::timeout(Duration::from_secs(240), serving).await.expect("it ends").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_see_tokens_without_secrets_and_the_masked_configuration() {
    let ended = Token {
        expires_at: Some(Timestamp::now()),
        person: Some("ada".to_owned()),
        consumers: vec![ORDERS.to_owned()],
        ..token("ada-2025", &[Scope::Read, Scope::Payload])
    };
    let tokens = vec![ended, token("root", &[Scope::Admin])];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let asked = async |path: &str| {
        bench.send(bench.request(Method::GET, path).bearer_auth(secret("root"))).await.expect(200)
    };
    let listed = asked("/v1/tokens").await;
    let first = &listed.json["tokens"][0];
    assert_eq!((&first["name"], &first["person"]), (&json!("ada-2025"), &json!("ada")));
    assert_eq!((&first["scopes"], &first["consumers"]), (&json!(["read", "payload"]), &json!([ORDERS])));
    assert_eq!((&first["expired"], &listed.json["tokens"][1]["expired"]), (&json!(true), &json!(false)));
    for secret in [secret("root"), secret("ada-2025")] {
        let hash = lazaret_server::TokenHash::of(&secret).to_string();
        assert!(!listed.text.contains(&secret) && !listed.text.contains(&hash[7..]), "{}", listed.text);
    }
    assert_eq!(asked("/v1/config").await.json, json!({"general": null, "consumers": []}));
    let grouping = lazaret_api::GroupingRules::from(&lazaret_core::Grouping::default());
    let consumer =
        lazaret_api::ConsumerConfig { name: ORDERS.to_owned(), text: "orders:\n".to_owned(), grouping };
    let general = Some("listen: '127.0.0.1:7117'\n".to_owned());
    bench.server.set_config(lazaret_api::EffectiveConfig { general, consumers: vec![consumer] });
    let shown = asked("/v1/config").await;
    let consumer = &shown.json["consumers"][0];
    assert_eq!(consumer["name"], ORDERS);
    let by = json!(["error-type", "message", "cause", "backtrace"]);
    assert_eq!(consumer["grouping"], json!({"by": by, "replace": []}));
}
