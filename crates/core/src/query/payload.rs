//! Values of a JSON payload, found by their pointers in one pass.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;

use super::ast::{Expr, PayloadValue, Term};
use crate::json_walk::{Place, walk, walk_members};
use crate::letter::Letter;

/// The values that a query asks of one payload. The payload is parsed once, however many terms ask.
#[derive(Debug, Default)]
pub(super) struct PayloadValues(HashMap<String, Box<RawValue>>);

impl PayloadValues {
    /// Reads the values of all payload terms of a query.
    pub(super) fn of(expr: &Expr, letter: &Letter) -> Self {
        let pointers = RefCell::new(Vec::new());
        expr.any_term(&|term| {
            if let Term::Payload { pointer, .. } = term {
                pointers.borrow_mut().push(pointer.clone());
            }
            false
        });
        let pointers = pointers.into_inner();
        Self::read(letter, pointers.iter().map(String::as_str))
    }

    /// Reads the values at these JSON pointers. A payload that is not JSON has none.
    pub(super) fn read<'p>(letter: &Letter, pointers: impl IntoIterator<Item = &'p str>) -> Self {
        let Some(json) = letter.message.payload.as_deref() else { return Self::default() };
        let mut paths = Paths::default();
        pointers.into_iter().for_each(|pointer| paths.add(pointer));
        let values = RefCell::new(HashMap::new());
        match walk(json, Search { paths: &paths, values: &values }) {
            Ok(()) => Self(values.into_inner()),
            Err(_) => Self::default(),
        }
    }

    /// Returns whether the value at a pointer is one of these. As text, numbers are compared as they are written: `1.0` is not
    /// `1`. With an operator they are compared by value, and no digit of a long one is lost; text that is a number counts as
    /// one, because many payloads carry amounts as text. Objects and lists have no text, but they are there.
    pub(super) fn matches(&self, pointer: &str, any: &[PayloadValue]) -> bool {
        let Some(raw) = self.0.get(pointer).map(|raw| raw.get()) else { return false };
        let fits = |value: &str| {
            any.iter().any(|wanted| match wanted {
                PayloadValue::Text(text) => text.matches(value),
                PayloadValue::Number(bound) => bound.holds(value),
            })
        };
        match raw.as_bytes().first() {
            Some(b'"') => serde_json::from_str::<String>(raw).is_ok_and(|value| fits(&value)),
            Some(b'{' | b'[') => {
                any.iter().any(|wanted| matches!(wanted, PayloadValue::Text(text) if text.is_anything()))
            }
            _ => fits(raw),
        }
    }
}

/// JSON pointers as a tree of names.
#[derive(Debug, Default)]
struct Paths {
    /// The pointer that ends here.
    here: Option<String>,
    below: BTreeMap<String, Paths>,
}

impl Paths {
    fn add(&mut self, pointer: &str) {
        let names = pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~"));
        let end = names.fold(self, |paths, name| paths.below.entry(name).or_default());
        end.here = Some(pointer.to_owned());
    }

    /// Removes the values found below: of two values under one name the later one counts, as with most readers.
    fn forget(&self, values: &RefCell<HashMap<String, Box<RawValue>>>) {
        if let Some(pointer) = &self.here {
            values.borrow_mut().remove(pointer);
        }
        self.below.values().for_each(|paths| paths.forget(values));
    }
}

/// Looks for values in a JSON text and passes over all others.
#[derive(Clone, Copy)]
struct Search<'p> {
    paths: &'p Paths,
    values: &'p RefCell<HashMap<String, Box<RawValue>>>,
}

impl<'de> Place<'de> for Search<'_> {
    fn below(&self, name: &str) -> Option<Self> {
        let paths = self.paths.below.get(name)?;
        paths.forget(self.values);
        Some(Self { paths, ..*self })
    }

    fn is_wanted(&self) -> bool {
        self.paths.here.is_some()
    }

    fn found(self, value: &'de RawValue) -> serde_json::Result<()> {
        if !self.paths.below.is_empty() {
            // Pointers into a value that is wanted as a whole.
            walk_members(value, self)?;
        }
        if let Some(pointer) = &self.paths.here {
            self.values.borrow_mut().insert(pointer.clone(), value.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Position, QueueName};

    fn letter(payload: &str) -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload(payload.to_owned());
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn all_values_are_found_in_one_pass() {
        let letter = letter(r#"{"a": {"b": [1, {"c": "x"}]}, "a/d": true, "a": {"b": [2, {"c": "y"}]}}"#);
        let pointers = ["", "/a", "/a/b", "/a/b/0", "/a/b/1/c", "/a~1d", "/nothing", "/a/b/01"];
        let values = PayloadValues::read(&letter, pointers);
        let text = |pointer: &str| values.0.get(pointer).map(|raw| raw.get().to_owned());
        assert_eq!(text("/a/b/0").as_deref(), Some("2"), "the later of two values counts");
        assert_eq!(text("/a/b/1/c").as_deref(), Some("\"y\""));
        assert_eq!(text("/a/b").as_deref(), Some(r#"[2, {"c": "y"}]"#));
        assert_eq!(text("/a~1d").as_deref(), Some("true"));
        assert_eq!((text("/nothing"), text("/a/b/01")), (None, None));
        assert_eq!(text("").map(|whole| whole.len()), Some(letter.message.payload.as_ref().unwrap().len()));
    }

    #[test]
    fn a_later_value_without_the_wanted_part_hides_an_earlier_one() {
        let values = PayloadValues::read(&letter(r#"{"a": {"b": 1}, "a": 3}"#), ["/a/b", "/a"]);
        assert!(!values.0.contains_key("/a/b"));
        assert_eq!(values.0["/a"].get(), "3");
    }

    #[test]
    fn broken_json_has_no_values() {
        for broken in [r#"{"a": 1"#, r#"{"a": 1} x"#, "", "nonsense"] {
            assert!(PayloadValues::read(&letter(broken), ["/a"]).0.is_empty(), "{broken}");
        }
    }
}
