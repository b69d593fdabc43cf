//! Tracks partitions that cannot be read, and errors that have ended.
//!
//! The client repeats a fetch that failed, for example because of an unknown compression, a corrupt
//! batch, or a broker with a broken disk. Other partitions are still read in the meantime. The engine
//! therefore gets such an error once, and the state of the source names it until a record of the
//! partition is read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::{SourceError, SourceEvent};
use rdkafka::error::RDKafkaErrorCode as Code;

use super::session::Membership;
use crate::client::batch::FetchError;
use crate::error::{ClientError, classify, describe, is_unknown_topic};

/// The client repeats a failed fetch sooner than this by default. A partition without an error for this
/// long is empty, not unreadable.
const REPEATED_WITHIN: Duration = Duration::from_secs(30);

/// The reasons by partition, each with the time of its last error.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    reasons: BTreeMap<Partition, (String, Instant)>,
}

impl Unreadable {
    /// Records an error of a partition. Returns `true` if it is new.
    fn add(&mut self, partition: Partition, reason: String, now: Instant) -> bool {
        let known = self.reasons.insert(partition, (reason.clone(), now));
        known.is_none_or(|(known, _)| known != reason)
    }

    /// Removes a partition that was read.
    fn remove(&mut self, partition: &Partition) {
        self.reasons.remove(partition);
    }

    /// Removes partitions whose errors ended long ago.
    fn expire(&mut self, now: Instant) {
        self.reasons.retain(|_, (_, last)| now.duration_since(*last) < REPEATED_WITHIN);
    }

    /// Returns the reason for the first of these partitions that cannot be read.
    fn reason(&self, is_owned: impl Fn(&Partition) -> bool) -> Option<&str> {
        let mut reasons = self.reasons.iter();
        reasons.find(|(partition, _)| is_owned(partition)).map(|(_, (reason, _))| reason.as_str())
    }
}

impl Membership {
    /// Returns the reason why an assigned partition cannot be read.
    pub(super) fn unreadable_reason(&self) -> Option<String> {
        let reason = self.unreadable.reason(|known| self.owned.iter().any(|owned| owned.partition == *known));
        reason.map(str::to_owned)
    }

    /// Records what was fetched from a partition: messages and errors.
    pub(super) fn note_fetched(&mut self, index: usize, has_messages: bool, errors: &mut Vec<FetchError>) {
        let partition = &self.owned[index].partition;
        if has_messages {
            self.unreadable.remove(partition);
        }
        if errors.is_empty() {
            return;
        }
        let partition = partition.clone();
        for failed in errors.drain(..) {
            self.fetch_failed(&partition, failed);
        }
    }

    fn fetch_failed(&mut self, partition: &Partition, FetchError { error, reason }: FetchError) {
        let reason = describe(&error, &reason);
        if is_unknown_topic(&error) {
            return self.handle_error(error, &reason);
        }
        let is_compression = error.rdkafka_error_code() == Some(Code::NotImplemented);
        match classify(error, &reason, &self.options, true) {
            ClientError::Retried => tracing::debug!(%partition, reason, "client error retried by the client"),
            ClientError::Reported(error) if !error.is_temporary() => self.report(error),
            ClientError::Reported(error) => {
                let hint = if is_compression {
                    "; this client does not know the compression of the records"
                } else {
                    ""
                };
                let text =
                    format!("{partition} cannot be read: {reason}{hint}; fetching it again until it can");
                let failed = SourceError::temporary(text).with_source(error);
                if self.unreadable.add(partition.clone(), failed.to_string(), Instant::now()) {
                    tracing::warn!(%partition, reason, "partition cannot be read, fetched again");
                    self.report(failed);
                }
            }
        }
    }

    /// Ends the state of an error that is over, even if no message arrives.
    pub(super) fn check_recovery(&mut self) {
        let Some(failed_at) = self.failed_at.filter(|_| self.has_error() && self.errors.is_empty()) else {
            return;
        };
        // Each of these ends the state by itself.
        let is_retried = self.lookup.is_some() || !self.rewinds.is_empty() || self.missing.is_some();
        if is_retried || !self.fetcher.is_connected_since(failed_at) {
            return;
        }
        if self.may_read {
            self.unreadable.expire(Instant::now());
        }
        if self.unreadable_reason().is_some() {
            return;
        }
        self.failed_at = None;
        self.set_joining();
        // The engine reports an error until the next event.
        self.events.push_back(SourceEvent::Messages(Vec::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(index: u32) -> Partition {
        Partition::new("orders", index)
    }

    #[test]
    fn an_error_of_a_partition_is_new_once_and_ends_with_a_record_or_with_time() {
        let (mut unreadable, now) = (Unreadable::default(), Instant::now());
        assert!(unreadable.add(partition(0), "corrupt".to_owned(), now));
        assert!(!unreadable.add(partition(0), "corrupt".to_owned(), now), "the client repeats it");
        assert!(unreadable.add(partition(0), "denied".to_owned(), now));
        assert!(unreadable.add(partition(1), "corrupt".to_owned(), now + REPEATED_WITHIN / 2));
        assert_eq!(unreadable.reason(|_| true), Some("denied"));
        assert_eq!(unreadable.reason(|known| known.index == 1), Some("corrupt"), "the other one was revoked");
        unreadable.expire(now + REPEATED_WITHIN);
        assert_eq!(unreadable.reason(|_| true), Some("corrupt"));
        unreadable.remove(&partition(1));
        assert_eq!(unreadable.reason(|_| true), None);
    }
}
