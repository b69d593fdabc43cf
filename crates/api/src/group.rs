//! Groups: counts of letters with the same cause.

use lazaret_core::LetterState;
use lazaret_core::store::{self, Counts, TREND_BUCKET_SECONDS};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::enums::State;
use crate::failure::LetterError;
use crate::numbers::count;
use crate::status::within_a_day;

/// The number of letters by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StateCounts {
    /// Retried automatically at their due time.
    pub retrying: u64,
    /// Not retried automatically.
    pub dead: u64,
    /// Held until a person or a deployment changes something.
    pub parked: u64,
    /// Isolated as suspicious.
    pub quarantined: u64,
    /// Blocked behind the head of their sequence.
    pub waiting: u64,
    /// Handled.
    pub resolved: u64,
    /// Evicted by a person or a policy.
    pub evicted: u64,
    /// Skipped on purpose.
    pub skipped: u64,
    /// Expired.
    pub expired: u64,
}

impl StateCounts {
    /// Returns the number of letters in each state that has any, such as `3 dead, 1 parked`. Without
    /// letters, the text is empty.
    ///
    /// ```
    /// let counts = lazaret_api::StateCounts { dead: 1200, waiting: 2, ..Default::default() };
    /// assert_eq!(counts.summary(), "1,200 dead, 2 waiting");
    /// ```
    pub fn summary(&self) -> String {
        let all = [
            (self.retrying, State::Retrying),
            (self.dead, State::Dead),
            (self.parked, State::Parked),
            (self.quarantined, State::Quarantined),
            (self.waiting, State::Waiting),
            (self.resolved, State::Resolved),
            (self.evicted, State::Evicted),
            (self.skipped, State::Skipped),
            (self.expired, State::Expired),
        ];
        let some = all.iter().filter(|(letters, _)| *letters > 0);
        let parts: Vec<String> =
            some.map(|(letters, state)| format!("{} {state}", count(*letters))).collect();
        parts.join(", ")
    }
}

impl From<&Counts> for StateCounts {
    fn from(counts: &Counts) -> Self {
        Self {
            retrying: counts.of(LetterState::Retrying),
            dead: counts.of(LetterState::Dead),
            parked: counts.of(LetterState::Parked),
            quarantined: counts.of(LetterState::Quarantined),
            waiting: counts.of(LetterState::Waiting),
            resolved: counts.of(LetterState::Resolved),
            evicted: counts.of(LetterState::Evicted),
            skipped: counts.of(LetterState::Skipped),
            expired: counts.of(LetterState::Expired),
        }
    }
}

/// The letters of one queue with the same cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Group {
    /// The id: fingerprint, `@` and queue.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// The team that owns the letters of the consumer; absent if none is set, or if the consumer runs in no process of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The fingerprint of the failures.
    pub fingerprint: String,
    /// The reason of the latest failure.
    pub reason: String,
    /// The latest error.
    pub error: LetterError,
    /// The number of open letters.
    pub letters: u64,
    /// The letters by state.
    pub states: StateCounts,
    /// The number of open sequences whose head is in this group.
    pub sequences: u64,
    /// The number of open letters blocked behind a head of this group.
    pub blocked_behind: u64,
    /// When the oldest open letter was enqueued.
    pub oldest_at: Option<jiff::Timestamp>,
    /// When the next open letter expires; absent if none does. Of more than 100 letters, none of which is among the 500 of the queue that
    /// expire next, the 100 oldest count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_expiry_at: Option<jiff::Timestamp>,
    /// When the first letter of the group was enqueued.
    pub first_seen_at: jiff::Timestamp,
    /// When a letter of the group last failed.
    pub last_seen_at: jiff::Timestamp,
    /// The number of letters added per time bucket, the current one last.
    pub trend: Vec<u64>,
    /// The width of a bucket, in seconds.
    pub trend_bucket_seconds: u64,
}

impl Group {
    /// Returns when the group's next letter expires, if that is within a day.
    pub fn expires_soon(&self, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
        within_a_day(self.next_expiry_at, now)
    }
}

impl From<&store::Group> for Group {
    fn from(group: &store::Group) -> Self {
        Self {
            id: group.id.to_string(),
            queue: group.id.queue.to_string(),
            owner: None,
            fingerprint: group.id.fingerprint.to_string(),
            reason: group.reason.to_string(),
            error: LetterError { error_type: group.error_type.clone(), message: group.message.clone() },
            letters: group.counts.open(),
            states: (&group.counts).into(),
            sequences: group.counts.sequences,
            blocked_behind: group.blocked_behind,
            oldest_at: group.oldest,
            next_expiry_at: group.next_expiry,
            first_seen_at: group.first_seen,
            last_seen_at: group.last_seen,
            trend: group.trend.to_vec(),
            trend_bucket_seconds: TREND_BUCKET_SECONDS.unsigned_abs(),
        }
    }
}

/// A page of groups, those with the most open letters first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupPage {
    /// The groups. A page may be short or empty without being the last.
    pub groups: Vec<Group>,
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}
