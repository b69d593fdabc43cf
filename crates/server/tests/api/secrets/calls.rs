//! Requests for every route of the OpenAPI document, with every documented parameter. A route or a parameter for which there are no
//! values fails the test.

use reqwest::Method;
use serde_json::{Value, json};

use super::planted::{Planted, TREASURY, Things, text};
use crate::support::{Contract, ORDERS, encoded};

/// The stream of events, which never ends.
pub(super) const EVENTS: &str = "/v1/events";

/// Queries of letters and groups. None of them contains a secret but the name of the consumer.
const QUERIES: [&str; 18] = [
    "state:open,closed",
    "orders",
    TREASURY,
    "consumer:treasury",
    "queue:treasury/treasury",
    "error:secret",
    "error:treasury*",
    "key:treasury*",
    "message:*",
    "type:* -owner:nobody",
    "payload./note:*",
    "payload./card/number:*",
    "-payload./card/number:orders*",
    "header.tenant:*",
    "header.authorization:*",
    "(error:secret or header.Authorization:orders*)",
    "nonsense:x",
    "(",
];

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// The path of the document.
    pub(super) route: String,
    /// The path and the query.
    pub(super) target: String,
    /// What the request says, in plain text. A response that repeats it tells nothing.
    pub(super) said: String,
    pub(super) header: Option<(&'static str, &'static str)>,
    /// Media type and text.
    pub(super) body: Option<(String, String)>,
}

impl Call {
    /// The same request for the page behind this cursor; `None` if it has a cursor of its own.
    pub(super) fn page(&self, after: &str) -> Option<Self> {
        if self.target.contains("after=") {
            return None;
        }
        let separator = if self.target.contains('?') { '&' } else { '?' };
        let target = format!("{}{separator}after={after}", self.target);
        Some(Self { target, said: format!("{} {after}", self.said), ..self.clone() })
    }

    /// A request without parameters.
    pub(super) fn post(route: &str, body: &Value) -> Self {
        Self {
            method: Method::POST,
            route: route.to_owned(),
            target: route.to_owned(),
            said: body.to_string(),
            header: None,
            body: Some(("application/json".to_owned(), body.to_string())),
        }
    }
}

/// The routes that read.
pub(super) fn read_routes(contract: &Contract) -> Vec<(String, Value)> {
    let routes = contract.operations().into_iter().filter(|(method, ..)| *method == Method::GET);
    routes.map(|(_, route, operation)| (route, operation)).collect()
}

/// Requests that read what was planted, of both consumers.
pub(super) fn reads(contract: &Contract, planted: &Planted) -> Vec<Call> {
    let mut calls = Vec::new();
    for (route, operation) in read_routes(contract) {
        let targets = targets(&route, &operation, planted, &[&planted.own, &planted.hidden]);
        let responses = &operation["responses"];
        let mut headers = vec![None];
        if !responses["200"]["content"]["application/x-ndjson"].is_null() {
            headers.push(Some(("accept", "application/x-ndjson")));
        }
        if !responses["206"].is_null() {
            headers.push(Some(("range", "bytes=0-")));
        }
        for header in headers {
            calls.extend(targets.iter().map(|(target, said)| Call {
                method: Method::GET,
                route: route.clone(),
                target: target.clone(),
                said: said.clone(),
                header,
                body: None,
            }));
        }
    }
    calls
}

/// Requests that change what belongs to the hidden consumer, or ask for it.
pub(super) fn changes(contract: &Contract, planted: &Planted) -> Vec<Call> {
    let mut calls = Vec::new();
    for (method, route, operation) in contract.operations() {
        let Some(contents) = operation["requestBody"]["content"].as_object() else { continue };
        for (kind, content) in contents {
            let body = match content["schema"]["$ref"].as_str() {
                Some(schema) => body(schema, planted).to_string(),
                // Lines, or a message.
                None => format!("{}\n", json!({"id": text(ORDERS, "live-id"), "payload": "other"})),
            };
            let kind = if kind == "*/*" { "application/octet-stream" } else { kind.as_str() };
            for (target, said) in targets(&route, &operation, planted, &[&planted.hidden]) {
                calls.push(Call {
                    method: method.clone(),
                    route: route.clone(),
                    target,
                    said: format!("{said} {body}"),
                    header: None,
                    body: Some((kind.to_owned(), body.clone())),
                });
            }
        }
    }
    calls
}

/// A valid body for this schema, about the hidden letter.
fn body(schema: &str, planted: &Planted) -> Value {
    let letter = &planted.hidden.letter;
    match schema.trim_start_matches("#/components/schemas/") {
        "ActRequest" | "CommandRequest" | "PauseRequest" | "ExportRequest" => json!({"reason": "x"}),
        "CommentRequest" => json!({"text": "x"}),
        "AssignRequest" => json!({"name": "x"}),
        "ExpiryRequest" => json!({"expires-at": null, "reason": "x"}),
        "EditRequest" => json!({"payload": "{}", "reason": "x"}),
        "BulkRequest" => json!({"ids": [letter], "reason": "x"}),
        "BulkAssignRequest" => json!({"ids": [letter], "name": "x"}),
        "PlanRequest" => json!({"action": "park", "ids": [letter]}),
        "BeginRequest" => json!({"action": "park", "ids": [letter], "reason": "x"}),
        other => panic!("{other} is new: add a body that names the hidden letter"),
    }
}

