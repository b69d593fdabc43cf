//! Names that are reserved for Lazaret: properties of the Kafka client, and headers of handler requests.

use super::error::{FormatError, bad};
use crate::code::Code;

/// Properties that the Kafka source sets itself, each with the reason.
const RESERVED_PROPERTIES: [(&str, &str); 5] = [
    ("bootstrap.servers", "use `brokers`"),
    ("group.id", "use `group`"),
    ("enable.auto.commit", "positions are committed when messages are settled, not on a timer"),
    ("enable.auto.offset.store", "positions are committed when messages are settled, not when they are read"),
    ("enable.partition.eof", "Lazaret sets it when it reads a source to its end"),
];

/// Headers that Lazaret sets: they frame the request, carry the trace, or describe the message. The HTTP
/// handler rejects the same headers.
const RESERVED_HEADERS: [&str; 10] = [
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
const RESERVED_HEADER_PREFIXES: [&str; 2] = ["ce-", "lazaret-"];

/// Rejects a reserved header.
pub(crate) fn header(text: &str) -> Result<(), FormatError> {
    let name = text.to_ascii_lowercase();
    let is_reserved = RESERVED_HEADERS.contains(&name.as_str())
        || RESERVED_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_reserved {
        let hint = "remove it; for a header of your own choose another name, for example `x-…`";
        return Err(bad(Code::ReservedName, "is reserved", hint));
    }
    Ok(())
}

/// Rejects a reserved property.
pub(crate) fn property(text: &str) -> Result<(), FormatError> {
    if let Some((_, why)) = RESERVED_PROPERTIES.iter().find(|(name, _)| *name == text) {
        return Err(bad(Code::ReservedName, "is reserved", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_would_lose_messages_are_rejected() {
        // I1
        for (name, _) in RESERVED_PROPERTIES {
            assert!(property(name).is_err_and(|error| error.code == Code::ReservedName));
        }
        assert!(property("sasl.password").is_ok());
    }
}
