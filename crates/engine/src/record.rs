//! The failed attempts of one message, counted across restarts, retry topics and the store.

use lazaret_core::letter::{AttemptRecord, HISTORY_LIMIT};
use lazaret_core::policy::run_length;
use lazaret_core::recorder::Suspect;
use lazaret_core::relay::Hop;
use lazaret_core::store::AttemptNote;
use lazaret_core::{Failure, Letter, Reason, Timestamp};

use crate::limits::AttemptUsage;
use crate::store_clock::StoreClock;
use crate::time::{SteadyWait, later};

/// The failed attempts of one message.
#[derive(Clone, Debug)]
pub(crate) struct FailureRecord {
    /// The number of automatic attempts so far.
    pub(crate) attempts: u32,
    /// The number of these attempts in which the process crashed.
    pub(crate) crashes: u32,
    pub(crate) first_failed_at: Timestamp,
    pub(crate) last_failed_at: Timestamp,
    pub(crate) failure: Failure,
    /// The number of consecutive failures with the same fingerprint.
    pub(crate) same_failure: u32,
    /// The wait for the next attempt, if it has begun.
    pub(crate) due: Option<SteadyWait>,
    pub(crate) history: Vec<AttemptRecord>,
}

impl FailureRecord {
    /// Restores the record from a note that was written before a restart.
    pub(crate) fn from_note(note: AttemptNote, clock: &StoreClock) -> Self {
        // Another instance may have written the note (I12).
        let due = later(note.due_at, clock.error());
        Self {
            attempts: note.attempts,
            crashes: 0,
            first_failed_at: note.first_failed_at,
            last_failed_at: note.first_failed_at,
            failure: note.failure,
            same_failure: note.same_failure,
            due: Some(SteadyWait::resumed(clock, due, note.first_failed_at)),
            history: Vec::new(),
        }
    }

    /// Restores the record from a message that returned from a retry topic.
    pub(crate) fn from_hop(hop: &Hop, clock: &StoreClock) -> Self {
        let due = later(hop.due_at, clock.error());
        Self {
            attempts: hop.attempts,
            crashes: hop.crashes,
            first_failed_at: hop.first_failed_at,
            last_failed_at: hop.last_failed_at,
            failure: hop.failure.clone(),
            same_failure: hop.same_failure,
            due: Some(SteadyWait::resumed(clock, due, hop.last_failed_at)),
            history: Vec::new(),
        }
    }

    /// Restores the record from a letter. Returns `None` if the letter never failed.
    pub(crate) fn from_letter(letter: &Letter) -> Option<Self> {
        let failure = letter.cause.clone()?;
        Some(Self {
            attempts: letter.attempts,
            crashes: letter.crash_attempts,
            first_failed_at: letter.first_failed_at.unwrap_or(letter.enqueued_at),
            last_failed_at: letter.last_failed_at.unwrap_or(letter.enqueued_at),
            failure,
            // Releasing a letter resets its attempts, so earlier failures do not count.
            same_failure: letter.same_failures().min(letter.attempts),
            due: None,
            history: Vec::new(),
        })
    }

    /// Adds a failed attempt. `attempts` is the number of automatic attempts including this one.
    pub(crate) fn failed(
        earlier: Option<Self>,
        attempts: u32,
        attempt: AttemptRecord,
        failure: Failure,
    ) -> Self {
        let previous = earlier.as_ref().map(|r| (r.failure.fingerprint, r.same_failure));
        let same_failure = run_length(previous, failure.fingerprint);
        let first_failed_at = earlier.as_ref().map_or(attempt.at, |r| r.first_failed_at);
        let crashes = earlier.as_ref().map_or(0, |r| r.crashes);
        let mut history = earlier.map(|r| r.history).unwrap_or_default();
        if history.len() == HISTORY_LIMIT {
            history.remove(1);
        }
        let last_failed_at = attempt.at;
        history.push(attempt);
        Self { attempts, crashes, first_failed_at, last_failed_at, failure, same_failure, due: None, history }
    }

    /// Adds crashes of the process while only this message was in flight. Crashes while other messages
    /// were in flight do not count, so the number of the last attempt says nothing: every charged crash
    /// is one attempt.
    pub(crate) fn crashed(earlier: Option<Self>, suspect: &Suspect, now: Timestamp) -> Self {
        let attempts = earlier.as_ref().map_or(0, |r| r.attempts) + suspect.crashes;
        let first_failed_at = earlier.as_ref().map_or(now, |r| r.first_failed_at);
        // Crashes from before the message was relayed are in its headers, not in the flight recorder.
        let crashes = earlier.as_ref().map_or(0, |r| r.crashes) + suspect.crashes;
        Self {
            attempts,
            crashes,
            first_failed_at,
            last_failed_at: now,
            failure: crash(crashes),
            same_failure: crashes,
            due: earlier.as_ref().and_then(|r| r.due),
            history: earlier.map(|r| r.history).unwrap_or_default(),
        }
    }
    /// Returns the amounts of its limits that the message has used.
    pub(crate) const fn usage(&self) -> AttemptUsage {
        AttemptUsage {
            attempts: self.attempts,
            crashes: self.crashes,
            same_failure: self.same_failure,
            first_failed_at: self.first_failed_at,
        }
    }
}

/// Returns the failure of a message that crashed the process.
pub(crate) fn crash(times: u32) -> Failure {
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    let text = format!("the process died {times} while this message alone was being handled");
    Failure::new(Reason::CRASHED, "process died", text)
}

/// Returns the failure of a letter whose lease was lost during an attempt. Its text contains no number,
/// because lost leases are not counted if a flight recorder counts crashes.
pub(crate) fn lost_lease() -> Failure {
    let text = "the lease ended while this letter was being handled: a process crashed or stalled";
    Failure::new(Reason::CRASHED, "lease lost", text)
}
