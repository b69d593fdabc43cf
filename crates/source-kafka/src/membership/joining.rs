//! Reports that the group has not assigned any partitions yet.
//!
//! A new member of a group may wait for nearly a minute, until the session of a crashed member ends.
//! Nothing runs in the meantime.

use std::time::{Duration, Instant};

use super::session::Membership;

/// The usual time for an assignment, unless the group waits for a member.
const USUAL: Duration = Duration::from_secs(5);

/// The wait for the first assignment.
pub(super) struct Joining {
    since: Instant,
    /// Whether the wait was logged.
    logged: bool,
}

impl Joining {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), logged: false }
    }
}

impl Membership {
    /// Logs once that the first assignment takes long.
    pub(super) fn check_joining(&mut self) {
        let is_waiting = !self.joined && self.missing.is_none() && !self.has_error();
        if is_waiting && !self.joining.logged && self.joining.since.elapsed() >= USUAL {
            self.joining.logged = true;
            let (group, session_timeout) = (&self.options.group, self.options.session_timeout());
            tracing::warn!(
                group,
                ?session_timeout,
                "no partitions assigned yet, a former member's session may last up to its timeout"
            );
        }
    }
}
