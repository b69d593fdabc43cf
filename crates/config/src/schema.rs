//! The JSON Schema of the file, from the table, for editors and for `lazaret schema`.

use serde_json::{Map, Value as Json, json};

use crate::diagnostic::Findings;
use crate::table::{CONSUMER, Form, Key, Kind, Preset, Section, TOP};
use crate::tree::parse;

/// A `${…}` in a value that is not a text by itself.
const VARIABLE: &str = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}";
const DURATION: &str = r"^\s*(0|([0-9]+(\.[0-9]+)?\s*(w|d|h|m|s|ms|us|ns)\s*)+)\s*$";
const SIZE: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$";
const RATE: &str = r"^[^/]*[1-9][^/]*/\s*[smh]\s*$";

/// The JSON Schema (draft 2020-12) of a configuration file.
///
/// It knows less than [`check`](crate::check): patterns and schedules are not read, and values are not compared with each other.
/// Everything that it refuses, [`check`](crate::check) refuses as well.
///
/// ```
/// let schema = lazaret_config::schema();
/// assert_eq!(schema["properties"]["listen"]["default"], "127.0.0.1:7117");
/// ```
pub fn schema() -> Json {
    let mut definitions = Definitions::default();
    let mut top = definitions.body(&TOP, Strict::Whole);
    let strict = definitions.reference(&CONSUMER, Strict::Whole);
    let object = top.as_object_mut().expect("a section is an object");
    object.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
    object.insert("title".to_owned(), "lazaret.yaml".into());
    // With `defaults` a consumer may leave out what it would need without.
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

/// Whether what is required must be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strict {
    Whole,
    Lax,
}

#[derive(Default)]
struct Definitions {
    done: Map<String, Json>,
}

impl Definitions {
    /// A reference to a section, which is written once.
    fn reference(&mut self, section: &'static Section, strict: Strict) -> Json {
        let name = match strict {
            Strict::Whole => section.name.to_owned(),
            Strict::Lax => format!("{}-with-defaults", section.name),
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
        let required: Vec<_> =
            section.keys.iter().filter(|key| key.preset == Preset::Required).map(|key| key.name).collect();
        // A section without a required key may be written as nothing at all.
        let mut body = json!({ "description": section.doc, "type": ["object", "null"], "properties": properties, "additionalProperties": false });
        if strict == Strict::Whole && !required.is_empty() {
            body["required"] = json!(required);
            body["type"] = "object".into();
        }
        body
    }

    fn key(&mut self, key: &'static Key, strict: Strict) -> Json {
        let mut schema = self.kind(&key.kind, strict);
        let object = schema.as_object_mut().expect("a schema is an object");
        object.insert("description".to_owned(), key.doc.into());
        if let Preset::Is(text) = key.preset {
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
            Kind::Count { least, most } => {
                or_variable(json!({ "type": "integer", "minimum": least, "maximum": most }))
            }
            Kind::Number { least, most, above: true } => {
                or_variable(json!({ "type": "number", "exclusiveMinimum": least, "maximum": most }))
            }
            Kind::Number { least, most, above: false } => {
                or_variable(json!({ "type": "number", "minimum": least, "maximum": most }))
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
            Kind::Text(form) => text(*form),
            Kind::Choice(words) => {
                let one = words.iter().map(|word| json!({ "const": word.0, "description": word.1 }));
                or_variable(json!({ "anyOf": one.collect::<Vec<_>>() }))
            }
            Kind::Any => json!({}),
            Kind::List { of, least } => {
                // A rule or a token is whole wherever it stands.
                let strict = if of.section().is_some() { Strict::Whole } else { strict };
                json!({ "type": "array", "items": self.kind(of, strict), "minItems": least })
            }
            Kind::Map { of, .. } => {
                json!({ "type": "object", "additionalProperties": self.kind(of, strict) })
            }
            Kind::Section(section) => self.reference(section, strict),
            Kind::Partial(section) => self.reference(section, Strict::Lax),
            Kind::OneOf(section) => {
                let inner = self.reference(section, strict);
                let bound = if strict == Strict::Whole {
                    json!({ "type": "object", "minProperties": 1, "maxProperties": 1 })
                } else {
                    json!({ "maxProperties": 1 })
                };
                json!({ "allOf": [inner, bound] })
            }
            // What is required may stand in `defaults`; the whole is checked where there are none.
            Kind::Named(section) => {
                json!({ "type": ["object", "null"], "additionalProperties": self.reference(section, Strict::Lax) })
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

/// A text of this form with a digit that is not 0.
fn above_zero(pattern: &str) -> Json {
    json!({ "type": "string", "allOf": [{ "pattern": pattern }, { "pattern": "[1-9]" }] })
}

fn or_variable(schema: Json) -> Json {
    json!({ "anyOf": [schema, { "$ref": "#/$defs/variable" }] })
}

fn text(form: Form) -> Json {
    match form {
        // Numbers and flags are texts there as well: `fetch.min.bytes: 1`.
        Form::Free => json!({ "type": ["string", "number", "boolean"] }),
        Form::HeaderValue => {
            json!({ "type": ["string", "number", "boolean"], "pattern": "^[^\\x00-\\x08\\x0A-\\x1F\\x7F]*$" })
        }
        Form::Reason => or_variable(json!({ "type": ["string", "integer"], "pattern": "^[A-Z0-9_]{1,64}$" })),
        Form::Store => or_variable(
            json!({ "type": "string", "pattern": "^(memory:$|sqlite:.|postgres(ql)?://.|mongodb(\\+srv)?://.)" }),
        ),
        Form::Url => or_variable(json!({ "type": "string", "pattern": "^https?://[^\\s]+$" })),
        Form::MongoUri => or_variable(json!({ "type": "string", "pattern": "^mongodb(\\+srv)?://[^\\s]+$" })),
        Form::Address => or_variable(json!({ "type": "string", "pattern": "^[^\\s]+:[0-9]{1,5}$" })),
        Form::Sequence => {
            or_variable(json!({ "type": "string", "pattern": "^(key|partition|header:.+|json:/.*)$" }))
        }
        Form::Comparison => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "minLength": 1 }] })
        }
        Form::Hash => or_variable(json!({ "type": "string", "pattern": "^sha256:[0-9A-Fa-f]{64}$" })),
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
