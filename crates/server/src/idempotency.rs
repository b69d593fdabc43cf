//! `Idempotency-Key`: a change that is sent twice is made once.
//!
//! Answers are kept in memory, for a day at most and so many at most, under the name of the caller and the key. After a
//! restart the store's own rules still hold: a plan is carried out once, a purge is done once, what is in a state is in it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use lazaret_api::{Code, Problem};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::app::App;
use crate::auth::Caller;
use crate::extract::read;
use crate::fault::{Fault, Result};

const HEADER: &str = "idempotency-key";
/// Says that an answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key.
const LONGEST: usize = 255;
/// The largest answer that is kept.
const LARGEST: usize = 1024 * 1024;

/// Who sent it, and under which key.
type Name = (String, String);
/// What was sent.
type Fingerprint = [u8; 32];

/// Answers that were given. Clones share them.
#[derive(Clone)]
pub(crate) struct Answers {
    kept: Arc<Mutex<Kept>>,
    most: usize,
    window: Duration,
}

#[derive(Default)]
struct Kept {
    by_name: HashMap<Name, Entry>,
    /// The same names, oldest first.
    order: VecDeque<(Name, Instant)>,
}

struct Entry {
    fingerprint: Fingerprint,
    since: Instant,
    /// `None` while the first request is being worked on.
    answer: Option<Answer>,
}

#[derive(Clone)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A request that is being worked on. Dropped without an answer, it is forgotten: a mistake in one request must not keep
/// its key from ever being used (I10).
struct Pending {
    answers: Answers,
    name: Name,
    /// Tells it from a later request under the same name, after this one gave way.
    since: Instant,
}

impl Pending {
    /// Keeps the answer.
    fn keep(&self, answer: Answer) {
        let mut kept = self.answers.lock();
        if let Some(entry) = kept.by_name.get_mut(&self.name).filter(|entry| entry.since == self.since) {
            entry.answer = Some(answer);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut kept = self.answers.lock();
        let ours = |entry: &Entry| entry.since == self.since && entry.answer.is_none();
        if kept.by_name.get(&self.name).is_some_and(ours) {
            kept.by_name.remove(&self.name);
        }
    }
}

/// What is to be done with a request.
enum Turn {
    /// It is the first.
    First(Pending),
    /// It was answered.
    Again(Answer),
}

impl Answers {
    pub(crate) fn new(most: usize, window: Duration) -> Self {
        Self { kept: Arc::default(), most: most.max(1), window }
    }

