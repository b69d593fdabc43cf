//! Generates the JSON Schema from the table, for editors and for `lazaret schema`.

use serde_json::{Map, Value as Json, json};

use crate::diagnostic::Findings;
use crate::table::{CONSUMER, DefaultValue, Format, Key, Kind, Section, TOP};
use crate::tree::parse;

/// The pattern of a `${…}` in place of a value that is not a string.
const VARIABLE: &str = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}";
const DURATION: &str = r"^\s*(0|([0-9]+(\.[0-9]+)?\s*(w|d|h|m|s|ms|us|ns)\s*)+)\s*$";
const SIZE: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$";
const RATE: &str = r"^[^/]*[1-9][^/]*/\s*[smh]\s*$";

/// Returns the JSON Schema (draft 2020-12) of a configuration file.
///
/// The schema is weaker than [`check`](crate::check): it does not parse patterns and schedules, and does
/// not compare values. [`check`](crate::check) rejects everything that the schema rejects.
///
/// ```
/// let schema = lazaret_config::schema();
/// assert_eq!(schema["properties"]["listen"]["default"], "127.0.0.1:7117");
/// ```
pub fn schema() -> Json {
    let mut definitions = Definitions::default();
    let mut top = definitions.body(&TOP, Strict::Yes);
    let strict = definitions.reference(&CONSUMER, Strict::Yes);
    let object = top.as_object_mut().expect("a section is an object");
    object.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
    object.insert("title".to_owned(), "lazaret.yaml".into());
    // With `defaults`, a consumer may omit required keys.
    object.insert("if".to_owned(), json!({ "not": { "required": ["defaults"] } }));
    object.insert(
        "then".to_owned(),
        json!({ "properties": { "consumers": { "additionalProperties": strict } } }),
    );
    let mut all = definitions.done;
    all.insert("variable".to_owned(), json!({ "type": "string", "pattern": VARIABLE, "description": "A value from the environment: `${NAME}` or `${NAME:-default}`." }));
    object.insert("$defs".to_owned(), Json::Object(all));
    top
}

/// Whether required keys must be present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strict {
    Yes,
    No,
}

#[derive(Default)]
struct Definitions {
    done: Map<String, Json>,
}

