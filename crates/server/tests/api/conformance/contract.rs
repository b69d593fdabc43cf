//! Holds every answer against the OpenAPI document: its status, its media type and its body.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use axum::http::Method;
use jsonschema::Validator;
use lazaret_api::Problem;
use serde_json::{Value, json};

use crate::conformance::client::Answer;

/// The document, read once for all tests: a suite asks it thousands of times.
pub(crate) struct Contract {
    document: Value,
    routes: Vec<Route>,
    /// By operation, status and media type.
    validators: Mutex<HashMap<(String, u16, String), Arc<Validator>>>,
}

/// A path of the document, in its parts.
struct Route {
    template: String,
    parts: Vec<String>,
    methods: Vec<Method>,
}

impl Contract {
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Contract>> = OnceLock::new();
        let read = || {
            let document = serde_json::to_value(lazaret_server::openapi()).unwrap();
            let routes = document["paths"].as_object().unwrap().iter().map(Route::of).collect();
            Arc::new(Self { document, routes, validators: Mutex::default() })
        };
        SHARED.get_or_init(read).clone()
    }

    pub(crate) fn check(&self, method: &Method, path: &str, answer: &Answer) {
        let template = self.template(method, path);
        let operation = &self.document["paths"][template][method.as_str().to_lowercase()];
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
            // Why is asked only where it matters: it takes longer to say.
            if !validator.is_valid(&answer.json) {
                let why =
                    |error: jsonschema::ValidationError<'_>| format!("{error} at {}", error.instance_path());
                let errors: Vec<String> = validator.iter_errors(&answer.json).map(why).collect();
                panic!("{errors:#?}\n{}", answer.shown());
            }
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
    fn template(&self, method: &Method, path: &str) -> &str {
        let parts: Vec<&str> = path.split('/').collect();
        let serves = |route: &&Route| {
            let part = |(t, p): (&String, &&str)| t == p || (t.starts_with('{') && !p.is_empty());
            route.parts.len() == parts.len()
                && route.methods.iter().any(|served| served == method)
                && route.parts.iter().zip(&parts).all(part)
        };
        let found = self.routes.iter().filter(serves).min_by_key(|route| route.template.matches('{').count());
        let Some(route) = found else { panic!("{method} {path} is in no document") };
        &route.template
    }
}

impl Route {
    fn of((template, item): (&String, &Value)) -> Self {
        let methods = item.as_object().unwrap().keys();
        Self {
            template: template.clone(),
            parts: template.split('/').map(str::to_owned).collect(),
            methods: methods.map(|method| method.to_uppercase().parse().unwrap()).collect(),
        }
    }
}
