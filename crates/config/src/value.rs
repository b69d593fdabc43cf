//! What was read: typed values, each with its place and where it came from.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::policy::{Comparison, Glob, Rate};
use lazaret_core::{Fingerprint, Reason};
use regex::Regex;
use serde_json::Value as Json;

use crate::forms::{Address, SequenceRule, StoreAt};
use crate::source::Span;
use crate::table::Key;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was written where it is used.
    Own,
    /// It was written in `defaults`.
    Defaults,
    /// Nobody wrote it.
    BuiltIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Defaults => "defaults",
            Self::BuiltIn => "built-in",
        })
    }
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Not given, `off` or `unlimited`.
    Nothing,
    Flag(bool),
    Count(u64),
    Number(f64),
    Duration(Duration),
    Size(u64),
    Rate(Rate),
    Text(String),
    Word(&'static str),
    Reason(Reason),
    Glob(Glob),
    Regex(Regex),
    Comparison(Comparison),
    Fingerprint(Fingerprint),
    Time(Timestamp),
    Sequence(SequenceRule),
    Address(Address),
    Store(StoreAt),
    Json(Json),
    List(Vec<Field>),
    Map(Vec<(String, Field)>),
    Section(Fields),
}

/// A value with its place.
#[derive(Clone)]
pub(crate) struct Field {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
    /// Where it stands; built-in values stand nowhere.
    pub(crate) span: Option<Span>,
    /// As it was written, with variables by their name.
    pub(crate) text: String,
    /// Whether what was written must not be shown.
    pub(crate) secret: bool,
}

/// Without the value, which may be a secret from the environment.
impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Section(fields) => fields.fmt(f),
            _ => write!(f, "{} at {:?}", self.origin, self.span),
        }
    }
}

/// The keys of a section with their values. One that could not be read is missing; then there is an error, and the whole is
/// never handed out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) list: Vec<(&'static Key, Field)>,
    /// The keys that are there and could not be read, or are missing.
    pub(crate) told: Vec<&'static str>,
    /// The keys that are not there and mean something then, with what they mean.
    pub(crate) absent: Vec<(&'static str, &'static str)>,
}

impl Fields {
    /// Whether every key could be read, down to the last section.
    pub(crate) fn is_complete(&self) -> bool {
        let whole = |field: &Field| match &field.value {
            Value::Section(inner) => inner.is_complete(),
            _ => true,
        };
        self.told.is_empty() && self.list.iter().all(|(_, field)| whole(field))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Field> {
        self.list.iter().find(|(key, _)| key.name == name).map(|(_, field)| field)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.get(name).map(|field| &field.value)
    }

    /// Where a key's value stands, if a person wrote it.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.get(name)?.span
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Self> {
        match self.value(name)? {
            Value::Section(fields) => Some(fields),
            _ => None,
        }
    }

    /// The one key that was chosen, with its section.
    pub(crate) fn chosen(&self) -> Option<(&'static str, &Self)> {
        let (key, field) = self.list.first()?;
        match &field.value {
            Value::Section(fields) => Some((key.name, fields)),
            _ => None,
        }
    }

    pub(crate) fn list(&self, name: &str) -> &[Field] {
        match self.value(name) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        self.list(name).iter().filter_map(|field| field.value.text().map(str::to_owned)).collect()
    }

    pub(crate) fn map(&self, name: &str) -> &[(String, Field)] {
        match self.value(name) {
            Some(Value::Map(entries)) => entries,
            _ => &[],
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.value(name)? {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Count(count) => Some(*count),
            _ => None,
        }
    }

    /// A count whose most is that of `u32`, as the table says.
    pub(crate) fn small(&self, name: &str) -> Option<u32> {
        self.count(name).and_then(|count| u32::try_from(count).ok())
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        match self.value(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn duration(&self, name: &str) -> Option<Duration> {
        match self.value(name)? {
            Value::Duration(duration) => Some(*duration),
            _ => None,
        }
    }

    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Size(bytes) => Some(*bytes),
            _ => None,
        }
    }

    pub(crate) fn rate(&self, name: &str) -> Option<Rate> {
        match self.value(name)? {
            Value::Rate(rate) => Some(*rate),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.value(name)?.text()
    }

    pub(crate) fn reason(&self, name: &str) -> Option<&Reason> {
        match self.value(name)? {
            Value::Reason(reason) => Some(reason),
            _ => None,
        }
    }
}

impl Value {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Word(word) => Some(word),
            _ => None,
        }
    }
}
