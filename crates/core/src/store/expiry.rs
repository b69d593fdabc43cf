//! The time by which values expire: it passes as time does, whatever the clocks are set to.
//!
//! The duplicate filter promises a window of time. Marks that ended by the store's clock would be gone when that clock is set forward,
//! and the next copy of a handled message would be handled again. A steady clock cannot be set, but two processes have none in common.
//! So the time of expiry is made of both:
//!
//! - Each process counts it with its [steady](Clock::steady) clock.
//! - It is noted in the store, as a value, beside what the store's clock shows. A process that starts goes on from there: by the steady
//!   clock if the machine was not restarted since, else by the store's clock.
//! - Every ten seconds, when it is needed, a process compares its count with the note and the store's clock, so that all processes have
//!   the same time. A clock that has shown more or less time than was counted was set: then the count holds, and the note is written
//!   anew.
//!
//! In a new store it is the time of the store's clock. It falls behind, or runs ahead, by as much as that clock is set later.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{Expect, KeyValue, Reading, Versioned, Written};
use super::rules::later;
use crate::clock::Clock;

/// The namespace and the name of the note.
const SPACE: &str = "expiry";
const NAME: &str = "time";

/// How long a process counts on before it reads the note again.
const READ_EVERY: Duration = Duration::from_secs(10);
/// The age at which the note is written anew. Less than the time between two readings: one process alone keeps it fresh.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// By how much the time may differ from the note before that is written anew.
const NOTE_ERROR: Duration = Duration::from_secs(1);
/// A clock that nobody sets gains or loses less than one part in so many.
const DRIFT: u32 = 1000;

/// The time by which the [values](KeyValue) of a store expire, as one process knows it. It lies between two bounds: the process asks,
/// and may be stopped before it has the answer.
///
/// ```
/// use std::time::Duration;
///
/// use lazaret_core::Timestamp;
/// use lazaret_core::store::ExpiryTime;
///
/// let at = |second| Timestamp::from_second(second).unwrap();
/// let time = ExpiryTime { earliest: at(100), latest: at(101) };
/// let end = time.end_of(Duration::from_secs(60));
/// assert_eq!(end, at(161));
/// assert!(!time.has_passed(end));
/// assert!(time.has_passed(at(100)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryTime {
    /// It is this time, or later. What ends by then has expired.
    pub earliest: Timestamp,
    /// It is this time, or earlier. What lasts from now on ends that long after it.
    pub latest: Timestamp,
}

impl ExpiryTime {
    /// The end of a value that is written now.
    pub fn end_of(self, ttl: Duration) -> Timestamp {
        later(self.latest, ttl)
    }

    /// `true` if a value with this end has expired.
    pub fn has_passed(self, end: Timestamp) -> bool {
        end <= self.earliest
    }

    /// The reading, without a value that has expired.
    pub fn unexpired(self, reading: Reading) -> Reading {
        let is_there = |found: &Versioned| found.expires_at.is_none_or(|end| !self.has_passed(end));
        Reading { found: reading.found.filter(is_there), ..reading }
    }
}

/// Tells the time by which the values of a store expire. Each process has one for each store that it opens.
///
/// A store asks it before each write, for the end of the value and for what has expired. It reads a value as it is stored, and passes
/// it through [`unexpired`](Self::unexpired):
///
/// ```
/// use lazaret_core::store::{ExpiryClock, KeyValue, Reading, Result};
///
/// struct Table {
///     expiry: ExpiryClock,
/// }
///
/// # trait Rows { fn stored(&self, space: &str, name: &str) -> Reading; }
/// async fn read(table: &Table, store: &(impl KeyValue + Rows), space: &str, name: &str) -> Result<Reading> {
///     let reading = store.stored(space, name);
///     table.expiry.unexpired(store, space, reading).await
/// }
/// ```
pub struct ExpiryClock {
    clock: Arc<dyn Clock>,
    boot: Option<String>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// `None` before the first reading.
    count: Option<Count>,
    /// When the note was asked for, by the steady clock.
    asked: Duration,
}

