//! The caller of a request.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use lazaret_api::{Code, Identity, Problem, Scope, Via};
use lazaret_core::person::person_name;
use lazaret_core::query::Query;
use lazaret_core::store::Actor;
use tokio_util::sync::CancellationToken;

use super::session::{Found, Login, Person};
use super::token::{Token, Tokens};
use crate::api_error::{ApiError, Result};
use crate::app::ActiveTokens;

/// The longest reason, in characters.
pub(crate) const MAX_REASON_CHARS: usize = 1024;

/// An identified caller and its client.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) via: Via,
    /// Who an authenticated caller claims to be, such as `ada@laptop`. Recorded beside the person of the token, never instead of it.
    pub(crate) claim: Option<String>,
    pub(crate) session: Session,
}

/// What a caller was authenticated with, for responses that outlive the check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    credential: Credential,
    /// `true` if it is a token, or was started with one: the tokens tell later whether the person still has the rights.
    of_token: bool,
    /// Cancelled when the tokens are replaced, or at the end of a session of the console.
    pub(crate) replaced: CancellationToken,
}

/// What authenticated a caller.
#[derive(Clone, Debug, Default)]
enum Credential {
    /// Nothing: there are no tokens.
    #[default]
    None,
    Token(Arc<Token>),
    /// A session of the console, which ends then, or a trusted proxy.
    SignedIn(Option<Timestamp>),
}

impl Session {
    /// Returns `true` if the caller would be authenticated in the same way with these tokens.
    pub(crate) fn is_valid(&self, tokens: &Tokens, now: Timestamp) -> bool {
        match &self.credential {
            Credential::Token(token) => tokens.contains(token) && !token.is_expired(now),
            Credential::None => tokens.is_empty(),
            Credential::SignedIn(until) => {
                !self.replaced.is_cancelled() && until.is_none_or(|until| now < until)
            }
        }
    }
}

/// The result of authentication, kept with the request.
#[derive(Clone, Debug)]
pub(crate) enum Authentication {
    Accepted(Caller),
    Rejected(Code),
}

impl Authentication {
    /// Authenticates a request by its headers.
    pub(crate) fn of(active: &ActiveTokens, headers: &HeaderMap, now: Timestamp) -> Self {
        let ActiveTokens { tokens, replaced } = active;
        let via = match headers.get(Via::HEADER).map(|via| via.as_bytes()) {
            Some(b"cli") => Via::Cli,
            Some(b"console") => Via::Console,
            _ => Via::Api,
        };
        if tokens.is_empty() {
            let name = claimed_name(headers).unwrap_or_else(|| "local".to_owned());
            let identity = Identity {
                name: name.clone(),
                person: name,
                authenticated: false,
                scopes: Scope::ALL.to_vec(),
                expires_at: None,
                consumers: Vec::new(),
            };
            let session =
                Session { credential: Credential::None, of_token: false, replaced: replaced.clone() };
            return Self::Accepted(Caller { identity, via, claim: None, session });
        }
        let Some(token) = bearer(headers).and_then(|secret| tokens.find(secret)) else {
            return Self::Rejected(Code::Unauthenticated);
        };
        if token.is_expired(now) {
            return Self::Rejected(Code::TokenExpired);
        }
        let credential = Credential::Token(Arc::new(token.clone()));
        let session = Session { credential, of_token: true, replaced: replaced.clone() };
        let claim = claimed_name(headers);
        Self::Accepted(Caller { identity: of_token(token, token.expires_at), via, claim, session })
    }

    /// Accepts the owner of a session of the console.
    pub(crate) fn of_session(found: &Found) -> Self {
        let until = Some(found.until);
        let identity = match &found.login {
            Login::Token(token) => of_token(token, until),
            Login::Person(person) => of_person(person, until),
        };
        let of_token = matches!(found.login, Login::Token(_));
        let credential = Credential::SignedIn(until);
        let session = Session { credential, of_token, replaced: found.ended.clone() };
        Self::Accepted(Caller { identity, via: Via::Console, claim: None, session })
    }

    /// Accepts a person whom a trusted proxy has authenticated, for this request.
    pub(crate) fn of_proxied(person: &Person) -> Self {
        let credential = Credential::SignedIn(None);
        let session = Session { credential, of_token: false, replaced: CancellationToken::new() };
        Self::Accepted(Caller { identity: of_person(person, None), via: Via::Console, claim: None, session })
    }
}

fn of_token(token: &Token, expires_at: Option<Timestamp>) -> Identity {
    Identity {
        name: token.name.clone(),
        person: token.person().to_owned(),
        authenticated: true,
        scopes: token.scopes.clone(),
        expires_at,
        consumers: token.consumers.clone(),
    }
}

fn of_person(person: &Person, expires_at: Option<Timestamp>) -> Identity {
    Identity {
        name: person.name().to_owned(),
        person: person.name().to_owned(),
        authenticated: true,
        scopes: person.scopes().to_vec(),
        expires_at,
        consumers: person.consumers().to_vec(),
    }
}

impl Caller {
    /// Requires a scope; the error names the missing one.
    pub(crate) fn require(&self, scope: Scope) -> Result<()> {
        if self.identity.may(scope) {
            return Ok(());
        }
        let held: Vec<&str> = self.identity.scopes.iter().map(|scope| scope.as_str()).collect();
        let detail = format!("{} needs the scope {scope} and has {}", self.identity.name, held.join(", "));
        Err(ApiError::new(Code::Forbidden, detail))
    }

    /// Returns `true` if the token is not limited to other consumers.
    pub(crate) fn may_use(&self, consumer: &str) -> bool {
        let consumers = &self.identity.consumers;
        consumers.is_empty() || consumers.iter().any(|allowed| allowed == consumer)
    }

