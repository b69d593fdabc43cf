//! Sign-in with an OpenID Connect provider, against a test provider.

use std::collections::HashMap;

use axum::http::StatusCode;
use lazaret_api::Scope;
use lazaret_console::{OidcOptions, Options as ConsoleOptions};
use lazaret_server::{Options, Peer, Role, Transport};
use serde_json::{Value, json};

use crate::access::provider::{CLIENT_ID, CLIENT_SECRET, Provider};
use crate::access::support::{Answer, Browser, Site, token};

fn site(provider: &Provider) -> Site {
    site_with(provider, Options::default())
}

fn site_with(provider: &Provider, options: Options) -> Site {
    // Installed once per process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let oidc = OidcOptions {
        issuer: provider.issuer.clone(),
        client_id: CLIENT_ID.to_owned(),
        client_secret: Some(CLIENT_SECRET.to_owned()),
        scopes: vec!["email".to_owned(), "groups".to_owned()],
        person_claim: "email".to_owned(),
        groups_claim: "groups".to_owned(),
        roles: vec![
            Role { group: "oncall".into(), scopes: vec![Scope::Read, Scope::Triage], consumers: vec![] },
            Role { group: "staff".into(), scopes: vec![Scope::Read], consumers: vec![] },
        ],
    };
    let console = ConsoleOptions { oidc: Some(oidc), ..ConsoleOptions::default() };
    Site::with(vec![token("robot", &[Scope::Admin])], options, console)
}

/// A function that changes the header and the claims of an ID token.
type Tamper = fn(&mut Value, &mut Value);

/// Goes to the provider. Returns the path to which the provider sends the browser back.
async fn at_provider(browser: &Browser) -> String {
    let begun = browser.get("/console/login/oidc?next=%2Fconsole%2Fgroups").await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.body);
    let url = begun.location().to_owned();
    let (_, query) = url.split_once('?').unwrap();
    let query: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    assert_eq!(query["redirect_uri"], "http://localhost:7117/console/login/callback");
    assert_eq!(query["scope"], "openid email groups");
    assert!(query["code_challenge"].len() == 43 && query["state"].len() >= 16 && query["nonce"].len() >= 16);
    let client =
        reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let sent_back = client.get(url).send().await.unwrap();
    assert_eq!(sent_back.status().as_u16(), 302);
    let back = sent_back.headers()["location"].to_str().unwrap();
    back.strip_prefix("http://localhost:7117").unwrap().to_owned()
}

/// Goes to the provider and back.
async fn sign_in(browser: &Browser) -> Answer {
    let back = at_provider(browser).await;
    browser.get(&back).await
}

/// Asserts that the sign-in was refused.
async fn assert_refused(site: &Site, status: StatusCode, why: &str) {
    let browser = site.browser();
    let answer = sign_in(&browser).await;
    assert_eq!(answer.status, status, "{why}: {}", answer.body);
    assert!(browser.cookies.lock().unwrap().is_empty(), "{why}");
    assert_eq!(browser.get("/console/overview").await.status, StatusCode::SEE_OTHER, "{why}");
}

#[tokio::test]
async fn a_person_of_the_provider_has_the_rights_of_a_group() {
    let provider = Provider::start().await;
    let site = site(&provider);
    let browser = site.browser();
    let page = browser.get("/console/login").await;
    assert!(page.body.contains("/console/login/oidc?next="), "{}", page.body);
    let answer = sign_in(&browser).await;
    assert_eq!((answer.status, answer.location()), (StatusCode::SEE_OTHER, "/console/groups"));
    let names: Vec<String> = browser.cookies.lock().unwrap().keys().cloned().collect();
    assert_eq!(names, ["lazaret-session"], "the cookie of the sign-in is gone");
    let page = browser.get("/console/admin").await;
    assert!(page.body.contains("ada@example.com") && page.body.contains("triage"), "{}", page.body);
    assert_eq!(browser.get("/v1/status").await.status, StatusCode::UNAUTHORIZED, "the API takes tokens only");
}

