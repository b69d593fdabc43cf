//! Every metric that Lazaret exports, in one table: the code, the alert rules, the dashboard and the docs go by it.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by size.
    Histogram,
}

impl Kind {
    /// The word that Prometheus has for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, all of them from bounded sets.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: Family =
                Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )+

        /// All of them.
        pub const FAMILIES: &[Family] = &[$($constant),+];
    };
}

families! {
    HANDLED = Counter "lazaret_handled_total" ["consumer"]
        "Messages that a handler took, live or from the store.";
    FAILURES = Counter "lazaret_failures_total" ["consumer", "queue", "reason", "phase"]
        "Attempts that failed.";
    RETRY_SCHEDULED = Counter "lazaret_retry_scheduled_total" ["consumer", "queue", "reason"]
        "Retries that were given a time.";
    RETRY_ATTEMPTS = Counter "lazaret_retry_attempts_total" ["consumer", "queue", "attempt"]
        "Retries that began, by the number of the attempt: 1 to 9, and 10+.";
    RETRY_EXHAUSTED = Counter "lazaret_retry_exhausted_total" ["consumer", "queue", "reason"]
        "Messages whose retries were used up.";
    LETTERS_TOTAL = Counter "lazaret_letters_total" ["consumer", "queue", "state", "reason"]
        "Letters that came into a state, in the store or in a topic.";
    LETTERS = Gauge "lazaret_letters" ["consumer", "queue", "state"]
        "Open letters in the store now.";
    HANDOFF_FAILURES = Counter "lazaret_handoff_failures_total" ["consumer"]
        "Calls to keep a letter that failed, in the store or in a topic. Nothing is lost: the source waits.";
    POISON = Counter "lazaret_poison_total" ["consumer", "queue"]
        "Messages that failed in the same way too often, or killed the process too often.";
    DUPLICATES = Counter "lazaret_duplicates_total" ["consumer"]
        "Messages that were known already.";
    ATTEMPT_SECONDS = Histogram "lazaret_attempt_seconds" ["consumer", "queue"]
        "How long attempts took, failed ones included.";
    RETRY_LATENESS = Histogram "lazaret_retry_lateness_seconds" ["consumer", "queue"]
        "How long after their due time retries began.";
    OLDEST_LETTER = Gauge "lazaret_oldest_letter_age_seconds" ["consumer", "queue", "state"]
        "How long the oldest open letter in a state has been in the store.";
    SOURCE_LAG = Gauge "lazaret_source_lag" ["consumer"]
        "Messages in the source beyond what was read; NaN while that is not known.";
    PAUSED = Gauge "lazaret_paused" ["consumer"]
        "1 while the whole consumer is paused.";
    PAUSES = Gauge "lazaret_pauses" ["consumer", "scope"]
        "Pauses that hold now, by what they pause.";
    BREAKER_STATE = Gauge "lazaret_breaker_state" ["consumer"]
        "0 closed, 1 half-open, 2 open.";
    FUSE_BLOWN = Gauge "lazaret_fuse_blown" ["consumer"]
        "1 while a blown fuse pauses the consumer.";
    CONSUMER_FAILED = Gauge "lazaret_consumer_failed" ["consumer"]
        "1 while the consumer has failed and does not run.";
    INFLIGHT = Gauge "lazaret_inflight" ["consumer"]
        "Messages that were read and are not settled.";
    STORE_TROUBLE = Gauge "lazaret_store_trouble" ["consumer"]
        "1 while messages wait because the store does not take them.";
    REPLAY = Counter "lazaret_replay_total" ["consumer", "queue", "outcome"]
        "Letters that were replayed: ok, failed-again or skipped. Letters that an operation passed over without a turn are told by the operation alone.";
    READ = Counter "lazaret_read_total" ["consumer"]
        "Messages that were read from the source.";
    SKIPPED = Counter "lazaret_skipped_total" ["consumer"]
        "Messages that were skipped with a trace.";
    COMMIT_FAILURES = Counter "lazaret_commit_failures_total" ["consumer"]
        "Commits of positions that failed. They are tried again.";
    CONSUMER_INFO = Gauge "lazaret_consumer_info" ["consumer", "owner"]
        "Always 1: which team owns the dead letters of a consumer.";
    ALERTS_DROPPED = Counter "lazaret_alerts_dropped_total" ["webhook"]
        "Notices that a webhook did not take in time, by the number of the webhook in the configuration.";
}

/// The metric of this name, or the one whose series has this name (`_bucket`, `_sum`, `_count`).
pub fn family(name: &str) -> Option<&'static Family> {
    let exact = FAMILIES.iter().find(|family| family.name == name);
    exact.or_else(|| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix))?;
        FAMILIES.iter().find(|family| family.name == base && family.kind == Kind::Histogram)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_once_and_counters_say_so() {
        for (at, family) in FAMILIES.iter().enumerate() {
            assert!(!FAMILIES[..at].iter().any(|other| other.name == family.name), "{}", family.name);
            assert_eq!(family.kind == Kind::Counter, family.name.ends_with("_total"), "{}", family.name);
            assert!(family.name.starts_with("lazaret_"));
        }
    }

    #[test]
    fn the_series_of_a_histogram_belong_to_it() {
        assert_eq!(family("lazaret_attempt_seconds_bucket"), Some(&ATTEMPT_SECONDS));
        assert_eq!(family("lazaret_handled_total"), Some(&HANDLED));
        assert_eq!(family("lazaret_letters_count"), None);
    }
}
