//! The room that the collections of the store take, with their indexes.
//!
//! The server tells it per collection (`collStats`), so that other collections of the database do not count. Files do not shrink when
//! documents are deleted; what they have free is used again, and does not count either.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bson::{Bson, Document};
use lazaret_core::store::{Occupancy, Result};
use mongodb::error::{Error, ErrorKind as Driver};

use crate::error::reading;
use crate::store::MongoStore;
use crate::values::uint;

/// How long a refusal stands before the server is asked again: the right may be granted meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// There is no such collection yet.
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Codes of servers that answer later: elections, shutdowns, time limits, other servers that cannot be reached.
const TEMPORARY: [i32; 13] = [6, 7, 50, 89, 91, 134, 189, 262, 9_001, 10_107, 11_600, 11_602, 13_435];

/// A server, or a right that is missing, refuses to tell the room. The bound on bytes is then not checked.
#[derive(Default)]
pub(crate) struct Refusal {
    since: Mutex<Option<Instant>>,
}

impl Refusal {
    /// Whether the server need not be asked yet.
    fn stands(&self, now: Instant) -> bool {
        self.since().is_some_and(|since| now.saturating_duration_since(since) < ASK_AGAIN)
    }

    /// Notes that the server refused. Returns whether it is the first time since it answered.
    fn note(&self, now: Instant) -> bool {
        self.since().replace(now).is_none()
    }

    /// Notes that the server answered. Returns whether it had refused before.
    fn end(&self) -> bool {
        self.since().take().is_some()
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MongoStore {
    /// The room that the store takes; unknown while the server refuses to tell it.
    pub(crate) async fn measure(&self) -> Result<Occupancy> {
        let refusal = self.refusal();
        if refusal.stands(Instant::now()) {
            return Ok(Occupancy::default());
        }
        match self.used().await {
            Ok(used) => {
                if refusal.end() {
                    tracing::info!("room of the store known again, max-bytes is checked");
                }
                Ok(Occupancy { used: Some(used), ..Occupancy::default() })
            }
            Err(error) if is_refusal(&error) => {
                if refusal.note(Instant::now()) {
                    let (letters, why) = (self.db().letters.namespace(), reading(error));
                    tracing::warn!(
                        database = letters.db,
                        error = why.context(),
                        "room of the store unknown, max-bytes is not checked: grant the action collStats on the collections of the \
                         store (readWrite contains it), or set max-bytes: unlimited"
                    );
                }
                Ok(Occupancy::default())
            }
            Err(error) => Err(reading(error)),
        }
    }

    /// Adds up the collections. The first one that is refused ends it: the others would be too.
    async fn used(&self) -> mongodb::error::Result<u64> {
        let mut used = 0;
        for collection in self.db().collections() {
            match self.db().statistics(collection).await {
                Ok(statistics) => used += bytes(&statistics),
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }
}

/// The bytes of a collection and its indexes. A server that keeps documents in memory alone states no size of files.
fn bytes(statistics: &Document) -> u64 {
    let number = |name: &str| match statistics.get(name) {
        Some(Bson::Int32(number)) => uint(i64::from(*number)),
        Some(Bson::Int64(number)) => uint(*number),
        // A router adds up its shards as doubles.
        Some(Bson::Double(number)) => *number as u64,
        _ => 0,
    };
    let files = match number("storageSize") {
        0 => number("size"),
        size => size.saturating_sub(number("freeStorageSize")),
    };
    files + number("totalIndexSize")
}

/// Whether the server does not tell, however often it is asked.
fn is_refusal(error: &Error) -> bool {
    code(error).is_some_and(|code| !TEMPORARY.contains(&code))
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        Driver::Command(command) => Some(command.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn free_room_in_the_files_does_not_count_and_indexes_do() {
        let files =
            doc! { "size": 900, "storageSize": 500_i64, "freeStorageSize": 100, "totalIndexSize": 50.0 };
        assert_eq!(bytes(&files), 450);
        let memory = doc! { "size": 900, "storageSize": 0, "nindexes": 1 };
        assert_eq!(bytes(&memory), 900);
        assert_eq!(bytes(&doc! { "size": 0, "count": 0, "ok": 1.0 }), 0, "no such collection");
    }

    #[test]
    fn a_refusal_is_told_once_and_asked_about_again_later() {
        let (refusal, start) = (Refusal::default(), Instant::now());
        assert!(!refusal.stands(start));
        assert!(refusal.note(start), "the first one is told");
        assert!(refusal.stands(start + ASK_AGAIN / 2));
        let later = start + ASK_AGAIN;
        assert!(!refusal.stands(later), "asked again");
        assert!(!refusal.note(later) && refusal.stands(later), "and not told again");
        assert!(refusal.end() && !refusal.end() && !refusal.stands(later));
        assert!(refusal.note(later), "a new one is told");
    }

    #[tokio::test]
    async fn a_server_that_is_away_refuses_nothing() {
        let uri = "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=1000";
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let error = client.database("shop").run_command(doc! { "collStats": "x" }).await.unwrap_err();
        assert!(!is_refusal(&error), "{error}");
    }
}
