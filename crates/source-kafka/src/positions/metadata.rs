//! Encodes the settled ranges beyond the committed offset as commit metadata.
//!
//! The format is `lz1.`, then in base64 a checksum of four bytes and the ranges. Each range has two
//! numbers: the distance from the end of the previous range (from the committed offset for the first),
//! and its length less one. A number has seven bits per byte, low bits first. The checksum also covers
//! topic, partition and committed offset: a tool that moves offsets and keeps the metadata must not
//! cause messages to be skipped.
//!
//! A consumer whose store has an id writes `lz2.`, the id, a dot, and the same in base64, or nothing if
//! there are no ranges. A member with a different store is therefore detected when it is assigned the
//! partition. The last dot ends the id.
//!
//! If the broker has reported the id of the topic, the metadata is `lz3.`, that id, a dot, the id of the
//! store if it has one, a dot, and the same in base64. The position of a deleted topic is therefore not
//! mistaken for a position of its successor (I1).
//!
//! Metadata that cannot be decoded counts as having no ranges. The only cost is redelivery.

use std::hash::Hasher;
use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use lazaret_core::Partition;
use siphasher::sip::SipHasher13;

/// The brokers' default limit (`offset.metadata.max.bytes`).
pub(crate) const DEFAULT_LIMIT: usize = 4096;
const PREFIX: &str = "lz1.";
const PREFIX_WITH_STORE: &str = "lz2.";
const PREFIX_WITH_LOG: &str = "lz3.";
/// The number of characters in a topic id.
const LOG_CHARACTERS: usize = 22;
const CHECKSUM_BYTES: usize = 4;

/// The commit that metadata belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitKey<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    /// The committed offset, which is the first one that is not settled.
    pub(crate) offset: u64,
    /// The id of the topic, if its broker has reported it.
    pub(crate) log: Option<&'a str>,
}

impl<'a> CommitKey<'a> {
    /// Returns the key for a commit of this offset in a partition of the topic with this id.
    pub(crate) fn of(partition: &'a Partition, offset: u64, log: Option<&'a str>) -> Self {
        Self { topic: partition.stream.as_str(), partition: partition.index, offset, log }
    }
}

impl CommitKey<'_> {
    fn checksum(self, ranges: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = SipHasher13::new();
        hasher.write(self.topic.as_bytes());
        hasher.write(&self.partition.to_be_bytes());
        hasher.write(&self.offset.to_be_bytes());
        hasher.write(ranges);
        ((hasher.finish() >> 32) as u32).to_be_bytes()
    }
}

/// Encodes the id of the store and the ranges, which are in order and disjoint, in at most `limit`
/// characters. If they do not fit, the farthest ranges are dropped, because they are redelivered last.
pub(crate) fn encode(
    ranges: &[RangeInclusive<u64>],
    key: CommitKey<'_>,
    store: Option<&str>,
    limit: usize,
) -> String {
    let prefix = match (key.log, store) {
        (Some(log), store) => format!("{PREFIX_WITH_LOG}{log}.{}.", store.unwrap_or_default()),
        (None, Some(store)) => format!("{PREFIX_WITH_STORE}{store}."),
        (None, None) => PREFIX.to_owned(),
    };
    let capacity = (limit.saturating_sub(prefix.len()) * 3 / 4).saturating_sub(CHECKSUM_BYTES);
    let mut body = Vec::new();
    let mut from = key.offset;
    for range in ranges {
        let (start, end) = (*range.start().max(&from), *range.end());
        if start > end {
            continue;
        }
        let before = body.len();
        push_number(&mut body, start - from);
        push_number(&mut body, end - start);
        if body.len() > capacity {
            body.truncate(before);
            break;
        }
        from = end.saturating_add(1);
    }
    if body.is_empty() {
        let is_needed = store.is_some() || key.log.is_some();
        return if is_needed && prefix.len() <= limit { prefix } else { String::new() };
    }
    let bytes = [&key.checksum(&body)[..], &body].concat();
    format!("{prefix}{}", BASE64.encode(bytes))
}

