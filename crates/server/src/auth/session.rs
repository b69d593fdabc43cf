//! Sessions of the console: started by a sign-in, found by their cookie, ended by expiry, by a sign-out, or with their token.
//!
//! They are kept in memory, as hashes: whoever reads the memory of the process finds no cookie. A restart ends them all.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use lazaret_api::Scope;
use lazaret_core::person::{InvalidName, person_name};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::latest_rights::Rights;
use super::token::{Token, Tokens};

/// The number of random bytes in a cookie.
const RANDOM_BYTES: usize = 32;
/// The longest accepted cookie.
const MAX_BYTES: usize = 64;

/// Limits of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long a session may be unused.
    pub idle: Duration,
    /// How long a session lasts in any case.
    pub lifetime: Duration,
    /// The maximum number of sessions of a person. Beyond it, the one that was used least recently ends.
    pub per_person: usize,
    /// The maximum number of sessions. Beyond it, the one that was used least recently ends.
    pub total: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(3600),
            lifetime: Duration::from_secs(12 * 3600),
            per_person: 16,
            total: 10_000,
        }
    }
}

/// A person who was authenticated elsewhere, with the rights of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    name: String,
    scopes: Vec<Scope>,
    consumers: Vec<String>,
}

impl Person {
    /// Creates a person. The name is recorded in the audit, in its [normalized form](lazaret_core::person::person_name).
    ///
    /// # Errors
    /// When the name is empty, too long, not printable or reserved, has invisible characters, or mixes scripts.
    ///
    /// ```
    /// use lazaret_api::Scope;
    /// use lazaret_server::Person;
    /// assert!(Person::new("ada@example.com", vec![Scope::Read], vec![]).is_ok());
    /// assert!(Person::new("lazaret", vec![Scope::Read], vec![]).is_err());
    /// ```
    pub fn new(
        name: impl Into<String>,
        scopes: Vec<Scope>,
        consumers: Vec<String>,
    ) -> Result<Self, &'static str> {
        let name = person_name(&name.into()).map_err(InvalidName::as_str)?;
        Ok(Self { name, scopes, consumers })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The scopes of the person's role.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// The consumers that the role is limited to; empty for all.
    pub fn consumers(&self) -> &[String] {
        &self.consumers
    }

    /// The rights of the person's role.
    pub(crate) fn rights(&self) -> Rights {
        Rights::new(&self.scopes, &self.consumers)
    }
}

/// Whom a session belongs to.
#[derive(Clone, Debug)]
pub(crate) enum Login {
    /// The person of a token. The session ends with the token.
    Token(Arc<Token>),
    /// A person of an identity provider.
    Person(Arc<Person>),
}

impl Login {
    fn person(&self) -> &str {
        match self {
            Self::Token(token) => token.person(),
            Self::Person(person) => person.name(),
        }
    }

    /// When the credential itself expires.
    fn expires_at(&self) -> Option<Timestamp> {
        match self {
            Self::Token(token) => token.expires_at,
            Self::Person(_) => None,
        }
    }

    fn is_valid(&self, tokens: &Tokens) -> bool {
        match self {
            Self::Token(token) => tokens.contains(token),
            // Without tokens the server is open, and has no sessions.
            Self::Person(_) => !tokens.is_empty(),
        }
    }
}

/// The SHA-256 of a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey([u8; 32]);

impl SessionKey {
    fn of(cookie: &str) -> Self {
        Self(Sha256::digest(cookie.as_bytes()).into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A session that was found by its cookie.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) key: SessionKey,
    pub(crate) login: Login,
    /// When it ends in any case.
    pub(crate) until: Timestamp,
    /// Cancelled at its end.
    pub(crate) ended: CancellationToken,
}

/// The sessions of a server.
pub(crate) struct Sessions {
    table: Mutex<HashMap<SessionKey, Stored>>,
    limits: SessionLimits,
}

struct Stored {
    login: Login,
    until: Timestamp,
    used: Timestamp,
    ended: CancellationToken,
}

impl Sessions {
    pub(crate) fn new(limits: SessionLimits) -> Self {
        Self { table: Mutex::default(), limits }
    }

