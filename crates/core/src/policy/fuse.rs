//! The fuse: pauses a consumer when most messages fail for good, which is a bug or an outage rather than bad messages.

use std::collections::VecDeque;
use std::fmt;

use super::PolicyError;

/// The largest window, in messages (I7).
const WINDOW_LIMIT: u32 = 65_536;

/// When a fuse blows.
#[derive(Clone, Debug, PartialEq)]
pub struct FusePolicy {
    /// This share of the window, or more, failed for good. Above 0, at most 1.
    pub ratio: f64,
    /// The number of messages that the share is computed over. It applies once there have been that many.
    pub window: u32,
    /// This many messages in a row failed for good.
    pub consecutive: u32,
}

impl Default for FusePolicy {
    fn default() -> Self {
        Self { ratio: 0.5, window: 100, consecutive: 50 }
    }
}

impl FusePolicy {
    /// Refuses shares outside 0 to 1, counts of zero, and windows larger than a fuse remembers.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let invalid = |field, why| Err(PolicyError::Invalid { field, why });
        // NaN is in no range, so it is refused too.
        if !(f64::MIN_POSITIVE..=1.0).contains(&self.ratio) {
            return invalid("ratio", "must be above 0 and at most 1");
        }
        match self {
            Self { window: 0, .. } => invalid("window", "must be at least 1"),
            Self { window, .. } if *window > WINDOW_LIMIT => invalid("window", "must be at most 65536"),
            Self { consecutive: 0, .. } => invalid("consecutive", "must be at least 1"),
            _ => Ok(()),
        }
    }

    /// The number of terminal failures in a full window that blows the fuse.
    fn threshold(&self) -> u32 {
        // A hair less, so that 7 of 100 are 0.07 although 0.07 × 100 is a little more than 7 in floats. The cast
        // saturates, and NaN becomes 0.
        ((self.ratio * f64::from(self.window) - 1e-9).ceil() as u32).max(1)
    }
}

/// The cause of a blown fuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blown {
    /// Too large a share failed for good.
    Share {
        /// The number of messages that failed for good.
        terminal: u32,
        /// Of how many.
        window: u32,
    },
    /// Too many failed for good one after the other.
    InARow {
        /// The number of messages.
        count: u32,
    },
}

impl fmt::Display for Blown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share { terminal, window } => {
                write!(f, "{terminal} of the last {window} messages ended as dead letters")
            }
            Self::InARow { count } => write!(f, "{count} messages in a row failed for good"),
        }
    }
}

/// Watches the share and the run of terminal failures.
///
/// A fuse that blew is reset: it blows once per incident, and again only if the next messages fail as well.
///
/// ```
/// use lazaret_core::policy::{Fuse, FusePolicy};
/// let mut fuse = Fuse::new(FusePolicy { consecutive: 2, ..FusePolicy::default() });
/// assert!(fuse.on_terminal().is_none());
/// let blown = fuse.on_terminal().unwrap();
/// assert_eq!(blown.to_string(), "2 messages in a row failed for good");
/// ```
#[derive(Debug)]
pub struct Fuse {
    policy: FusePolicy,
    /// The last messages, oldest first: `true` for one that failed for good.
    recent: VecDeque<bool>,
    /// The number of them that did.
    terminal: u32,
    /// The number in a row that did.
    run: u32,
}

impl Fuse {
    /// A whole fuse. Counts outside what [`FusePolicy::validate`] allows are moved inside.
    pub fn new(policy: FusePolicy) -> Self {
        let policy = FusePolicy {
            ratio: policy.ratio,
            window: policy.window.clamp(1, WINDOW_LIMIT),
            consecutive: policy.consecutive.max(1),
        };
        Self { policy, recent: VecDeque::new(), terminal: 0, run: 0 }
    }

    /// Records this many messages that did not fail for good.
    pub fn on_ok(&mut self, n: u64) {
        if n == 0 {
            return;
        }
        self.run = 0;
        for _ in 0..n.min(u64::from(self.policy.window)) {
            self.push(false);
        }
    }

    /// Records a message that failed for good. Returns the cause if that blew the fuse.
    pub fn on_terminal(&mut self) -> Option<Blown> {
        self.push(true);
        self.run += 1;
        let window = self.policy.window;
        let blown = if self.run >= self.policy.consecutive {
            Blown::InARow { count: self.run }
        } else if self.recent.len() == window as usize && self.terminal >= self.policy.threshold() {
            Blown::Share { terminal: self.terminal, window }
        } else {
            return None;
        };
        self.reset();
        Some(blown)
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.recent.clear();
        self.terminal = 0;
        self.run = 0;
    }