#[tokio::test]
async fn an_id_token_that_is_wrong_in_any_way_is_refused() {
    let tampered: [(&str, Tamper); 13] = [
        ("nonce", |_, claims| claims["nonce"] = json!("another")),
        ("no nonce", |_, claims| drop(claims.as_object_mut().unwrap().remove("nonce"))),
        ("expired", |_, claims| claims["exp"] = json!(jiff::Timestamp::now().as_second() - 3600)),
        ("audience", |_, claims| claims["aud"] = json!("another")),
        ("issuer", |_, claims| claims["iss"] = json!("https://evil.example")),
        ("alg none", |head, _| head["alg"] = json!("none")),
        ("shared secret", |head, _| head["alg"] = json!("HS256")),
        ("issued in the future", |_, claims| claims["iat"] = json!(later(3600))),
        ("not valid yet", |_, claims| claims["nbf"] = json!(later(3600))),
        ("valid from a text on", |_, claims| claims["nbf"] = json!("now")),
        ("another party", |_, claims| claims["azp"] = json!("another")),
        ("another audience beside", |_, claims| claims["aud"] = json!([CLIENT_ID, "another"])),
        ("no party of several", |_, claims| claims["aud"] = json!([CLIENT_ID, CLIENT_ID])),
    ];
    for (why, change) in tampered {
        let provider = Provider::start().await;
        provider.tamper(change);
        assert_refused(&site(&provider), StatusCode::UNAUTHORIZED, why).await;
    }
    let provider = Provider::start().await;
    provider.tamper(|head, _| head["alg"] = json!("none"));
    provider.stop_signing();
    assert_refused(&site(&provider), StatusCode::UNAUTHORIZED, "alg none without a signature").await;
    let provider = Provider::start().await;
    provider.stop_signing();
    assert_refused(&site(&provider), StatusCode::UNAUTHORIZED, "no signature").await;
    let provider = Provider::start().await;
    provider.replace_key(false);
    assert_refused(&site(&provider), StatusCode::UNAUTHORIZED, "another key").await;
}

/// Returns the time this many seconds from now.
fn later(seconds: i64) -> i64 {
    jiff::Timestamp::now().as_second() + seconds
}