impl ExpiryClock {
    /// Counts with the steady clock of this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { boot: clock.boot(), clock, state: Mutex::default() }
    }

    /// The time for a call about this namespace of the store.
    ///
    /// # Errors
    /// Those of the store, until the process has read the note once. Later, it counts on without the store.
    pub async fn time<K: KeyValue + ?Sized>(&self, store: &K, space: &str) -> Result<ExpiryTime> {
        if space == SPACE {
            // The note itself, which does not expire: nothing has, so that it can be read.
            return Ok(ExpiryTime { earliest: Timestamp::MIN, latest: Timestamp::MIN });
        }
        match self.counted() {
            Some((time, false)) => Ok(time),
            Some((time, true)) => Ok(self.ask(store).await.unwrap_or(time)),
            None => self.ask(store).await,
        }
    }

    /// The reading of a value in this namespace, without one that has expired.
    ///
    /// # Errors
    /// As [`time`](Self::time), which is asked if the value can expire.
    pub async fn unexpired<K: KeyValue + ?Sized>(
        &self,
        store: &K,
        space: &str,
        reading: Reading,
    ) -> Result<Reading> {
        match reading.found.as_ref().and_then(|found| found.expires_at) {
            Some(_) => Ok(self.time(store, space).await?.unexpired(reading)),
            None => Ok(reading),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time as counted, and `true` if this caller is to read the note.
    fn counted(&self) -> Option<(ExpiryTime, bool)> {
        let mut state = self.lock();
        let steady = self.clock.steady();
        let time = state.count?.at(steady);
        let is_due = steady.saturating_sub(state.asked) >= READ_EVERY;
        if is_due {
            // The others count on meanwhile.
            state.asked = steady;
        }
        Some((time, is_due))
    }

    /// Compares the count with the note, and writes the note anew if need be.
    async fn ask<K: KeyValue + ?Sized>(&self, store: &K) -> Result<ExpiryTime> {
        loop {
            let before = self.clock.steady();
            let Reading { found, now } = store.read(SPACE, NAME).await?;
            let read = NoteRead { now, before, after: self.clock.steady() };
            let note = found.as_ref().map(Note::decode).transpose()?;
            let own = self.lock().count;
            let own = own.or_else(|| note.as_ref()?.count_since(self.boot.as_deref(), before));
            let time = agreed(own, note.as_ref(), &read);
            if !note.is_some_and(|note| note.is_fresh(time, now)) {
                let note = Note { clock: now, time, boot: self.boot.clone(), steady: read.after };
                let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
                let written = store.write(SPACE, NAME, expect, Some(note.encode()?), None).await?;
                if written != Written::Done {
                    // Another process was faster.
                    continue;
                }
            }
            return Ok(self.keep(Count { time, before: read.before, after: read.after }));
        }
    }

    /// Goes on from this count. Of several at the same time, the one that was read last counts.
    fn keep(&self, count: Count) -> ExpiryTime {
        let mut state = self.lock();
        let count = state.count.filter(|last| last.after > count.after).unwrap_or(count);
        *state = State { count: Some(count), asked: count.after };
        count.at(self.clock.steady())
    }
}

impl fmt::Debug for ExpiryClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryClock").field("count", &self.lock().count).finish_non_exhaustive()
    }
}

/// The time at some moment between two of the steady clock, from which a process counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    time: Timestamp,
    before: Duration,
    after: Duration,
}

impl Count {
    /// The time at this moment.
    fn at(self, steady: Duration) -> ExpiryTime {
        ExpiryTime {
            earliest: later(self.time, steady.saturating_sub(self.after)),
            latest: later(self.time, steady.saturating_sub(self.before)),
        }
    }
}

/// A reading of the store's clock, at some moment between two of the steady clock.
#[derive(Clone, Copy)]
struct NoteRead {
    now: Timestamp,
    before: Duration,
    after: Duration,
}

/// The time as it is noted in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// What the store's clock showed.
    clock: Timestamp,
    /// The time then.
    time: Timestamp,
    /// The machine and its boot, if they are known, and the time since then.
    boot: Option<String>,
    steady: Duration,
}

impl Note {
    fn decode(found: &Versioned) -> Result<Self> {
        serde_json::from_slice(&found.value).map_err(|error| {
            StoreError::not_done(ErrorKind::Corrupt, "expiry", "failed to decode the time of expiry")
                .with_source(error)
        })
    }

    fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            StoreError::not_done(ErrorKind::Invalid, "expiry", "failed to encode the time of expiry")
                .with_source(error)
        })
    }

    /// The time when the store's clock shows this, if it was not set since.
    fn shown(&self, now: Timestamp) -> Timestamp {
        let passed = now.duration_since(self.clock);
        let end = if passed < SignedDuration::ZERO { Timestamp::MIN } else { Timestamp::MAX };
        self.time.checked_add(passed).unwrap_or(end)
    }

    /// `true` if the note need not be written anew when it is this time.
    fn is_fresh(&self, time: Timestamp, now: Timestamp) -> bool {
        let error = self.shown(now).duration_since(time).unsigned_abs();
        error <= NOTE_ERROR && time < later(self.time, NOTE_EVERY)
    }

    /// The count of the process that wrote it, for one that starts at this moment of the same boot.
    fn count_since(&self, boot: Option<&str>, steady: Duration) -> Option<Count> {
        let is_same = boot.is_some() && boot == self.boot.as_deref() && self.steady <= steady;
        is_same.then_some(Count { time: self.time, before: self.steady, after: self.steady })
    }
}

