//! Detects that a stream delivers events again that were already read.
//!
//! The driver resumes a stream by itself when its connection is cut. With a server that certifies no
//! positions, it resumes where the stream was opened, and repeats everything read since.

use std::collections::HashSet;

use bson::Timestamp as ClusterTime;
use bytes::Bytes;

use crate::position::offset_of;

/// The maximum number of other tokens that are kept (I7). A repeated part of a larger transaction may be
/// delivered again.
const TOKENS: usize = 65_536;

/// The events that were read from a stream under one assignment. The server sends events in the order of
/// their cluster times.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The latest cluster time, as an offset.
    latest: Option<u64>,
    /// The token of the first event with that time, which usually is the only one.
    token: Option<Bytes>,
    /// The tokens of the other events with that time. The operations of a transaction share a time.
    others: HashSet<Bytes>,
    /// Whether an event was read since the stream was opened.
    has_read: bool,
}

impl Repeats {
    /// Records that the stream was opened after the last event.
    pub(super) fn opened(&mut self) {
        self.has_read = false;
    }

    /// Records an event. Returns `true` if this reader has already read it.
    ///
    /// The first event after an opening never counts as repeated, because it is after the position,
    /// whatever its time is. A server without an order of times therefore costs reopenings, but no
    /// event.
    pub(super) fn is_repeated(&mut self, time: Option<ClusterTime>, token: Option<&Bytes>) -> bool {
        let (Some(time), Some(token)) = (time.map(offset_of), token) else { return false };
        let first = !std::mem::replace(&mut self.has_read, true);
        match self.latest {
            Some(latest) if time < latest => return !first,
            Some(latest) if time == latest && self.has_token(token) => return !first,
            Some(latest) if time == latest => {
                if self.others.len() < TOKENS {
                    self.others.insert(token.clone());
                }
            }
            _ => {
                (self.latest, self.token) = (Some(time), Some(token.clone()));
                self.others.clear();
            }
        }
        false
    }

    fn has_token(&self, token: &Bytes) -> bool {
        self.token.as_ref() == Some(token) || self.others.contains(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(repeats: &mut Repeats, time: u32, token: &'static str) -> bool {
        let time = ClusterTime { time, increment: 1 };
        repeats.is_repeated(Some(time), Some(&Bytes::from_static(token.as_bytes())))
    }

    #[test]
    fn events_in_the_order_of_their_times_are_new() {
        let mut repeats = Repeats::default();
        for (time, token) in [(1, "a"), (2, "b"), (2, "c"), (3, "d")] {
            assert!(!read(&mut repeats, time, token), "{token}");
        }
    }

    #[test]
    fn an_event_that_was_read_is_repeated_and_another_one_of_its_transaction_is_not() {
        // I1: only events that were read may be dropped.
        let mut repeats = Repeats::default();
        read(&mut repeats, 1, "a");
        read(&mut repeats, 2, "b");
        assert!(read(&mut repeats, 1, "a"));
        assert!(read(&mut repeats, 2, "b"));
        assert!(!read(&mut repeats, 2, "c"));
        assert!(read(&mut repeats, 2, "c"));
    }

    #[test]
    fn the_first_event_behind_an_opening_is_never_dropped() {
        // I1
        let mut repeats = Repeats::default();
        read(&mut repeats, 5, "a");
        repeats.opened();
        assert!(!read(&mut repeats, 4, "b"));
    }
}
