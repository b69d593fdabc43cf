//! The syntax tree of a query, which stores can compile.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::number::Decimal;
use crate::letter::LetterState;
use crate::message::QueueName;
use crate::policy::{Comparison, Glob, Operator};

/// A condition on letters.
///
/// The parser leaves nothing to simplify: no list inside a list of the same kind, none with a single member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// All of these hold. An empty list holds for every letter.
    All(Vec<Expr>),
    /// At least one of these holds.
    Any(Vec<Expr>),
    /// This does not hold.
    Not(Box<Expr>),
    /// One fact of a letter.
    Term(Term),
}

impl Expr {
    /// Returns whether the predicate holds for any term of the tree.
    pub fn any_term(&self, test: &impl Fn(&Term) -> bool) -> bool {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().any(|part| part.any_term(test)),
            Self::Not(inner) => inner.any_term(test),
            Self::Term(term) => test(term),
        }
    }

    /// The number of terms of the tree for which the predicate holds.
    pub fn count_terms(&self, test: &impl Fn(&Term) -> bool) -> usize {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().map(|part| part.count_terms(test)).sum(),
            Self::Not(inner) => inner.count_terms(test),
            Self::Term(term) => usize::from(test(term)),
        }
    }

    /// The terms of which each must hold for the whole to hold. There may be more conditions than these.
    pub fn required(&self) -> impl Iterator<Item = &Term> {
        let parts = match self {
            Self::All(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        parts.iter().filter_map(|part| match part {
            Self::Term(term) => Some(term),
            _ => None,
        })
    }

    /// The value of the whole, given the value of each term.
    pub fn evaluate(&self, term: &impl Fn(&Term) -> bool) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.evaluate(term)),
            Self::Any(parts) => parts.iter().any(|part| part.evaluate(term)),
            Self::Not(inner) => !inner.evaluate(term),
            Self::Term(one) => term(one),
        }
    }
}

/// One fact of a letter. Where there are several values, one of them is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// A field that holds text.
    Text(TextField, Vec<Text>),
    /// The state of the letter.
    State(BTreeSet<LetterState>),
    /// The text of the failure: its message, those of its sources, or its type.
    Error(Vec<Needle>),
    /// A number.
    Count(CountField, Vec<Comparison>),
    /// A time.
    Time(TimeField, Vec<TimeBound>),
    /// The group of the letter's cause.
    Group(Vec<GroupPattern>),
    /// The poison flag: the same failure repeated too often.
    Poison(BTreeSet<bool>),
    /// A value in a JSON payload.
    Payload {
        /// The JSON pointer to it (RFC 6901).
        pointer: String,
        /// The value.
        any: Vec<PayloadValue>,
    },
    /// A header.
    Header {
        /// Its name, in lower case.
        name: String,
        /// One of its values.
        any: Vec<Text>,
    },
    /// A word without a field.
    Free(Needle),
}

/// A field that holds text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextField {
    /// The id of the letter.
    Id,
    /// The name of the queue, or of its consumer.
    Queue,
    /// The name of the consumer.
    Consumer,
    /// The stream of the message.
    Stream,
    /// The type of the event.
    Type,
    /// The reason code of the cause.
    Reason,
    /// The phase of the cause.
    Phase,
    /// The sequence.
    Sequence,
    /// The key of the message.
    Key,
    /// The id of the message.
    Message,
    /// The team that owns the letter.
    Owner,
    /// The person it is assigned to.
    Assignee,
}

/// A field that holds a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountField {
    /// Automatic attempts.
    Attempts,
    /// Attempts that ended with the death of the process.
    Crashes,
    /// Attempts in requested replays.
    Replays,
}

/// A field that holds a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// The time since the letter was stored: its values are [`Moment::Ago`].
    Age,
    /// When it was taken into the store.
    Enqueued,
    /// When it last failed.
    Failed,
    /// When it may be tried again.
    Due,
}

/// A condition on a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBound {
    /// The operator. A larger age is an earlier time: see [`on_time`](Self::on_time).
    pub operator: Operator,
    /// The bound.
    pub moment: Moment,
}

impl TimeBound {
    /// The operator and bound for the stored time of this field.
    pub fn on_time(&self, field: TimeField, now: Timestamp) -> (Operator, Timestamp) {
        let operator = match (field, self.operator) {
            (TimeField::Age, Operator::Above) => Operator::Below,
            (TimeField::Age, Operator::AtLeast) => Operator::AtMost,
            (TimeField::Age, Operator::Below) => Operator::Above,
            (TimeField::Age, Operator::AtMost) => Operator::AtLeast,
            (_, operator) => operator,
        };
        (operator, self.moment.at(now))
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This time.
    At(Timestamp),
    /// So long before now.
    Ago(Duration),
    /// So long from now.
    Ahead(Duration),
}

impl Moment {
    /// The time, given the time now. Times beyond the ends of time become these.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(by) => now.checked_sub(by).unwrap_or(Timestamp::MIN),
            Self::Ahead(by) => now.checked_add(by).unwrap_or(Timestamp::MAX),
        }
    }
}

/// A condition on a value of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadValue {
    /// The value as it is written.
    Text(Text),
    /// A comparison of numbers.
    Number(NumberBound),
}

/// A comparison with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberBound {
    /// The operator.
    pub operator: Operator,
    /// The bound.
    pub bound: Decimal,
}

impl NumberBound {
    /// Returns whether a text is a number that meets the condition.
    pub fn holds(&self, text: &str) -> bool {
        text.parse().is_ok_and(|number: Decimal| self.operator.holds(&number, &self.bound))
    }
}

/// A whole text, or a pattern for one. Upper and lower case are two things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// Exactly this.
    Exact(String),
    /// A text that matches this pattern.
    Glob(Glob),
}

impl Text {
    /// Returns whether a text matches.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Glob(glob) => glob.matches(text),
        }
    }

    /// Returns whether every text matches: it only has to exist.
    pub fn is_anything(&self) -> bool {
        matches!(self, Self::Glob(glob) if glob.as_str().bytes().all(|b| b == b'*'))
    }
}

/// A substring to search for, case-insensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needle {
    /// The text contains this. In lower case.
    Within(String),
    /// The whole text fits this. In lower case.
    Glob(Glob),
}

impl Needle {
    /// Returns whether it is found in a text that was [lowered](lower).
    pub fn is_in(&self, lowered: &str) -> bool {
        match self {
            Self::Within(needle) => lowered.contains(needle.as_str()),
            Self::Glob(glob) => glob.matches(lowered),
        }
    }
}

/// A text in lower case, character by character, so that parts of a text are lowered like the whole.
pub fn lower(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).collect()
}

/// The beginning of the name of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPattern {
    /// The version of the fingerprint; `None` for any.
    pub version: Option<u8>,
    /// The first digits of the fingerprint, in lower case.
    pub digits: String,
    /// The queue of the group; `None` for any.
    pub queue: Option<QueueName>,
}

impl GroupPattern {
    /// Returns whether a group matches, by its fingerprint as text and its queue.
    pub fn matches(&self, fingerprint: &str, queue: &QueueName) -> bool {
        let parts = fingerprint.strip_prefix('g').and_then(|rest| rest.split_once('_'));
        parts.is_some_and(|(version, digits)| {
            digits.starts_with(&self.digits)
                && self.version.is_none_or(|wanted| version.parse() == Ok(wanted))
                && self.queue.as_ref().is_none_or(|wanted| wanted == queue)
        })
    }
}
