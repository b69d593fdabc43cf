//! Matches a query against a letter.

use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::ast::{CountField, Needle, Term, Text, TextField, TimeField, lower};
use crate::failure::Failure;
use crate::letter::Letter;
use crate::sequence::SequenceId;

impl Term {
    /// Returns whether a letter matches this term. A field that a letter does not have matches nothing.
    pub fn matches(&self, letter: &Letter, now: Timestamp) -> bool {
        match self {
            Self::Text(field, any) => text(letter, *field, any),
            Self::State(states) => states.contains(&letter.state),
            Self::Error(needles) => letter.cause.as_ref().is_some_and(|cause| error(cause, needles)),
            Self::Count(field, any) => {
                let count = match field {
                    CountField::Attempts => letter.attempts,
                    CountField::Crashes => letter.crash_attempts,
                    CountField::Replays => letter.replay_attempts,
                };
                any.iter().any(|comparison| comparison.holds(count))
            }
            Self::Time(field, any) => {
                let time = match field {
                    TimeField::Age | TimeField::Enqueued => Some(letter.enqueued_at),
                    TimeField::Failed => letter.last_failed_at,
                    TimeField::Due => letter.due_at,
                };
                time.is_some_and(|time| {
                    any.iter().any(|bound| {
                        let (operator, bound) = bound.on_time(*field, now);
                        operator.holds(&time, &bound)
                    })
                })
            }
            Self::Group(any) => letter.cause.as_ref().is_some_and(|cause| {
                let fingerprint = cause.fingerprint.to_string();
                any.iter().any(|group| group.matches(&fingerprint, &letter.queue))
            }),
            Self::Poison(any) => any.contains(&letter.poison),
            Self::Payload { pointer, any } => {
                letter.message.payload.as_ref().is_some_and(|json| payload(json, pointer, any))
            }
            Self::Header { name, any } => letter.message.headers.iter().any(|(header, value)| {
                header.eq_ignore_ascii_case(name)
                    && match std::str::from_utf8(value) {
                        Ok(value) => any.iter().any(|text| text.matches(value)),
                        Err(_) => any.iter().any(Text::is_anything),
                    }
            }),
            Self::Free(needle) => free(letter, needle),
        }
    }
}

fn text(letter: &Letter, field: TextField, any: &[Text]) -> bool {
    let fits = |value: &str| any.iter().any(|text| text.matches(value));
    let cause = letter.cause.as_ref();
    let message = &letter.message;
    match field {
        TextField::Id => fits(&letter.id.to_string()),
        TextField::Queue => fits(letter.queue.as_str()) || fits(letter.queue.consumer()),
        TextField::Consumer => fits(letter.queue.consumer()),
        TextField::Stream => fits(message.stream.as_str()),
        TextField::Type => message.event_type.as_deref().is_some_and(fits),
        TextField::Reason => cause.is_some_and(|cause| fits(cause.reason.as_str())),
        TextField::Phase => cause.is_some_and(|cause| fits(cause.phase.as_str())),
        TextField::Sequence => fits(letter.sequence.as_str()),
        // As it is, and as it is written in the name of its sequence, which can always be typed.
        TextField::Key => message.key.as_ref().is_some_and(|key| {
            std::str::from_utf8(key).is_ok_and(fits) || fits(SequenceId::by_key(message).as_str())
        }),
        TextField::Message => fits(message.id.as_str()),
        TextField::Owner => letter.owner.as_deref().is_some_and(fits),
        TextField::Assignee => letter.assignee.as_deref().is_some_and(fits),
    }
}

fn error(cause: &Failure, needles: &[Needle]) -> bool {
    let links = cause.chain.iter().map(|link| link.message.as_str());
    [cause.message.as_str(), cause.error_type.as_str()].into_iter().chain(links).any(|text| {
        let lowered = lower(text);
        needles.iter().any(|needle| needle.is_in(&lowered))
    })
}

fn free(letter: &Letter, needle: &Needle) -> bool {
    let found = |text: &str| needle.is_in(&lower(text));
    let in_cause =
        |cause: &Failure| found(&cause.message) || found(&cause.error_type) || found(cause.reason.as_str());
    letter.cause.as_ref().is_some_and(in_cause)
        || found(letter.message.id.as_str())
        || found(letter.sequence.as_str())
        || found(&letter.id.to_string())
}

/// Returns whether the value at a JSON pointer is one of these. Numbers are compared as they are written: `1.0` is not
/// `1`, and no digit of a long one is lost. Objects and lists have no text, but they are there.
fn payload(json: &[u8], pointer: &str, any: &[Text]) -> bool {
    let path: Vec<String> =
        pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~")).collect();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let Ok(Some(found)) = Place(&path).deserialize(&mut reader) else { return false };
    if reader.end().is_err() {
        return false;
    }
    let raw = found.get();
    match raw.as_bytes().first() {
        Some(b'"') => {
            serde_json::from_str::<String>(raw).is_ok_and(|value| any.iter().any(|text| text.matches(&value)))
        }
        Some(b'{' | b'[') => any.iter().any(Text::is_anything),
        _ => any.iter().any(|text| text.matches(raw)),
    }
}

/// Looks for one value in a JSON text and passes over all others.
struct Place<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<Box<RawValue>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return serde::Deserialize::deserialize(deserializer).map(Some);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = Option<Box<RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, rest)) = self.0.split_first() else { return Ok(None) };
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            // Of two values under one name the later one counts, as with most readers.
            if name == *wanted {
                found = map.next_value_seed(Place(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, rest)) = self.0.split_first() else { return Ok(None) };
        // Only the one spelling of a number is an index (RFC 6901).
        let wanted = wanted.parse().ok().filter(|index: &usize| index.to_string() == *wanted);
        let mut found = None;
        let mut index = 0;
        loop {
            if Some(index) == wanted {
                match list.next_element_seed(Place(rest))? {
                    Some(value) => found = value,
                    None => return Ok(found),
                }
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            index += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}