impl Definitions {
    /// Returns a reference to a section. The section is defined once.
    fn reference(&mut self, section: &'static Section, strict: Strict) -> Json {
        let name = match strict {
            Strict::Yes => section.name.to_owned(),
            Strict::No => format!("{}-with-defaults", section.name),
        };
        if !self.done.contains_key(&name) {
            self.done.insert(name.clone(), Json::Null);
            let body = self.body(section, strict);
            self.done.insert(name.clone(), body);
        }
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    fn body(&mut self, section: &'static Section, strict: Strict) -> Json {
        let properties: Map<_, _> =
            section.keys.iter().map(|key| (key.name.to_owned(), self.key(key, strict))).collect();
        let required: Vec<_> = section
            .keys
            .iter()
            .filter(|key| key.default == DefaultValue::Required)
            .map(|key| key.name)
            .collect();
        // A section without required keys may be empty.
        let mut body = json!({ "description": section.doc, "type": ["object", "null"], "properties": properties, "additionalProperties": false });
        if strict == Strict::Yes && !required.is_empty() {
            body["required"] = json!(required);
            body["type"] = "object".into();
        }
        body
    }

    fn key(&mut self, key: &'static Key, strict: Strict) -> Json {
        let mut schema = self.kind(&key.kind, strict);
        let object = schema.as_object_mut().expect("a schema is an object");
        object.insert("description".to_owned(), key.doc.into());
        if let DefaultValue::Literal(text) = key.default {
            object.insert("default".to_owned(), default(key, text));
        }
        if !key.example.is_empty() {
            object.insert("examples".to_owned(), json!([example(&key.kind, key.example)]));
        }
        schema
    }

    fn kind(&mut self, kind: &'static Kind, strict: Strict) -> Json {
        match kind {
            Kind::Flag => or_variable(json!({ "type": "boolean" })),
            Kind::Count { min, max } => {
                or_variable(json!({ "type": "integer", "minimum": min, "maximum": max }))
            }
            Kind::Number { min, max, exclusive: true } => {
                or_variable(json!({ "type": "number", "exclusiveMinimum": min, "maximum": max }))
            }
            Kind::Number { min, max, exclusive: false } => {
                or_variable(json!({ "type": "number", "minimum": min, "maximum": max }))
            }
            Kind::Jitter => or_variable(
                json!({ "anyOf": [{ "type": "number", "minimum": 0, "maximum": 1 }, { "type": "boolean" }] }),
            ),
            Kind::Duration { zero: true } => {
                or_variable(json!({ "anyOf": [{ "type": "string", "pattern": DURATION }, { "const": 0 }] }))
            }
            Kind::Duration { zero: false } => or_variable(above_zero(DURATION)),
            Kind::Size { .. } => or_variable(above_zero(SIZE)),
            Kind::Rate => or_variable(json!({ "type": "string", "pattern": RATE })),
            Kind::Text(format) => text(*format),
            Kind::Enum(words) => {
                let one = words.iter().map(|word| json!({ "const": word.0, "description": word.1 }));
                or_variable(json!({ "anyOf": one.collect::<Vec<_>>() }))
            }
            Kind::Any => json!({}),
            Kind::List { of, min } => {
                // A rule or a token must be complete, even in `defaults`.
                let strict = if of.section().is_some() { Strict::Yes } else { strict };
                json!({ "type": "array", "items": self.kind(of, strict), "minItems": min })
            }
            Kind::Map { of, .. } => {
                json!({ "type": "object", "additionalProperties": self.kind(of, strict) })
            }
            Kind::Section(section) => self.reference(section, strict),
            Kind::Partial(section) => self.reference(section, Strict::No),
            Kind::OneOf(section) => {
                let inner = self.reference(section, strict);
                let bound = if strict == Strict::Yes {
                    json!({ "type": "object", "minProperties": 1, "maxProperties": 1 })
                } else {
                    json!({ "maxProperties": 1 })
                };
                json!({ "allOf": [inner, bound] })
            }
            // Required keys may be set in `defaults`. Without `defaults`, the strict form applies.
            Kind::Named(section) => {
                json!({ "type": ["object", "null"], "additionalProperties": self.reference(section, Strict::No) })
            }
            Kind::Or(word, inner) => {
                let inner = self.kind(inner, strict);
                let mut words = vec![json!({ "const": word }), inner];
                if *word == "off" {
                    words.extend([json!({ "const": false }), json!({ "$ref": "#/$defs/variable" })]);
                }
                json!({ "anyOf": words })
            }
        }
    }
}

/// Requires the pattern and a digit other than 0.
fn above_zero(pattern: &str) -> Json {
    json!({ "type": "string", "allOf": [{ "pattern": pattern }, { "pattern": "[1-9]" }] })
}

fn or_variable(schema: Json) -> Json {
    json!({ "anyOf": [schema, { "$ref": "#/$defs/variable" }] })
}

fn text(format: Format) -> Json {
    match format {
        // Numbers and flags are accepted as strings: `fetch.min.bytes: 1`.
        Format::Free => json!({ "type": ["string", "number", "boolean"] }),
        Format::HeaderValue => {
            json!({ "type": ["string", "number", "boolean"], "pattern": "^[^\\x00-\\x08\\x0A-\\x1F\\x7F]*$" })
        }
        Format::Reason => or_variable(json!({ "type": "string", "pattern": "^[A-Z][A-Z0-9_]{0,63}$" })),
        Format::Failure => {
            // At least one letter is required.
            let part = "[A-Za-z0-9_.:$*<>\\\\]*";
            or_variable(
                json!({ "type": ["string", "integer"], "pattern": format!("^{part}[A-Za-z]{part}$") }),
            )
        }
        Format::Store => or_variable(
            json!({ "type": "string", "pattern": "^(memory:$|sqlite:.|postgres(ql)?://.|mongodb(\\+srv)?://.)" }),
        ),
        Format::Url => or_variable(json!({ "type": "string", "pattern": "^https?://[^\\s]+$" })),
        Format::MongoUri => {
            or_variable(json!({ "type": "string", "pattern": "^mongodb(\\+srv)?://[^\\s]+$" }))
        }
        Format::PostgresUrl => {
            or_variable(json!({ "type": "string", "pattern": "^postgres(ql)?://[^\\s]+$" }))
        }
        Format::Address => or_variable(json!({ "type": "string", "pattern": "^[^\\s]+:[0-9]{1,5}$" })),
        Format::Sequence => {
            or_variable(json!({ "type": "string", "pattern": "^(key|partition|header:.+|json:/.*)$" }))
        }
        Format::PayloadPath => or_variable(json!({ "type": "string", "pattern": "^/" })),
        Format::Comparison => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "minLength": 1 }] })
        }
        Format::Network => {
            or_variable(json!({ "type": "string", "pattern": "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$" }))
        }
        Format::Status => {
            let pattern = "^([0-9]{1,5}|[1-5](xx|XX)|[0-9]{1,5} *- *[0-9]{1,5})$";
            or_variable(json!({ "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": 65535 },
                { "type": "string", "pattern": pattern },
            ] }))
        }
        Format::Hash => or_variable(json!({ "type": "string", "pattern": "^sha256:[0-9A-Fa-f]{64}$" })),
        _ => json!({ "type": ["string", "number", "boolean"], "minLength": 1 }),
    }
}

fn default(key: &'static Key, text: &str) -> Json {
    match key.kind.inner() {
        Kind::Text(_) => text.into(),
        _ => parse(text, &mut Findings::default()).map_or(Json::Null, |node| node.json()),
    }
}

fn example(kind: &Kind, text: &str) -> Json {
    match kind.inner() {
        Kind::Text(_) => text.into(),
        Kind::List { .. } => json!([text]),
        _ => parse(text, &mut Findings::default()).map_or(Json::Null, |node| node.json()),
    }
}
