//! Matches a query against a letter.

use jiff::Timestamp;

use super::ast::{CountField, Needle, Term, Text, TextField, TimeField, lower};
use super::payload::PayloadValues;
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
                PayloadValues::read(letter, [pointer.as_str()]).matches(pointer, any)
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
