//! The facts of an attempt as variables of a process.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use lazaret_core::HandlerError;

use crate::encoding::percent;
use crate::facts::{Caller, Facts, NAME_BYTES_LIMIT, NO_TYPE, Room, names_too_long, operation_name};

/// Which variables hold a value that had to be encoded.
const ENCODED: &str = "LAZARET_ENCODED";
const PREFIX: &str = "LAZARET_HEADER_";

/// Variables on their way to a process.
#[derive(Default)]
struct Variables {
    list: Vec<(String, OsString)>,
    /// Those whose value was encoded: a variable cannot hold a NUL.
    encoded: Vec<String>,
    bytes: usize,
}

impl Variables {
    fn set(&mut self, name: impl Into<String>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.into(), value.as_ref());
        let value = if value.contains(&0) {
            self.encoded.push(name.clone());
            percent(value, |byte| byte != 0 && byte != b'%')
        } else {
            value.into()
        };
        self.bytes += value.len();
        self.list.push((name, OsString::from_vec(value.into_owned())));
    }
}

/// All variables that tell of an attempt. Values are the bytes as they are; one with a NUL in it is percent-encoded, and
/// `LAZARET_ENCODED` names its variable.
pub(super) fn variables(caller: &Caller, facts: &Facts<'_>) -> Result<Vec<(String, OsString)>, HandlerError> {
    let message = facts.message;
    let mut told = Variables::default();
    told.set("LAZARET_ID", message.id.as_str());
    told.set("LAZARET_STREAM", message.stream.as_str());
    told.set("LAZARET_TYPE", message.event_type.as_deref().filter(|t| !t.is_empty()).unwrap_or(NO_TYPE));
    told.set("LAZARET_SEQUENCE", facts.sequence.as_bytes());
    if let Some(key) = &message.key {
        told.set("LAZARET_KEY", key);
    }
    if let Some(correlation) = &message.correlation {
        told.set("LAZARET_CORRELATION", correlation.as_bytes());
    }
    if told.bytes > NAME_BYTES_LIMIT {
        return Err(names_too_long(told.bytes));
    }
    told.set("LAZARET_CONSUMER", caller.consumer.as_str());
    told.set("LAZARET_ATTEMPT", facts.attempt.to_string());
    told.set("LAZARET_POSITION", message.position.to_string());
    let content_type = message.content_type.as_deref().filter(|text| (1..=255).contains(&text.len()));
    told.set("LAZARET_CONTENT_TYPE", content_type.unwrap_or("application/octet-stream"));
    if let Some(time) = message.timestamp {
        told.set("LAZARET_TIME", time.to_string());
    }
    if let Some(operation) = message.operation {
        told.set("LAZARET_OPERATION", operation_name(operation));
    }
    if message.payload.is_none() {
        told.set("LAZARET_TOMBSTONE", "true");
    }
    if let Some(replay) = &facts.replay {
        told.set("LAZARET_LETTER", replay.letter.to_string());
        told.set("LAZARET_REPLAY", &replay.operation);
        told.set("LAZARET_REPLAY_ATTEMPT", replay.attempt.to_string());
    }
    for (name, value) in [("TRACEPARENT", facts.traceparent()), ("TRACESTATE", facts.tracestate())] {
        if let Some(value) = value {
            told.set(format!("LAZARET_{name}"), value);
            told.set(name, value);
        }
    }
    pass_on(&mut told, facts);
    if !told.encoded.is_empty() {
        let names = told.encoded.join(" ");
        told.list.push((ENCODED.to_owned(), names.into()));
    }
    Ok(told.list)
}

/// Adds the headers of the message. A variable holds one value: of those with the same name, the first.
fn pass_on(told: &mut Variables, facts: &Facts<'_>) {
    let mut room = Room::new();
    let mut known = HashSet::new();
    for (name, value) in facts.message.headers.iter() {
        let upper =
            name.bytes().map(|b| if b.is_ascii_alphanumeric() { b.to_ascii_uppercase() } else { b'_' });
        let upper: String = upper.map(char::from).collect();
        let is_first = !upper.is_empty() && !known.contains(&upper);
        if is_first && room.take(PREFIX.len() + upper.len() + value.len()) {
            told.set(format!("{PREFIX}{upper}"), value);
            known.insert(upper);
        } else if !is_first {
            room.left_out += 1;
        }
    }
    if room.left_out > 0 {
        told.set("LAZARET_HEADERS_LEFT_OUT", room.left_out.to_string());
    }
}

/// Who calls, for workers that are told of messages in another way.
pub(super) fn of_worker(caller: &Caller) -> (&'static str, &OsStr) {
    ("LAZARET_CONSUMER", OsStr::from_bytes(caller.consumer.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lazaret_core::handler::Delivery;
    use lazaret_core::{Message, Position, Reason, Verdict};
    use std::collections::BTreeMap;

    fn tell(message: Message) -> BTreeMap<String, String> {
        let delivery = Delivery::new(message);
        let caller = Caller::default();
        let told = variables(&caller, &Facts::of(&caller, &delivery)).unwrap();
        let count = told.len();
        let told: BTreeMap<_, _> =
            told.into_iter().map(|(name, value)| (name, value.to_string_lossy().into_owned())).collect();
        assert_eq!(told.len(), count, "no variable is set twice");
        told
    }

    fn message() -> Message {
        Message::new("evt-1", "orders", Position::new(3, 41))
    }

    #[test]
    fn a_value_with_a_nul_is_encoded_and_named() {
        let told = tell(message().with_key(&b"a\0b%"[..]).with_header("x", &b"\0"[..]));
        assert_eq!(told["LAZARET_KEY"], "a%00b%25");
        assert_eq!(told["LAZARET_ENCODED"], "LAZARET_KEY LAZARET_HEADER_X");
        let told = tell(message().with_key("100% of\nit"));
        assert_eq!(told["LAZARET_KEY"], "100% of\nit");
        assert!(!told.contains_key(ENCODED));
    }

    #[test]
    fn no_header_can_take_the_place_of_a_fact_or_of_another_variable() {
        let told = tell(
            message()
                .with_header("LD_PRELOAD=/x", "1")
                .with_header("a-b", "first")
                .with_header("A.B", "second")
                .with_header("", "nameless"),
        );
        assert!(told.keys().all(|name| name.starts_with("LAZARET_")));
        assert_eq!((&*told["LAZARET_HEADER_A_B"], &*told["LAZARET_HEADERS_LEFT_OUT"]), ("first", "2"));
        assert_eq!(told["LAZARET_HEADER_LD_PRELOAD__X"], "1");
    }

    #[test]
    fn a_null_key_is_not_an_empty_key_and_a_tombstone_is_no_empty_payload() {
        // I5
        assert!(!tell(message()).contains_key("LAZARET_KEY"));
        assert_eq!(tell(message().with_key(""))["LAZARET_KEY"], "");
        assert_eq!(tell(message())["LAZARET_TOMBSTONE"], "true");
        assert!(!tell(message().with_payload("")).contains_key("LAZARET_TOMBSTONE"));
    }

    #[test]
    fn names_that_are_too_long_are_a_dead_letter() {
        // I7
        let delivery = Delivery::new(message().with_key(Bytes::from(vec![b'k'; NAME_BYTES_LIMIT])));
        let caller = Caller::default();
        let error = variables(&caller, &Facts::of(&caller, &delivery)).unwrap_err();
        assert_eq!(error.suggested_verdict(), Some(Verdict::DeadLetter));
        assert_eq!(error.failure().reason, Reason::TOO_LARGE);
    }
}
