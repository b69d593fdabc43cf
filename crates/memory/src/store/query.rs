//! Searches and counts letters by a scan, the newest first.

use std::collections::BinaryHeap;

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterState};
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, Result, StoreError};

use super::State;
use super::queue::Queue;

/// Maximum number of letters of a page.
const PAGE_LIMIT: usize = 1000;
/// Maximum number of letters that a page reads (I7).
const FIND_BOUND: u64 = 10_000;
/// Maximum number of letters that a count reads.
const COUNT_BOUND: u64 = 8_000;

/// The letters that match, the latest enqueued first.
pub(super) fn find(
    state: &State,
    query: &Query,
    after: Option<&str>,
    limit: usize,
    now: Timestamp,
) -> Result<LettersPage> {
    find_within(state, query, after, limit, now, FIND_BOUND)
}

/// The number of letters that match.
pub(super) fn count(state: &State, query: &Query, now: Timestamp) -> Matches {
    count_within(state, query, now, COUNT_BOUND)
}

fn find_within(
    state: &State,
    query: &Query,
    after: Option<&str>,
    limit: usize,
    now: Timestamp,
    bound: u64,
) -> Result<LettersPage> {
    let before = after.map_or(Ok(u64::MAX), parse_cursor)?;
    let limit = limit.clamp(1, PAGE_LIMIT);
    let mut letters: Vec<Letter> = Vec::new();
    let mut newest = newest_first(state, before);
    let mut looked_at = 0;
    while let Some((arrival, letter)) = newest.next() {
        looked_at += 1;
        if query.matches(letter, now) {
            letters.push(letter.clone());
        }
        if letters.len() == limit || looked_at == bound {
            // Without remaining letters there is no next page.
            let next = newest.next().map(|_| arrival.to_string());
            return Ok(LettersPage { letters, next });
        }
    }
    Ok(LettersPage { letters, next: None })
}

fn count_within(state: &State, query: &Query, now: Timestamp, bound: u64) -> Matches {
    if let Some(letters) = counted(state, query) {
        return Matches { letters, exact: true };
    }
    let mut newest = newest_first(state, u64::MAX);
    let (mut letters, mut looked_at) = (0, 0);
    while looked_at < bound {
        let Some((_, letter)) = newest.next() else { break };
        looked_at += 1;
        letters += u64::from(query.matches(letter, now));
    }
    Matches { letters, exact: newest.next().is_none() }
}

/// The number of letters that match, if the counters of the queues suffice.
fn counted(state: &State, query: &Query) -> Option<u64> {
    let mut letters = 0;
    for queue in state.queues.values() {
        let counts = queue.counts();
        for of in LetterState::ALL {
            if query.matches_all_of(&queue.name, of)? {
                letters += counts.of(of);
            }
        }
    }
    Some(letters)
}

/// A cursor is the number of the last letter that was read.
fn parse_cursor(text: &str) -> Result<u64> {
    let canonical = text.parse().ok().filter(|arrival: &u64| arrival.to_string() == text);
    canonical.ok_or_else(|| {
        let context = format!("invalid cursor {text:?}");
        StoreError::not_done(ErrorKind::Invalid, "find", context)
    })
}

/// The letters of all queues, each with its number, the latest enqueued first.
struct NewestFirst<'s> {
    queues: Vec<&'s Queue>,
    /// The newest letter of each queue that was not returned yet: its number and the index of its queue.
    heads: BinaryHeap<(u64, usize)>,
}

/// The letters with a number below this one.
fn newest_first(state: &State, before: u64) -> NewestFirst<'_> {
    let queues: Vec<&Queue> = state.queues.values().collect();
    let mut newest = NewestFirst { heads: BinaryHeap::with_capacity(queues.len()), queues };
    for place in 0..newest.queues.len() {
        newest.look(place, before);
    }
    newest
}

impl NewestFirst<'_> {
    /// Finds the next letter of a queue. The numbers of purged letters are skipped.
    fn look(&mut self, place: usize, before: u64) {
        let queue = self.queues[place];
        let next = queue.arrivals.range(..before).rev().find(|(_, id)| queue.letters.contains_key(id));
        self.heads.extend(next.map(|(arrival, _)| (*arrival, place)));
    }
}

impl<'s> Iterator for NewestFirst<'s> {
    type Item = (u64, &'s Letter);

    fn next(&mut self) -> Option<Self::Item> {
        let (arrival, place) = self.heads.pop()?;
        self.look(place, arrival);
        let queue = self.queues[place];
        let id = queue.arrivals.get(&arrival)?;
        Some((arrival, queue.letter(*id)?))
    }
}

#[cfg(test)]
mod tests;