/// Returns the id of the store with which the commit was made, if it has one.
pub(crate) fn store_of(text: &str) -> Option<&str> {
    with_store(text).map(|(store, _)| store).filter(|store| !store.is_empty())
}

/// Returns the id of the topic to which the position belongs, if the commit has it.
pub(crate) fn log_of(text: &str) -> Option<&str> {
    with_log(text).map(|(log, _)| log).filter(|log| !log.is_empty())
}

/// Returns the id of the topic and the text after it. The id has no dots.
fn with_log(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(PREFIX_WITH_LOG)?.split_once('.')
}

/// Returns the id of the store and the encoded ranges. The id may have dots, but base64 has none.
fn with_store(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix(PREFIX_WITH_STORE).or_else(|| with_log(text).map(|(_, rest)| rest));
    rest?.rsplit_once('.')
}

/// Returns the smallest limit that has room for the ids of a store and a topic.
pub(crate) const fn room_for_store(id: &str) -> usize {
    PREFIX_WITH_LOG.len() + LOG_CHARACTERS + 1 + id.len() + 1
}

/// Decodes ranges. The error is the reason why there are none.
pub(crate) fn decode(text: &str, key: CommitKey<'_>) -> Result<Vec<RangeInclusive<u64>>, &'static str> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let body = text.strip_prefix(PREFIX).or_else(|| with_store(text).map(|(_, body)| body));
    let body = body.ok_or("written by another tool or a later version")?;
    if body.is_empty() && !text.starts_with(PREFIX) {
        return Ok(Vec::new());
    }
    let bytes = BASE64.decode(body).map_err(|_| "not base64")?;
    let (checksum, mut body) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or("too short")?;
    if checksum != key.checksum(body) {
        return Err("checksum mismatch");
    }
    let mut ranges = Vec::new();
    let mut from = key.offset;
    while !body.is_empty() {
        let mut next = || take_number(&mut body).ok_or("invalid number");
        let (distance, length) = (next()?, next()?);
        let start = from.checked_add(distance).ok_or("range out of bounds")?;
        let end = start.checked_add(length).ok_or("range out of bounds")?;
        ranges.push(start..=end);
        from = end.saturating_add(1);
    }
    Ok(ranges)
}

/// Encodes arbitrary bytes in place of ranges, with a valid checksum.
#[cfg(test)]
pub(crate) fn sealed(body: &[u8], key: CommitKey<'_>) -> String {
    format!("{PREFIX}{}", BASE64.encode([&key.checksum(body)[..], body].concat()))
}

/// Merges the ranges of the engine's commit with the ranges that were settled before the assignment,
/// from `offset` on. The engine includes the latter only after they were delivered again.
pub(crate) fn with_earlier(
    current: Vec<RangeInclusive<u64>>,
    earlier: &[RangeInclusive<u64>],
    offset: u64,
) -> Vec<RangeInclusive<u64>> {
    let mut all = within(earlier.to_vec(), offset, u64::MAX);
    if all.is_empty() {
        return current;
    }
    all.extend(current);
    all.sort_unstable_by_key(|range| *range.start());
    all.dedup_by(|next, before| {
        let joins = *next.start() <= before.end().saturating_add(1);
        if joins {
            *before = *before.start()..=(*before.end()).max(*next.end());
        }
        joins
    });
    all
}