#[tokio::test]
async fn a_provider_whose_clock_is_a_little_ahead_signs_people_in() {
    let provider = Provider::start().await;
    provider.tamper(|_, claims| {
        claims["iat"] = json!(later(30));
        claims["nbf"] = json!(later(30));
        claims["azp"] = json!(CLIENT_ID);
    });
    assert_eq!(sign_in(&site(&provider).browser()).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn the_provider_sends_nobody_to_a_host_that_only_the_client_names() {
    let provider = Provider::start().await;
    let at = |site: &Site, host: &str| Browser {
        peer: Peer { address: Some([10, 0, 0, 9].into()), transport: Transport::Tls },
        host: host.to_owned(),
        ..site.browser()
    };
    let unnamed = site(&provider);
    for host in ["lazaret.example.com", "evil.example:443"] {
        let refused = at(&unnamed, host).get("/console/login/oidc").await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{host}: {}", refused.body);
        assert!(refused.body.contains("`hosts`"), "{host}: {}", refused.body);
    }
    let hosts = vec!["lazaret.example.com".to_owned()];
    let named = site_with(&provider, Options { hosts, ..Options::default() });
    let begun = at(&named, "lazaret.example.com").get("/console/login/oidc").await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.body);
    let redirect = "redirect_uri=https%3A%2F%2Flazaret.example.com%2Fconsole%2Flogin%2Fcallback";
    assert!(begun.location().contains(redirect), "{}", begun.location());
}

#[tokio::test]
async fn sign_ins_that_others_begin_do_not_end_one() {
    let provider = Provider::start().await;
    let site = site(&provider);
    let browser = site.browser();
    let back = at_provider(&browser).await;
    for _ in 0..1100 {
        let begun = site.browser().get("/console/login/oidc").await;
        assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.body);
    }
    assert_eq!(browser.get(&back).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn people_without_a_name_or_a_role_are_refused() {
    let provider = Provider::start().await;
    let site = site(&provider);
    let ada = |groups: Value| json!({"sub": "1", "email": "ada@example.com", "email_verified": true, "groups": groups});
    for (claims, status) in [
        (json!({"sub": "1", "groups": ["staff"]}), StatusCode::UNAUTHORIZED),
        (json!({"sub": "1", "email": "", "groups": ["staff"]}), StatusCode::UNAUTHORIZED),
        (json!({"sub": "1", "email": "lazaret", "groups": ["staff"]}), StatusCode::UNAUTHORIZED),
        (
            json!({"sub": "1", "email": "ada@example.com", "email_verified": false, "groups": ["staff"]}),
            StatusCode::UNAUTHORIZED,
        ),
        // The provider says nothing about whether the address is verified.
        (json!({"sub": "1", "email": "ada@example.com", "groups": ["staff"]}), StatusCode::UNAUTHORIZED),
        (ada(json!(null)), StatusCode::FORBIDDEN),
        (ada(json!([])), StatusCode::FORBIDDEN),
        (ada(json!(["sales", "STAFF"])), StatusCode::FORBIDDEN),
        (ada(json!({"staff": true})), StatusCode::FORBIDDEN),
    ] {
        provider.set_claims(claims.clone());
        assert_refused(&site, status, &claims.to_string()).await;
    }
    provider.set_claims(ada(json!(["sales", "staff"])));
    assert_eq!(sign_in(&site.browser()).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn only_the_browser_that_began_completes_a_sign_in_and_once() {
    let provider = Provider::start().await;
    let site = site(&provider);
    let (browser, other) = (site.browser(), site.browser());
    let back = at_provider(&browser).await;
    let stolen = other.get(&back).await;
    assert_eq!(stolen.status, StatusCode::UNAUTHORIZED, "no sign-in has begun in it");
    let own = at_provider(&other).await;
    let mixed = other.get(&back).await;
    assert_eq!(mixed.status, StatusCode::UNAUTHORIZED, "the state of another sign-in");
    assert_eq!(other.get(&own).await.status, StatusCode::UNAUTHORIZED, "which ended its own");
    let foreign = format!("{back}&iss=https%3A%2F%2Fevil.example");
    assert_eq!(browser.get(&foreign).await.status, StatusCode::UNAUTHORIZED, "another issuer");
    let back = at_provider(&browser).await;
    assert_eq!(browser.get(&back).await.status, StatusCode::SEE_OTHER);
    let again = site.browser();
    *again.cookies.lock().unwrap() = browser.cookies.lock().unwrap().clone();
    again.cookies.lock().unwrap().remove("lazaret-session");
    assert_eq!(again.get(&back).await.status, StatusCode::UNAUTHORIZED, "the code was used");
    let denied = site.browser();
    let back = at_provider(&denied).await;
    let (_, state) = back.split_once("state=").unwrap();
    let answer = denied.get(&format!("/console/login/callback?error=access_denied&state={state}")).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn replaced_keys_are_read_again() {
    let provider = Provider::start().await;
    let site = site(&provider);
    assert_eq!(sign_in(&site.browser()).await.status, StatusCode::SEE_OTHER);
    provider.replace_key(true);
    assert_eq!(sign_in(&site.browser()).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_provider_that_is_away_does_not_keep_tokens_out() {
    let mut provider = Provider::start().await;
    provider.issuer = "http://127.0.0.1:9".to_owned();
    let site = site(&provider);
    let answer = site.browser().get("/console/login/oidc").await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert!(
        answer.body.contains("name=\"token\"") && !answer.body.contains("127.0.0.1:9"),
        "{}",
        answer.body
    );
    assert_eq!(site.signed_in("robot").await.get("/console/overview").await.status, StatusCode::OK);
}