    fn begin(&self, name: &Name, fingerprint: Fingerprint) -> Result<Turn> {
        let now = Instant::now();
        let mut kept = self.lock();
        kept.make_room(self.most, now, self.window);
        if let Some(entry) = kept.by_name.get(name) {
            if entry.fingerprint != fingerprint {
                return Err(Fault::new(
                    Code::IdempotencyMismatch,
                    "the first request with this key was another one",
                ));
            }
            return match &entry.answer {
                Some(answer) => Ok(Turn::Again(answer.clone())),
                None => Err(Fault::from(Problem::new(Code::IdempotencyBusy)).retry_after(1)),
            };
        }
        kept.by_name.insert(name.clone(), Entry { fingerprint, since: now, answer: None });
        kept.order.push_back((name.clone(), now));
        drop(kept);
        Ok(Turn::First(Pending { answers: self.clone(), name: name.clone(), since: now }))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Forgets what is too old, and the oldest where there are too many (I7).
    fn make_room(&mut self, most: usize, now: Instant, window: Duration) {
        while let Some((name, since)) = self.order.front() {
            let entry = self.by_name.get(name).filter(|entry| entry.since == *since);
            let old = now.duration_since(*since) >= window || self.by_name.len() >= most;
            match entry {
                Some(_) if !old => return,
                Some(_) => {
                    self.by_name.remove(name);
                }
                // It was forgotten before, and maybe sent anew.
                None => {}
            }
            self.order.pop_front();
        }
    }
}

/// Makes a change once for each key. Without a key it is made as often as it is sent.
pub(crate) async fn once(
    State((app, most)): State<(App, usize)>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response> {
    let Some(key) = key(request.headers())? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    let body = read(&parts.headers, body, most).await?;
    let mut hasher = Sha256::new();
    for part in [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &body] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let name = (caller.identity.name, key);
    match app.answers.begin(&name, hasher.finalize().into())? {
        Turn::Again(answer) => Ok(answer.replayed()),
        Turn::First(pending) => {
            // In a task of its own: a client that goes away must not leave a change half made, or its answer unknown.
            let request = Request::from_parts(parts, Body::from(body));
            let work = tokio::spawn(async move {
                let answer = keep(next.run(request).await).await;
                if let Some(lasting) = answer.as_ref().filter(|answer| is_lasting(answer.status)) {
                    pending.keep(lasting.clone());
                }
                answer
            });
            let answer = work.await.ok().flatten();
            answer.map(IntoResponse::into_response).ok_or_else(|| Fault::from(Problem::new(Code::Internal)))
        }
    }
}

/// Whether the same request would get the same answer. What may pass is worth another try.
fn is_lasting(status: StatusCode) -> bool {
    !status.is_server_error()
        && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// The key of a request, if it has one.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(given) = headers.get(HEADER) else { return Ok(None) };
    let key = given.to_str().ok().filter(|key| !key.is_empty() && key.len() <= LONGEST);
    let wrong = || Fault::invalid("Idempotency-Key", format!("a key has 1 to {LONGEST} visible characters"));
    Ok(Some(key.ok_or_else(wrong)?.to_owned()))
}

async fn keep(response: Response) -> Option<Answer> {
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, LARGEST).await.ok()?;
    Some(Answer { status: parts.status, headers: parts.headers, body })
}

impl Answer {
    fn replayed(mut self) -> Response {
        self.headers.insert(REPLAYED, HeaderValue::from_static("true"));
        self.into_response()
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.status, self.headers, self.body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> Name {
        ("ada".into(), key.into())
    }

    fn answer() -> Answer {
        Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::new() }
    }

    fn outcome(answers: &Answers, key: &str, fingerprint: u8) -> (&'static str, Option<Pending>) {
        match answers.begin(&name(key), [fingerprint; 32]) {
            Ok(Turn::First(pending)) => ("first", Some(pending)),
            Ok(Turn::Again(_)) => ("again", None),
            Err(fault) => (fault.problem.code.as_str(), None),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_used_once_for_a_day() {
        let answers = Answers::new(10, Duration::from_secs(24 * 3600));
        let (first, pending) = outcome(&answers, "a", 1);
        assert_eq!((first, outcome(&answers, "a", 1).0), ("first", "LZ0217"), "it is being worked on");
        pending.unwrap().keep(answer());
        assert_eq!(outcome(&answers, "a", 1).0, "again");
        assert_eq!(outcome(&answers, "a", 2).0, "LZ0216", "another body");
        assert_eq!(outcome(&answers, "b", 1).0, "first", "another key");
        assert_eq!(outcome(&answers, "b", 2).0, "first", "what had no lasting answer is worth another try");
        tokio::time::advance(Duration::from_secs(24 * 3600)).await;
        assert_eq!(outcome(&answers, "a", 2).0, "first", "a day is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_falls_over_does_not_keep_its_key() {
        // I10
        let answers = Answers::new(10, Duration::from_secs(3600));
        let (_, pending) = outcome(&answers, "a", 1);
        let fallen = tokio::spawn(async move {
            let _pending = pending;
            panic!("a request with a bug");
        });
        assert!(fallen.await.is_err());
        assert_eq!(outcome(&answers, "a", 1).0, "first");
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_answers_are_kept() {
        // I7
        let answers = Answers::new(3, Duration::from_secs(3600));
        for n in 0..100 {
            let (first, pending) = outcome(&answers, &n.to_string(), 1);
            assert_eq!(first, "first");
            if n % 2 == 1 {
                pending.unwrap().keep(answer());
            }
            let kept = answers.lock();
            assert!(
                kept.by_name.len() <= 3 && kept.order.len() <= 7,
                "{} {}",
                kept.by_name.len(),
                kept.order.len()
            );
        }
        assert_eq!(outcome(&answers, "99", 1).0, "again");
        assert_eq!(outcome(&answers, "1", 1).0, "first", "the oldest gave way");
    }
}
