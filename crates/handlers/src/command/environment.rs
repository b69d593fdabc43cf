//! Builds the environment variables of an attempt.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use lazaret_core::HandlerError;

use crate::attempt_info::{
    AttemptInfo, Caller, DEFAULT_TYPE, HeaderBudget, NAME_BYTES_LIMIT, names_too_long, operation_name,
};
use crate::encoding::percent;

/// The variable that lists percent-encoded variables.
const ENCODED: &str = "LAZARET_ENCODED";
const PREFIX: &str = "LAZARET_HEADER_";

/// A list of variables.
#[derive(Default)]
struct Variables {
    list: Vec<(String, OsString)>,
    /// The variables whose value was encoded because it contains a NUL.
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

/// Builds all variables of an attempt. Values are unchanged bytes. A value with a NUL is percent-encoded
/// and listed in `LAZARET_ENCODED`.
pub(super) fn variables(
    caller: &Caller,
    info: &AttemptInfo<'_>,
) -> Result<Vec<(String, OsString)>, HandlerError> {
    let message = info.message;
    let mut variables = Variables::default();
    variables.set("LAZARET_ID", message.id.as_str());
    variables.set("LAZARET_STREAM", message.stream.as_str());
    variables
        .set("LAZARET_TYPE", message.event_type.as_deref().filter(|t| !t.is_empty()).unwrap_or(DEFAULT_TYPE));
    variables.set("LAZARET_SEQUENCE", info.sequence.as_bytes());
    if let Some(key) = &message.key {
        variables.set("LAZARET_KEY", key);
    }
    if let Some(correlation) = &message.correlation {
        variables.set("LAZARET_CORRELATION", correlation.as_bytes());
    }
    if variables.bytes > NAME_BYTES_LIMIT {
        return Err(names_too_long(variables.bytes));
    }
    variables.set("LAZARET_CONSUMER", caller.consumer.as_str());
    variables.set("LAZARET_ATTEMPT", info.attempt.to_string());
    variables.set("LAZARET_POSITION", message.position.to_string());
    let content_type = message.content_type.as_deref().filter(|text| (1..=255).contains(&text.len()));
    variables.set("LAZARET_CONTENT_TYPE", content_type.unwrap_or("application/octet-stream"));
    if let Some(time) = message.timestamp {
        variables.set("LAZARET_TIME", time.to_string());
    }
    if let Some(operation) = message.operation {
        variables.set("LAZARET_OPERATION", operation_name(operation));
    }
    if message.payload.is_none() {
        variables.set("LAZARET_TOMBSTONE", "true");
    }
    if let Some(replay) = &info.replay {
        variables.set("LAZARET_LETTER", replay.letter.to_string());
        variables.set("LAZARET_REPLAY", &replay.operation);
        variables.set("LAZARET_REPLAY_ATTEMPT", replay.attempt.to_string());
    }
    for (name, value) in [("TRACEPARENT", info.traceparent()), ("TRACESTATE", info.tracestate())] {
        if let Some(value) = value {
            variables.set(format!("LAZARET_{name}"), value);
            variables.set(name, value);
        }
    }
    add_message_headers(&mut variables, info);
    if !variables.encoded.is_empty() {
        let names = variables.encoded.join(" ");
        variables.list.push((ENCODED.to_owned(), names.into()));
    }
    Ok(variables.list)
}

/// Adds the headers of the message. If several headers have the same name, the first one is used.
fn add_message_headers(variables: &mut Variables, info: &AttemptInfo<'_>) {
    let mut budget = HeaderBudget::new();
    let mut known = HashSet::new();
    for (name, value) in info.message.headers.iter() {
        let upper =
            name.bytes().map(|b| if b.is_ascii_alphanumeric() { b.to_ascii_uppercase() } else { b'_' });
        let upper: String = upper.map(char::from).collect();
        let is_first = !upper.is_empty() && !known.contains(&upper);
        if is_first && budget.take(PREFIX.len() + upper.len() + value.len()) {
            variables.set(format!("{PREFIX}{upper}"), value);
            known.insert(upper);
        } else if !is_first {
            budget.left_out += 1;
        }
    }
    if budget.left_out > 0 {
        variables.set("LAZARET_HEADERS_LEFT_OUT", budget.left_out.to_string());
    }
}

/// Returns the variable of a worker: the name of the consumer.
pub(super) fn worker_variable(caller: &Caller) -> (&'static str, &OsStr) {
    ("LAZARET_CONSUMER", OsStr::from_bytes(caller.consumer.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lazaret_core::handler::Delivery;
    use lazaret_core::{Message, Position, Reason, Verdict};
    use std::collections::BTreeMap;

    fn environment(message: Message) -> BTreeMap<String, String> {
        let delivery = Delivery::new(message);
        let caller = Caller::default();
        let built = variables(&caller, &AttemptInfo::of(&caller, &delivery)).unwrap();
        let count = built.len();
        let variables: BTreeMap<_, _> =
            built.into_iter().map(|(name, value)| (name, value.to_string_lossy().into_owned())).collect();
        assert_eq!(variables.len(), count, "no variable is set twice");
        variables
    }

    fn message() -> Message {
        Message::new("evt-1", "orders", Position::new(3, 41))
    }

    #[test]
    fn a_value_with_a_nul_is_encoded_and_named() {
        let variables = environment(message().with_key(&b"a\0b%"[..]).with_header("x", &b"\0"[..]));
        assert_eq!(variables["LAZARET_KEY"], "a%00b%25");
        assert_eq!(variables["LAZARET_ENCODED"], "LAZARET_KEY LAZARET_HEADER_X");
        let variables = environment(message().with_key("100% of\nit"));
        assert_eq!(variables["LAZARET_KEY"], "100% of\nit");
        assert!(!variables.contains_key(ENCODED));
    }

    #[test]
    fn no_header_replaces_another_variable() {
        let variables = environment(
            message()
                .with_header("LD_PRELOAD=/x", "1")
                .with_header("a-b", "first")
                .with_header("A.B", "second")
                .with_header("", "nameless"),
        );
        assert!(variables.keys().all(|name| name.starts_with("LAZARET_")));
        assert_eq!(
            (&*variables["LAZARET_HEADER_A_B"], &*variables["LAZARET_HEADERS_LEFT_OUT"]),
            ("first", "2")
        );
        assert_eq!(variables["LAZARET_HEADER_LD_PRELOAD__X"], "1");
    }

    #[test]
    fn a_null_key_is_not_an_empty_key_and_a_tombstone_is_no_empty_payload() {
        // I5
        assert!(!environment(message()).contains_key("LAZARET_KEY"));
        assert_eq!(environment(message().with_key(""))["LAZARET_KEY"], "");
        assert_eq!(environment(message())["LAZARET_TOMBSTONE"], "true");
        assert!(!environment(message().with_payload("")).contains_key("LAZARET_TOMBSTONE"));
    }

    #[test]
    fn names_that_are_too_long_are_a_dead_letter() {
        // I7
        let delivery = Delivery::new(message().with_key(Bytes::from(vec![b'k'; NAME_BYTES_LIMIT])));
        let caller = Caller::default();
        let error = variables(&caller, &AttemptInfo::of(&caller, &delivery)).unwrap_err();
        assert_eq!(error.suggested_verdict(), Some(Verdict::DeadLetter));
        assert_eq!(error.failure().reason, Reason::TOO_LARGE);
    }
}
