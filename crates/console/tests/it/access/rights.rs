//! Rights: each page requires its own, and nobody approves their own request.

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode};
use lazaret_api::Scope;
use lazaret_console::{Kind, PageRoute, routes};
use lazaret_core::store::Audit;
use lazaret_server::Token;

use crate::access::support::{Answer, Browser, Site, secret, token};

/// Returns the name of a token with every scope except these.
fn without(scopes: &[Scope]) -> String {
    let names: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    format!("without {}", names.join(" and "))
}

/// Returns the name of a token that can read everything and has this scope.
fn with(scope: Scope) -> String {
    format!("with {scope}")
}

/// Creates a site with these tokens, as far as the pages need them.
fn site() -> Site {
    let mut tokens: BTreeMap<String, Token> = BTreeMap::new();
    for route in routes() {
        let name = without(route.scopes);
        let others: Vec<Scope> = Scope::ALL
            .into_iter()
            .filter(|scope| !route.scopes.contains(scope) && *scope != Scope::Admin)
            .collect();
        tokens.insert(name.clone(), token(&name, &others));
    }
    for scope in Scope::ALL {
        tokens.insert(with(scope), token(&with(scope), &[Scope::Read, Scope::Payload, scope]));
    }
    Site::new(tokens.into_values().collect())
}

/// Returns a path of the route, for something that does not exist.
fn path_of(route: &PageRoute) -> String {
    let id = "00000000-0000-8000-8000-000000000000";
    let mut path = route.path.replace("{command}", "approve");
    while let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
        path.replace_range(start..=end, id);
    }
    path
}

/// Opens a page, or sends its form, with a bearer token.
async fn open(browser: &Browser, route: &PageRoute, name: &str) -> Answer {
    let method = if route.kind == Kind::Change { Method::POST } else { Method::GET };
    let bearer = format!("Bearer {}", secret(name));
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
    ];
    browser.send(method, &path_of(route), &headers, String::new()).await
}

#[tokio::test]
async fn every_page_is_closed_to_strangers_and_to_those_without_its_right() {
    let site = site();
    let browser = site.browser();
    let closed: Vec<PageRoute> = routes().into_iter().filter(|route| route.kind != Kind::Public).collect();
    assert!(closed.len() > 20, "{closed:?}");
    for route in &closed {
        let shown = format!("{:?} {}", route.kind, route.path);
        assert!(!route.scopes.is_empty(), "{shown} names no right");
        let answer = match route.kind {
            Kind::Change => {
                let csrf = browser.get("/console/login").await.csrf();
                browser.post(&path_of(route), &[("csrf", &csrf)]).await
            }
            _ => browser.get(&path_of(route)).await,
        };
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{shown} is open: {}", answer.body);
        assert!(answer.location().starts_with("/console/login"), "{shown}: {}", answer.location());
        let answer = open(&browser, route, &without(route.scopes)).await;
        assert_eq!(
            answer.status,
            StatusCode::FORBIDDEN,
            "{shown} {}: {}",
            without(route.scopes),
            answer.body
        );
        if route.path == "/console/events" {
            // This is a stream, which does not end.
            continue;
        }
        for scope in route.scopes {
            let answer = open(&browser, route, &with(*scope)).await;
            let refused =
                [StatusCode::FORBIDDEN, StatusCode::UNAUTHORIZED, StatusCode::INTERNAL_SERVER_ERROR];
            // A command needs its own right.
            let may_refuse = route.scopes.len() > 1;
            assert!(
                !refused.contains(&answer.status) || (may_refuse && answer.status == StatusCode::FORBIDDEN),
                "{shown} {}: {} {}",
                with(*scope),
                answer.status,
                answer.body
            );
        }
    }
}

#[tokio::test]
async fn the_public_pages_are_files_redirects_and_the_sign_in() {
    let public: Vec<&str> =
        routes().iter().filter(|route| route.kind == Kind::Public).map(|route| route.path).collect();
    let expected = [
        "/",
        "/console",
        "/console/",
        "/console/assets/{file}",
        "/console/login",
        "/console/login/oidc",
        "/console/login/callback",
        "/console/logout",
    ];
    assert_eq!(public, expected);
}

#[tokio::test]
async fn no_page_changes_anything_by_get() {
    let site = site();
    let browser = site.browser();
    let bearer = format!("Bearer {}", secret(&with(Scope::Admin)));
    for route in routes().iter().filter(|route| route.path != "/console/events") {
        let headers = [("authorization", bearer.as_str()), ("accept", "text/html")];
        let answer = browser.send(Method::GET, &path_of(route), &headers, String::new()).await;
        assert!(answer.status.as_u16() < 500, "{}: {}", route.path, answer.status);
    }
    assert!(site.store.audit(0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn nobody_approves_their_own_operation_in_whichever_session() {
    let scopes = [Scope::Read, Scope::Triage, Scope::Approve];
    let of_ada = |name: &str| Token { person: Some("ada".to_owned()), ..token(name, &scopes) };
    let site = Site::new(vec![of_ada("ada-1"), of_ada("ada-2"), token("bob", &scopes)]);
    site.fail(2).await;
    let (first, second, bob) =
        (site.signed_in("ada-1").await, site.signed_in("ada-2").await, site.signed_in("bob").await);
    let send = async |browser: &Browser, path: &str, fields: &[(&str, &str)]| {
        let csrf = browser.get("/console/overview").await.csrf();
        browser.post(path, &[&[("csrf", csrf.as_str())], fields].concat()).await
    };
    let planned = send(&first, "/console/plans", &[("action", "retry"), ("query", "queue:orders")]).await;
    assert_eq!(planned.status, StatusCode::SEE_OTHER, "{}", planned.body);
    let start = format!("{}/start", planned.location());
    let started = send(&first, &start, &[("reason", "fixed")]).await;
    assert_eq!(started.status, StatusCode::SEE_OTHER, "{}", started.body);
    let operation = started.location().to_owned();
    let approve = format!("{operation}/approve");
    for own in [&first, &second] {
        let refused = send(own, &approve, &[("reason", "by myself")]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    }
    let approved = send(&bob, &approve, &[("reason", "looked at it")]).await;
    assert_eq!((approved.status, approved.location()), (StatusCode::SEE_OTHER, operation.as_str()));
    let entries = site.store.audit(0, 100).await.unwrap();
    let by: Vec<(&str, &str)> =
        entries.iter().map(|entry| (entry.by.who.as_str(), entry.by.via.as_str())).collect();
    assert!(by.contains(&("ada", "console:ada-1")) && by.contains(&("bob", "console")), "{by:?}");
}
