//! Letters that are not executed because they cannot be decrypted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lazaret_core::{LetterId, QueueName};

use crate::content::Unreadable;

/// The letters that are remembered at most (I7).
const LIMIT: usize = 1_000;
/// The time for which a letter is remembered. It is claimed again whenever its lease ends, which is much sooner.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The letters that were left out of claims lately. Their leases keep them out of the way of the others.
#[derive(Default)]
pub(crate) struct Withheld(Mutex<BTreeMap<LetterId, Entry>>);

struct Entry {
    queue: QueueName,
    why: String,
    at: Instant,
}

impl Withheld {
    pub(crate) fn add(&self, queue: &QueueName, letter: LetterId, why: &Unreadable) {
        let mut letters = self.lock();
        if letters.len() < LIMIT || letters.contains_key(&letter) {
            let entry = Entry { queue: queue.clone(), why: why.to_string(), at: Instant::now() };
            letters.insert(letter, entry);
        }
    }

    /// Forgets a letter that a person has changed.
    pub(crate) fn forget(&self, letter: LetterId) {
        self.lock().remove(&letter);
    }

    /// Describes the letters of a consumer; `None` without any.
    pub(crate) fn describe(&self, consumer: &str) -> Option<String> {
        let mut letters = self.lock();
        letters.retain(|_, entry| entry.at.elapsed() < REMEMBERED_FOR);
        let mut own = letters.values().filter(|entry| entry.queue.consumer() == consumer);
        let first = &own.next()?.why;
        Some(match own.count() {
            0 => format!("a letter is not executed: {first}"),
            more => format!("{} letters are not executed; one of them: {first}", more + 1),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LetterId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
