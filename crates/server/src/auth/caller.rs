//! The caller of one request, found before anything else is done.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use lazaret_api::{Code, Identity, Problem, Scope, Via};
use lazaret_core::store::Actor;

use crate::app::App;
use crate::fault::{Fault, Result};

/// The longest reason, in bytes.
const LONGEST_REASON: usize = 1024;
/// The longest name that somebody may claim, in bytes.
const LONGEST_NAME: usize = 100;

/// Somebody who is known, and the way the request came.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) via: Via,
}

/// Who it is, or why nobody is known.
#[derive(Clone, Debug)]
enum Found {
    Known(Caller),
    Unknown(Code),
}

impl Caller {
    /// Whether they may do this; the fault says what is missing.
    pub(crate) fn require(&self, scope: Scope) -> Result<()> {
        if self.identity.may(scope) {
            return Ok(());
        }
        let held: Vec<&str> = self.identity.scopes.iter().map(|scope| scope.as_str()).collect();
        let detail = format!("{} needs the scope {scope} and has {}", self.identity.name, held.join(", "));
        Err(Fault::new(Code::Forbidden, detail))
    }

    /// Who acts, for the audit. A change without a reason is refused.
    pub(crate) fn actor(&self, reason: Option<&str>) -> Result<Actor> {
        let reason = reason.map(str::trim).filter(|reason| !reason.is_empty());
        let reason = reason.ok_or_else(|| {
            Fault::from(
                Problem::new(Code::ReasonMissing).at("/reason").with_hint("say why; it stands in the audit"),
            )
        })?;
        if reason.len() > LONGEST_REASON {
            let detail = format!("a reason of {} bytes is longer than {LONGEST_REASON}", reason.len());
            return Err(Fault::invalid("/reason", detail));
        }
        Ok(Actor::new(self.identity.name.clone(), self.via.as_str(), reason))
    }
}

/// Finds out who asks, and leaves it with the request for the guard of its route.
pub(crate) async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let found = find(&app, request.headers());
    request.extensions_mut().insert(found);
    next.run(request).await
}

fn find(app: &App, headers: &HeaderMap) -> Found {
    let via = match headers.get(Via::HEADER).map(|via| via.as_bytes()) {
        Some(b"cli") => Via::Cli,
        Some(b"console") => Via::Console,
        _ => Via::Api,
    };
    if app.tokens.is_empty() {
        let identity = Identity {
            name: claimed_name(headers).unwrap_or("local").to_owned(),
            authenticated: false,
            scopes: Scope::ALL.to_vec(),
            expires_at: None,
        };
        return Found::Known(Caller { identity, via });
    }
    let Some(token) = bearer(headers).and_then(|secret| app.tokens.find(secret)) else {
        return Found::Unknown(Code::Unauthenticated);
    };
    if token.expires_at.is_some_and(|end| end <= app.clock.now()) {
        return Found::Unknown(Code::TokenExpired);
    }
    let identity = Identity {
        name: token.name.clone(),
        authenticated: true,
        scopes: token.scopes.clone(),
        expires_at: token.expires_at,
    };
    Found::Known(Caller { identity, via })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (first, None) = (given.next()?, given.next()) else { return None };
    let (scheme, secret) = first.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The name somebody gives where nobody checks it. One that could be mistaken for Lazaret itself is not taken.
fn claimed_name(headers: &HeaderMap) -> Option<&str> {
    let name = std::str::from_utf8(headers.get(Identity::ACTOR_HEADER)?.as_bytes()).ok()?.trim();
    let fits = !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
    (fits && name != "lazaret").then_some(name)
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self> {
        match parts.extensions.get::<Found>() {
            Some(Found::Known(caller)) => Ok(caller.clone()),
            Some(Found::Unknown(code)) => Err(Problem::new(*code).into()),
            // The router is never without the layer that looks; closed all the same.
            None => Err(Problem::new(Code::Unauthenticated).into()),
        }
    }
}
