//! Secrets in the letters, plans and operations of two consumers, and the tokens that may see some of them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::{Daemon, LIMIT, call};
use super::recorder::Recorder;

/// The consumer of limited tokens.
const OWN: &str = "orders";
/// The other one. Its name is a secret as well.
const HIDDEN: &str = "treasury";
/// The letters of the own consumer besides the planted one.
const FILLERS: usize = 20;

/// What a token needs to see a secret of a consumer that it may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Read,
    Payload,
    /// It has to ask for it, too, unless it is a query.
    Reveal,
    Never,
}

/// The rules of redaction. Each has a secret that needs `reveal`.
const REDACT: &str = "redact: { headers: [authorization], payload: [/card/number], patterns: ['[a-z]+[.]error-card[.]secret'] }";

/// The secrets of each consumer, by their place.
const PLACES: [(&str, Needs); 12] = [
    ("key", Needs::Read),
    ("type", Needs::Read),
    ("error", Needs::Read),
    ("plan-reason", Needs::Read),
    ("operation-reason", Needs::Read),
    ("note", Needs::Payload),
    ("tenant", Needs::Payload),
    ("card", Needs::Reveal),
    ("authorization", Needs::Reveal),
    ("error-card", Needs::Reveal),
    // Queries of somebody who searched for a redacted value.
    ("plan-query", Needs::Reveal),
    ("export-query", Needs::Reveal),
];

/// A token.
pub(super) struct Token {
    pub(super) name: &'static str,
    scopes: &'static [&'static str],
    is_limited: bool,
}

/// Sees everything, if it asks.
const ADMIN: usize = 0;

static TOKENS: [Token; 6] = [
    Token { name: "admin", scopes: &["admin"], is_limited: false },
    // It changes what was planted, so it comes after all others but the administrator.
    Token { name: "editor", scopes: &["read", "payload", "triage", "edit"], is_limited: false },
    Token { name: "reader", scopes: &["read"], is_limited: false },
    Token { name: "clerk", scopes: &["read"], is_limited: true },
    Token { name: "desk", scopes: &["read", "payload"], is_limited: true },
    Token { name: "feeder", scopes: &["ingest"], is_limited: true },
];

impl Token {
    fn has(&self, scope: &str) -> bool {
        self.scopes.iter().any(|own| *own == scope || *own == "admin")
    }

    pub(super) fn is_admin(&self) -> bool {
        self.has("admin")
    }

    /// Returns `true` if it gets events.
    pub(super) fn may_read(&self) -> bool {
        self.has("read")
    }

    /// Returns `true` if it may see a secret.
    fn sees(&self, secret: &Secret) -> bool {
        let scopes: &[&str] = match secret.needs {
            Needs::Read => &["read"],
            Needs::Payload => &["read", "payload"],
            Needs::Reveal => &["read", "payload", "reveal"],
            Needs::Never => return false,
        };
        let of_own = !self.is_limited || secret.consumer == OWN;
        of_own && scopes.iter().all(|scope| self.has(scope))
    }
}

/// All tokens.
#[cfg(test)]
pub(super) fn all() -> &'static [Token] {
    &TOKENS
}

struct Secret {
    text: String,
    consumer: &'static str,
    needs: Needs,
}

fn text(consumer: &str, place: &str) -> String {
    format!("{consumer}.{place}.secret")
}

/// What was planted.
pub(super) struct Planted {
    address: String,
    secrets: Vec<Secret>,
    /// The texts of the tokens.
    tokens: Vec<String>,
    /// What the paths of routes can name, by their beginning.
    names: Value,
}

/// The tokens, and the configuration with their hashes.
pub(super) struct Setup {
    pub(super) config: String,
    /// The tokens, and their hashes.
    tokens: Vec<(String, String)>,
}

impl Setup {
    /// Creates the tokens.
    pub(super) fn new(program: &Path) -> Result<Self, String> {
        let tokens: Vec<(String, String)> =
            TOKENS.iter().map(|token| create(program, token.name)).collect::<Result<_, _>>()?;
        let mut config = format!("store: sqlite:lazaret.db\n{REDACT}\nauth:\n  tokens:\n");
        for (token, (_, hash)) in TOKENS.iter().zip(&tokens) {
            let (name, scopes) = (token.name, token.scopes.join(", "));
            let limits = if token.is_limited { format!(", consumers: [{OWN}]") } else { String::new() };
            config += &format!("    - {{ name: {name}, hash: \"{hash}\", scopes: [{scopes}]{limits} }}\n");
        }
        config += "consumers:\n";
        for consumer in [OWN, HIDDEN] {
            let error = format!("{} {}", text(consumer, "error"), text(consumer, "error-card"));
            config += &format!(
                "  {consumer}:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [\"sh\", \"-c\", \
                 \"echo {error} >&2; exit 1\"] }} }}\n    retry: {{ max-attempts: 1 }}\n    fuse: off\n    \
                 breaker: off\n"
            );
        }
        Ok(Self { config, tokens })
    }

