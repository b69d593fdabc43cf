//! Limits repeated log lines per second and kind, with a count of the suppressed ones.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::LetterState;
use tokio::time::Instant;

/// The time in which lines of one kind are counted.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of lines about single letters in that time: a few failures are all shown, a storm is not.
const LETTER_LINES: u64 = 10;

/// The kinds of log lines that are throttled, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LineKind {
    HandOff,
    Publish,
    Commit,
    /// Messages whose retries are exhausted.
    Exhausted,
    /// Letters that entered this state.
    Letter(LetterState),
    #[cfg(feature = "otlp")]
    Export,
}

impl LineKind {
    /// The number of lines per interval.
    const fn limit(self) -> u64 {
        match self {
            Self::Exhausted | Self::Letter(_) => LETTER_LINES,
            _ => 1,
        }
    }
}

/// Counts the lines by kind.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<HashMap<LineKind, Counted>>);

/// The lines of one kind since the interval began.
#[derive(Debug)]
struct Counted {
    since: Instant,
    admitted: u64,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns `Some` if a line of this kind may be written now, with the number of lines suppressed since the last one.
    pub(crate) fn admit(&self, kind: LineKind) -> Option<u64> {
        let now = Instant::now();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = kinds.entry(kind).or_insert(Counted { since: now, admitted: 0, suppressed: 0 });
        if now.duration_since(counted.since) >= INTERVAL {
            (counted.since, counted.admitted) = (now, 0);
        }
        if counted.admitted >= kind.limit() {
            counted.suppressed += 1;
            return None;
        }
        counted.admitted += 1;
        Some(std::mem::take(&mut counted.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::LineKind::{Commit, HandOff};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_per_second_and_kind_counts_the_suppressed_ones() {
        let throttle = LogThrottle::default();
        let admitted = (throttle.admit(Commit), throttle.admit(Commit), throttle.admit(Commit));
        assert_eq!(admitted, (Some(0), None, None));
        assert_eq!(throttle.admit(HandOff), Some(0), "each kind has its own interval");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((throttle.admit(Commit), throttle.admit(Commit)), (Some(2), None));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(throttle.admit(Commit), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_letters_are_all_logged_and_a_storm_is_not() {
        let (throttle, dead) = (LogThrottle::default(), LineKind::Letter(LetterState::Dead));
        let admitted = (0..100).filter(|_| throttle.admit(dead).is_some()).count();
        assert_eq!(admitted, 10);
        assert_eq!(throttle.admit(LineKind::Letter(LetterState::Parked)), Some(0));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((throttle.admit(dead), throttle.admit(dead)), (Some(90), Some(0)));
    }
}
