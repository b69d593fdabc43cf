//! The sign-in of pages: who sent a request, and how the browser starts and ends a session.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use lazaret_api::{Code, CsrfToken, Identity};
use lazaret_core::person::person_name;

use super::caller::{Authentication, has_bearer};
use super::csrf::{Visitor, is_own_form};
use super::hosts::{authority_of, is_loopback};
use super::latest_rights::Rights;
use super::proxy::{Forwarded, client_address, forwarded, is_secure};
use super::session::{Login, Person, SessionKey};
use crate::app::App;
use crate::listener::Peer;

/// The cookie of a session. The prefix binds it to this host and to TLS, and the browser enforces it.
const SECURE_COOKIE: &str = "__Host-lazaret-session";
/// The cookie of a session on this machine, without TLS.
const PLAIN_COOKIE: &str = "lazaret-session";

/// The sign-in state of a request to a page. The server adds it to the extensions of each such request.
#[derive(Clone)]
pub struct SignIn {
    app: App,
    authority: String,
    is_secure: bool,
    client: Option<IpAddr>,
    identity: Option<Identity>,
    state: State,
}

#[derive(Clone)]
enum State {
    Open,
    Nobody,
    Bearer,
    Session(SessionKey),
    Proxied(String),
    Refused,
}

/// How the sender of a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedIn {
    /// Not at all: no tokens are configured, and everybody may do everything.
    Open,
    /// Not yet.
    Nobody,
    /// By a token in the request.
    Bearer,
    /// By a session, which can be ended.
    Session,
    /// By a trusted proxy.
    Proxy,
    /// By a trusted proxy, but without a role.
    WithoutRole,
}

/// Why nobody was signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignInError {
    /// The token is unknown or has expired.
    #[error("sign-in refused")]
    Refused,
    /// There were too many failures from this address.
    #[error("too many failed sign-ins: wait {wait_seconds} s")]
    TooManyFailures {
        /// The time to wait.
        wait_seconds: u32,
    },
    /// The cookie would be sent over the network without TLS.
    #[error("the connection is not encrypted")]
    NotEncrypted,
    /// No tokens are configured.
    #[error("no tokens configured")]
    Open,
    /// The system has no random numbers.
    #[error("no random numbers")]
    Internal,
}

impl SignIn {
    /// Reads the sign-in state of a request.
    pub(crate) fn of(app: &App, request: &Request, now: Timestamp) -> (Self, Authentication) {
        let (headers, proxy) = (request.headers(), app.options.proxy.as_ref());
        let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::UNKNOWN);
        let is_secure = is_secure(proxy, peer, headers);
        let (state, authentication) = recognise(app, request, peer, is_secure, now);
        let identity = match &authentication {
            Authentication::Accepted(caller) => Some(caller.identity.clone()),
            Authentication::Rejected(_) => None,
        };
        let sign_in = Self {
            app: app.clone(),
            authority: authority_of(request.uri(), headers).unwrap_or_default().to_owned(),
            is_secure,
            client: client_address(proxy, peer, headers),
            identity,
            state,
        };
        (sign_in, authentication)
    }

    /// The sender of the request, if known.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// What the pages of this request need: the state, and the token of forms.
    pub(crate) fn extensions(self) -> Extensions {
        let mut extensions = Extensions::new();
        if let Some(token) = self.csrf_token() {
            extensions.insert(token);
        }
        extensions.insert(self);
        extensions
    }

    /// How the sender of the request is known.
    pub fn signed_in(&self) -> SignedIn {
        match self.state {
            State::Open => SignedIn::Open,
            State::Nobody => SignedIn::Nobody,
            State::Bearer => SignedIn::Bearer,
            State::Session(_) => SignedIn::Session,
            State::Proxied(_) => SignedIn::Proxy,
            State::Refused => SignedIn::WithoutRole,
        }
    }

    /// The scheme, host and port in the browser's address bar, as the browser says. See [`known_origin`](Self::known_origin).
    pub fn origin(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// The [`origin`](Self::origin), if its host is one of [`Options::hosts`](crate::Options::hosts) or names this machine. Other hosts may
    /// be accepted, but only the client says that they are this server.
    pub fn known_origin(&self) -> Option<String> {
        self.app.hosts.names(&self.authority).then(|| self.origin())
    }

    /// Returns `true` if the browser may keep a cookie: with TLS, or on this machine.
    pub fn may_set_cookies(&self) -> bool {
        self.is_secure || is_loopback(&self.authority)
    }

    /// Starts a session with the rights of a token. Returns the value of `Set-Cookie`.
    ///
    /// # Errors
    /// When the token is refused, or a session cannot be started here.
    pub fn with_token(&self, secret: &str) -> Result<HeaderValue, SignInError> {
        self.check()?;
        let now = self.app.clock.now();
        if let Some(wait_seconds) = self.app.attempts.wait_seconds(self.client, now) {
            return Err(SignInError::TooManyFailures { wait_seconds });
        }
        let token = self.app.tokens().tokens.find(secret).cloned();
        let Some(token) = token.filter(|token| !token.is_expired(now)) else {
            self.app.attempts.failed(self.client, now);
            tracing::warn!(client = self.client.map(tracing::field::display), "console sign-in refused");
            return Err(SignInError::Refused);
        };
        self.start(Login::Token(token.into()), now)
    }

    /// Starts a session of a person whom an identity provider has authenticated. Returns the value of `Set-Cookie`.
    ///
    /// # Errors
    /// When a session cannot be started here.
    pub fn as_person(&self, person: Person) -> Result<HeaderValue, SignInError> {
        self.check()?;
        let now = self.app.clock.now();
        self.app.latest_rights.record(person.name(), person.rights(), now);
        self.start(Login::Person(person.into()), now)
    }

    /// Records that an identity provider has authenticated a person whose groups have no role. The scheduled operations of such a person
    /// are held.
    pub fn without_role(&self, name: &str) {
        if let Ok(name) = person_name(name) {
            self.app.latest_rights.record(&name, Rights::NONE, self.app.clock.now());
        }
    }

    /// Ends the session of the request, if it has one. Returns the value of `Set-Cookie`, which removes the cookie.
    pub fn sign_out(&self) -> HeaderValue {
        if let State::Session(key) = &self.state {
            self.app.sessions.end(key);
        }
        self.set_cookie(session_cookie(self.is_secure), "", Duration::ZERO)
    }

    /// Writes the value of `Set-Cookie`. The name gets the prefix `__Host-` with TLS.
    pub fn cookie(&self, name: &str, value: &str, lasts: Duration) -> HeaderValue {
        self.set_cookie(&self.full_name(name), value, lasts)
    }

    /// Reads a cookie that [`cookie`](Self::cookie) wrote.
    pub fn read_cookie<'a>(&self, headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        cookie_in(headers, &self.full_name(name))
    }

    /// The token that forms of this visitor must send back; `None` where none is asked for.
    pub(crate) fn csrf_token(&self) -> Option<CsrfToken> {
        let visitor = match &self.state {
            State::Open => Visitor::Local,
            State::Nobody | State::Refused => Visitor::Anonymous,
            State::Session(key) => Visitor::Session(key.as_bytes()),
            State::Proxied(person) => Visitor::Proxied(person),
            State::Bearer => return None,
        };
        Some(self.app.csrf.token(visitor))
    }

    /// Returns `true` if a page of this server sent the form. No browser adds a bearer token by itself.
    pub(crate) fn sent_by_own_page(&self, headers: &HeaderMap, form: &[u8]) -> bool {
        self.csrf_token().is_none_or(|token| is_own_form(&token, &self.authority, headers, form))
    }

    fn check(&self) -> Result<(), SignInError> {
        match self.app.tokens().tokens.is_empty() {
            true => Err(SignInError::Open),
            false if !self.may_set_cookies() => Err(SignInError::NotEncrypted),
            false => Ok(()),
        }
    }

    fn start(&self, login: Login, now: Timestamp) -> Result<HeaderValue, SignInError> {
        // Nothing of an earlier session stays valid in this browser.
        if let State::Session(key) = &self.state {
            self.app.sessions.end(key);
        }
        let cookie = self.app.sessions.start(login, now).map_err(|error| {
            tracing::error!(%error, "console sign-in failed");
            SignInError::Internal
        })?;
        Ok(self.set_cookie(session_cookie(self.is_secure), &cookie, self.app.sessions.limits().lifetime))
    }

    fn full_name(&self, name: &str) -> String {
        if self.is_secure { format!("__Host-{name}") } else { name.to_owned() }
    }

    fn set_cookie(&self, name: &str, value: &str, lasts: Duration) -> HeaderValue {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let age = lasts.as_secs();
        let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{secure}");
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("invalid=; Max-Age=0"))
    }
}