/// Restricts ranges to offsets from `low` to `high`, without `high`.
pub(crate) fn within(ranges: Vec<RangeInclusive<u64>>, low: u64, high: u64) -> Vec<RangeInclusive<u64>> {
    let inside = ranges.into_iter().filter_map(|range| {
        let (start, end) = ((*range.start()).max(low), (*range.end()).min(high.checked_sub(1)?));
        (start <= end).then_some(start..=end)
    });
    inside.collect()
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: CommitKey<'static> = CommitKey { topic: "orders", partition: 3, offset: 100, log: None };
    const LOG: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

    #[test]
    fn no_ranges_are_no_metadata() {
        assert_eq!(encode(&[], KEY, None, DEFAULT_LIMIT), "");
        assert_eq!(decode("", KEY), Ok(vec![]));
        assert_eq!(encode(&[3..=9], KEY, None, DEFAULT_LIMIT), "", "what lies before the offset is left out");
    }

    #[test]
    fn the_first_format_stays_readable() {
        // The first version wrote this. Every later version must read it.
        let text = encode(&[101..=101, 103..=50_000], KEY, None, DEFAULT_LIMIT);
        assert_eq!(text, "lz1.9JHXfwEAAemFAw");
        assert_eq!(decode("lz1.9JHXfwEAAemFAw", KEY), Ok(vec![101..=101, 103..=50_000]));
    }

    #[test]
    fn the_store_is_written_with_and_without_ranges() {
        for ranges in [vec![], vec![101..=101, 103..=50_000]] {
            let text = encode(&ranges, KEY, Some("a1b2"), DEFAULT_LIMIT);
            assert!(text.starts_with("lz2.a1b2."), "{text}");
            assert_eq!((store_of(&text), decode(&text, KEY)), (Some("a1b2"), Ok(ranges)));
        }
        let many: Vec<_> = (0..5000).map(|n| 101 + 2 * n..=101 + 2 * n).collect();
        let text = encode(&many, KEY, Some("a1b2"), DEFAULT_LIMIT);
        assert!(text.len() <= DEFAULT_LIMIT && decode(&text, KEY).unwrap().len() > 1500);
        assert_eq!(encode(&many, KEY, Some("a1b2"), 5), "");
        for foreign in ["", "lz1.9JHXfwEAAemFAw", "lz2.", "lz2..", "lz2.a1b2", "another tool"] {
            assert_eq!(store_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_id_of_a_store_may_have_dots() {
        for store in ["db.example.com", ".", "lz2.a."] {
            for ranges in [vec![], vec![101..=101]] {
                let text = encode(&ranges, KEY, Some(store), DEFAULT_LIMIT);
                assert_eq!((store_of(&text), decode(&text, KEY)), (Some(store), Ok(ranges)), "{text}");
            }
        }
        let with_log = CommitKey { log: Some(LOG), ..KEY };
        let text = format!("lz3.{LOG}.a1b2.");
        assert_eq!(encode(&[], with_log, Some("a1b2"), room_for_store("a1b2")), text);
        assert_eq!(encode(&[], with_log, Some("a1b2"), room_for_store("a1b2") - 1), "");
    }

    #[test]
    fn the_log_is_written_with_and_without_a_store_and_ranges() {
        // I1
        let key = CommitKey { log: Some(LOG), ..KEY };
        for store in [None, Some("a1b2"), Some("db.example.com")] {
            for ranges in [vec![], vec![101..=101, 103..=50_000]] {
                let text = encode(&ranges, key, store, DEFAULT_LIMIT);
                assert_eq!(
                    (log_of(&text), store_of(&text), decode(&text, key)),
                    (Some(LOG), store, Ok(ranges))
                );
            }
        }
        for other in ["", "lz1.9JHXfwEAAemFAw", "lz2.a1b2.", "lz2.a.b.", "lz3.", "lz3..a.", "another tool"] {
            assert_eq!(log_of(other), None, "{other}");
        }
    }

    #[test]
    fn alternating_offsets_fit_and_the_farthest_are_dropped() {
        // I7
        let many: Vec<_> = (0..5000).map(|n| 101 + 2 * n..=101 + 2 * n).collect();
        let text = encode(&many, KEY, None, DEFAULT_LIMIT);
        assert!(text.len() <= DEFAULT_LIMIT);
        let read = decode(&text, KEY).unwrap();
        assert!(read.len() > 1500, "{} ranges are few", read.len());
        assert_eq!(read, many[..read.len()]);
        assert_eq!(encode(&many, KEY, None, 0), "");
    }

    #[test]
    fn metadata_of_another_commit_is_refused() {
        // I1: a moved offset must not skip messages.
        let text = encode(&[102..=107], KEY, None, DEFAULT_LIMIT);
        for other in [
            CommitKey { offset: 99, ..KEY },
            CommitKey { partition: 4, ..KEY },
            CommitKey { topic: "invoices", ..KEY },
        ] {
            assert_eq!(decode(&text, other), Err("checksum mismatch"));
        }
    }

    #[test]
    fn foreign_metadata_is_refused() {
        for text in ["bgAAAA", "lz2.AAAA", "lz1", "lz1.", "lz1.AAA", "lz1.????", "\u{1f980}", "consumer-1"] {
            assert!(decode(text, KEY).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_that_overflow_are_refused() {
        let mut body = Vec::new();
        push_number(&mut body, 5);
        push_number(&mut body, u64::MAX);
        let bytes = [&KEY.checksum(&body)[..], &body].concat();
        let text = format!("{PREFIX}{}", BASE64.encode(bytes));
        assert_eq!(decode(&text, KEY), Err("range out of bounds"));
    }

    #[test]
    fn ranges_are_restricted_to_the_log() {
        assert_eq!(within(vec![1..=4, 6..=6, 8..=20, 30..=40], 3, 10), [3..=4, 6..=6, 8..=9]);
        assert_eq!(within(vec![0..=4], 0, 0), []);
    }

    #[test]
    fn earlier_ranges_are_kept() {
        // I1: the message may have been fetched again and not delivered yet.
        let earlier = [11..=60, 62..=99];
        assert_eq!(with_earlier(vec![], &earlier, 11), [11..=60, 62..=99]);
        assert_eq!(with_earlier(vec![13..=13, 61..=61], &earlier, 12), vec![12..=99]);
        assert_eq!(with_earlier(vec![], &earlier, 61), vec![62..=99]);
        assert_eq!(with_earlier(vec![80..=120], &earlier, 70), vec![70..=120]);
        assert_eq!(with_earlier(vec![101..=101, 120..=120], &earlier, 90), [90..=99, 101..=101, 120..=120]);
        assert_eq!(with_earlier(vec![7..=8], &[], 9), vec![7..=8]);
        assert_eq!(with_earlier(vec![200..=201], &earlier, 150), vec![200..=201]);
    }

    proptest! {
        #[test]
        fn encoded_ranges_are_decoded(
            offset in 0_u64..1 << 62, parts in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 40), 0..50)
        ) {
            let key = CommitKey { offset, ..KEY };
            let mut from = offset;
            let ranges: Vec<_> = parts.into_iter().map(|(distance, length)| {
                let start = from + distance;
                from = start + length + 1;
                start..=start + length
            }).collect();
            prop_assert_eq!(decode(&encode(&ranges, key, None, DEFAULT_LIMIT), key), Ok(ranges));
        }

        #[test]
        fn damaged_metadata_gives_no_ranges(at in 0_usize..40, with in 0_u8..255) {
            let text = encode(&[102..=107, 200..=300, 1000..=70_000, 80_000..=90_000], KEY, None, DEFAULT_LIMIT);
            let mut bytes = text.clone().into_bytes();
            let at = at % bytes.len();
            bytes[at] = with;
            let damaged = String::from_utf8_lossy(&bytes).into_owned();
            prop_assume!(damaged != text);
            prop_assert!(decode(&damaged, KEY).is_err());
        }

        #[test]
        fn no_metadata_panics(text in "(lz1\\.)?[A-Za-z0-9_-]{0,60}") {
            let _ = decode(&text, KEY);
        }
    }
}
