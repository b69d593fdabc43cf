//! Positions in a change stream: resume tokens, cluster times, and offsets
//! (docs/decisions/0040-change-stream-positions.md).

use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp as ClusterTime, Uuid, doc};
use bytes::Bytes;

use crate::extjson;

/// A position at which a stream is opened. It is stored in a checkpoint as JSON of a resume token or of
/// a cluster time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StreamPosition {
    /// After the event with this resume token.
    After(Document),
    /// At this cluster time.
    At(ClusterTime),
}

/// How far the last operation of a server may be before a position of its own history, in seconds. A
/// primary may not know yet that it was replaced, and routers learn of operations late.
pub(crate) const MAX_LAG: u32 = 60;

const OPERATION_TIME: &str = "operationTime";

impl StreamPosition {
    /// Encodes the position for a checkpoint.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let raw = match self {
            Self::After(token) => RawDocumentBuf::try_from(token),
            Self::At(time) => RawDocumentBuf::try_from(&doc! { OPERATION_TIME: *time }),
        };
        token_bytes(&raw.unwrap_or_default())
    }

    /// Reads a position from extended JSON, BSON, or the bare text of a token.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let document = match bytes.first() {
            Some(b'{') => extjson::from_json(bytes).map_err(|error| error.to_string())?,
            _ => match RawDocument::from_bytes(bytes) {
                Ok(raw) => Document::try_from(raw).map_err(|error| error.to_string())?,
                Err(error) => match std::str::from_utf8(bytes) {
                    Ok(hex) if !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                        doc! { "_data": hex }
                    }
                    _ => return Err(error.to_string()),
                },
            },
        };
        match document.get(OPERATION_TIME) {
            Some(Bson::Timestamp(time)) => Ok(Self::At(*time)),
            _ if document.contains_key("_data") => Ok(Self::After(document)),
            _ => Err("neither a resume token nor a cluster time".to_owned()),
        }
    }

    /// Returns the cluster time of the position, if it contains one.
    pub(crate) fn time(&self) -> Option<ClusterTime> {
        match self {
            Self::At(time) => Some(*time),
            Self::After(token) => token.get_str("_data").ok().and_then(time_of_token),
        }
    }

    /// Returns `true` if the position is an invalidation according to its token. See [`is_invalidation`].
    pub(crate) fn is_invalidation(&self) -> bool {
        match self {
            Self::After(token) => token.get_str("_data").is_ok_and(is_invalidation),
            Self::At(_) => false,
        }
    }
}

/// Encodes a token for a checkpoint.
pub(crate) fn token_bytes(token: &RawDocument) -> Bytes {
    match extjson::to_json(token) {
        Ok(json) => json.into(),
        Err(_) => Bytes::copy_from_slice(token.as_bytes()),
    }
}

/// The number of bits for the increment of a second in an offset. No server makes that many increments.
const INCREMENT_BITS: u32 = 31;

/// Returns the offset of an event: its cluster time in 63 bits, so that every store can keep it as a
/// signed number.
pub(crate) fn offset_of(time: ClusterTime) -> u64 {
    let increment = u64::from(time.increment).min((1 << INCREMENT_BITS) - 1);
    u64::from(time.time) << INCREMENT_BITS | increment
}

/// Returns the offset for a wall time, which is after all events of its second.
pub(crate) fn offset_at(at: jiff::Timestamp) -> u64 {
    let time = u32::try_from(at.as_second().max(0)).unwrap_or(u32::MAX);
    offset_of(ClusterTime { time, increment: u32::MAX })
}

/// Returns the cluster time in a resume token, for events whose pipeline removed the field. In all
/// versions since MongoDB 4.0.7, tokens begin with the type of a timestamp and its eight bytes.
pub(crate) fn time_of_token(data: &str) -> Option<ClusterTime> {
    let digits = data.strip_prefix("82")?;
    let number = |range| u32::from_str_radix(digits.get(range)?, 16).ok();
    Some(ClusterTime { time: number(0..8)?, increment: number(8..16)? })
}

