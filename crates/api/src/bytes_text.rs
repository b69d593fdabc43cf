//! Bytes in JSON: as text where they are text, else as base64, so that nothing is lost (I5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// A text that should be base64 and is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is not base64: {why}")]
pub struct InvalidBase64 {
    /// Where it stood.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// Bytes as they stand in two fields: text or base64, never both.
pub(crate) fn split(bytes: Option<&Bytes>) -> (Option<String>, Option<String>) {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => (None, None),
        Some((Ok(text), _)) => (Some(text.to_owned()), None),
        Some((Err(_), bytes)) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// The bytes from the two fields; `None` when neither is there. Base64 wins where both are.
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
    fn bytes_come_back_as_they_went() {
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
    fn what_is_not_base64_is_named() {
        let error = join(None, Some("!".into()), "key-base64").unwrap_err();
        assert!(error.to_string().starts_with("key-base64 is not base64: "), "{error}");
    }
}
