//! Sessions: how they begin, what they give access to, and how they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use jiff::SignedDuration;
use lazaret_api::Scope;
use lazaret_console::Options as ConsoleOptions;
use lazaret_core::Clock;
use lazaret_server::{Options, Peer, SessionLimits, Token, Tokens, Transport};

use crate::access::support::{Browser, Site, secret, token};

fn site() -> Site {
    Site::new(vec![token("ada", &[Scope::Admin]), token("bob", &[Scope::Read])])
}

/// Returns `true` if the browser has access to pages.
async fn is_in(browser: &Browser) -> bool {
    let answer = browser.get("/console/overview").await;
    match answer.status {
        StatusCode::OK => true,
        StatusCode::SEE_OTHER => {
            assert_eq!(answer.location(), "/console/login?next=%2Fconsole%2Foverview");
            false
        }
        status => panic!("{status} {}", answer.body),
    }
}

#[tokio::test]
async fn a_token_opens_the_pages_and_its_cookie_opens_nothing_else() {
    let site = site();
    let browser = site.browser();
    assert!(!is_in(&browser).await);
    let answer = browser.sign_in(&secret("ada")).await;
    assert_eq!((answer.status, answer.location()), (StatusCode::SEE_OTHER, "/console/overview"));
    assert!(is_in(&browser).await);
    for path in ["/v1/status", "/v1/whoami", "/v1/letters", "/metrics"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}: {}", answer.body);
    }
    assert_eq!(browser.get("/console/login").await.location(), "/console/overview", "already signed in");
}

#[tokio::test]
async fn the_cookie_is_bound_to_the_host_and_to_the_connection() {
    let site = site();
    let answer = site.browser().sign_in(&secret("ada")).await;
    let cookie = answer.header("set-cookie");
    assert!(cookie.starts_with("lazaret-session="), "{cookie}");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=43200"), "{cookie}");
    let secure = Browser {
        peer: Peer { address: Some([10, 0, 0, 9].into()), transport: Transport::Tls },
        host: "lazaret.example.com".to_owned(),
        ..site.browser()
    };
    let answer = secure.sign_in(&secret("ada")).await;
    let cookie = answer.header("set-cookie");
    assert!(cookie.starts_with("__Host-lazaret-session="), "{cookie}");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=43200; Secure"), "{cookie}");
    assert!(is_in(&secure).await);
    // The browser is on another machine without TLS, so the cookie could be read in transit.
    let plain = Browser {
        peer: Peer { address: Some([10, 0, 0, 9].into()), transport: Transport::Tcp },
        host: "lazaret.example.com".to_owned(),
        ..site.browser()
    };
    let page = plain.get("/console/login").await;
    assert!(page.body.contains("not encrypted") && !page.body.contains("name=\"token\""), "{}", page.body);
    *plain.cookies.lock().unwrap() = secure.cookies.lock().unwrap().clone();
    assert!(!is_in(&plain).await, "a cookie of TLS is not accepted without it");
}

#[tokio::test]
async fn a_session_ends_by_the_sign_out_by_idleness_and_after_its_lifetime() {
    let limits = SessionLimits {
        idle: Duration::from_secs(60),
        lifetime: Duration::from_secs(600),
        ..SessionLimits::default()
    };
    let options = Options { sessions: limits, ..Options::default() };
    let site = Site::with(vec![token("ada", &[Scope::Admin])], options, ConsoleOptions::default());
    let later = |seconds: i64| site.clock.set(site.clock.now() + SignedDuration::from_secs(seconds));
    let browser = site.signed_in("ada").await;
    let kept = browser.cookies.lock().unwrap().clone();
    let csrf = browser.get("/console/overview").await.csrf();
    let out = browser.post("/console/logout", &[("csrf", &csrf)]).await;
    assert_eq!((out.status, out.location()), (StatusCode::SEE_OTHER, "/console/login"));
    assert!(browser.cookies.lock().unwrap().is_empty(), "the browser forgets it");
    *browser.cookies.lock().unwrap() = kept;
    assert!(!is_in(&browser).await, "and so does the server");

    let browser = site.signed_in("ada").await;
    later(59);
    assert!(is_in(&browser).await);
    later(59);
    let refresh = [("sec-fetch-mode", "cors"), ("sec-fetch-site", "same-origin")];
    let answer = browser.send(Method::GET, "/console/overview", &refresh, String::new()).await;
    assert_eq!(answer.status, StatusCode::OK);
    later(1);
    assert!(!is_in(&browser).await, "what a page does on its own is no use");
    let answer = browser.send(Method::GET, "/console/overview", &refresh, String::new()).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "a script is not redirected");

    let browser = site.signed_in("ada").await;
    for _ in 0..10 {
        assert!(is_in(&browser).await);
        later(59);
    }
    assert!(is_in(&browser).await);
    later(10);
    assert!(!is_in(&browser).await, "its lifetime is over");
}