    /// Stores letters with secrets, and makes plans and operations with them.
    pub(super) fn plant(self, daemon: &Daemon) -> Result<Planted, String> {
        let mut secrets = vec![Secret { text: HIDDEN.to_owned(), consumer: HIDDEN, needs: Needs::Read }];
        for consumer in [OWN, HIDDEN] {
            let of = |(place, needs)| Secret { text: text(consumer, place), consumer, needs };
            secrets.extend(PLACES.map(of));
        }
        let mut tokens = Vec::new();
        for (token, hash) in self.tokens {
            let hash = hash.trim_start_matches("sha256:").to_owned();
            secrets.extend([token.clone(), hash].map(|text| Secret {
                text,
                consumer: "",
                needs: Needs::Never,
            }));
            tokens.push(token);
        }
        let mut planted = Planted { address: daemon.address.clone(), secrets, tokens, names: Value::Null };
        planted.post(OWN, "planted")?;
        planted.post(HIDDEN, "planted")?;
        for number in 0..FILLERS {
            planted.ask("POST", &format!("/v1/inbox/{OWN}"), &json!({"number": number}).to_string())?;
        }
        let letters = planted.letters(FILLERS + 2)?;
        planted.names = planted.begin_operations(&letters)?;
        Ok(planted)
    }
}

