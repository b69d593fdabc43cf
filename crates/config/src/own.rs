//! What Lazaret sets itself, so that a person may not: properties of the Kafka client, and headers of a request to a handler.

use crate::code::Code;
use crate::forms::{BadForm, bad};

/// What the Kafka source decides itself, and why.
const OWN_PROPERTIES: [(&str, &str); 5] = [
    ("bootstrap.servers", "use `brokers`"),
    ("group.id", "use `group`"),
    ("enable.auto.commit", "positions are committed when messages are settled, not by time"),
    ("enable.auto.offset.store", "positions are committed when messages are settled, not when they are read"),
    ("enable.partition.eof", "it is set when a source is read to its end"),
];

/// Headers that Lazaret sets itself: they frame the request, carry the trace, or say what the message is. They are those that the
/// handler over HTTP refuses.
const OWN_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "traceparent",
    "tracestate",
];
const OWN_HEADER_PREFIXES: [&str; 2] = ["ce-", "lazaret-"];

/// Refuses the name of a header that is not for the user to set.
pub(crate) fn header(text: &str) -> Result<(), BadForm> {
    let name = text.to_ascii_lowercase();
    let is_own = OWN_HEADERS.contains(&name.as_str())
        || OWN_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_own {
        let hint = "remove it: Lazaret sets it itself; give yours another name, as in `x-…`";
        return Err(bad(Code::OwnProperty, "is not for the user to set", hint));
    }
    Ok(())
}

/// Refuses the name of a property that is not for the user to set.
pub(crate) fn property(text: &str) -> Result<(), BadForm> {
    if let Some((_, why)) = OWN_PROPERTIES.iter().find(|(own, _)| *own == text) {
        return Err(bad(Code::OwnProperty, "is not for the user to set", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_would_lose_messages_are_refused() {
        // I1
        for (name, _) in OWN_PROPERTIES {
            assert!(property(name).is_err_and(|error| error.code == Code::OwnProperty));
        }
        assert!(property("sasl.password").is_ok());
    }
}
