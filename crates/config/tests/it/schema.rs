//! The schema accepts valid files, and rejects what a schema can reject.

use std::fs;
use std::path::{Path, PathBuf};

use lazaret_config::{Code, NoEnv, check, keys_markdown, schema};
use regex::Regex;
use serde_json::{Value as Json, json};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// The codes of errors that a schema can detect.
const VISIBLE: [Code; 11] = [
    Code::UnknownKey,
    Code::MissingKey,
    Code::WrongType,
    Code::EmptyValue,
    Code::OutOfRange,
    Code::UnknownValue,
    Code::NotExactlyOne,
    Code::InvalidDuration,
    Code::InvalidSize,
    Code::InvalidRate,
    Code::InvalidReason,
];

/// Files whose error has one of these codes but cannot be detected by a schema.
const INVISIBLE: [&str; 5] = [
    "adopt-without-topic",
    "env-of-wrong-type",
    "lease-too-short",
    "open-with-empty-auth",
    "own-kafka-property",
];

#[test]
fn the_schema_takes_every_good_file() {
    let schema = schema();
    for path in files("good").into_iter().chain(files("suspicious")) {
        let value = lazaret_config_json(&path).unwrap();
        assert_eq!(errors(&schema, &schema, &value, ""), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn the_schema_refuses_every_broken_file_that_it_can() {
    let schema = schema();
    let mut seen = 0;
    for path in files("broken") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Some(value) = lazaret_config_json(&path) else { continue };
        let found = check("f", &fs::read(&path).unwrap(), &NoEnv).diagnostics;
        let visible = found.list().iter().any(|found| VISIBLE.contains(&found.code()))
            && !INVISIBLE.contains(&name.as_str());
        let refused = !errors(&schema, &schema, &value, "").is_empty();
        assert!(refused || !visible, "{} is taken by the schema:\n{}", path.display(), found.plain());
        // The reader never accepts what the schema rejects.
        assert!(!refused || found.errors() > 0, "{}", path.display());
        seen += usize::from(visible);
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_schema_speaks_of_every_key() {
    let (schema, reference) = (schema(), keys_markdown());
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let mut keys = 0;
    let sections = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for (name, key) in sections.filter_map(|section| section["properties"].as_object()).flatten() {
        assert!(key["description"].is_string(), "{name} has no description");
        assert!(reference.contains(&format!("| `{name}` |")), "{name} is not in the reference");
        keys += 1;
    }
    assert!(keys > 100, "{keys}");
    assert_eq!(schema["$defs"]["retry"]["properties"]["max-attempts"]["default"], 3);
    assert_eq!(schema["$defs"]["dead-letter"]["properties"]["include-payload"]["default"], true);
}

#[test]
fn the_reference_in_the_documentation_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let (written, reference) = text.split_once("## Top level").unwrap();
    let (expected, got) = (keys_markdown(), format!("## Top level{reference}"));
    if std::env::var_os("LAZARET_UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{written}{expected}")).unwrap();
        return;
    }
    assert!(got == expected, "docs/configuration.md is old; `cargo xtask book` writes it anew");
}

/// Returns the tree of a file as JSON, if the file is one YAML document. `check` does not return the
/// tree, so the file is read as a stage of a source's pipeline, which may hold any value.
fn lazaret_config_json(path: &Path) -> Option<Json> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_start_matches('\u{feff}');
    let indented: String = text.lines().map(|line| format!("            {line}\n")).collect();
    let wrapped = format!(
        "consumers:\n  x:\n    handler: {{ command: {{ program: [x] }} }}\n    source:\n      mongodb:\n        uri: mongodb://x\n        database: x\n        collection: x\n        pipeline:\n          -\n{indented}"
    );
    let config = check("f", wrapped.as_bytes(), &NoEnv).config?;
    match &config.consumers[0].source {
        lazaret_config::Source::Mongodb(mongodb) => mongodb.pipeline.first().cloned(),
        _ => None,
    }
}

/// Validates against the subset of JSON Schema that the schema uses. An unknown keyword fails the test.
fn errors(root: &Json, schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let object = schema.as_object().unwrap();
    let mut found = Vec::new();
    for (keyword, rule) in object {
        if !holds(root, object, keyword, rule, value, at, &mut found) {
            found.push(format!("{at}: {keyword} {rule}"));
        }
    }
    found
}

fn fits(root: &Json, schema: &Json, value: &Json) -> bool {
    errors(root, schema, value, "").is_empty()
}

fn holds(
    root: &Json,
    object: &serde_json::Map<String, Json>,
    keyword: &str,
    rule: &Json,
    value: &Json,
    at: &str,
    found: &mut Vec<String>,
) -> bool {
    let number = value.as_f64();
    let bound = || rule.as_f64().unwrap();
    let length = |n: usize, holds: fn(&u64, &u64) -> bool| holds(&(n as u64), &rule.as_u64().unwrap());
    match keyword {
        "$schema" | "$defs" | "title" | "description" | "default" | "examples" | "then" => true,
        "$ref" => {
            let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
            found.extend(errors(root, &root["$defs"][name], value, at));
            true
        }
        "type" => match rule {
            Json::Array(types) => types.iter().any(|one| is_type(one.as_str().unwrap(), value)),
            one => is_type(one.as_str().unwrap(), value),
        },
        "const" => rule == value,
        "pattern" => {
            value.as_str().is_none_or(|text| Regex::new(rule.as_str().unwrap()).unwrap().is_match(text))
        }
        "minLength" => value.as_str().is_none_or(|text| length(text.chars().count(), u64::ge)),
        "minimum" => number.is_none_or(|number| number >= bound()),
        "exclusiveMinimum" => number.is_none_or(|number| number > bound()),
        "maximum" => number.is_none_or(|number| number <= bound()),
        "minItems" => value.as_array().is_none_or(|items| length(items.len(), u64::ge)),
        "minProperties" => value.as_object().is_none_or(|entries| length(entries.len(), u64::ge)),
        "maxProperties" => value.as_object().is_none_or(|entries| length(entries.len(), u64::le)),
        "required" => value.as_object().is_none_or(|entries| {
            rule.as_array().unwrap().iter().all(|name| entries.contains_key(name.as_str().unwrap()))
        }),
        "items" => {
            found.extend(
                value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .flat_map(|item| errors(root, rule, item, &format!("{at}[]"))),
            );
            true
        }
        "properties" => {
            let entries = value.as_object().into_iter().flatten();
            found.extend(
                entries
                    .filter(|(name, _)| !rule[*name].is_null())
                    .flat_map(|(name, inner)| errors(root, &rule[name], inner, &format!("{at}.{name}"))),
            );
            true
        }
        "additionalProperties" => {
            let known = &object.get("properties").cloned().unwrap_or_else(|| json!({}));
            let others = value.as_object().into_iter().flatten().filter(|(name, _)| known[*name].is_null());
            match rule {
                Json::Bool(false) => others.count() == 0,
                rule => {
                    found.extend(
                        others.flat_map(|(name, inner)| errors(root, rule, inner, &format!("{at}.{name}"))),
                    );
                    true
                }
            }
        }
        "anyOf" => rule.as_array().unwrap().iter().any(|one| fits(root, one, value)),
        "allOf" => rule.as_array().unwrap().iter().all(|one| fits(root, one, value)),
        "not" => !fits(root, rule, value),
        "if" => {
            if fits(root, rule, value) {
                found.extend(errors(root, &object["then"], value, at));
            }
            true
        }
        other => panic!("the keyword {other} is not known here"),
    }
}

fn is_type(name: &str, value: &Json) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the type {other} is not known here"),
    }
}