    pub(crate) fn limits(&self) -> &SessionLimits {
        &self.limits
    }

    /// Starts a session. Returns its cookie.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub(crate) fn start(&self, login: Login, now: Timestamp) -> io::Result<String> {
        let cookie = random_text()?;
        let end = later(now, self.limits.lifetime);
        let until = login.expires_at().map_or(end, |expires| expires.min(end));
        let mut table = self.lock();
        self.drop_ended(&mut table, now);
        let person = login.person().to_owned();
        let of_person = |stored: &Stored| stored.login.person() == person;
        while table.values().filter(|stored| of_person(stored)).count() >= self.limits.per_person.max(1) {
            end_least_recent(&mut table, of_person);
        }
        while table.len() >= self.limits.total.max(1) {
            end_least_recent(&mut table, |_| true);
        }
        let stored = Stored { login, until, used: now, ended: CancellationToken::new() };
        table.insert(SessionKey::of(&cookie), stored);
        Ok(cookie)
    }

    /// Finds the session of a cookie. `is_use` postpones its idle end.
    pub(crate) fn find(&self, cookie: &str, tokens: &Tokens, now: Timestamp, is_use: bool) -> Option<Found> {
        if cookie.len() > MAX_BYTES {
            return None;
        }
        let key = SessionKey::of(cookie);
        let mut table = self.lock();
        let stored = table.get_mut(&key)?;
        if !stored.login.is_valid(tokens) || self.is_over(stored, now) {
            remove(&mut table, &key);
            return None;
        }
        if is_use {
            stored.used = stored.used.max(now);
        }
        let Stored { login, until, ended, .. } = stored;
        Some(Found { key, login: login.clone(), until: *until, ended: ended.clone() })
    }

    /// Ends a session.
    pub(crate) fn end(&self, key: &SessionKey) {
        remove(&mut self.lock(), key);
    }

    /// Ends the sessions whose tokens are not among these.
    pub(crate) fn retain(&self, tokens: &Tokens) {
        retain(&mut self.lock(), |stored| stored.login.is_valid(tokens));
    }

    fn drop_ended(&self, table: &mut HashMap<SessionKey, Stored>, now: Timestamp) {
        retain(table, |stored| !self.is_over(stored, now));
    }

