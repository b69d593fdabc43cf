//! `Idempotency-Key`: a change that is sent twice is executed once.
//!
//! Responses are kept in memory, bounded in number, bytes and age, by caller and key. After a restart the rules of the store still
//! hold: a plan is used once, a purge is done once, and a state change is idempotent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use lazaret_api::{Code, Problem};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::api_error::{ApiError, Result};

const HEADER: &str = "idempotency-key";
/// Marks a replayed response.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key.
pub(crate) const MAX_KEY_BYTES: usize = 255;
/// The largest stored response. A larger one is stored as its [`CompactBody`].
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// The bytes of an entry besides its body, roughly.
const ENTRY_BYTES: usize = 1024;

/// The name of the caller, and the key.
type Scoped = (String, String);
/// The hash of method, URI and body.
type Fingerprint = [u8; 32];

/// The stored responses. Clones share them.
#[derive(Clone)]
pub(crate) struct IdempotencyStore {
    entries: Arc<Mutex<Entries>>,
    capacity: usize,
    max_bytes: usize,
    window: Duration,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Scoped, Entry>,
    /// The bytes of the stored responses.
    bytes: usize,
    /// The keys with a stored response, oldest first. Requests in progress are not among them: they are never evicted, or their
    /// keys could be executed twice at once. The limit of concurrent requests bounds them.
    stored: VecDeque<(Scoped, Instant)>,
}

struct Entry {
    fingerprint: Fingerprint,
    /// `None` while the first request is in progress.
    response: Option<StoredResponse>,
}

/// A stored response.
#[derive(Clone)]
pub(crate) struct StoredResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A short form of a response body, in the extensions of a response: a repeated request gets it if the body is too large to be
/// stored.
#[derive(Clone)]
pub(crate) struct CompactBody(pub(crate) Bytes);

/// A request in progress. Dropped without a response, its key is freed: a bug in one request must not block its key (I10).
pub(crate) struct Pending {
    store: IdempotencyStore,
    key: Scoped,
    is_complete: bool,
}

impl Pending {
    /// Stores the response.
    pub(crate) fn complete(mut self, response: StoredResponse) {
        self.is_complete = true;
        let mut entries = self.store.lock();
        if let Some(entry) = entries.by_key.get_mut(&self.key) {
            let bytes = response.byte_size();
            entry.response = Some(response);
            entries.bytes += bytes;
            entries.stored.push_back((self.key.clone(), Instant::now()));
            entries.shrink(self.store.capacity, self.store.max_bytes);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_complete {
            self.store.lock().by_key.remove(&self.key);
        }
    }
}

/// The result of claiming a key.
pub(crate) enum Claim {
    /// The first request with this key.
    New(Pending),
    /// The response of the first request.
    Completed(StoredResponse),
}

impl IdempotencyStore {
    pub(crate) fn new(capacity: usize, max_bytes: usize, window: Duration) -> Self {
        Self { entries: Arc::default(), capacity: capacity.max(1), max_bytes, window }
    }

