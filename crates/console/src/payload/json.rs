//! Reads JSON without loss: numbers as text, fields in order, and repeated fields.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A value.
#[derive(Debug, PartialEq)]
pub(crate) enum Value<'j> {
    Object(Vec<(String, &'j str)>),
    Array(Vec<&'j str>),
    String(String),
    /// A number exactly as written.
    Number(&'j str),
    /// `true`, `false` or `null`.
    Word(&'j str),
}

/// Reads a value and leaves its parts unread. Returns `None` if the text is not JSON.
pub(crate) fn parse(text: &str) -> Option<Value<'_>> {
    let text = text.trim();
    Some(match text.as_bytes().first()? {
        b'{' => Value::Object(serde_json::from_str::<Fields<'_>>(text).ok()?.0),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Value::Array(items.into_iter().map(RawValue::get).collect())
        }
        b'"' => Value::String(serde_json::from_str(text).ok()?),
        b't' | b'f' | b'n' => Value::Word(serde_json::from_str::<&RawValue>(text).ok()?.get()),
        _ => Value::Number(serde_json::from_str::<&RawValue>(text).ok()?.get()),
    })
}

struct Fields<'j>(Vec<(String, &'j str)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    fields.push((name, value.get()));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// The maximum number of lines of a formatted value, followed by its maximum depth.
const MAX_LINES: usize = 2000;
const MAX_DEPTH: usize = 64;

/// Formats a value over several lines, for a comparison. Returns `None` if it is not JSON, too long or
/// too deep.
pub(crate) fn lines(text: &str) -> Option<Vec<String>> {
    let mut written = Vec::new();
    write(text, String::new(), "", 0, &mut written)?;
    Some(written)
}

/// Writes a value after the start of its line.
fn write(text: &str, start: String, end: &str, depth: usize, lines: &mut Vec<String>) -> Option<()> {
    if depth > MAX_DEPTH || lines.len() > MAX_LINES {
        return None;
    }
    let indent = "  ".repeat(depth + 1);
    let comma = |index: usize, of: usize| if index + 1 < of { "," } else { "" };
    match parse(text)? {
        Value::Object(fields) if !fields.is_empty() => {
            lines.push(format!("{start}{{"));
            for (index, (name, value)) in fields.iter().enumerate() {
                let name = serde_json::to_string(name).ok()?;
                write(value, format!("{indent}{name}: "), comma(index, fields.len()), depth + 1, lines)?;
            }
            lines.push(format!("{}}}{end}", "  ".repeat(depth)));
        }
        Value::Array(items) if !items.is_empty() => {
            lines.push(format!("{start}["));
            for (index, value) in items.iter().enumerate() {
                write(value, indent.clone(), comma(index, items.len()), depth + 1, lines)?;
            }
            lines.push(format!("{}]{end}", "  ".repeat(depth)));
        }
        Value::Object(_) => lines.push(format!("{start}{{}}{end}")),
        Value::Array(_) => lines.push(format!("{start}[]{end}")),
        Value::String(_) | Value::Number(_) | Value::Word(_) => {
            lines.push(format!("{start}{}{end}", text.trim()));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_exact_and_fields_in_order() {
        let value = parse(r#" {"z": 9007199254740993, "a": 1.10, "z": 1e400} "#).unwrap();
        let fields: Vec<(String, &str)> =
            vec![("z".into(), "9007199254740993"), ("a".into(), "1.10"), ("z".into(), "1e400")];
        assert_eq!(value, Value::Object(fields));
        assert_eq!(parse("18446744073709551616"), Some(Value::Number("18446744073709551616")));
    }

    #[test]
    fn what_is_not_json_is_no_value() {
        for text in ["", "{", "[1,]", "nul", "\"\\ud800\"", "{} x", "0x1", "{\"a\":}"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_none());
    }

    #[test]
    fn a_value_is_written_over_several_lines() {
        let written = lines(r#"{"a":[1,{"b":"x"}],"c":{},"d":[]}"#).unwrap();
        let expected = [
            "{",
            "  \"a\": [",
            "    1,",
            "    {",
            "      \"b\": \"x\"",
            "    }",
            "  ],",
            "  \"c\": {},",
            "  \"d\": []",
            "}",
        ];
        assert_eq!(written, expected);
        assert!(lines(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_none(), "too deep");
        assert!(lines(&format!("[{}1]", "1,".repeat(5000))).is_none(), "too long");
    }
}
