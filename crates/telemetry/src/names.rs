//! The table of exported metrics. The code, the alert rules, the dashboard and the docs refer to it.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts values by bucket.
    Histogram,
}

impl Kind {
    /// The Prometheus name of the type.
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
#[non_exhaustive]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels, all of them from bounded sets.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: Family =
                Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )+

        /// All metrics.
        pub const FAMILIES: &[Family] = &[$($constant),+];
    };
}

families! {
    HANDLED = Counter "lazaret_handled_total" ["consumer"]
        "Messages handled, live or from the store.";
    FAILURES = Counter "lazaret_failures_total" ["consumer", "queue", "reason", "phase"]
        "Failed attempts.";
    RETRY_SCHEDULED = Counter "lazaret_retry_scheduled_total" ["consumer", "queue", "reason"]
        "Retries scheduled.";
    RETRY_ATTEMPTS = Counter "lazaret_retry_attempts_total" ["consumer", "queue", "attempt"]
        "Retries started, by attempt number: 1 to 9, and 10+.";
    RETRY_EXHAUSTED = Counter "lazaret_retry_exhausted_total" ["consumer", "queue", "reason"]
        "Messages whose retries were exhausted.";
    LETTERS_TOTAL = Counter "lazaret_letters_total" ["consumer", "queue", "state", "reason"]
        "Letters that entered a state, in the store or in a topic.";
    LETTERS = Gauge "lazaret_letters" ["consumer", "queue", "state"]
        "Open letters in the store.";
    BROKER_LETTERS = Gauge "lazaret_broker_letters" ["consumer", "state"]
        "Records in retry topics (retrying) and dead-letter topics (dead), counted in the broker; NaN while unknown.";
    BROKER_OLDEST_LETTER = Gauge "lazaret_broker_oldest_letter_age_seconds" ["consumer"]
        "Age of the oldest record in dead-letter topics, since its first failure; 0 without records, NaN while unknown.";
    HANDOFF_FAILURES = Counter "lazaret_handoff_failures_total" ["consumer"]
        "Failed letter hand-offs, to the store or to a topic. The source is held, nothing is lost.";
    POISON = Counter "lazaret_poison_total" ["consumer", "queue"]
        "Messages that failed the same way too often, or crashed the process too often.";
    DUPLICATES = Counter "lazaret_duplicates_total" ["consumer"]
        "Duplicate messages.";
    ID_CONFLICTS = Counter "lazaret_id_conflicts_total" ["consumer"]
        "Messages from retry topics that had the id of another message. Each was handled under an id of its own.";
    ATTEMPT_SECONDS = Histogram "lazaret_attempt_seconds" ["consumer", "queue"]
        "Duration of attempts, failed ones included.";
    RETRY_LATENESS = Histogram "lazaret_retry_lateness_seconds" ["consumer", "queue"]
        "Delay between the due time and the start of retries.";
    OLDEST_LETTER = Gauge "lazaret_oldest_letter_age_seconds" ["consumer", "queue", "state"]
        "Age of the oldest open letter by state; with retrying also of messages that wait in memory, since their first failure.";
    NEXT_EXPIRY = Gauge "lazaret_next_expiry_seconds" ["consumer", "queue"]
        "Time until the next open letter expires; NaN while none does.";
    OLDEST_ATTEMPT = Gauge "lazaret_oldest_attempt_age_seconds" ["consumer"]
        "Age of the oldest running attempt; 0 while none runs.";
    SOURCE_LAG = Gauge "lazaret_source_lag" ["consumer"]
        "Unread messages in the source; NaN while unknown.";
    SOURCE_LAG_BYTES = Gauge "lazaret_source_lag_bytes" ["consumer"]
        "Bytes of the file that are not read yet, for consumers of files; NaN while unknown.";
    MONGODB_OPLOG_LAG = Gauge "lazaret_mongodb_oplog_lag_seconds" ["consumer"]
        "Time between the last change that was read or passed over and the newest entry of the oplog; NaN while unknown.";
    MONGODB_TOKEN_AGE = Gauge "lazaret_mongodb_token_age_seconds" ["consumer"]
        "Age of the position that the change stream would resume from; NaN while unknown.";
    MONGODB_RESTARTS = Counter "lazaret_mongodb_restarts_total" ["consumer"]
        "Restarts of the change stream after errors.";
    PAUSED = Gauge "lazaret_paused" ["consumer"]
        "1 while the whole consumer is paused.";
    PAUSES = Gauge "lazaret_pauses" ["consumer", "scope"]
        "Active pauses by scope.";
    BREAKER_STATE = Gauge "lazaret_breaker_state" ["consumer"]
        "0 closed, 1 half-open, 2 open.";
    BREAKER_OPENED = Counter "lazaret_breaker_opened_total" ["consumer", "reason"]
        "Openings of the circuit breaker, by the reason of the failure that opened it; failed probes included.";
    BREAKER_PROBE = Gauge "lazaret_breaker_probe_seconds" ["consumer"]
        "Time until the handler is called again to probe it; 0 unless the circuit breaker is open.";
    FUSE_BLOWN = Gauge "lazaret_fuse_blown" ["consumer"]
        "1 while a blown fuse pauses the consumer.";
    CONSUMER_FAILED = Gauge "lazaret_consumer_failed" ["consumer"]
        "1 while the consumer has failed and is not running.";
    INFLIGHT = Gauge "lazaret_inflight" ["consumer"]
        "Messages read and not settled.";
    STORE_TROUBLE = Gauge "lazaret_store_trouble" ["consumer"]
        "1 while messages wait because store writes fail.";
    REPLAY = Counter "lazaret_replay_total" ["consumer", "queue", "outcome"]
        "Replayed letters by outcome: ok, failed-again or skipped. Letters that an operation skipped without an attempt are counted by the operation only.";
    READ = Counter "lazaret_read_total" ["consumer"]
        "Messages read from the source.";
    SKIPPED = Counter "lazaret_skipped_total" ["consumer"]
        "Messages skipped with an audit entry.";
    COMMIT_FAILURES = Counter "lazaret_commit_failures_total" ["consumer"]
        "Failed position commits. They are retried.";
    INCARNATIONS = Counter "lazaret_incarnations_total" ["consumer", "stream"]
        "Partitions whose stream was recreated while it was read or while the consumer was down. They are read from their beginning.";
    LEASES_LOST = Counter "lazaret_leases_lost_total" ["consumer", "queue"]
        "Leases lost while a letter was being handled: the process stalled, or the store did not answer. The attempt counts, and the letter runs again.";
    ADOPT_RECORDS = Counter "lazaret_adopt_records_total" ["consumer", "topic", "outcome"]
        "Records of dead-letter topics of other frameworks, by outcome: adopted, already-there, unknown, foreign or gone.";
    ADOPT_REMAINING = Gauge "lazaret_adopt_remaining" ["consumer", "topic"]
        "Records of a dead-letter topic that are not adopted yet.";
    ADOPT_FAILED = Gauge "lazaret_adopt_failed" ["consumer", "topic"]
        "1 while the adoption of a dead-letter topic fails and is retried.";
    CONSUMER_INFO = Gauge "lazaret_consumer_info" ["consumer", "owner"]
        "Always 1; the label names the team that owns the consumer's dead letters.";
    BUILD_INFO = Gauge "lazaret_build_info" ["version"]
        "Always 1; the label is the version of Lazaret.";
    ALERTS_DROPPED = Counter "lazaret_alerts_dropped_total" ["webhook"]
        "Notices not delivered to a webhook, by its position in the configuration.";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "CPU time of the process, user and system, in whole seconds.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "Start of the process, in seconds since 1970.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Resident memory of the process.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "Open file descriptors of the process.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "Limit of open file descriptors of the process.";
}

/// Finds a metric by its name or by the name of one of its series (`_bucket`, `_sum`, `_count`).
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
    fn names_are_unique_and_counters_end_with_total() {
        for (at, family) in FAMILIES.iter().enumerate() {
            assert!(!FAMILIES[..at].iter().any(|other| other.name == family.name), "{}", family.name);
            assert_eq!(family.kind == Kind::Counter, family.name.ends_with("_total"), "{}", family.name);
            // The names that every exporter has for the process itself.
            assert!(["lazaret_", "process_"].iter().any(|start| family.name.starts_with(start)));
        }
    }

    #[test]
    fn the_series_of_a_histogram_are_found() {
        assert_eq!(family("lazaret_attempt_seconds_bucket"), Some(&ATTEMPT_SECONDS));
        assert_eq!(family("lazaret_handled_total"), Some(&HANDLED));
        assert_eq!(family("lazaret_letters_count"), None);
    }
}