    /// Claims a key for a request.
    pub(crate) fn claim(&self, key: &Scoped, fingerprint: Fingerprint) -> Result<Claim> {
        let now = Instant::now();
        let mut entries = self.lock();
        entries.expire(now, self.window);
        if let Some(entry) = entries.by_key.get(key) {
            if entry.fingerprint != fingerprint {
                let detail = "the first request with this key was a different one";
                return Err(ApiError::new(Code::IdempotencyMismatch, detail));
            }
            return match &entry.response {
                Some(response) => Ok(Claim::Completed(response.clone())),
                None => Err(ApiError::from(Problem::new(Code::IdempotencyBusy)).retry_after(1)),
            };
        }
        entries.by_key.insert(key.clone(), Entry { fingerprint, response: None });
        drop(entries);
        Ok(Claim::New(Pending { store: self.clone(), key: key.clone(), is_complete: false }))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Removes the responses whose time has passed.
    fn expire(&mut self, now: Instant, window: Duration) {
        while self.stored.front().is_some_and(|(_, since)| now.duration_since(*since) >= window) {
            self.remove_oldest();
        }
    }

    /// Removes the oldest responses until the rest fits (I7).
    fn shrink(&mut self, capacity: usize, max_bytes: usize) {
        while self.stored.len() > capacity || (self.bytes > max_bytes && !self.stored.is_empty()) {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        let oldest = self.stored.pop_front().and_then(|(key, _)| self.by_key.remove(&key));
        let response = oldest.and_then(|entry| entry.response);
        self.bytes -= response.map_or(0, |response| response.byte_size());
    }
}

/// The hash of method, URI and body.
pub(crate) fn fingerprint(parts: &Parts, body: &Bytes) -> Fingerprint {
    let mut hasher = Sha256::new();
    for part in [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), body] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// The key of a request, if it has one.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(given) = headers.get(HEADER) else { return Ok(None) };
    let key = given.to_str().ok().filter(|key| !key.is_empty() && key.len() <= MAX_KEY_BYTES);
    let invalid = || {
        let detail = format!("the key must have 1 to {MAX_KEY_BYTES} printable ASCII characters");
        ApiError::invalid("Idempotency-Key", detail)
    };
    Ok(Some(key.ok_or_else(invalid)?.to_owned()))
}

impl StoredResponse {
    /// Reads a response. Returns it, and what is stored of it: nothing if it is too large and has no short form.
    pub(crate) async fn read(response: Response) -> Option<(Response, Option<Self>)> {
        let (mut parts, body) = response.into_parts();
        // The limits of requests bound the responses of changes.
        let body = to_bytes(body, usize::MAX).await.ok()?;
        let compact = parts.extensions.remove::<CompactBody>();
        let kept = match body.len() <= MAX_RESPONSE_BYTES {
            true => Some(body.clone()),
            false => compact.map(|compact| compact.0),
        };
        let stored = kept.map(|kept| {
            let mut headers = parts.headers.clone();
            headers.remove(CONTENT_LENGTH);
            Self { status: parts.status, headers, body: kept }
        });
        Some((Response::from_parts(parts, Body::from(body)), stored))
    }

    fn byte_size(&self) -> usize {
        self.body.len() + ENTRY_BYTES
    }

    /// Returns `true` if a repeated request would get the same response. Temporary errors are not stored.
    pub(crate) fn is_lasting(&self) -> bool {
        !self.status.is_server_error()
            && !matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    }