/// The targets of a route: every combination of what it requires, alone and with each optional parameter. With what they say.
fn targets(route: &str, operation: &Value, planted: &Planted, things: &[&Things]) -> Vec<(String, String)> {
    let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut paths = vec![(route.to_owned(), String::new())];
    let mut queries: Vec<Vec<(String, String)>> = vec![Vec::new()];
    let mut optional: Vec<(String, String)> = Vec::new();
    for parameter in &parameters {
        let name = parameter["name"].as_str().unwrap();
        match (parameter["in"].as_str().unwrap(), parameter["required"] == true) {
            ("path", _) => {
                let values = path_values(route, things);
                let with = |(path, said): &(String, String), value: &String| {
                    (path.replace(&format!("{{{name}}}"), &encoded(value)), format!("{said} {value}"))
                };
                paths = product(&paths, &values, with);
            }
            ("query", true) => {
                let values = query_values(route, parameter, planted);
                queries = product(&queries, &values, |query, value| with_parameter(query, name, value));
            }
            ("query", false) => {
                let values = query_values(route, parameter, planted);
                optional.extend(values.into_iter().map(|value| (name.to_owned(), value)));
            }
            // Nothing is repeated here.
            ("header", _) if name == "Idempotency-Key" => {}
            (place, _) => panic!("the parameter {name} of {route}, in its {place}, is new: add values"),
        }
    }
    let with_optional =
        product(&optional, &queries, |(name, value), query| with_parameter(query, name, value));
    queries.extend(with_optional);
    product(&paths, &queries, |(path, said), query| {
        let (mut target, mut said) = (path.clone(), said.clone());
        for (number, (name, value)) in query.iter().enumerate() {
            let separator = if number == 0 { '?' } else { '&' };
            target += &format!("{separator}{name}={}", encoded(value));
            said += &format!(" {value}");
        }
        (target, said)
    })
}

fn product<A, B, C>(all: &[A], each: &[B], with: impl Fn(&A, &B) -> C) -> Vec<C> {
    all.iter().flat_map(|one| each.iter().map(|other| with(one, other)).collect::<Vec<_>>()).collect()
}

fn with_parameter(query: &[(String, String)], name: &str, value: &str) -> Vec<(String, String)> {
    let mut query = query.to_vec();
    query.push((name.to_owned(), value.to_owned()));
    query
}

/// What the path of a route can name.
fn path_values(route: &str, things: &[&Things]) -> Vec<String> {
    let named = |start: &str| route.starts_with(start);
    let of = |things: &Things| -> Vec<String> {
        if named("/v1/letters/{id}") {
            vec![things.letter.clone()]
        } else if named("/v1/groups/{id}") {
            // By the whole id, and by the fingerprint alone.
            let fingerprint = |id: &String| id.split('@').next().unwrap_or_default().to_owned();
            things.groups.iter().flat_map(|id| [id.clone(), fingerprint(id)]).collect()
        } else if named("/v1/plans/{id}") {
            things.plans.clone()
        } else if named("/v1/operations/{id}") {
            vec![things.operation.clone()]
        } else if named("/v1/consumers/{name}") || named("/v1/inbox/{consumer}") {
            vec![things.consumer.to_owned()]
        } else {
            panic!("{route} is new: plant what its path names")
        }
    };
    let mut values: Vec<String> = things.iter().copied().flat_map(of).collect();
    values.push("nonsense".to_owned());
    values
}

/// Values of a query parameter.
fn query_values(route: &str, parameter: &Value, planted: &Planted) -> Vec<String> {
    let schema = &parameter["schema"];
    let own = |values: &[&str]| -> Vec<String> { values.iter().map(|value| (*value).to_owned()).collect() };
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    }
    if schema["type"] == "integer" {
        return own(&["1", "1000"]);
    }
    let both = [&planted.own, &planted.hidden];
    match parameter["name"].as_str().unwrap() {
        "q" => own(&QUERIES),
        "queue" => both.map(Things::queue).to_vec(),
        "sequence" => both.map(|things| text(things.consumer, "key")).to_vec(),
        "consumer" => own(&[ORDERS, TREASURY]),
        "subject" => {
            let of = |things: &Things| [things.letter.clone(), things.operation.clone(), things.queue()];
            both.map(of).concat()
        }
        "kind" => own(&["consumer,letter-changed", "nonsense"]),
        "last-event-id" => own(&["unknown"]),
        "after" => own(&["nonsense"]),
        "hash" => own(&["00"]),
        "reason" => own(&["x"]),
        other => panic!("the parameter {other} of {route} is new: add values"),
    }
}