/// Finds out who sent a request. A session counts as used by what its person does, not by what a page does on its own.
fn recognise(
    app: &App,
    request: &Request,
    peer: Peer,
    is_secure: bool,
    now: Timestamp,
) -> (State, Authentication) {
    let (headers, tokens) = (request.headers(), app.tokens());
    if tokens.tokens.is_empty() {
        return (State::Open, Authentication::of(&tokens, headers, now));
    }
    if has_bearer(headers) {
        return (State::Bearer, Authentication::of(&tokens, headers, now));
    }
    let rejected = || Authentication::Rejected(Code::Unauthenticated);
    match forwarded(app.options.proxy.as_ref(), peer, headers) {
        Forwarded::Person(person) => {
            app.latest_rights.record(person.name(), person.rights(), now);
            return (State::Proxied(person.name().to_owned()), Authentication::of_proxied(&person));
        }
        Forwarded::WithoutRole(name) => {
            app.latest_rights.record(&name, Rights::NONE, now);
            return (State::Refused, rejected());
        }
        Forwarded::Refused => return (State::Refused, rejected()),
        Forwarded::Nobody => {}
    }
    let is_use = !request.method().is_safe()
        || headers.get("sec-fetch-mode").is_none_or(|mode| mode.as_bytes() == b"navigate");
    let cookie = cookie_in(headers, session_cookie(is_secure));
    match cookie.and_then(|cookie| app.sessions.find(cookie, &tokens.tokens, now, is_use)) {
        Some(found) => (State::Session(found.key), Authentication::of_session(&found)),
        None => (State::Nobody, rejected()),
    }
}

/// The name of the cookie of a session.
fn session_cookie(is_secure: bool) -> &'static str {
    if is_secure { SECURE_COOKIE } else { PLAIN_COOKIE }
}

/// The value of a cookie that occurs once.
fn cookie_in<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
    let (value, None) = (values.next()?, values.next()) else { return None };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_that_occurs_twice_is_none() {
        let read = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, line.parse().unwrap());
            }
            cookie_in(&headers, "s").map(str::to_owned)
        };
        assert_eq!(read(&["a=1; s=2; b=3"]).as_deref(), Some("2"));
        assert_eq!(read(&["a=1", "s=2"]).as_deref(), Some("2"), "HTTP/2 splits them");
        assert_eq!(read(&["s=1; s=2"]), None, "one of them was planted");
        assert_eq!(read(&["as=1; sa=2"]), None);
    }
}
