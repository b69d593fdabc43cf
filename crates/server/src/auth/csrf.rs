//! Protects the forms of pages against requests of other sites.
//!
//! The browser has to report the same origin, and the form has to send back a token that only a page of this server can know. The token
//! is a function of a key of the process and of the visitor, so nothing is stored for it.

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazaret_api::CsrfToken;
use sha2::{Digest, Sha256};

use super::hosts::reports_same_origin;

/// The header that may carry the token in place of a form field, for requests of scripts.
pub(crate) const HEADER: &str = "lazaret-csrf";

/// The key of this process.
pub(crate) struct CsrfKey([u8; 32]);

/// Whom a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visitor<'a> {
    /// No tokens are configured.
    Local,
    /// Nobody yet: the form is that of the sign-in.
    Anonymous,
    /// A person whom a proxy has authenticated.
    Proxied(&'a str),
    /// The hash of a session's cookie.
    Session(&'a [u8]),
}

impl CsrfKey {
    /// Creates a key.
    pub(crate) fn new() -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .expect("the system has random numbers, which every hash table needs as well");
        Self(key)
    }

    /// The token of a visitor.
    pub(crate) fn token(&self, visitor: Visitor<'_>) -> CsrfToken {
        let (kind, name): (u8, &[u8]) = match visitor {
            Visitor::Local => (0, b""),
            Visitor::Anonymous => (1, b""),
            Visitor::Proxied(name) => (2, name.as_bytes()),
            Visitor::Session(key) => (3, key),
        };
        // All parts have a fixed length, so no two visitors have the same input.
        let hash = Sha256::new().chain_update(self.0).chain_update([kind]).chain_update(Sha256::digest(name));
        CsrfToken(URL_SAFE_NO_PAD.encode(hash.finalize()))
    }
}

/// Returns `true` if a page of this server sent the form: the browser says so, and the token is right.
pub(crate) fn is_own_form(expected: &CsrfToken, authority: &str, headers: &HeaderMap, form: &[u8]) -> bool {
    reports_same_origin(headers, authority)
        && given(headers, form).is_some_and(|given| equals(given.as_bytes(), expected.0.as_bytes()))
}

/// The token of a request: one, in the header or in the form.
fn given(headers: &HeaderMap, form: &[u8]) -> Option<String> {
    let in_header = headers.get_all(HEADER).iter().map(|value| value.to_str().unwrap_or_default().to_owned());
    let fields = form_urlencoded::parse(form).filter(|(name, _)| name == CsrfToken::FIELD);
    let mut all = in_header.chain(fields.map(|(_, value)| value.into_owned()));
    let (first, None) = (all.next()?, all.next()) else { return None };
    Some(first)
}

/// Compares in constant time.
fn equals(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0_u8, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visitor_has_its_own_token() {
        let key = CsrfKey::new();
        let visitors = [
            Visitor::Local,
            Visitor::Anonymous,
            Visitor::Proxied("ada"),
            Visitor::Proxied("bob"),
            Visitor::Session(b"ada"),
        ];
        let tokens: Vec<String> = visitors.map(|visitor| key.token(visitor).0).to_vec();
        assert!(tokens.iter().enumerate().all(|(n, token)| !tokens[..n].contains(token)), "{tokens:?}");
        assert_eq!(key.token(Visitor::Local), key.token(Visitor::Local));
        assert_ne!(key.token(Visitor::Local), CsrfKey::new().token(Visitor::Local));
    }

    #[test]
    fn a_form_needs_the_origin_and_the_token() {
        let token = CsrfKey::new().token(Visitor::Local);
        let good = format!("reason=x&csrf={}", token.0);
        let sent = |pairs: &[(&'static str, &str)], form: &str| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            is_own_form(&token, "localhost:7117", &headers, form.as_bytes())
        };
        let same = ("sec-fetch-site", "same-origin");
        let origin = ("origin", "http://localhost:7117");
        assert!(sent(&[same], &good) && sent(&[origin], &good) && sent(&[same, origin], &good));
        assert!(sent(&[same, ("origin", "null")], &good), "the browser sends no referrer, and so no origin");
        assert!(sent(&[same, (HEADER, &token.0)], "reason=x"));
        for (headers, form) in [
            (vec![], good.as_str()),
            (vec![("sec-fetch-site", "none")], &good),
            (vec![("sec-fetch-site", "cross-site"), origin], &good),
            (vec![("origin", "http://evil.example")], &good),
            (vec![("origin", "null")], &good),
            (vec![same, ("origin", "http://evil.example")], &good),
            (vec![same], "reason=x"),
            (vec![same], "reason=x&csrf="),
            (vec![same], &good[..good.len() - 1]),
            (vec![same], &format!("{good}&csrf=x")),
            (vec![same, (HEADER, "x")], &good),
        ] {
            assert!(!sent(&headers, form), "{headers:?} {form}");
        }
    }
}
