//! Caps of one token: concurrent requests, open streams, and bytes of bodies in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_api::Code;

use crate::api_error::{ApiError, Result};
use crate::auth::Caller;
use crate::options::Limits;

/// The use of each token. Clones share it. Callers without a token have no caps of their own.
#[derive(Clone)]
pub(crate) struct PerToken {
    used: Arc<Mutex<HashMap<String, [usize; 3]>>>,
    caps: [usize; 3],
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Requests,
    Streams,
    BodyBytes,
}

/// A part of a token's cap. Returned when dropped.
pub(crate) struct Share {
    owner: Option<(PerToken, String)>,
    resource: Resource,
    amount: usize,
}

impl PerToken {
    pub(crate) fn new(limits: &Limits) -> Self {
        let caps = [limits.requests_per_token, limits.streams_per_token, limits.body_bytes_per_token];
        Self { used: Arc::default(), caps: caps.map(|cap| cap.max(1)) }
    }

    /// Takes a part of the caller's cap.
    pub(crate) fn take(&self, caller: &Caller, resource: Resource, amount: usize) -> Result<Share> {
        if !caller.identity.authenticated {
            return Ok(Share { owner: None, resource, amount });
        }
        let name = &caller.identity.name;
        let cap = self.caps[resource as usize];
        let mut used = self.lock();
        let now = used.get(name).map_or(0, |used| used[resource as usize]);
        // A single body above the cap is served when nothing else is: its own limit applies.
        if now > 0 && now.saturating_add(amount) > cap {
            let what = match resource {
                Resource::Requests => "requests",
                Resource::Streams => "open streams",
                Resource::BodyBytes => "bytes of requests",
            };
            let detail = format!("too many {what} with the token {name}: the limit is {cap}");
            return Err(ApiError::new(Code::Busy, detail).retry_after(1));
        }
        used.entry(name.clone()).or_default()[resource as usize] += amount;
        drop(used);
        Ok(Share { owner: Some((self.clone(), name.clone())), resource, amount })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, [usize; 3]>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some((per_token, name)) = &self.owner else { return };
        let mut used = per_token.lock();
        if let Some(of_token) = used.get_mut(name) {
            of_token[self.resource as usize] -= self.amount;
            if *of_token == [0; 3] {
                used.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_api::{Identity, Via};

    use super::*;
    use crate::auth::Session;

    fn caller(name: &str, authenticated: bool) -> Caller {
        let identity = Identity {
            name: name.into(),
            person: name.into(),
            authenticated,
            scopes: Vec::new(),
            expires_at: None,
            consumers: Vec::new(),
        };
        Caller { identity, via: Via::Api, claim: None, session: Session::default() }
    }

    #[test]
    fn each_token_has_its_own_cap() {
        let per_token = PerToken::new(&Limits { requests_per_token: 2, ..Limits::default() });
        let (ada, bob, local) = (caller("ada", true), caller("bob", true), caller("local", false));
        let take = |who: &Caller| per_token.take(who, Resource::Requests, 1);
        let held = [take(&ada).unwrap(), take(&ada).unwrap()];
        assert_eq!(take(&ada).map(drop).unwrap_err().problem.code, Code::Busy);
        assert!(take(&bob).is_ok());
        assert!((0..9).map(|_| take(&local)).collect::<Vec<_>>().iter().all(Result::is_ok));
        assert!(per_token.take(&ada, Resource::Streams, 1).is_ok(), "another resource");
        drop(held);
        assert!(take(&ada).is_ok());
        assert!(per_token.lock().is_empty(), "nothing is kept of a token that is not in use");
    }
}