/// Returns the UUID of the collection in the resume token of an event. Some tokens contain none, and
/// neither do tokens from before MongoDB 4.0.7.
pub(crate) fn collection_of_token(data: &str) -> Option<Uuid> {
    let rest = behind_numbers(data)?;
    let id = rest.strip_prefix("6E").or_else(|| rest.strip_prefix("6F"))?;
    // Binary data of 16 bytes, with the subtype of UUIDs.
    let id = id.strip_prefix("5A1004")?.get(..32)?;
    Some(Uuid::from_bytes(u128::from_str_radix(id, 16).ok()?.to_be_bytes()))
}

/// Returns `true` if a resume token belongs to an `invalidate` event. The server refuses to resume at
/// one, and starts a stream after it only with `startAfter`. Some servers do not mark such tokens.
pub(crate) fn is_invalidation(data: &str) -> bool {
    behind_numbers(data).is_some_and(|rest| rest.starts_with("6F"))
}

/// Returns the part of a resume token that begins with the invalidation mark. Before it are the time, a
/// version, a type, and the number of the operation in its transaction. All tokens since MongoDB 4.0.7
/// have these.
fn behind_numbers(data: &str) -> Option<&str> {
    let mut rest = data.strip_prefix("82")?.get(16..)?;
    for _ in 0..3 {
        rest = rest.get(digits_of_number(rest)?..)?;
    }
    Some(rest)
}

/// Returns the length of the number at the beginning of a text, in hexadecimal digits. It includes the
/// type, which determines the number of bytes, and the bytes.
fn digits_of_number(text: &str) -> Option<usize> {
    match text.get(..2)? {
        "29" => Some(2),
        "2B" => Some(4),
        "2C" => Some(6),
        "2D" => Some(8),
        "2E" => Some(10),
        _ => None,
    }
}

/// Returns `true` if a resume token is a position that the server certified, and not the token of an
/// event. After the time, it has a version and a type. Type zero is a certified position (tokens of
/// MongoDB 4.0.7 and later).
pub(crate) fn is_certified(data: &str) -> bool {
    let version_and_type = data.strip_prefix("82").and_then(|digits| digits.get(16..22));
    version_and_type.is_some_and(|text| matches!(text, "2B0229" | "2B0429"))
}

/// Returns the cluster time that follows this one.
pub(crate) fn next_time(time: ClusterTime) -> ClusterTime {
    match time.increment.checked_add(1) {
        Some(increment) => ClusterTime { increment, ..time },
        None => ClusterTime { time: time.time.saturating_add(1), increment: 0 },
    }
}

