//! Adds what requests must fulfil to the generated document: lengths, patterns, ranges, and which fields go together. Every limit is
//! the constant that the server checks. A request that meets the schemas is never answered with 400.
//!
//! What a schema cannot express has a `format` of its own: a query (`lazaret-query`, `lazaret-group-query`) has to parse, and a
//! `cursor` is the `next` value of a page of the same list.

use lazaret_core::query;
use lazaret_core::store::COMMENT_CHARS;
use serde_json::{Map, Value, json};

use crate::auth::MAX_REASON_CHARS;
use crate::change::letters::{EXPIRY_YEARS, MAX_NAME_CHARS};
use crate::idempotency::MAX_KEY_BYTES;
use crate::options::Limits;

/// A text that is not blank.
const NOT_BLANK: &str = r"\S";
/// Printable characters, not all of them blank.
const PRINTABLE: &str = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$";
/// A letter id.
const UUID: &str = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
/// An idempotency key. Blanks around the value of a header are no part of it.
const KEY: &str = r"^[!-~]([\t -~]*[!-~])?$";
/// Base64 with padding, without stray bits.
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";
/// The digest of a payload.
const DIGEST: &str = "^(none|sha256:[0-9a-fA-F]{64})$";
/// The number of a partition, and one behind the name of its stream.
const PARTITION: &str = "^[0-9]{1,9}$";
const STREAM_AND_PARTITION: &str = r"^[\s\S]*/[0-9]{1,9}$";
/// A time of the years that can be stored.
const YEARS: &str = "^(?!9999)[0-9]{4}-";

/// Adds all demands.
pub(super) fn add(document: &mut Value) {
    let limits = Limits::default();
    add_parameters(document);
    let schemas = &mut document["components"]["schemas"];
    for name in
        ["ActRequest", "CommandRequest", "PauseRequest", "ExpiryRequest", "EditRequest", "ExportRequest"]
    {
        demand_reason(&mut schemas[name]["properties"]["reason"]);
    }
    for name in ["CommentRequest", "AssignRequest"] {
        set(&mut schemas[name]["properties"]["reason"], json!({"maxLength": MAX_REASON_CHARS}));
    }
    set(&mut schemas["ExportRequest"]["properties"]["query"], query("lazaret-query"));
    let text = json!({"minLength": 1, "maxLength": COMMENT_CHARS, "pattern": NOT_BLANK});
    set(&mut schemas["CommentRequest"]["properties"]["text"], text);
    let name = json!({"minLength": 1, "maxLength": MAX_NAME_CHARS, "pattern": PRINTABLE});
    set(&mut schemas["AssignRequest"]["properties"]["name"], name);
    set(&mut schemas["ExpiryRequest"]["properties"]["expires-at"], json!({"pattern": EXPIRY_YEARS}));
    add_pauses(&mut schemas["PauseRequest"]);
    add_edits(&mut schemas["EditRequest"]);
    let selection = schemas["Selection"]["properties"].take();
    add_plans(&mut schemas["PlanRequest"], &selection, &limits);
    add_operations(&mut schemas["BeginRequest"], &selection, &limits);
    add_bulk(&mut schemas["BulkRequest"], &selection, &limits);
    let assignment = schemas["AssignRequest"]["properties"].clone();
    add_bulk_assign(&mut schemas["BulkAssignRequest"], &selection, &assignment, &limits);
    // Only requests have it, and each says itself what it demands of it.
    if let Some(schemas) = schemas.as_object_mut() {
        schemas.remove("Selection");
    }
}

/// Sets keywords of a schema.
fn set(schema: &mut Value, keywords: Value) {
    if let (Value::Object(schema), Value::Object(keywords)) = (schema, keywords) {
        schema.extend(keywords);
    }
}

fn with(mut schema: Value, keywords: Value) -> Value {
    set(&mut schema, keywords);
    schema
}

fn demand_reason(schema: &mut Value) {
    set(schema, json!({"minLength": 1, "maxLength": MAX_REASON_CHARS, "pattern": NOT_BLANK}));
}