    fn is_over(&self, stored: &Stored, now: Timestamp) -> bool {
        stored.until <= now || later(stored.used, self.limits.idle) <= now
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Stored>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

fn remove(table: &mut HashMap<SessionKey, Stored>, key: &SessionKey) {
    if let Some(stored) = table.remove(key) {
        stored.ended.cancel();
    }
}

fn retain(table: &mut HashMap<SessionKey, Stored>, keep: impl Fn(&Stored) -> bool) {
    table.retain(|_, stored| {
        let kept = keep(stored);
        if !kept {
            stored.ended.cancel();
        }
        kept
    });
}

fn end_least_recent(table: &mut HashMap<SessionKey, Stored>, fits: impl Fn(&Stored) -> bool) {
    let oldest = table.iter().filter(|(_, stored)| fits(stored)).min_by_key(|(_, stored)| stored.used);
    if let Some(key) = oldest.map(|(key, _)| *key) {
        remove(table, &key);
    }
}

/// A time in the future; the end of time if it is too far.
fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A text that cannot be guessed.
pub(crate) fn random_text() -> io::Result<String> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::TokenHash;

    fn token(name: &str, person: &str) -> Arc<Token> {
        let token = Token::new(name, TokenHash::of(name), &[Scope::Read]);
        Arc::new(Token { person: Some(person.to_owned()), ..token })
    }

    fn all(tokens: &[&Arc<Token>]) -> Tokens {
        Tokens::new(tokens.iter().map(|token| (***token).clone()).collect()).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sessions(per_person: usize, total: usize) -> Sessions {
        Sessions::new(SessionLimits {
            idle: Duration::from_secs(10),
            lifetime: Duration::from_secs(60),
            per_person,
            total,
        })
    }

    #[test]
    fn a_session_ends_when_it_is_not_used_and_after_its_lifetime() {
        let (ada, sessions) = (token("ada", "ada"), sessions(9, 9));
        let tokens = all(&[&ada]);
        let cookie = sessions.start(Login::Token(ada.clone()), at(0)).unwrap();
        assert!(sessions.find("another", &tokens, at(0), true).is_none());
        assert!(sessions.find(&cookie, &tokens, at(9), false).is_some(), "not a use");
        let found = sessions.find(&cookie, &tokens, at(9), true).unwrap();
        assert!(sessions.find(&cookie, &tokens, at(18), true).is_some(), "used at 9");
        assert!(!found.ended.is_cancelled());
        assert!(sessions.find(&cookie, &tokens, at(28), true).is_none(), "idle since 18");
        assert!(found.ended.is_cancelled(), "its streams end");
        let cookie = sessions.start(Login::Token(ada), at(0)).unwrap();
        assert!((1..60).all(|second| sessions.find(&cookie, &tokens, at(second), true).is_some()));
        assert!(sessions.find(&cookie, &tokens, at(60), true).is_none(), "its lifetime is over");
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn a_session_ends_with_its_token() {
        let (ada, bob) = (token("ada", "ada"), token("bob", "bob"));
        let until = Token { expires_at: Some(at(5)), ..(*bob).clone() };
        let (both, only_ada) = (all(&[&ada, &Arc::new(until.clone())]), all(&[&ada]));
        let sessions = sessions(9, 9);
        let of_ada = sessions.start(Login::Token(ada), at(0)).unwrap();
        let of_bob = sessions.start(Login::Token(Arc::new(until.clone())), at(0)).unwrap();
        assert!(sessions.find(&of_bob, &both, at(4), true).is_some());
        assert!(sessions.find(&of_bob, &both, at(5), true).is_none(), "the token expired");
        let of_bob = sessions.start(Login::Token(Arc::new(until)), at(0)).unwrap();
        let found = sessions.find(&of_bob, &both, at(0), true).unwrap();
        sessions.retain(&only_ada);
        assert!(found.ended.is_cancelled());
        assert!(sessions.find(&of_bob, &both, at(0), true).is_none(), "the token was removed");
        assert!(sessions.find(&of_ada, &only_ada, at(0), true).is_some());
    }

    #[test]
    fn sessions_are_capped_for_a_person_and_in_all() {
        let (one, two, bob) = (token("one", "ada"), token("two", "ada"), token("bob", "bob"));
        let (tokens, sessions) = (all(&[&one, &two, &bob]), sessions(2, 3));
        let start =
            |token: &Arc<Token>, second| sessions.start(Login::Token(token.clone()), at(second)).unwrap();
        let is_open = |cookie: &str| sessions.find(cookie, &tokens, at(5), false).is_some();
        let first = [start(&one, 0), start(&two, 1)];
        sessions.find(&first[0], &tokens, at(2), true).unwrap();
        let third = start(&one, 3);
        assert!(is_open(&first[0]) && !is_open(&first[1]) && is_open(&third), "least recently used");
        let of_bob = [start(&bob, 4), start(&bob, 5)];
        assert_eq!(sessions.len(), 3);
        assert!(!is_open(&first[0]) && of_bob.iter().all(|cookie| is_open(cookie)));
    }

    #[test]
    fn a_session_ends_by_a_sign_out() {
        let (ada, sessions) = (token("ada", "ada"), sessions(9, 9));
        let tokens = all(&[&ada]);
        let cookie = sessions.start(Login::Token(ada), at(0)).unwrap();
        let found = sessions.find(&cookie, &tokens, at(0), true).unwrap();
        sessions.end(&found.key);
        assert!(found.ended.is_cancelled() && sessions.find(&cookie, &tokens, at(0), true).is_none());
    }

    #[test]
    fn only_printable_names_are_persons() {
        let person = |name: &str| Person::new(name, vec![Scope::Read], vec![]);
        assert!(person("ada@example.com").is_ok());
        assert_eq!(person(" ａda ").unwrap().name(), "ada");
        for name in ["", " ", "lazaret", "Lazaret", "a\nb", "a\u{202e}b", "\u{430}da", &"x".repeat(101)] {
            assert!(person(name).is_err(), "{name:?}");
        }
    }
}