    /// Requires that the token is not limited to other consumers.
    pub(crate) fn require_consumer(&self, consumer: &str) -> Result<()> {
        if self.may_use(consumer) { Ok(()) } else { Err(self.limited()) }
    }

    /// The error of a token that is limited to some consumers.
    pub(crate) fn limited(&self) -> ApiError {
        let detail = format!(
            "{} is limited to the consumers {}",
            self.identity.name,
            self.identity.consumers.join(", ")
        );
        ApiError::new(Code::Forbidden, detail)
    }

    /// Limits a query to the consumers of the token.
    pub(crate) fn limit(&self, query: Query) -> Query {
        match self.identity.consumers.as_slice() {
            [] => query,
            consumers => query.of_consumers(consumers),
        }
    }

    /// The actor for the audit. A change without a reason is rejected.
    pub(crate) fn actor(&self, reason: Option<&str>) -> Result<Actor> {
        let reason = reason.filter(|reason| !reason.trim().is_empty());
        let reason = reason.ok_or_else(|| {
            let problem = Problem::new(Code::ReasonMissing).at("/reason");
            ApiError::from(problem.with_hint("give a reason: it is recorded in the audit"))
        })?;
        let length = reason.chars().count();
        if length > MAX_REASON_CHARS {
            let detail = format!("a reason of {length} characters exceeds the limit of {MAX_REASON_CHARS}");
            return Err(ApiError::invalid("/reason", detail));
        }
        Ok(Actor::new(self.identity.person.clone(), self.channel(false), reason.trim()))
    }

    /// The actor of what starts later. Its channel names the token in any case: until then the token may be revoked.
    pub(crate) fn actor_of_schedule(&self, reason: Option<&str>) -> Result<Actor> {
        let actor = self.actor(reason)?;
        Ok(Actor { via: self.channel(self.session.of_token), ..actor })
    }

    /// The client, the token where its name is not that of the person, and who the caller claims to be where that is somebody else:
    /// `cli`, `cli:ada-2027`, `cli:ada-2027 from ada@laptop`. `names_token` says whether it names the token in any case.
    fn channel(&self, names_token: bool) -> String {
        let Identity { name, person, .. } = &self.identity;
        let channel = match name == person && !names_token {
            true => self.via.as_str().to_owned(),
            false => format!("{}:{name}", self.via.as_str()),
        };
        match self.claim.as_ref().filter(|claim| *claim != person) {
            Some(claim) => format!("{channel} from {claim}"),
            None => channel,
        }
    }
}

/// Returns `true` if a request carries an `Authorization` header, whatever it says.
pub(crate) fn has_bearer(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (first, None) = (given.next()?, given.next()) else { return None };
    let (scheme, secret) = first.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The claimed name of a caller. A name that is not valid, such as that of Lazaret itself, is ignored.
fn claimed_name(headers: &HeaderMap) -> Option<String> {
    let name = std::str::from_utf8(headers.get(Identity::ACTOR_HEADER)?.as_bytes()).ok()?;
    person_name(name).ok()
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self> {
        match parts.extensions.get::<Authentication>() {
            Some(Authentication::Accepted(caller)) => Ok(caller.clone()),
            Some(Authentication::Rejected(code)) => Err(Problem::new(*code).into()),
            // The router always has the authentication layer; fail closed all the same.
            None => Err(Problem::new(Code::Unauthenticated).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::TokenHash;

    fn token(scopes: &[Scope]) -> Token {
        Token::new("ada", TokenHash::of("lz_secret"), scopes)
    }

    fn caller(tokens: Tokens) -> (Caller, ActiveTokens) {
        let active = ActiveTokens { tokens, replaced: CancellationToken::new() };
        let headers = [(header::AUTHORIZATION, "Bearer lz_secret".parse().unwrap())].into_iter().collect();
        match Authentication::of(&active, &headers, Timestamp::UNIX_EPOCH) {
            Authentication::Accepted(caller) => (caller, active),
            Authentication::Rejected(code) => panic!("{code:?}"),
        }
    }

    #[test]
    fn a_session_is_valid_as_long_as_its_token_is() {
        let end = Timestamp::from_second(60).unwrap();
        let limited = Token { expires_at: Some(end), ..token(&[Scope::Read]) };
        let tokens = Tokens::new(vec![limited.clone()]).unwrap();
        let (Caller { session, .. }, _) = caller(tokens.clone());
        let now = Timestamp::UNIX_EPOCH;
        assert!(session.is_valid(&tokens, now) && !session.is_valid(&tokens, end));
        let other = Token::new("bob", TokenHash::of("lz_other"), &[Scope::Read]);
        let with_another = Tokens::new(vec![other.clone(), limited]).unwrap();
        assert!(session.is_valid(&with_another, now), "its own token is the same");
        assert!(!session.is_valid(&Tokens::new(vec![other]).unwrap(), now), "revoked");
        let more = Tokens::new(vec![token(&[Scope::Read])]).unwrap();
        assert!(!session.is_valid(&more, now), "it is another token now");
        let (Caller { session, .. }, _) = caller(Tokens::default());
        assert!(session.is_valid(&Tokens::default(), now) && !session.is_valid(&tokens, now));
    }

    #[test]
    fn a_session_belongs_to_the_tokens_that_it_was_authenticated_with() {
        let (caller, active) = caller(Tokens::new(vec![token(&[Scope::Read])]).unwrap());
        active.replaced.cancel();
        assert!(caller.session.replaced.is_cancelled(), "however late its response starts");
    }
}
