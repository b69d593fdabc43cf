//! Keeps repeated warnings to one line a second and kind, with a count of those left out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a kind of line is silent after one.
const SILENCE: Duration = Duration::from_secs(1);

/// When each kind of line was last written.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<HashMap<&'static str, (Instant, u64)>>);

impl Pace {
    /// Whether a line of this kind may be written now; `Some` says how many were left out since the last one.
    pub(crate) fn admit(&self, kind: &'static str) -> Option<u64> {
        let now = Instant::now();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kinds.get_mut(kind) {
            Some((last, left_out)) if now.duration_since(*last) < SILENCE => {
                *left_out += 1;
                None
            }
            Some((last, left_out)) => {
                *last = now;
                Some(std::mem::take(left_out))
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_and_kind_says_how_many_were_left_out() {
        let pace = Pace::default();
        assert_eq!((pace.admit("a"), pace.admit("a"), pace.admit("a")), (Some(0), None, None));
        assert_eq!(pace.admit("b"), Some(0), "another kind has its own second");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((pace.admit("a"), pace.admit("a")), (Some(2), None));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(pace.admit("a"), Some(1));
    }
}
