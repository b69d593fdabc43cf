//! Reverse proxies: trusted ones name the person, and all others do not.

use axum::http::{HeaderName, StatusCode};
use lazaret_api::Scope;
use lazaret_console::Options as ConsoleOptions;
use lazaret_server::{Options, Peer, ProxyPersons, Role, Transport, TrustedProxy};

use crate::access::support::{Browser, Site, secret, token};

fn site() -> Site {
    let roles = vec![
        Role {
            group: "oncall".into(),
            scopes: vec![Scope::Read, Scope::Pause],
            consumers: vec!["orders".into()],
        },
        Role { group: "staff".into(), scopes: vec![Scope::Read], consumers: vec![] },
    ];
    let persons = ProxyPersons {
        user_header: HeaderName::from_static("x-auth-request-email"),
        groups_header: HeaderName::from_static("x-auth-request-groups"),
        roles,
    };
    let proxy = TrustedProxy { networks: vec!["10.1.0.0/16".parse().unwrap()], persons: Some(persons) };
    let options = Options { proxy: Some(proxy), ..Options::default() };
    Site::with(vec![token("ada", &[Scope::Admin])], options, ConsoleOptions::default())
}

fn through(site: &Site, peer: Peer, headers: &[(&'static str, &str)]) -> Browser {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Browser { peer, host: "lazaret.example.com".to_owned(), headers, ..site.browser() }
}

fn tcp(address: [u8; 4]) -> Peer {
    Peer { address: Some(address.into()), transport: Transport::Tcp }
}

const EVE: [(&str, &str); 2] =
    [("x-auth-request-email", "eve@example.com"), ("x-auth-request-groups", "staff")];

#[tokio::test]
async fn only_a_trusted_peer_names_the_person() {
    let site = site();
    let unix = Peer { address: None, transport: Transport::Unix };
    for peer in [tcp([10, 1, 2, 3]), unix] {
        let page = through(&site, peer, &EVE).get("/console/overview").await;
        assert_eq!(page.status, StatusCode::OK, "{peer:?}");
        assert!(page.body.contains("eve@example.com"), "{peer:?}: {}", page.body);
    }
    for peer in [tcp([10, 2, 2, 3]), tcp([127, 0, 0, 1])] {
        let answer = through(&site, peer, &EVE).get("/console/overview").await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{peer:?} is sent to the sign-in");
        assert!(answer.location().starts_with("/console/login"), "{peer:?}");
    }
    let answer = through(&site, tcp([10, 1, 2, 3]), &EVE).get("/v1/status").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "the API takes tokens only");
}

#[tokio::test]
async fn a_person_of_the_proxy_has_the_rights_of_the_first_role() {
    let site = site();
    let both = [("x-auth-request-email", "ada@example.com"), ("x-auth-request-groups", "staff,oncall")];
    let page = through(&site, tcp([10, 1, 2, 3]), &both).get("/console/admin").await;
    assert!(page.body.contains("pause") && page.body.contains("orders"), "{}", page.body);
    for refused in [
        vec![("x-auth-request-email", "mallory@example.com"), ("x-auth-request-groups", "sales")],
        vec![("x-auth-request-email", "mallory@example.com")],
        vec![("x-auth-request-email", ""), ("x-auth-request-groups", "staff")],
        vec![EVE[0], EVE[1], ("x-auth-request-email", "ada@example.com")],
    ] {
        let answer = through(&site, tcp([10, 1, 2, 3]), &refused).get("/console/overview").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{refused:?}");
    }
}

#[tokio::test]
async fn forms_of_a_person_of_the_proxy_need_the_token_of_the_form() {
    let site = site();
    let oncall = ("x-auth-request-groups", "oncall");
    let browser = through(&site, tcp([10, 1, 2, 3]), &[EVE[0], oncall]);
    let csrf = browser.get("/console/admin").await.csrf();
    assert_eq!(browser.post("/console/logout", &[]).await.status, StatusCode::FORBIDDEN);
    assert_eq!(browser.post("/console/logout", &[("csrf", &csrf)]).await.status, StatusCode::SEE_OTHER);
    let other = through(&site, tcp([10, 1, 2, 3]), &[("x-auth-request-email", "bob@example.com"), oncall]);
    let answer = other.post("/console/logout", &[("csrf", &csrf)]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "of another person");
}

#[tokio::test]
async fn behind_a_proxy_with_tls_the_cookie_is_secure() {
    let site = site();
    let https = [("x-forwarded-proto", "https")];
    let browser = through(&site, tcp([10, 1, 2, 3]), &https);
    let answer = browser.sign_in(&secret("ada")).await;
    assert!(answer.header("set-cookie").starts_with("__Host-lazaret-session="), "{answer:?}");
    assert_eq!(browser.get("/console/overview").await.status, StatusCode::OK);
    let claimed = through(&site, tcp([10, 2, 2, 3]), &https).get("/console/login").await;
    assert!(claimed.body.contains("not encrypted"), "of a peer that is not trusted");
}

#[tokio::test]
async fn failed_sign_ins_count_for_the_client_of_the_proxy() {
    let site = site();
    let client = |address: &str| {
        through(&site, tcp([10, 1, 2, 3]), &[("x-forwarded-proto", "https"), ("x-forwarded-for", address)])
    };
    for _ in 0..10 {
        assert_eq!(client("1.1.1.1").sign_in("lz_guess").await.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(client("1.1.1.1").sign_in("lz_guess").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(client("9.9.9.9, 1.1.1.1").sign_in("lz_guess").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(client("2.2.2.2").sign_in(&secret("ada")).await.status, StatusCode::SEE_OTHER);
}
