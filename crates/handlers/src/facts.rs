//! What is told to a handler about an attempt, whichever way it is called.

use std::borrow::Cow;

use bytes::Bytes;
use lazaret_core::handler::Delivery;
use lazaret_core::{ConsumerName, HandlerError, LetterId, Message, Operation, Reason, Sequencing, Verdict};

/// How many headers of a message are passed on.
pub const HEADERS_LIMIT: usize = 64;
/// How many bytes of headers of a message are passed on, names and values together, as they are sent.
pub const HEADER_BYTES_LIMIT: usize = 8 * 1024;
/// How many bytes the id, key, type, stream, sequence and correlation of a message may have together, as they are sent. They
/// are never cut, so a message that has more becomes a dead letter with reason `TOO_LARGE`.
pub const NAME_BYTES_LIMIT: usize = 8 * 1024;

/// The type that is told of a message that has none: CloudEvents must have one.
pub(crate) const NO_TYPE: &str = "lazaret.message";

/// Who calls the handler, and how it orders messages.
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

/// One attempt, as it is told.
pub(crate) struct Facts<'a> {
    pub(crate) message: &'a Message,
    pub(crate) attempt: u32,
    pub(crate) sequence: Cow<'a, str>,
    pub(crate) replay: Option<Replay>,
}

/// What is told on a replay besides.
pub(crate) struct Replay {
    pub(crate) letter: LetterId,
    pub(crate) operation: String,
    /// Which replay of this letter it is, from 1.
    pub(crate) attempt: u32,
}

impl<'a> Facts<'a> {
    pub(crate) fn of(caller: &Caller, delivery: &'a Delivery) -> Self {
        let message = delivery.message();
        let replay = delivery.replay().zip(delivery.letter()).map(|(operation, letter)| Replay {
            letter: letter.id,
            operation,
            attempt: letter.replay_attempts.saturating_add(1),
        });
        Self { message, attempt: delivery.attempt(), sequence: caller.sequencing.text(message), replay }
    }

    /// The trace that the message belongs to, if it names one in the form of the W3C.
    pub(crate) fn traceparent(&self) -> Option<&'a Bytes> {
        self.message.headers.get("traceparent").filter(|value| is_traceparent(value))
    }

    /// What the trace carries along, if there is a trace.
    pub(crate) fn tracestate(&self) -> Option<&'a Bytes> {
        let state = self.message.headers.get("tracestate")?;
        let fits = !state.is_empty() && state.len() <= 512 && state.iter().all(|b| matches!(b, 0x20..=0x7e));
        (fits && self.traceparent().is_some()).then_some(state)
    }
}

/// `00-` and what the W3C asks of it: two ids that are not all zeros, and flags.
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

/// The name of an operation as it is told.
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

/// How much room is left for the headers of a message. Those that do not fit are counted.
pub(crate) struct Room {
    headers: usize,
    bytes: usize,
    pub(crate) left_out: usize,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { headers: HEADERS_LIMIT, bytes: HEADER_BYTES_LIMIT, left_out: 0 }
    }

    /// Whether a header of this size still fits. Counts it either way.
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

/// The failure of a message whose names are too long to be told.
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
    fn only_a_trace_in_the_form_of_the_w3c_is_one() {
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
    fn a_state_without_a_trace_is_not_told() {
        let message = Message::new("m", "s", Position::new(0, 0)).with_header("tracestate", "a=b");
        let delivery = Delivery::new(message);
        assert!(Facts::of(&Caller::default(), &delivery).tracestate().is_none());
    }

    #[test]
    fn a_header_that_does_not_fit_is_counted_and_a_smaller_one_still_fits() {
        // I7
        let mut room = Room::new();
        assert!(room.take(HEADER_BYTES_LIMIT - 1));
        assert!(!room.take(2) && room.take(1) && !room.take(1));
        assert_eq!(room.left_out, 2);
        let mut room = Room::new();
        assert_eq!((0..=HEADERS_LIMIT).filter(|_| room.take(1)).count(), HEADERS_LIMIT);
    }

    #[test]
    fn operations_are_called_as_they_are_written() {
        for operation in [Operation::Insert, Operation::DropDatabase, Operation::Invalidate, Operation::Other]
        {
            let written = serde_json::to_string(&operation).unwrap();
            assert_eq!(written, format!("{:?}", operation_name(operation)));
        }
    }
}
