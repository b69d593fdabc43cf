//! Typed values of a file, each with its location and origin.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::policy::{Comparison, ErrorTypePattern, Glob, Rate, StatusPattern};
use lazaret_core::{Fingerprint, Reason};
use regex::Regex;
use serde_json::Value as Json;

use crate::formats::{Address, SequenceRule, StoreLocation};
use crate::source::Span;
use crate::table::Key;

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// Set at the place where it is used.
    Own,
    /// Set in `defaults`.
    Defaults,
    /// The built-in default.
    BuiltIn,
    /// Declared by an attribute in the program.
    Attribute,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Defaults => "defaults",
            Self::BuiltIn => "built-in",
            Self::Attribute => "attribute",
        })
    }
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Not set, `off` or `unlimited`.
    Nothing,
    Flag(bool),
    Count(u64),
    Number(f64),
    Duration(Duration),
    Size(u64),
    Rate(Rate),
    Text(String),
    Enum(&'static str),
    Reason(Reason),
    ErrorType(ErrorTypePattern),
    Glob(Glob),
    Regex(Regex),
    Comparison(Comparison),
    Status(StatusPattern),
    Fingerprint(Fingerprint),
    Time(Timestamp),
    Sequence(SequenceRule),
    Address(Address),
    Store(StoreLocation),
    Json(Json),
    List(Vec<Field>),
    Map(Vec<(String, Field)>),
    Section(Fields),
}

/// A value with its location and origin.
#[derive(Clone)]
pub(crate) struct Field {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
    /// The location. `None` for built-in values.
    pub(crate) span: Option<Span>,
    /// The text in the file, before the expansion of variables.
    pub(crate) text: String,
    /// Whether the text must not be shown.
    pub(crate) secret: bool,
}

impl Field {
    /// Marks the value and all nested values as built-in, without a location.
    pub(crate) fn mark_built_in(&mut self) {
        (self.origin, self.span) = (Origin::BuiltIn, None);
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(Self::mark_built_in),
            Value::Map(entries) => entries.iter_mut().for_each(|(_, field)| field.mark_built_in()),
            Value::Section(fields) => fields.list.iter_mut().for_each(|(_, field)| field.mark_built_in()),
            _ => {}
        }
    }
}

/// Omits the value, which may be a secret from the environment.
impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Section(fields) => fields.fmt(f),
            _ => write!(f, "{} at {:?}", self.origin, self.span),
        }
    }
}

/// The keys of a section with their values. Invalid values are omitted. The file then has an error, and
/// no configuration is built from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) list: Vec<(&'static Key, Field)>,
    /// Keys with an invalid value, and required keys that are missing.
    pub(crate) invalid: Vec<&'static str>,
    /// Absent keys whose absence has a meaning, each with that meaning.
    pub(crate) absent: Vec<(&'static str, &'static str)>,
}

impl Fields {
    /// Returns `true` if all keys are valid, including keys of nested sections.
    pub(crate) fn is_complete(&self) -> bool {
        let whole = |field: &Field| match &field.value {
            Value::Section(inner) => inner.is_complete(),
            _ => true,
        };
        self.invalid.is_empty() && self.list.iter().all(|(_, field)| whole(field))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Field> {
        self.list.iter().find(|(key, _)| key.name == name).map(|(_, field)| field)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.get(name).map(|field| &field.value)
    }

    /// Returns the location of a value, or `None` for a built-in value.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.get(name)?.span
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Self> {
        match self.value(name)? {
            Value::Section(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns the selected key of an exclusive choice, with its section.
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

    /// Returns a count that the table limits to `u32`.
    pub(crate) fn count_u32(&self, name: &str) -> Option<u32> {
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
            Self::Enum(word) => Some(word),
            _ => None,
        }
    }
}