impl Planted {
    /// The tokens, those that may change what was planted last.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (&'static Token, &str)> {
        TOKENS.iter().zip(&self.tokens).map(|(token, text)| (token, text.as_str())).rev()
    }

    /// The secrets that a token may not see.
    pub(super) fn hidden_from(&self, token: &Token) -> impl Iterator<Item = String> {
        self.secrets.iter().filter(|secret| !token.sees(secret)).map(|secret| secret.text.clone())
    }

    /// What the paths of routes can name, by their beginning, as JSON.
    pub(super) fn names(&self) -> String {
        self.names.to_string()
    }

    /// Posts messages to both consumers, so that there are events.
    pub(super) fn post_live(&self, name: &str) -> Result<(), String> {
        self.post(HIDDEN, name)?;
        self.post(OWN, name)
    }

    /// Checks that secrets are found if they are in responses: an administrator who asks for them gets them all.
    pub(super) fn check_scan(&self) -> Result<(), String> {
        let all = self.secrets.iter().map(|secret| secret.text.clone());
        let recorder = Recorder::start(&self.address, all).map_err(|error| format!("recorder: {error}"))?;
        for (method, path, body) in [
            ("GET", "/v1/letters", ""),
            ("GET", "/v1/plans", ""),
            ("GET", "/v1/operations", ""),
            ("GET", "/v1/audit", ""),
            ("POST", "/v1/letters/export", "{\"reason\":\"check\"}"),
        ] {
            let answer = call(&recorder.address, &self.tokens[ADMIN], method, path, body);
            let status = answer.map(|answer| answer.status);
            if status != Some(200) {
                return Err(format!("{method} {path} answered {status:?}"));
            }
        }
        let found = recorder.finish()?.secrets;
        for Secret { text, needs, .. } in &self.secrets {
            let is_found = found.contains_key(text);
            if is_found != (*needs != Needs::Never) {
                let found = if is_found { "was found" } else { "was not found" };
                return Err(format!("{text} {found} in what the administrator has asked for"));
            }
        }
        Ok(())
    }

    /// Posts a message with secrets.
    fn post(&self, consumer: &str, name: &str) -> Result<(), String> {
        let of = |place: &str| text(consumer, place);
        let line = json!({
            "id": format!("{consumer}-{name}"), "key": format!("{} {name}", of("key")), "type": of("type"),
            "headers": {"Authorization": of("authorization"), "tenant": of("tenant")},
            "payload": {"note": of("note"), "card": {"number": of("card")}},
        });
        self.ask("POST", &format!("/v1/inbox/{consumer}/batch"), &line.to_string()).map(|_| ())
    }

    /// Waits for so many letters, and returns them.
    fn letters(&self, count: usize) -> Result<Vec<Value>, String> {
        let started = Instant::now();
        loop {
            let page = self.ask("GET", "/v1/letters", "")?;
            let letters = page["letters"].as_array().cloned().unwrap_or_default();
            if letters.len() >= count {
                return Ok(letters);
            }
            if started.elapsed() > LIMIT {
                return Err(format!("there are only {} letters of {count}", letters.len()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a plan and an operation with the planted letter of each consumer. Returns what can be named.
    fn begin_operations(&self, letters: &[Value]) -> Result<Value, String> {
        let (mut ids, mut groups, mut plans, mut operations) = (vec![], vec![], vec![], vec![]);
        for consumer in [OWN, HIDDEN] {
            let name = format!("{consumer}-planted");
            let letter = letters.iter().find(|letter| letter["message"]["id"] == name.as_str());
            let letter = letter.ok_or_else(|| format!("there is no letter of {name}"))?;
            let id = &letter["id"];
            let plan = json!({"action": "evict", "ids": [id], "reason": text(consumer, "plan-reason")});
            plans.push(self.ask("POST", "/v1/plans", &plan.to_string())?["id"].clone());
            let query = format!("payload./card/number:{}", text(consumer, "export-query"));
            let export = json!({"query": query, "reason": "audit of cards"});
            self.ask("POST", "/v1/letters/export", &export.to_string())?;
            // It compares a redacted value, and selects the letter nevertheless.
            let card = text(consumer, "plan-query");
            let query = format!("consumer:{consumer} (payload./card/number:{card} or message:{name})");
            let searched = json!({"action": "evict", "query": query});
            plans.push(self.ask("POST", "/v1/plans", &searched.to_string())?["id"].clone());
            // It never begins.
            let operation = json!({
                "action": "park", "ids": [id], "at": "2040-01-01T00:00:00Z",
                "reason": text(consumer, "operation-reason"),
            });
            operations.push(self.ask("POST", "/v1/operations", &operation.to_string())?["id"].clone());
            ids.push(id.clone());
            groups.push(letter["group"].clone());
        }
        let consumers = json!([OWN, HIDDEN]);
        Ok(json!({
            "/v1/letters/{id}": ids, "/v1/groups/{id}": groups, "/v1/plans/{id}": plans,
            "/v1/operations/{id}": operations, "/v1/consumers/{name}": consumers, "/v1/inbox/{consumer}": consumers,
        }))
    }

    /// Sends a request of the administrator, which has to succeed.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        match call(&self.address, &self.tokens[ADMIN], method, path, body) {
            Some(answer) if answer.status < 300 => Ok(answer.json),
            answer => Err(format!("{method} {path} answered {:?}", answer.map(|answer| answer.status))),
        }
    }
}

/// Creates a token. Returns it and its hash.
fn create(program: &Path, name: &str) -> Result<(String, String), String> {
    let output = Command::new(program).args(["token", "--name", name, "-o", "json"]).output();
    let output = output.map_err(|error| format!("failed to create a token: {error}"))?;
    let value: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`lazaret token` printed no JSON: {error}"))?;
    let text = |name: &str| {
        value[name].as_str().map(str::to_owned).ok_or_else(|| format!("`lazaret token` printed no {name}"))
    };
    Ok((text("token")?, text("hash")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_redaction_has_a_secret() {
        let guide = include_str!("../../../docs/configuration.md");
        let (_, section) = guide.split_once("\n## `redact`\n").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let keys: Vec<&str> =
            section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        // The sets of `errors` are patterns, too, and `store` says when all of them are applied.
        let known = ["headers", "payload", "errors", "patterns", "store"];
        assert_eq!(keys, known, "a new rule needs a secret in PLACES, and its rule in REDACT");
    }

    #[test]
    fn tokens_see_what_their_scopes_and_consumers_allow() {
        let secret = |consumer, needs| Secret { text: String::new(), consumer, needs };
        let seen = |consumer, needs| {
            let who = TOKENS.iter().filter(|token| token.sees(&secret(consumer, needs)));
            who.map(|token| token.name).collect::<Vec<_>>()
        };
        assert_eq!(seen(OWN, Needs::Read), ["admin", "editor", "reader", "clerk", "desk"]);
        assert_eq!(seen(HIDDEN, Needs::Read), ["admin", "editor", "reader"]);
        assert_eq!(seen(OWN, Needs::Payload), ["admin", "editor", "desk"]);
        assert_eq!(seen(HIDDEN, Needs::Reveal), ["admin"]);
        assert!(seen(OWN, Needs::Never).is_empty());
    }
}