fn add_parameters(document: &mut Value) {
    let operations = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.iter_mut());
    for (path, methods) in operations {
        for operation in methods.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            for parameter in
                operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten()
            {
                let keywords = match (parameter["in"].as_str(), parameter["name"].as_str()) {
                    (Some("query"), Some("q")) if path == "/v1/groups" => query("lazaret-group-query"),
                    (Some("query"), Some("q")) => query("lazaret-query"),
                    (Some("query"), Some("after")) => json!({"format": "cursor"}),
                    (Some("query"), Some("payload-bytes")) => json!({"maximum": usize::MAX}),
                    (Some("query"), Some("number")) => {
                        json!({"type": "integer", "minimum": 0, "maximum": u64::MAX})
                    }
                    (Some("query"), Some("reason")) => {
                        json!({"minLength": 1, "maxLength": MAX_REASON_CHARS, "pattern": NOT_BLANK})
                    }
                    (Some("header"), Some("Idempotency-Key")) => {
                        json!({"minLength": 1, "maxLength": MAX_KEY_BYTES, "pattern": KEY})
                    }
                    _ => continue,
                };
                set(&mut parameter["schema"], keywords);
            }
        }
    }
}

fn query(format: &str) -> Value {
    json!({"format": format, "maxLength": query::LENGTH_LIMIT})
}

/// One way to write a request: the fields that it adds to the common ones, and those of them that are required. Fields of other
/// ways must be absent.
struct Variant {
    title: &'static str,
    fields: Value,
    required: &'static [&'static str],
}

/// Replaces the schema of a request by closed variants.
fn vary(schema: &mut Value, common: &Value, required: &[&str], variants: Vec<Variant>) {
    let variants = variants.into_iter().map(|variant| {
        let mut fields = common.clone();
        set(&mut fields, variant.fields);
        let required: Vec<&str> = required.iter().chain(variant.required).copied().collect();
        json!({
            "type": "object", "title": variant.title, "properties": fields, "required": required,
            "additionalProperties": false,
        })
    });
    let variants: Vec<Value> = variants.collect();
    *schema = json!({"description": schema["description"].take(), "anyOf": variants});
}

/// A field that may be `null` only.
fn absent() -> Value {
    json!({"type": "null"})
}

/// The same field, which may not be `null`.
fn given(field: &Value, kind: &str) -> Value {
    with(field.clone(), json!({"type": kind}))
}

/// The properties of a request besides its selection.
fn own_properties(schema: &Value) -> Value {
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let properties = parts.filter_map(|part| part["properties"].as_object()).flatten();
    Value::Object(properties.map(|(name, field)| (name.clone(), field.clone())).collect::<Map<_, _>>())
}

/// The ways to select letters.
fn selections(selection: &Value, max_ids: usize) -> Vec<Variant> {
    let query = with(given(&selection["query"], "string"), query("lazaret-query"));
    let id = json!({"type": "string", "pattern": UUID});
    let ids = with(given(&selection["ids"], "array"), json!({"items": id, "maxItems": max_ids}));
    let flag = &selection["all"];
    let all = with(flag.clone(), json!({"const": true}));
    let some = with(query.clone(), json!({"pattern": NOT_BLANK}));
    let any = with(query, json!({"type": ["string", "null"]}));
    vec![
        Variant {
            title: "by query",
            fields: json!({"query": some, "ids": absent(), "all": flag}),
            required: &["query"],
        },
        Variant {
            title: "by id",
            fields: json!({"ids": ids, "query": absent(), "all": flag}),
            required: &["ids"],
        },
        Variant {
            title: "every open letter",
            fields: json!({"all": all, "query": any, "ids": absent()}),
            required: &["all"],
        },
    ]
}

fn add_plans(schema: &mut Value, selection: &Value, limits: &Limits) {
    let mut common = own_properties(schema);
    set(&mut common["reason"], json!({"maxLength": MAX_REASON_CHARS}));
    set(&mut common["valid-for-seconds"], json!({"maximum": u64::MAX}));
    vary(schema, &common, &["action"], selections(selection, limits.named_letters));
}

fn add_bulk(schema: &mut Value, selection: &Value, limits: &Limits) {
    let mut common = own_properties(schema);
    demand_reason(&mut common["reason"]);
    vary(schema, &common, &["reason"], selections(selection, limits.bulk_letters));
}

