//! Limits repeated log lines to one per second and kind, with a count of the suppressed ones.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The minimum time between two lines of one kind.
const INTERVAL: Duration = Duration::from_secs(1);

/// The kinds of log lines that are throttled, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LineKind {
    HandOff,
    Publish,
    Commit,
    #[cfg(feature = "otlp")]
    Export,
}

/// The time of the last line and the number of suppressed ones, by kind.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<HashMap<LineKind, (Instant, u64)>>);

impl LogThrottle {
    /// Returns `Some` if a line of this kind may be written now, with the number of lines suppressed since the last one.
    pub(crate) fn admit(&self, kind: LineKind) -> Option<u64> {
        let now = Instant::now();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kinds.get_mut(&kind) {
            Some((last, suppressed)) if now.duration_since(*last) < INTERVAL => {
                *suppressed += 1;
                None
            }
            Some((last, suppressed)) => {
                *last = now;
                Some(std::mem::take(suppressed))
            }
            None => {
                kinds.insert(kind, (now, 0));
                Some(0)
            }
        }
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
}
