//! The places of requests whose sender is not known: few in all, and fewer for each client. Nothing of such a request but its
//! headers is read before it has one. Requests with a valid token or session have other places, so that nobody else can take those.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_api::Code;

use crate::api_error::{ApiError, Result};
use crate::auth::Client;
use crate::options::Limits;

/// The places. Clones share them.
#[derive(Clone)]
pub(crate) struct AnonymousPool {
    /// The number of requests in progress of each client.
    used: Arc<Mutex<HashMap<Client, usize>>>,
    total: usize,
    per_client: usize,
}

/// The place of a request. Freed when dropped.
pub(crate) struct Place {
    pool: AnonymousPool,
    client: Client,
}

impl AnonymousPool {
    pub(crate) fn new(limits: &Limits) -> Self {
        let total = limits.anonymous_requests.max(1);
        let per_client = limits.anonymous_requests_per_peer.clamp(1, total);
        Self { used: Arc::default(), total, per_client }
    }

    /// Takes a place. The requests of all connections and streams of a client count together.
    pub(crate) fn take(&self, client: Client) -> Result<Place> {
        let mut used = self.lock();
        let of_client = used.get(&client).copied().unwrap_or(0);
        if of_client >= self.per_client || used.values().sum::<usize>() >= self.total {
            let detail = "too many requests without a valid token or session";
            return Err(ApiError::new(Code::Busy, detail).retry_after(1));
        }
        used.insert(client, of_client + 1);
        Ok(Place { pool: self.clone(), client })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = self.pool.lock();
        if let Some(count) = used.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Client {
        Client::of(address.parse().ok())
    }

    #[test]
    fn one_client_leaves_places_to_others_and_all_of_them_are_few() {
        let limits = Limits { anonymous_requests: 3, anonymous_requests_per_peer: 2, ..Limits::default() };
        let pool = AnonymousPool::new(&limits);
        let take = |address: &str| pool.take(client(address));
        let held = [take("10.0.0.1").unwrap(), take("10.0.0.1").unwrap()];
        assert_eq!(take("10.0.0.1").map(drop).unwrap_err().problem.code, Code::Busy);
        let other = take("10.0.0.2").unwrap();
        assert!(take("10.0.0.3").is_err(), "no place is left");
        drop(held);
        assert!(take("10.0.0.1").is_ok() && take("10.0.0.3").is_ok());
        drop(other);
        assert!(pool.lock().is_empty(), "nothing is kept of a client without requests");
    }

    #[test]
    fn addresses_of_one_machine_share_their_places() {
        let limits = Limits { anonymous_requests_per_peer: 1, ..Limits::default() };
        let pool = AnonymousPool::new(&limits);
        let _held = pool.take(client("2001:db8::1")).unwrap();
        assert!(pool.take(client("2001:db8::2")).is_err());
        assert!(pool.take(client("2001:db8:0:1::1")).is_ok());
    }
}
