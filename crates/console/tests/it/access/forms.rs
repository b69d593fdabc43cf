//! Forms and headers: what other sites cannot send, and what browsers may run.

use axum::http::{Method, StatusCode};
use lazaret_api::Scope;

use crate::access::support::{Site, form, secret, token};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[tokio::test]
async fn a_form_of_another_site_is_rejected() {
    let site = Site::new(vec![token("ada", &[Scope::Admin])]);
    let browser = site.signed_in("ada").await;
    let csrf = browser.get("/console/overview").await.csrf();
    let good = form(&[("csrf", &csrf)]);
    let other = site.signed_in("ada").await.get("/console/overview").await.csrf();
    assert_ne!(csrf, other, "of another session");
    let same = ("sec-fetch-site", "same-origin");
    for (headers, body) in [
        (vec![FORM], good.clone()),
        (vec![FORM, ("sec-fetch-site", "cross-site")], good.clone()),
        (vec![FORM, ("sec-fetch-site", "same-site")], good.clone()),
        (vec![FORM, ("sec-fetch-site", "none")], good.clone()),
        (vec![FORM, ("origin", "https://evil.example")], good.clone()),
        (vec![FORM, ("origin", "null")], good.clone()),
        (vec![FORM, same, ("origin", "https://evil.example")], good.clone()),
        (vec![FORM, same], String::new()),
        (vec![FORM, same], form(&[("csrf", &other)])),
        (vec![("content-type", "text/plain"), same], "csrf".to_owned()),
        (vec![("content-type", "application/json"), same], format!("{{\"csrf\": \"{csrf}\"}}")),
    ] {
        let answer = browser.send(Method::POST, "/console/logout", &headers, body.clone()).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{headers:?} {body}: {}", answer.body);
    }
    assert_eq!(browser.get("/console/overview").await.status, StatusCode::OK, "still signed in");
    let origin = [FORM, ("origin", "http://localhost:7117")];
    let answer = browser.send(Method::POST, "/console/logout", &origin, good).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "an older browser sends the origin alone");
    assert_eq!(browser.get("/console/overview").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn forms_of_an_open_console_and_of_the_sign_in_are_protected_as_well() {
    let open = Site::new(vec![]);
    let answer = open.browser().post("/console/logout", &[]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let closed = Site::new(vec![token("ada", &[Scope::Admin])]);
    let browser = closed.browser();
    let answer = browser.post("/console/login", &[("token", &secret("ada"))]).await;
    assert_eq!((answer.status, answer.header("set-cookie")), (StatusCode::FORBIDDEN, ""));
}

#[tokio::test]
async fn a_rejected_form_answers_a_browser_with_a_page() {
    let site = Site::new(vec![token("ada", &[Scope::Admin])]);
    let browser = site.signed_in("ada").await;
    let html = [FORM, ("sec-fetch-site", "same-origin"), ("accept", "text/html,*/*;q=0.8")];
    let stale = form(&[("csrf", "of an earlier process"), ("reason", "x")]);
    for path in ["/console/logout", "/console/letters/x/reveal", "/console/none"] {
        let answer = browser.send(Method::POST, path, &html, stale.clone()).await;
        assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8", "{path}: {}", answer.body);
        assert!(answer.body.contains("<html") && answer.body.contains("LZ02"), "{path}: {}", answer.body);
        assert!(answer.header("content-security-policy").contains("style-src 'self'"), "{path}");
    }
    let unreadable = browser.send(Method::GET, "/console/admin?verify=maybe", &html, String::new()).await;
    assert_eq!(unreadable.status, StatusCode::BAD_REQUEST);
    assert_eq!(unreadable.header("content-type"), "text/html; charset=utf-8");
    // Scripts still receive a problem.
    let answer = browser.send(Method::POST, "/console/logout", &html[..2], stale).await;
    assert_eq!(answer.header("content-type"), "application/problem+json");
}

#[tokio::test]
async fn a_bearer_token_needs_no_form() {
    let site = Site::new(vec![token("ada", &[Scope::Admin])]);
    let bearer = format!("Bearer {}", secret("ada"));
    let browser = site.browser();
    let page =
        browser.send(Method::GET, "/console/overview", &[("authorization", &bearer)], String::new()).await;
    assert_eq!(page.status, StatusCode::OK);
    let headers = [FORM, ("authorization", bearer.as_str())];
    let answer = browser.send(Method::POST, "/console/logout", &headers, String::new()).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    let wrong = [("authorization", "Bearer lz_guess"), ("accept", "text/html")];
    let answer = browser.send(Method::GET, "/console/overview", &wrong, String::new()).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn every_page_has_the_headers_that_protect_it() {
    let site = Site::new(vec![token("ada", &[Scope::Admin])]);
    let browser = site.signed_in("ada").await;
    for path in
        ["/console/overview", "/console/login", "/console/groups", "/console/letters/none", "/console/admin"]
    {
        let answer = browser.get(path).await;
        let policy = answer.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{path} {part}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), value, "{path} {name}");
        }
    }
}
