//! Checks responses against the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use reqwest::Method;
use serde_json::{Value, json};

use super::Answer;

/// The document, and the responses seen per operation.
pub(crate) struct Contract {
    document: Value,
    seen: Mutex<Seen>,
}

/// Statuses by operation, such as `get /v1/status`.
pub(crate) type Seen = BTreeMap<String, BTreeSet<u16>>;

impl Contract {
    pub(crate) fn new() -> Self {
        Self { document: serde_json::to_value(lazaret_server::openapi()).unwrap(), seen: Mutex::default() }
    }

    /// Every operation of the document: method, path and its description.
    pub(crate) fn operations(&self) -> Vec<(Method, String, Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        let of = |(path, item): (&String, &Value)| {
            let item = item.as_object().unwrap().clone();
            let path = path.clone();
            item.into_iter().map(move |(method, operation)| {
                (method.to_uppercase().parse().unwrap(), path.clone(), operation)
            })
        };
        paths.iter().flat_map(of).collect()
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    /// Checks status, media type and body of a response.
    #[track_caller]
    pub(crate) fn check(&self, method: &Method, path: &str, answer: &Answer) {
        let Some((template, operation)) = self.find(method, path) else {
            assert!(answer.status >= 400, "{method} {path} is in no document and answered {}", answer.status);
            return;
        };
        let status = answer.status.to_string();
        let responses = &operation["responses"];
        let response = match &responses[&status] {
            Value::Null if answer.status >= 400 => &responses["default"],
            found => found,
        };
        let text: String = answer.text.chars().take(2000).collect();
        let shown = format!("{method} {path}: {status} {text}");
        assert!(!response.is_null(), "no such answer is documented: {shown}");
        match response["content"].as_object() {
            None => assert!(answer.text.is_empty(), "{shown}"),
            Some(contents) => {
                let kind = answer.header("content-type").unwrap_or("none").split(';').next().unwrap();
                let Some(content) = contents.get(kind) else { panic!("{kind} is not documented: {shown}") };
                if kind.ends_with("json") && kind != "application/x-ndjson" {
                    self.validate(&content["schema"], &answer.json, &shown);
                }
            }
        }
        let key = format!("{} {template}", method.as_str().to_lowercase());
        self.seen.lock().unwrap().entry(key).or_default().insert(answer.status);
    }

    /// Checks the JSON body of a request against its answer: what is accepted meets the document, and what meets the document is
    /// not refused as invalid. Queries are exempt, because a schema cannot tell whether they parse, and so are limits that a test
    /// has lowered.
    #[track_caller]
    pub(crate) fn check_request(&self, method: &Method, path: &str, sent: &Value, answer: &Answer) {
        let Some((_, operation)) = self.find(method, path) else { return };
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() {
            return;
        }
        let mut whole = schema.clone();
        whole["components"] = self.document["components"].clone();
        let errors: Vec<String> = jsonschema::validator_for(&whole)
            .unwrap()
            .iter_errors(sent)
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        let sent: String = sent.to_string().chars().take(500).collect();
        if answer.status < 300 {
            assert!(errors.is_empty(), "the document forbids what was accepted: {errors:#?}\n{path}: {sent}");
        }
        let is_invalid = ["LZ0200", "LZ0210", "LZ0226"].contains(&answer.code())
            && answer.json["pointer"].as_str().is_some_and(|pointer| pointer.starts_with('/'))
            && !answer.json["detail"].as_str().unwrap_or_default().contains("limit");
        if is_invalid {
            assert!(
                !errors.is_empty(),
                "the document allows what was refused\n{path}: {sent}\n{}",
                answer.text
            );
        }
    }

    /// A schema of the document.
    pub(crate) fn schema(&self, name: &str) -> &Value {
        &self.document["components"]["schemas"][name]
    }

    /// Checks a value against a schema of the document, by name.
    #[track_caller]
    pub(crate) fn validate_named(&self, name: &str, value: &Value) {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        self.validate(&schema, value, &value.to_string());
    }

    #[track_caller]
    fn validate(&self, schema: &Value, value: &Value, shown: &str) {
        let mut whole = schema.clone();
        if let Some(name) = schema["$ref"].as_str() {
            assert!(!value.is_null(), "not JSON, expected {name}: {shown}");
            // Undocumented properties are not allowed.
            whole["unevaluatedProperties"] = json!(false);
        }
        whole["components"] = self.document["components"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(value)
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}\n{shown}");
    }

    /// The operation of a path. Literal segments take precedence over parameters.
    fn find(&self, method: &Method, path: &str) -> Option<(String, Value)> {
        let fits = |template: &str| {
            let (template, path): (Vec<&str>, Vec<&str>) =
                (template.split('/').collect(), path.split('/').collect());
            let part = |(t, p): (&&str, &&str)| t == p || (t.starts_with('{') && !p.is_empty());
            template.len() == path.len() && template.iter().zip(&path).all(part)
        };
        let mut found: Vec<_> =
            self.operations().into_iter().filter(|(m, template, _)| m == method && fits(template)).collect();
        found.sort_by_key(|(_, template, _)| template.matches('{').count());
        found.into_iter().next().map(|(_, template, operation)| (template, operation))
    }
}