#[tokio::test]
async fn a_session_ends_when_its_token_is_removed_or_expires() {
    let clock = Site::new(vec![token("ada", &[Scope::Admin])]).clock;
    let end = clock.now() + SignedDuration::from_secs(60);
    let (ada, bob) =
        (token("ada", &[Scope::Admin]), Token { expires_at: Some(end), ..token("bob", &[Scope::Read]) });
    let site = Site::new(vec![ada.clone(), bob.clone()]);
    let (of_ada, of_bob) = (site.signed_in("ada").await, site.signed_in("bob").await);
    let removed = AtomicBool::new(false);
    let headers = [("sec-fetch-mode", "cors"), ("sec-fetch-site", "same-origin")];
    let stream = async {
        let answer = of_ada.send(Method::GET, "/console/events", &headers, String::new()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(removed.load(Ordering::SeqCst), "the stream ended before its session");
    };
    let remove = async {
        assert!(is_in(&of_ada).await && is_in(&of_bob).await);
        removed.store(true, Ordering::SeqCst);
        site.server.set_tokens(Tokens::new(vec![bob]).unwrap()).unwrap();
    };
    tokio::join!(stream, remove);
    assert!(!is_in(&of_ada).await && is_in(&of_bob).await);
    site.clock.set(end);
    assert!(!is_in(&of_bob).await);
    let late = site.browser().sign_in(&secret("bob")).await;
    assert_eq!(late.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_refused_sign_in_does_not_say_why_and_too_many_have_to_wait() {
    let end = Site::new(vec![token("ada", &[Scope::Read])]).clock.now();
    let site = Site::new(vec![
        token("ada", &[Scope::Admin]),
        Token { expires_at: Some(end), ..token("ended", &[Scope::Admin]) },
    ]);
    let browser = site.browser();
    let strip = |body: &str| body.split("name=\"csrf\"").next().unwrap().to_owned();
    let mut bodies = Vec::new();
    for wrong in ["", "ada", "lz_guess", &secret("ended"), &"x".repeat(4_000)] {
        let answer = browser.sign_in(wrong).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (StatusCode::UNAUTHORIZED, ""), "{wrong}");
        bodies.push(strip(&answer.body));
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "the same for all: {bodies:?}");
    for _ in 0..5 {
        browser.sign_in("lz_guess").await;
    }
    let answer = browser.sign_in(&secret("ada")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "even with the right one");
    assert!(answer.header("retry-after").parse::<u32>().unwrap() <= 60);
    let elsewhere = Browser {
        peer: Peer { address: Some([127, 0, 0, 2].into()), transport: Transport::Tcp },
        ..site.browser()
    };
    assert_eq!(elsewhere.sign_in(&secret("ada")).await.status, StatusCode::SEE_OTHER, "another client");
    site.clock.set(site.clock.now() + SignedDuration::from_secs(61));
    assert_eq!(browser.sign_in(&secret("ada")).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_sign_in_leads_back_to_where_it_was_asked_for_and_to_no_other_site() {
    let site = site();
    let browser = site.browser();
    let asked = browser.get("/console/groups?q=state%3Adead%20x").await;
    assert_eq!(asked.location(), "/console/login?next=%2Fconsole%2Fgroups%3Fq%3Dstate%253Adead%2520x");
    let page = browser.get(asked.location()).await;
    assert!(
        page.body.contains("name=\"next\" value=\"/console/groups?q=state%3Adead%20x\""),
        "{}",
        page.body
    );
    for (next, leads) in [
        ("/console/groups?q=a%20b", "/console/groups?q=a%20b"),
        ("https://evil.example/", "/console/overview"),
        ("//evil.example/", "/console/overview"),
        ("/\\evil.example", "/console/overview"),
        ("/console/\r\nset-cookie: a=b", "/console/overview"),
        ("javascript:alert(1)", "/console/overview"),
    ] {
        let browser = site.browser();
        let csrf = browser.get("/console/login").await.csrf();
        let token = secret("ada");
        let answer =
            browser.post("/console/login", &[("csrf", &csrf), ("token", &token), ("next", next)]).await;
        assert_eq!((answer.status, answer.location()), (StatusCode::SEE_OTHER, leads), "{next:?}");
    }
}

#[tokio::test]
async fn a_console_without_tokens_is_open_and_says_so() {
    let site = Site::new(vec![]);
    let browser = site.browser();
    let page = browser.get("/console/overview").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.body.to_lowercase().contains("no tokens configured"), "{}", page.body);
    assert_eq!(browser.get("/console/login").await.location(), "/console/overview");
    let rebound = Browser { host: "evil.example:7117".to_owned(), ..site.browser() };
    let answer = rebound.get("/console/overview").await;
    assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST, "another site that names this machine");
}