/// The time at a reading: what the store's clock shows, if as much time was counted, and otherwise the least that was counted.
fn agreed(own: Option<Count>, note: Option<&Note>, read: &NoteRead) -> Timestamp {
    let least = own.map(|own| later(own.time, read.before.saturating_sub(own.after)));
    // Of a new store, or one without its note.
    let Some(note) = note else { return least.unwrap_or(read.now) };
    let shown = note.shown(read.now);
    // This process has counted nothing: the time has gone on from the note, at least.
    let (Some(own), Some(least)) = (own, least) else { return shown.max(note.time) };
    let least = least.max(note.time);
    let passed = read.after.saturating_sub(own.before);
    let drift = passed / DRIFT;
    let most = later(own.time, passed + drift);
    // Another process has counted more. The machine of this one stood still, and its steady clock with it, as a paused virtual machine does.
    let most = if most < note.time { later(note.time, READ_EVERY) } else { most };
    if least <= later(shown, drift) && shown <= most { shown } else { least }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A note of the time 1,000, when the store's clock showed 5,000 and this machine had run for 100 s.
    fn note() -> Note {
        Note { clock: at(5_000), time: at(1_000), boot: Some("boot".to_owned()), steady: secs(100) }
    }

    fn count(time: i64, steady: u64) -> Count {
        Count { time: at(time), before: secs(steady), after: secs(steady) }
    }

    fn read(now: i64, steady: u64) -> NoteRead {
        NoteRead { now: at(now), before: secs(steady), after: secs(steady) }
    }

    #[test]
    fn a_new_store_begins_with_its_clock() {
        assert_eq!(agreed(None, None, &read(5_000, 7)), at(5_000));
    }

    #[test]
    fn the_store_tells_the_time_while_its_clock_is_not_set() {
        let counted = count(1_000, 100);
        assert_eq!(agreed(Some(counted), Some(&note()), &read(5_060, 160)), at(1_060));
        // The clocks of two machines differ by a little, and all processes follow the note.
        assert_eq!(agreed(Some(count(999, 100)), Some(&note()), &read(6_000, 1_100)), at(2_000));
        assert_eq!(agreed(Some(count(1_001, 100)), Some(&note()), &read(6_000, 1_100)), at(2_000));
    }

    #[test]
    fn a_clock_that_was_set_changes_nothing() {
        let counted = count(1_000, 100);
        for now in [5_060 - HOUR, 5_050, 5_070, 5_060 + HOUR, 5_060 + 1_000_000 * HOUR] {
            assert_eq!(agreed(Some(counted), Some(&note()), &read(now, 160)), at(1_060), "clock at {now}");
        }
    }

    #[test]
    fn a_process_that_starts_goes_on_from_the_note() {
        // By the steady clock, if there was no restart of the machine.
        let started = |boot, steady| note().count_since(Some(boot), secs(steady));
        let same = started("boot", 160);
        assert_eq!(same, Some(count(1_000, 100)));
        assert_eq!(agreed(same, Some(&note()), &read(5_060 + HOUR, 160)), at(1_060));
        assert_eq!(agreed(same, Some(&note()), &read(5_060 - HOUR, 160)), at(1_060));
        // By the store's clock, if there was one, or if it is another machine.
        assert_eq!((started("next", 160), started("boot", 99)), (None, None));
        assert_eq!(note().count_since(None, secs(160)), None);
        assert_eq!(agreed(None, Some(&note()), &read(5_000 + HOUR, 3)), at(1_000 + HOUR));
        assert_eq!(agreed(None, Some(&note()), &read(5_000 - HOUR, 3)), at(1_000), "it never goes back");
    }

    #[test]
    fn a_process_whose_machine_stood_still_follows_those_that_counted() {
        // An hour, of which this one has counted a minute. Another one has written the note five seconds ago.
        let counted = count(1_000, 100);
        let theirs = Note { clock: at(5_000 + HOUR), time: at(1_000 + HOUR), ..note() };
        assert_eq!(agreed(Some(counted), Some(&theirs), &read(5_005 + HOUR, 160)), at(1_005 + HOUR));
        // If the clock was set as well, the note alone counts.
        assert_eq!(agreed(Some(counted), Some(&theirs), &read(5_005 + 2 * HOUR, 160)), at(1_000 + HOUR));
    }

    #[test]
    fn a_process_that_was_stopped_while_it_asked_knows_the_time_within_bounds() {
        let stopped = NoteRead { now: at(5_060), before: secs(160), after: secs(400) };
        let time = agreed(Some(count(1_000, 100)), Some(&note()), &stopped);
        assert_eq!(time, at(1_060));
        let known = Count { time, before: stopped.before, after: stopped.after }.at(secs(401));
        assert_eq!(known, ExpiryTime { earliest: at(1_061), latest: at(1_301) });
    }

    #[test]
    fn a_note_is_written_anew_when_it_is_old_or_wrong() {
        assert!(note().is_fresh(at(1_004), at(5_004)));
        assert!(!note().is_fresh(at(1_005), at(5_005)), "old");
        assert!(!note().is_fresh(at(1_004), at(5_004 + HOUR)), "the clock was set forward");
        assert!(!note().is_fresh(at(1_004), at(5_004 - HOUR)), "the clock was set back");
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let value = note().encode().unwrap();
        let text = concat!(
            r#"{"clock":"1970-01-01T01:23:20Z","time":"1970-01-01T00:16:40Z","#,
            r#""boot":"boot","steady":{"secs":100,"nanos":0}}"#
        );
        assert_eq!(value, text);
        assert_eq!(Note::decode(&Versioned { value, version: 1, expires_at: None }).unwrap(), note());
    }
}
