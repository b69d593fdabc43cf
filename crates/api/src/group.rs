//! Groups over the wire: letters with one cause, counted.

use lazaret_core::LetterState;
use lazaret_core::store::{self, Counts, TREND_BUCKET_SECONDS};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::failure::LetterError;

/// Letters by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StateCounts {
    /// Will be tried again at their due time.
    pub retrying: u64,
    /// Will not be tried again by themselves.
    pub dead: u64,
    /// Kept until somebody changes something.
    pub parked: u64,
    /// Kept apart.
    pub quarantined: u64,
    /// Blocked behind the head of their sequence.
    pub waiting: u64,
    /// Handled in the end.
    pub resolved: u64,
    /// Taken out.
    pub evicted: u64,
    /// Left out on purpose.
    pub skipped: u64,
    /// Their time ran out.
    pub expired: u64,
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

/// Letters of one queue with one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Group {
    /// Its name: a fingerprint, `@` and a queue.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// What its failures have in common.
    pub fingerprint: String,
    /// The reason of its latest failure.
    pub reason: String,
    /// Its latest failure.
    pub error: LetterError,
    /// Open letters.
    pub letters: u64,
    /// Its letters by state.
    pub states: StateCounts,
    /// Open sequences that have one of them as their head.
    pub sequences: u64,
    /// Open letters that stand behind a head of this group.
    pub blocked_behind: u64,
    /// When its oldest open letter was taken into the store.
    pub oldest_at: Option<jiff::Timestamp>,
    /// When a letter first came into the group.
    pub first_seen_at: jiff::Timestamp,
    /// When a letter of it last failed.
    pub last_seen_at: jiff::Timestamp,
    /// How many letters came into the group in each of the last buckets of time, the current one last.
    pub trend: Vec<u64>,
    /// The width of a bucket.
    pub trend_bucket_seconds: u64,
}

impl From<&store::Group> for Group {
    fn from(group: &store::Group) -> Self {
        Self {
            id: group.id.to_string(),
            queue: group.id.queue.to_string(),
            fingerprint: group.id.fingerprint.to_string(),
            reason: group.reason.to_string(),
            error: LetterError { error_type: group.error_type.clone(), message: group.message.clone() },
            letters: group.counts.open(),
            states: (&group.counts).into(),
            sequences: group.counts.sequences,
            blocked_behind: group.blocked_behind,
            oldest_at: group.oldest,
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
    /// The groups. There may be few or none on a page that is not the last.
    pub groups: Vec<Group>,
    /// What to pass as `after` to get the next page; `null` at the end.
    pub next: Option<String>,
}
