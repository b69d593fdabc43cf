//! Bytes in JSON: UTF-8 text where possible, otherwise base64 (I5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// The error for a field that holds invalid base64.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is not valid base64: {why}")]
pub struct InvalidBase64 {
    /// The name of the field.
    pub field: &'static str,
    /// The problem with the field.
    pub why: String,
}

/// Splits bytes into two fields: text or base64, never both.
pub(crate) fn split(bytes: Option<&Bytes>) -> (Option<String>, Option<String>) {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => (None, None),
        Some((Ok(text), _)) => (Some(text.to_owned()), None),
        Some((Err(_), bytes)) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// Joins the two fields. Returns `None` when both are absent. Base64 takes precedence.
pub(crate) fn join(
    text: Option<String>,
    base64: Option<String>,
    field: &'static str,
) -> Result<Option<Bytes>, InvalidBase64> {
    match (text, base64) {
        (_, Some(base64)) => {
            let bytes = STANDARD.decode(base64.as_bytes());
            let bytes = bytes.map_err(|error| InvalidBase64 { field, why: error.to_string() })?;
            Ok(Some(bytes.into()))
        }
        (Some(text), None) => Ok(Some(text.into())),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        // I5
        for bytes in [None, Some(&b""[..]), Some(b"text"), Some("ü\0\u{1b}".as_bytes()), Some(b"\xff\0\x80")]
        {
            let bytes = bytes.map(Bytes::from_static);
            let (text, base64) = split(bytes.as_ref());
            assert!(text.is_none() || base64.is_none());
            assert_eq!(join(text, base64, "x").unwrap(), bytes);
        }
    }

    #[test]
    fn invalid_base64_names_its_field() {
        let error = join(None, Some("!".into()), "key-base64").unwrap_err();
        assert!(error.to_string().starts_with("key-base64 is not valid base64: "), "{error}");
    }
}
