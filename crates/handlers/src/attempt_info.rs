//! The metadata of an attempt that every kind of handler receives.

use std::borrow::Cow;

use bytes::Bytes;
use lazaret_core::handler::Delivery;
use lazaret_core::{ConsumerName, HandlerError, LetterId, Message, Operation, Reason, Sequencing, Verdict};

/// The maximum number of message headers that a handler receives.
pub const HEADERS_LIMIT: usize = 64;
/// The maximum total size of the message headers that a handler receives: names and values, as encoded.
pub const HEADER_BYTES_LIMIT: usize = 8 * 1024;
/// The maximum total size of a message's id, key, type, stream, sequence and correlation, as encoded.
/// They are never truncated, so a message above the limit becomes a dead letter with reason `TOO_LARGE`.
pub const NAME_BYTES_LIMIT: usize = 8 * 1024;

/// The type of a message that has none, because CloudEvents require a type.
pub(crate) const DEFAULT_TYPE: &str = "lazaret.message";

/// The consumer that calls the handler, and its sequencing.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) consumer: ConsumerName,
    pub(crate) sequencing: Sequencing,
}

impl Default for Caller {
    fn default() -> Self {
        Self { consumer: ConsumerName::from("lazaret"), sequencing: Sequencing::default() }
    }
}

/// The metadata of one attempt.
pub(crate) struct AttemptInfo<'a> {
    pub(crate) message: &'a Message,
    pub(crate) attempt: u32,
    pub(crate) sequence: Cow<'a, str>,
    pub(crate) replay: Option<Replay>,
}

/// The additional metadata of a replay.
pub(crate) struct Replay {
    pub(crate) letter: LetterId,
    pub(crate) operation: String,
    /// The number of this replay of the letter, starting at 1.
    pub(crate) attempt: u32,
}

impl<'a> AttemptInfo<'a> {
    pub(crate) fn of(caller: &Caller, delivery: &'a Delivery) -> Self {
        let message = delivery.message();
        let replay = delivery.replay().zip(delivery.letter()).map(|(operation, letter)| Replay {
            letter: letter.id,
            operation,
            attempt: letter.replay_attempts.saturating_add(1),
        });
        Self { message, attempt: delivery.attempt(), sequence: caller.sequencing.text(message), replay }
    }

    /// Returns the trace context of the message, if it has a valid W3C `traceparent`.
    pub(crate) fn traceparent(&self) -> Option<&'a Bytes> {
        self.message.headers.get("traceparent").filter(|value| is_traceparent(value))
    }

    /// Returns the valid `tracestate` of the message, if it has a trace context.
    pub(crate) fn tracestate(&self) -> Option<&'a Bytes> {
        let state = self.message.headers.get("tracestate")?;
        let fits = !state.is_empty() && state.len() <= 512 && state.iter().all(|b| matches!(b, 0x20..=0x7e));
        (fits && self.traceparent().is_some()).then_some(state)
    }
}

/// Validates a W3C `traceparent` of version 00: two ids that are not all zeros, and flags.
fn is_traceparent(value: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let id = |part: &[u8]| hex(part) && part.iter().any(|&b| b != b'0');
    value.len() == 55
        && value.starts_with(b"00-")
        && id(&value[3..35])
        && value[35] == b'-'
        && id(&value[36..52])
        && value[52] == b'-'
        && hex(&value[53..])
}

/// Returns the name of an operation.
pub(crate) const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "insert",
        Operation::Update => "update",
        Operation::Replace => "replace",
        Operation::Delete => "delete",
        Operation::Drop => "drop",
        Operation::DropDatabase => "drop-database",
        Operation::Rename => "rename",
        Operation::Invalidate => "invalidate",
        _ => "other",
    }
}

/// The remaining budget for message headers. Headers beyond it are counted.
pub(crate) struct HeaderBudget {
    headers: usize,
    bytes: usize,
    pub(crate) left_out: usize,
}

impl HeaderBudget {
    pub(crate) fn new() -> Self {
        Self { headers: HEADERS_LIMIT, bytes: HEADER_BYTES_LIMIT, left_out: 0 }
    }

    /// Reserves the size of a header. Returns `true` if it fits; otherwise counts the header as omitted.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        if self.headers == 0 || bytes > self.bytes {
            self.left_out += 1;
            return false;
        }
        self.headers -= 1;
        self.bytes -= bytes;
        true
    }
}

/// Returns the failure of a message whose names are too long.
pub(crate) fn names_too_long(bytes: usize) -> HandlerError {
    let text = format!(
        "id, key, type, stream, sequence and correlation have {bytes} bytes together, the limit is {NAME_BYTES_LIMIT}"
    );
    HandlerError::foreign("name limit", text).reason(Reason::TOO_LARGE).suggest(Verdict::DeadLetter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_core::Position;

    #[test]
    fn only_a_w3c_traceparent_is_accepted() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good.as_bytes()));
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &good.replace("00-", "ff-"),
            &good.replace('-', "_"),
            &good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("{good}\n"),
            &good.replace("01", "0\r"),
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad:?}");
        }
    }

    #[test]
    fn a_tracestate_without_a_trace_is_not_sent() {
        let message = Message::new("m", "s", Position::new(0, 0)).with_header("tracestate", "a=b");
        let delivery = Delivery::new(message);
        assert!(AttemptInfo::of(&Caller::default(), &delivery).tracestate().is_none());
    }

    #[test]
    fn a_header_that_does_not_fit_is_counted_and_a_smaller_one_still_fits() {
        // I7
        let mut budget = HeaderBudget::new();
        assert!(budget.take(HEADER_BYTES_LIMIT - 1));
        assert!(!budget.take(2) && budget.take(1) && !budget.take(1));
        assert_eq!(budget.left_out, 2);
        let mut budget = HeaderBudget::new();
        assert_eq!((0..=HEADERS_LIMIT).filter(|_| budget.take(1)).count(), HEADERS_LIMIT);
    }

    #[test]
    fn operation_names_match_their_serialization() {
        for operation in [Operation::Insert, Operation::DropDatabase, Operation::Invalidate, Operation::Other]
        {
            let written = serde_json::to_string(&operation).unwrap();
            assert_eq!(written, format!("{:?}", operation_name(operation)));
        }
    }
}
