//! Payloads as a tree, as text, or as bytes. Every payload can be shown and downloaded.

pub(crate) mod hex;
pub(crate) mod json;
pub(crate) mod tree;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_api::{MessageDetail, PayloadState};

/// The maximum number of payload bytes on a page. The rest is loaded on demand.
pub(crate) const INLINE_BYTES: usize = 64 * 1024;

/// The view of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Tree,
    Text,
    Hex,
}

impl View {
    pub(crate) const ALL: [Self; 3] = [Self::Tree, Self::Text, Self::Hex];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Text => "text",
            Self::Hex => "hex",
        }
    }
}

/// The payload of a letter or its beginning.
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    /// The size of the whole payload.
    pub(crate) size: u64,
}

impl Payload {
    /// Returns the payload of a letter, or `None` if it is hidden or missing.
    pub(crate) fn of(content: &MessageDetail) -> Option<Self> {
        if content.payload_state != PayloadState::Shown {
            return None;
        }
        let bytes =
            decoded(content.payload.as_deref(), content.payload_base64.as_deref()).unwrap_or_default();
        Some(Self { bytes, size: content.payload_bytes })
    }

    /// Returns `true` if nothing was cut.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.size
    }

    /// Returns the payload as text if it is UTF-8.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// Returns the payload as JSON if it is complete.
    pub(crate) fn json(&self) -> Option<json::Value<'_>> {
        self.text().filter(|_| self.is_whole()).and_then(json::parse)
    }

    /// Returns the possible views, best first.
    pub(crate) fn views(&self) -> Vec<View> {
        let mut views = vec![View::Hex];
        if self.text().is_some() {
            views.insert(0, View::Text);
        }
        if self.json().is_some() {
            views.insert(0, View::Tree);
        }
        views
    }
}

/// Decodes bytes that the API sent as text or as base64.
pub(crate) fn decoded(text: Option<&str>, base64: Option<&str>) -> Option<Vec<u8>> {
    match (text, base64) {
        (Some(text), _) => Some(text.as_bytes().to_vec()),
        (None, Some(base64)) => STANDARD.decode(base64).ok(),
        (None, None) => None,
    }
}

/// Formats a size in bytes for display.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(bytes: &[u8], size: u64) -> Vec<View> {
        Payload { bytes: bytes.to_vec(), size }.views()
    }

    #[test]
    fn every_payload_has_a_view() {
        assert_eq!(views(b"{\"a\": 1}", 8), View::ALL);
        assert_eq!(views(b"{\"a\": ", 6), [View::Text, View::Hex]);
        assert_eq!(views(b"\xff\xfe", 2), [View::Hex]);
        assert_eq!(views(b"[1]", 60_000_000), [View::Text, View::Hex], "only the beginning");
        assert_eq!(views(b"", 0), [View::Text, View::Hex]);
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!([size(0), size(1536), size(62_914_560)], ["0 B", "1.5 KiB", "60.0 MiB"]);
    }
}
