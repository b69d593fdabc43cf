//! Holds every answer against the OpenAPI document: its status, its media type and its body.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use axum::http::Method;
use jsonschema::Validator;
use lazaret_api::Problem;
use serde_json::{Value, json};

use crate::client::Answer;

/// The document, read once for all tests: a suite asks it thousands of times.
pub(crate) struct Contract {
    document: Value,
    /// By operation, status and media type.
    validators: Mutex<HashMap<(String, u16, String), Arc<Validator>>>,
}

impl Contract {
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Contract>> = OnceLock::new();
        let read = || {
            let document = serde_json::to_value(lazaret_server::openapi()).unwrap();
            Arc::new(Self { document, validators: Mutex::default() })
        };
        SHARED.get_or_init(read).clone()
    }

    pub(crate) fn check(&self, method: &Method, path: &str, answer: &Answer) {
        let template = self.template(method, path);
        let operation = &self.document["paths"][&template][method.as_str().to_lowercase()];
        let responses = &operation["responses"];
        let response = match &responses[answer.status.to_string()] {
            Value::Null if answer.status >= 400 => &responses["default"],
            found => found,
        };
        assert!(!response.is_null(), "no such answer is documented: {}", answer.shown());
        let Some(contents) = response["content"].as_object() else {
            return assert!(answer.body.is_empty(), "{}", answer.shown());
        };
        let kind = answer.header("content-type").unwrap_or("none").split(';').next().unwrap_or_default();
        let Some(content) = contents.get(kind) else {
            panic!("{kind} is not documented: {}", answer.shown());
        };
        if kind == "application/json" || kind == Problem::MEDIA_TYPE {
            let key = (format!("{method} {template}"), answer.status, kind.to_owned());
            let validator = self.validator(key, &content["schema"]);
            let body = serde_json::from_slice(&answer.body).unwrap_or_default();
            let errors: Vec<String> = validator
                .iter_errors(&body)
                .map(|error| format!("{error} at {}", error.instance_path()))
                .collect();
            assert!(errors.is_empty(), "{errors:#?}\n{}", answer.shown());
        }
    }

    fn validator(&self, key: (String, u16, String), schema: &Value) -> Arc<Validator> {
        let mut validators = self.validators.lock().unwrap();
        let make = || {
            let mut whole = schema.clone();
            // What is not documented must not be answered either.
            whole["unevaluatedProperties"] = json!(false);
            whole["components"] = self.document["components"].clone();
            Arc::new(jsonschema::validator_for(&whole).unwrap())
        };
        validators.entry(key).or_insert_with(make).clone()
    }

    /// The path of the document that serves this one. A fixed part of a path goes before a parameter.
    fn template(&self, method: &Method, path: &str) -> String {
        let fits = |template: &str| {
            let (template, path): (Vec<&str>, Vec<&str>) =
                (template.split('/').collect(), path.split('/').collect());
            let part = |(t, p): (&&str, &&str)| t == p || (t.starts_with('{') && !p.is_empty());
            template.len() == path.len() && template.iter().zip(&path).all(part)
        };
        let paths = self.document["paths"].as_object().unwrap();
        let has = |item: &Value| item.get(method.as_str().to_lowercase()).is_some();
        let found = paths.iter().filter(|(template, item)| has(item) && fits(template));
        let first = found.min_by_key(|(template, _)| template.matches('{').count());
        let Some((template, _)) = first else { panic!("{method} {path} is in no document") };
        template.clone()
    }
}
