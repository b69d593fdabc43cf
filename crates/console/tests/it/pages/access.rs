//! Rights: every page is closed without a token, and every change without its right.

use lazaret_api::Scope;
use lazaret_console::{Kind, routes};
use lazaret_server::{Approval, Token};
use reqwest::Method;

use crate::pages::support::{Bench, bad, id, secret, token};

/// Returns a path of a route, with ids that do not exist.
fn example(path: &str) -> String {
    let nobody = "00000000-0000-8000-8000-000000000000";
    path.replace("{id}", nobody)
        .replace("{command}", "cancel")
        .replace("{name}", "nobody")
        .replace("{file}", "none")
        .replace("{*path}", "nothing")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_needs_a_token_and_every_change_its_right() {
    let tokens = Scope::ALL.iter().map(|scope| token(scope.as_str(), &[*scope])).collect();
    let bench = Bench::with(tokens, Approval::None).await;
    assert!(routes().len() > 20);
    for route in routes() {
        let path = example(route.path);
        match route.kind {
            Kind::Public => {
                let answer = bench.get(&path).await;
                assert!([200, 303, 404, 405].contains(&answer.status), "{path}: {}", answer.status);
            }
            Kind::Read => {
                let refused = bench.get(&path).await.expect(401);
                refused.shows("LZ0205").lacks("class=\"sidebar\"");
                if path == "/console/events" {
                    continue;
                }
                let allowed = bench.get_as(Some("read"), &path).await;
                assert!([200, 403, 404].contains(&allowed.status), "{path}: {}", allowed.status);
            }
            Kind::Change => {
                bench.post(&path, &[("reason", "x")]).await.expect(401).shows("LZ0205");
                let fields = [
                    ("reason", "x"),
                    ("action", "retry"),
                    ("query", "state:dead"),
                    ("text", "x"),
                    ("payload", "x"),
                ];
                let refused = bench.post_as(Some("read"), &path, &fields).await;
                // Something that does not exist cannot be changed. The response may be the same as for a
                // missing right.
                assert!([403, 404].contains(&refused.status), "{path}: {} {}", refused.status, refused.text);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_disabled_actions_with_the_missing_right() {
    let tokens = vec![token("reader", &[Scope::Read]), token("all", &[Scope::Admin])];
    let bench = Bench::with(tokens, Approval::None).await;
    let letters = bench.letters(Some("all"), &[bad("a", "1")], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    let page = bench.get_as(Some("reader"), &path).await.expect(200);
    page.shows("needs the right triage").shows("needs the right evict");
    page.shows("Payload and headers are hidden").lacks("acme");
    for (path, fields) in [
        ("/console/plans".to_owned(), vec![("action", "retry"), ("id", id(&letters[0]))]),
        ("/console/plans".to_owned(), vec![("action", "evict"), ("query", "state:dead")]),
        (format!("{path}/comments"), vec![("text", "x")]),
        (format!("{path}/assignee"), vec![("name", "x")]),
        (format!("{path}/restore"), vec![("reason", "x")]),
        (format!("{path}/revert"), vec![("reason", "x")]),
        ("/console/consumers/orders/pause".to_owned(), vec![("reason", "x")]),
        ("/console/consumers/orders/resume".to_owned(), vec![("reason", "x")]),
    ] {
        let refused = bench.post_as(Some("reader"), &path, &fields).await;
        assert!(
            refused.status == 403 || (path.ends_with("/revert") && refused.status == 409),
            "{path}: {}",
            refused.status
        );
    }
    for path in [format!("{path}/download"), format!("{path}/payload")] {
        bench.get_as(Some("reader"), &path).await.expect(403).shows("LZ0207");
    }
    bench.get_as(Some("all"), &path).await.expect(200).shows("acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_another_site_is_refused() {
    let bench = Bench::new().await;
    let csrf = bench.csrf().await;
    let form = |origin: &str, csrf: &str| {
        let request = bench.request(Method::POST, "/console/plans", None).header("origin", origin.to_owned());
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("action=retry&query=state:dead&csrf={csrf}"))
    };
    bench.send(form("https://evil.example", &csrf)).await.expect(403);
    bench.send(form(&bench.base, "guessed")).await.expect(403);
    bench.send(form(&bench.base, &csrf)).await.expect(303);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_cannot_be_forged_by_headers() {
    let bench = Bench::with(vec![token("reader", &[Scope::Read])], Approval::None).await;
    let request =
        bench.request(Method::GET, "/console/admin", Some("reader")).header("lazaret-actor", "root");
    bench.send(request.header("lazaret-via", "cli")).await.expect(200).shows("reader").lacks("root");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_see_the_tokens_and_nobody_their_secrets() {
    let ada = Token { person: Some("ada".to_owned()), ..token("ada-2027", &[Scope::Read, Scope::Payload]) };
    let bench = Bench::with(vec![ada, token("root", &[Scope::Admin])], Approval::None).await;
    bench.get_as(Some("ada-2027"), "/console/admin").await.expect(200).shows("They need the right admin");
    let page = bench.get_as(Some("root"), "/console/admin").await.expect(200);
    page.shows("ada-2027").shows("read, payload").shows("never");
    for name in ["ada-2027", "root"] {
        let hash = lazaret_server::TokenHash::of(&secret(name)).to_string();
        page.lacks(&secret(name)).lacks(&hash["sha256:".len()..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_some_consumers_sees_their_operations_and_audit() {
    let limited = |name: &str, consumer: &str| Token {
        consumers: vec![consumer.to_owned()],
        ..token(name, &[Scope::Admin])
    };
    let bench =
        Bench::with(vec![limited("own", "orders"), limited("other", "billing")], Approval::None).await;
    let letter = bench.store_letter(b"bad".to_vec()).await;
    let fields = [("action", "park"), ("id", letter.as_str())];
    let plan = bench.post_as(Some("own"), "/console/plans", &fields).await.location();
    let start = [("reason", "wait for the fix")];
    let operation = bench.post_as(Some("own"), &format!("{plan}/start"), &start).await.location();
    let operation = operation.rsplit('/').next().unwrap().to_owned();
    for page in ["/console/operations", "/console/admin"] {
        bench.get_as(Some("own"), page).await.expect(200).shows(&operation).shows("wait for the fix");
        bench.get_as(Some("other"), page).await.expect(200).lacks(&operation).lacks("wait for the fix");
    }
    // The hash chain covers all consumers.
    bench.get_as(Some("own"), "/console/admin").await.expect(200).lacks("Verify the hash chain");
}