    fn push(&mut self, terminal: bool) {
        if self.recent.len() == self.policy.window as usize && self.recent.pop_front() == Some(true) {
            self.terminal -= 1;
        }
        self.recent.push_back(terminal);
        self.terminal += u32::from(terminal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fuse(ratio: f64, window: u32, consecutive: u32) -> Fuse {
        Fuse::new(FusePolicy { ratio, window, consecutive })
    }

    #[test]
    fn impossible_policies_are_refused() {
        assert!(FusePolicy::default().validate().is_ok());
        let table = [
            (0.0, 100, 50, "ratio must be above 0 and at most 1"),
            (-0.5, 100, 50, "ratio must be above 0 and at most 1"),
            (1.1, 100, 50, "ratio must be above 0 and at most 1"),
            (f64::NAN, 100, 50, "ratio must be above 0 and at most 1"),
            (0.5, 0, 50, "window must be at least 1"),
            (0.5, 65_537, 50, "window must be at most 65536"),
            (0.5, 100, 0, "consecutive must be at least 1"),
        ];
        for (ratio, window, consecutive, expected) in table {
            let error = FusePolicy { ratio, window, consecutive }.validate().unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_long_run_of_failures_blows_it_before_the_window_is_full() {
        let mut fuse = Fuse::new(FusePolicy::default());
        assert!((1..50).all(|_| fuse.on_terminal().is_none()));
        let blown = fuse.on_terminal().unwrap();
        assert_eq!(blown.to_string(), "50 messages in a row failed for good");
    }

    #[test]
    fn the_share_is_judged_only_when_the_window_is_full() {
        let mut fuse = fuse(0.5, 100, 1000);
        for _ in 0..52 {
            assert_eq!(fuse.on_terminal(), None);
        }
        fuse.on_ok(47);
        // The hundredth message.
        let blown = fuse.on_terminal().unwrap();
        assert_eq!(blown.to_string(), "53 of the last 100 messages ended as dead letters");
    }

    #[test]
    fn old_messages_leave_the_window() {
        let mut fuse = fuse(0.5, 4, 100);
        assert!(fuse.on_terminal().is_none());
        fuse.on_ok(3);
        // ok ok ok T: the first failure is gone.
        assert_eq!(fuse.on_terminal(), None);
        assert_eq!(fuse.on_terminal(), Some(Blown::Share { terminal: 2, window: 4 }));
    }

    #[test]
    fn one_good_message_ends_a_run_and_none_does_not() {
        let mut fuse = fuse(1.0, 100, 2);
        assert!(fuse.on_terminal().is_none());
        fuse.on_ok(1);
        assert!(fuse.on_terminal().is_none());
        fuse.on_ok(0);
        assert_eq!(fuse.on_terminal(), Some(Blown::InARow { count: 2 }));
    }

    #[test]
    fn it_blows_once_per_incident() {
        let mut fuse = fuse(0.5, 10, 5);
        let blown = (0..15).filter(|_| fuse.on_terminal().is_some()).count();
        assert_eq!(blown, 3, "every fifth, not every one after the fifth");
        fuse.on_terminal();
        fuse.reset();
        assert!((1..5).all(|_| fuse.on_terminal().is_none()));
    }

    #[test]
    fn shares_that_floats_cannot_hold_are_met_exactly() {
        let table = [
            (0.07, 100, 7),
            (0.5, 100, 50),
            (0.51, 100, 51),
            (1.0, 100, 100),
            (0.001, 10, 1),
            (0.29, 100, 29),
        ];
        for (ratio, window, expected) in table {
            assert_eq!(FusePolicy { ratio, window, consecutive: 1 }.threshold(), expected, "{ratio}");
        }
    }

    #[test]
    fn a_huge_number_of_good_messages_costs_no_more_than_the_window() {
        // I7
        let mut fuse = fuse(0.5, 100, 50);
        fuse.on_ok(u64::MAX);
        assert_eq!(fuse.recent.len(), 100);
    }

    proptest! {
        #[test]
        fn the_count_is_always_that_of_the_window(steps in proptest::collection::vec(proptest::option::of(0_u64..9), 0..200)) {
            let mut fuse = fuse(0.8, 7, 5);
            for step in steps {
                match step {
                    Some(n) => fuse.on_ok(n),
                    None => drop(fuse.on_terminal()),
                }
                let counted = fuse.recent.iter().filter(|t| **t).count();
                prop_assert_eq!(counted, fuse.terminal as usize);
                prop_assert!(fuse.recent.len() <= 7 && fuse.run < 5);
            }
        }
    }
}
