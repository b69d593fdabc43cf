//! `docs/security.md` says who may use each route, and it is true.

use std::collections::BTreeMap;

use lazaret_api::Scope;
use lazaret_server::Token;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Bench, ORDERS, Setup, secret, token, with_json};

/// Who may use a route: its scopes, and what a token that is limited to some consumers may do with it.
type Routes = BTreeMap<String, (String, String)>;

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md")).unwrap()
}

/// The cells of a row of a table.
fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The pieces of code in a cell.
fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The table of the page. Its rows name their routes with their methods.
fn documented() -> Routes {
    let page = page();
    let is_row =
        |line: &&str| ["| `GET /", "| `POST /", "| `PUT /"].iter().any(|start| line.starts_with(start));
    let mut routes = Routes::new();
    for row in page.lines().filter(is_row) {
        let [named, scopes, limited, _] = cells(row)[..] else { panic!("four cells are expected: {row}") };
        for route in codes(named) {
            let twice = routes.insert(route.to_owned(), (scopes.to_owned(), limited.to_owned()));
            assert_eq!(twice, None, "{route} is in two rows");
        }
    }
    routes
}

/// The scopes of a route as the page writes them.
fn scopes(security: &Value) -> String {
    match security[0]["token"].as_array() {
        None => "none".to_owned(),
        Some(scopes) if scopes.is_empty() => "any token".to_owned(),
        Some(scopes) => {
            let names: Vec<String> =
                scopes.iter().map(|scope| format!("`{}`", scope.as_str().unwrap())).collect();
            names.join(" or ")
        }
    }
}

/// Returns `true` if a route is closed to a token that is limited to some consumers, of which this is one.
async fn is_closed(bench: &Bench, method: &Method, template: &str, operation: &Value) -> bool {
    let nobody = "00000000-0000-8000-8000-000000000000";
    let path = template.replace("{id}", nobody).replace("{name}", ORDERS).replace("{consumer}", ORDERS);
    let mut request = bench.request(method.clone(), &path).bearer_auth(secret("limited"));
    if !operation["requestBody"].is_null() {
        request = with_json(request, &json!("nonsense"));
    }
    // The stream of events never ends, and is not read.
    let response = request.send().await.unwrap();
    response.status().as_u16() == 403
        && response.text().await.unwrap().contains("is limited to the consumers")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_on_security_says_who_may_use_each_route() {
    let limited = Token { consumers: vec![ORDERS.to_owned()], ..token("limited", &[Scope::Admin]) };
    let bench = Bench::with(Setup { tokens: vec![limited], ..Setup::default() }).await;
    let mut served = Routes::new();
    for (method, template, operation) in bench.contract.operations() {
        let limited = match is_closed(&bench, &method, &template, &operation).await {
            true => "closed",
            false => "open",
        };
        served.insert(format!("{method} {template}"), (scopes(&operation["security"]), limited.to_owned()));
    }
    assert_eq!(documented(), served);
}

#[test]
fn the_page_on_security_explains_every_scope() {
    let page = page();
    for scope in Scope::ALL {
        let rows = page.lines().filter(|line| line.starts_with(&format!("| `{scope}` |"))).count();
        assert_eq!(rows, 1, "{scope}");
    }
}

#[test]
fn the_page_names_what_leaves_the_server_and_how_to_protect_it() {
    let page = page();
    let section = |title: &str| {
        let (_, rest) = page.split_once(&format!("\n## {title}")).expect(title);
        rest.split_once("\n## ").map_or(rest, |(section, _)| section).to_owned()
    };
    let leaves = section("What leaves the server");
    for way in ["diffs", "search hits", "dead-letter topics", "`dead-letter.collection`"] {
        assert!(leaves.contains(way), "{way} is missing");
    }
    let hardening = section("Hardening");
    for way in ["dead-letter topics", "`dead-letter.collection-uri`"] {
        assert!(hardening.contains(way), "{way} is missing");
    }
}