/// Returns the wall time of a cluster time.
pub(crate) fn wall_time(time: ClusterTime) -> jiff::Timestamp {
    jiff::Timestamp::from_second(i64::from(time.time)).unwrap_or(jiff::Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_position_comes_back() {
        let token = StreamPosition::After(doc! { "_data": "8263", "_typeBits": Bson::Null });
        let time = StreamPosition::At(ClusterTime { time: 7, increment: 9 });
        for position in [token, time] {
            assert_eq!(StreamPosition::from_bytes(&position.to_bytes()), Ok(position));
        }
        assert_eq!(&StreamPosition::After(doc! { "_data": "82" }).to_bytes()[..], br#"{"_data":"82"}"#);
    }

    #[test]
    fn tokens_of_other_tools_are_read() {
        let token = doc! { "_data": "826AFB" };
        let raw = RawDocumentBuf::try_from(&token).unwrap();
        for bytes in [raw.as_bytes(), b"826AFB", br#"{ "_data" : "826AFB" }"#] {
            assert_eq!(StreamPosition::from_bytes(bytes), Ok(StreamPosition::After(token.clone())));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [&b""[..], b"{}", b"{", b"hello", br#"{"version":2,"offset":1}"#, b"\x05\0\0\0\0"] {
            assert!(StreamPosition::from_bytes(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn offsets_are_ordered_as_cluster_times_and_fit_a_signed_number() {
        // I1: the engine compares offsets, and stores keep them as signed numbers.
        let at = |time, increment| offset_of(ClusterTime { time, increment });
        assert!(at(1, 5) < at(1, 6) && at(1, u32::MAX) < at(2, 0));
        assert!(i64::try_from(at(u32::MAX, u32::MAX)).is_ok());
    }

    #[test]
    fn a_wall_time_is_behind_the_events_of_its_second() {
        let at = |second| offset_at(jiff::Timestamp::from_second(second).unwrap());
        assert!(at(7) >= offset_of(ClusterTime { time: 7, increment: 9 }));
        assert!(at(7) < offset_of(ClusterTime { time: 8, increment: 0 }));
        assert_eq!(at(-5), at(0));
    }

    #[test]
    fn the_time_in_a_token_is_read() {
        let time = ClusterTime { time: 0x6afb_78b2, increment: 0x16 };
        assert_eq!(time_of_token("826AFB78B2000000162B0429296E1404"), Some(time));
        for other in ["", "82", "6afb78b200000016", "82zzzzzzzz00000001"] {
            assert_eq!(time_of_token(other), None);
        }
    }

    #[test]
    fn a_position_tells_its_time() {
        let time = ClusterTime { time: 0x6afb_78b2, increment: 0x16 };
        let token = doc! { "_data": "826AFB78B2000000162B0429296E1404" };
        assert_eq!(StreamPosition::After(token).time(), Some(time));
        assert_eq!(StreamPosition::At(time).time(), Some(time));
        assert_eq!(StreamPosition::After(doc! { "_data": "6afb78b200000016" }).time(), None);
    }

    #[test]
    fn the_token_of_an_event_names_its_collection() {
        let id = "D3284E04D8914467A2160201812E4C4C";
        let expected = Uuid::parse_str("d3284e04-d891-4467-a216-0201812e4c4c").unwrap();
        for before in
            ["2B042C0100296E", "2B022C0100296E", "2B042C01002B0E6E", "2B042C01002C01F46E", "2B042C0100296F"]
        {
            let data = format!("8267C867A200000019{before}5A1004{id}463C6F7065726174696F6E54797065003C04");
            assert_eq!(collection_of_token(&data), Some(expected), "{before}");
        }
        for other in [
            "",
            "82",
            "67c867a200000019",
            "826AFB78B2000000162B0429296E1404",
            "8267C867A2000000192B042C0100296E5A1004D3284E04",
        ] {
            assert_eq!(collection_of_token(other), None, "{other}");
        }
    }

    #[test]
    fn the_token_of_an_invalidation_is_told_from_those_of_other_events() {
        let id = "D3284E04D8914467A2160201812E4C4C";
        for numbers in ["2B042C010029", "2B022C010029", "2B042C01002B0E", "2B042C01002C01F4"] {
            let token = |flag: &str| format!("8267C867A200000019{numbers}{flag}5A1004{id}04");
            assert!(is_invalidation(&token("6F")) && !is_invalidation(&token("6E")), "{numbers}");
            let position = |flag: &str| StreamPosition::After(doc! { "_data": token(flag) });
            assert!(position("6F").is_invalidation() && !position("6E").is_invalidation());
        }
        for other in ["", "82", "826AFB78B2000000162B0429296E1404", "826AFB78B2000000162B0229296E04"] {
            assert!(!is_invalidation(other), "{other}");
        }
        assert!(!StreamPosition::At(ClusterTime { time: 1, increment: 1 }).is_invalidation());
    }

    #[test]
    fn a_certified_position_is_told_from_an_event() {
        assert!(is_certified("826AFB78B2000000162B0429296E1404"));
        assert!(is_certified("826AFB78B2000000162B0229296E04"));
        for event in ["826AFB78B2000000162B042C0100296E5A1004", "82", "", "6AFB78B2"] {
            assert!(!is_certified(event), "{event}");
        }
    }

    #[test]
    fn the_next_time_is_later() {
        let time = ClusterTime { time: 1, increment: u32::MAX };
        assert_eq!(next_time(time), ClusterTime { time: 2, increment: 0 });
    }
}