fn add_bulk_assign(schema: &mut Value, selection: &Value, assignment: &Value, limits: &Limits) {
    vary(schema, assignment, &["name"], selections(selection, limits.bulk_letters));
}

fn add_operations(schema: &mut Value, selection: &Value, limits: &Limits) {
    let mut common = own_properties(schema);
    demand_reason(&mut common["reason"]);
    set(&mut common["rate"], json!({"minimum": 0}));
    set(&mut common["stop-at"], json!({"minimum": 0, "maximum": 1}));
    set(&mut common["ramp"]["items"], json!({"minimum": 1, "maximum": u64::MAX}));
    set(&mut common["at"], json!({"pattern": YEARS}));
    let plan = given(&common["plan"], "string");
    let action = common["action"]["oneOf"][0].take();
    let mut variants = vec![Variant {
        title: "from a plan",
        fields: json!({
            "plan": plan, "action": absent(), "query": absent(), "ids": absent(),
            "all": with(selection["all"].clone(), json!({"const": false})),
        }),
        required: &["plan"],
    }];
    for mut variant in selections(selection, limits.named_letters) {
        set(&mut variant.fields, json!({"action": action, "plan": absent()}));
        variants.push(variant);
    }
    vary(schema, &common, &["reason"], variants);
    // An action is required wherever it may be given.
    for variant in schema["anyOf"].as_array_mut().into_iter().flatten() {
        if variant["title"] != "from a plan"
            && let Some(required) = variant["required"].as_array_mut()
        {
            required.push("action".into());
        }
    }
}

fn add_pauses(schema: &mut Value) {
    let fields = schema["properties"].take();
    let common = json!({"reason": fields["reason"]});
    let text = |name: &str| given(&fields[name], "string");
    let replay = |value: bool| with(fields["replay"].clone(), json!({"const": value}));
    let variant = |title, of: Value, required| {
        let none = absent();
        let mut fields =
            json!({"stream": none, "partition": none, "sequence": none, "replay": replay(false)});
        set(&mut fields, of);
        Variant { title, fields, required }
    };
    let numbered = with(text("partition"), json!({"pattern": PARTITION}));
    let named = with(text("partition"), json!({"pattern": STREAM_AND_PARTITION}));
    let variants = vec![
        variant("the consumer", json!({}), &[]),
        variant("a stream", json!({"stream": text("stream")}), &["stream"]),
        variant(
            "a partition of a stream",
            json!({"stream": text("stream"), "partition": numbered}),
            &["stream", "partition"],
        ),
        variant("a partition", json!({"partition": named}), &["partition"]),
        variant("a sequence", json!({"sequence": text("sequence")}), &["sequence"]),
        variant("replays", json!({"replay": replay(true)}), &["replay"]),
    ];
    vary(schema, &common, &["reason"], variants);
}

fn add_edits(schema: &mut Value) {
    let fields = schema["properties"].take();
    let digest = with(fields["expected-digest"].clone(), json!({"pattern": DIGEST}));
    let common = json!({"reason": fields["reason"], "force": fields["force"], "expected-digest": digest});
    let text = |name: &str| given(&fields[name], "string");
    let flag = |name: &str, value: bool| with(fields[name].clone(), json!({"const": value}));
    let base64 = with(text("payload-base64"), json!({"pattern": BASE64}));
    // The other sources of a payload, of which none may be given.
    let others = |own: &str, schema: Value| {
        let mut all = json!({
            "payload": absent(),
            "payload-base64": absent(),
            "tombstone": flag("tombstone", false),
            "revert": flag("revert", false),
        });
        all[own] = schema;
        all
    };
    let variants = vec![
        Variant { title: "text", fields: others("payload", text("payload")), required: &["payload"] },
        Variant { title: "bytes", fields: others("payload-base64", base64), required: &["payload-base64"] },
        Variant {
            title: "no payload",
            fields: others("tombstone", flag("tombstone", true)),
            required: &["tombstone"],
        },
        Variant {
            title: "as it arrived",
            fields: others("revert", flag("revert", true)),
            required: &["revert"],
        },
    ];
    vary(schema, &common, &["reason"], variants);
}