    /// The response, marked as replayed.
    pub(crate) fn replayed(mut self) -> Response {
        self.headers.insert(REPLAYED, HeaderValue::from_static("true"));
        self.into_response()
    }
}

impl IntoResponse for StoredResponse {
    fn into_response(self) -> Response {
        (self.status, self.headers, self.body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(key: &str) -> Scoped {
        ("ada".into(), key.into())
    }

    fn response() -> StoredResponse {
        StoredResponse { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::new() }
    }

    fn outcome(store: &IdempotencyStore, key: &str, fingerprint: u8) -> (&'static str, Option<Pending>) {
        match store.claim(&scoped(key), [fingerprint; 32]) {
            Ok(Claim::New(pending)) => ("new", Some(pending)),
            Ok(Claim::Completed(_)) => ("completed", None),
            Err(error) => (error.problem.code.as_str(), None),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_reserved_for_the_whole_window() {
        let store = IdempotencyStore::new(10, usize::MAX, Duration::from_secs(24 * 3600));
        let (first, pending) = outcome(&store, "a", 1);
        assert_eq!((first, outcome(&store, "a", 1).0), ("new", "LZ0217"), "in progress");
        pending.unwrap().complete(response());
        assert_eq!(outcome(&store, "a", 1).0, "completed");
        assert_eq!(outcome(&store, "a", 2).0, "LZ0216", "another body");
        assert_eq!(outcome(&store, "b", 1).0, "new", "another key");
        assert_eq!(outcome(&store, "b", 2).0, "new", "a key without a stored response is free again");
        tokio::time::advance(Duration::from_secs(24 * 3600)).await;
        assert_eq!(outcome(&store, "a", 2).0, "new", "the window has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_request_frees_its_key() {
        // I10
        let store = IdempotencyStore::new(10, usize::MAX, Duration::from_secs(3600));
        let (_, pending) = outcome(&store, "a", 1);
        let panicked = tokio::spawn(async move {
            let _pending = pending;
            panic!("a request with a bug");
        });
        assert!(panicked.await.is_err());
        assert_eq!(outcome(&store, "a", 1).0, "new");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_stored_responses_is_bounded() {
        // I7
        let store = IdempotencyStore::new(3, usize::MAX, Duration::from_secs(3600));
        for n in 0..100 {
            let (first, pending) = outcome(&store, &n.to_string(), 1);
            assert_eq!(first, "new");
            if n % 2 == 1 {
                pending.unwrap().complete(response());
            }
            let entries = store.lock();
            let sizes = (entries.by_key.len(), entries.stored.len());
            assert!(sizes.0 <= 4 && sizes.1 <= 3, "{sizes:?}");
        }
        assert_eq!(outcome(&store, "99", 1).0, "completed");
        assert_eq!(outcome(&store, "1", 1).0, "new", "the oldest was evicted");
    }

    #[tokio::test(start_paused = true)]
    async fn the_bytes_of_stored_responses_are_bounded() {
        // I7
        let store = IdempotencyStore::new(1000, 10 * ENTRY_BYTES, Duration::from_secs(3600));
        for n in 0..100 {
            let (_, pending) = outcome(&store, &n.to_string(), 1);
            let body = Bytes::from(vec![b'x'; ENTRY_BYTES]);
            pending.unwrap().complete(StoredResponse { body, ..response() });
            assert!(store.lock().bytes <= 10 * ENTRY_BYTES);
        }
        assert_eq!(store.lock().by_key.len(), 5);
        assert_eq!(outcome(&store, "99", 1).0, "completed");
        assert_eq!(outcome(&store, "1", 1).0, "new");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_progress_keeps_its_key_whatever_else_is_stored() {
        let window = Duration::from_secs(3600);
        let few = IdempotencyStore::new(1, usize::MAX, window);
        let small = IdempotencyStore::new(1000, ENTRY_BYTES, window);
        for store in [few, small] {
            let (_, first) = outcome(&store, "a", 1);
            for n in 0..10 {
                outcome(&store, &n.to_string(), 1).1.unwrap().complete(response());
                assert_eq!(outcome(&store, "a", 1).0, "LZ0217", "in progress, after {n} others");
            }
            tokio::time::advance(window).await;
            assert_eq!(outcome(&store, "a", 1).0, "LZ0217", "in progress, after the window");
            first.unwrap().complete(response());
            assert_eq!(outcome(&store, "a", 1).0, "completed");
        }
    }

    #[tokio::test]
    async fn a_response_that_is_too_large_is_sent_and_its_short_form_stored() {
        let large = Bytes::from(vec![b'x'; MAX_RESPONSE_BYTES + 1]);
        let mut first = (StatusCode::ACCEPTED, large.clone()).into_response();
        first.extensions_mut().insert(CompactBody(Bytes::from_static(b"{}")));
        let (sent, stored) = StoredResponse::read(first).await.unwrap();
        assert_eq!(to_bytes(sent.into_body(), usize::MAX).await.unwrap(), large);
        let stored = stored.unwrap();
        assert_eq!((stored.status, &stored.body[..]), (StatusCode::ACCEPTED, &b"{}"[..]));
        let (_, stored) = StoredResponse::read(large.into_response()).await.unwrap();
        assert!(stored.is_none());
    }
}
