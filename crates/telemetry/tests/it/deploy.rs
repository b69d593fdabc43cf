//! The alert rules and the dashboard in `deploy/` parse, use existing metrics, and are complete.

use std::path::{Path, PathBuf};
use std::process::Command;

use lazaret_telemetry::alerts::RULES;
use lazaret_telemetry::names::{FAMILIES, Kind, family};
use serde_json::Value;

/// The required alerts of the consumer failure catalogue, and their rules.
const ASKED_FOR: [(&str, &str); 9] = [
    ("DLQ message count > 0 for critical topic", "LazaretDeadLetters"),
    ("retry rate high", "LazaretRetryRateHigh"),
    ("oldest retry age high", "LazaretOldestRetry"),
    ("poison detected", "LazaretPoison"),
    ("deserialization failure", "LazaretDecodeFailures"),
    ("DLQ publish failure", "LazaretHandoffFailures"),
    ("retry storm", "LazaretRetryStorm"),
    ("partition blocked by retry", "LazaretBlocked"),
    ("consumer paused too long", "LazaretPausedTooLong"),
];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&file("deploy/prometheus/alerts.yml")).unwrap();
    file["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn alert(name: &str) -> Option<Value> {
    rules().into_iter().find(|rule| rule["alert"] == name)
}

/// A checker for PromQL expressions.
mod promql {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Token {
        Word(String),
        Text,
        Number,
        Sign(char),
    }

    const CALLS: [&str; 11] = [
        "topk",
        "sum",
        "max",
        "min",
        "avg",
        "count",
        "rate",
        "increase",
        "histogram_quantile",
        "label_values",
        "absent",
    ];
    const LABEL_LISTS: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];
    const WORDS: [&str; 5] = ["and", "or", "unless", "offset", "bool"];
    /// Labels added by Prometheus or by histograms.
    const OTHER_LABELS: [&str; 3] = ["le", "instance", "job"];

    fn tokens(text: &str) -> Result<Vec<Token>, String> {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let starts_word = c.is_ascii_alphabetic() || c == '_' || c == '$';
            if c.is_whitespace() {
            } else if starts_word || c.is_ascii_digit() {
                let mut word = c.to_string();
                while let Some(next) =
                    chars.next_if(|n| n.is_ascii_alphanumeric() || matches!(n, '_' | ':' | '.'))
                {
                    word.push(next);
                }
                tokens.push(if starts_word { Token::Word(word) } else { Token::Number });
            } else if c == '"' {
                loop {
                    match chars.next().ok_or("unterminated string")? {
                        '"' => break,
                        '\\' => _ = chars.next(),
                        _ => {}
                    }
                }
                tokens.push(Token::Text);
            } else if "(){}[],+-*/<>=!~^%".contains(c) {
                tokens.push(Token::Sign(c));
            } else {
                return Err(format!("unexpected {c:?}"));
            }
        }
        Ok(tokens)
    }

    fn is_label(name: &str) -> bool {
        OTHER_LABELS.contains(&name) || FAMILIES.iter().any(|family| family.labels.contains(&name))
    }

    /// Checks an expression; `recorded` are names that rules record.
    pub(super) fn check(text: &str, recorded: &[String]) -> Result<Vec<&'static str>, String> {
        let tokens = tokens(text)?;
        let mut open: Vec<(char, Option<String>)> = Vec::new();
        let mut asked = Vec::new();
        let mut before: Option<&Token> = None;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                Token::Sign(sign @ ('(' | '{' | '[')) => {
                    let word = match before {
                        Some(Token::Word(word)) => Some(word.clone()),
                        _ => None,
                    };
                    open.push((*sign, word));
                }
                Token::Sign(sign @ (')' | '}' | ']')) => {
                    let expected = match sign {
                        ')' => '(',
                        '}' => '{',
                        _ => '[',
                    };
                    let opened = open.pop().ok_or_else(|| format!("{sign} closes nothing"))?;
                    if opened.0 != expected {
                        return Err(format!("{sign} closes {}", opened.0));
                    }
                }
                Token::Word(word) => {
                    let called = tokens.get(at + 1) == Some(&Token::Sign('('));
                    match open.last() {
                        Some(('{', metric)) => {
                            let metric = metric.as_deref().and_then(family).ok_or("labels of nothing")?;
                            let known = metric.labels.contains(&word.as_str())
                                || OTHER_LABELS.contains(&word.as_str());
                            if !known {
                                return Err(format!("{} has no label {word}", metric.name));
                            }
                        }
                        Some(('[', _)) if word == "$__rate_interval" => {}
                        Some(('(', Some(list))) if LABEL_LISTS.contains(&list.as_str()) => {
                            if !is_label(word) {
                                return Err(format!("no metric has the label {word}"));
                            }
                        }
                        _ if called
                            && (CALLS.contains(&word.as_str()) || LABEL_LISTS.contains(&word.as_str())) => {}
                        _ if WORDS.contains(&word.as_str()) || recorded.contains(word) => {}
                        // `sum by (a) (b)`
                        _ if CALLS.contains(&word.as_str())
                            && matches!(tokens.get(at + 1), Some(Token::Word(by)) if by == "by") => {}
                        Some(('(', Some(call))) if call == "label_values" && is_label(word) => {}
                        _ => {
                            asked
                                .push(family(word).ok_or_else(|| format!("there is no metric {word}"))?.name);
                        }
                    }
                }
                Token::Text | Token::Number | Token::Sign(_) => {}
            }
            before = Some(token);
        }
        if let Some((sign, _)) = open.last() {
            return Err(format!("{sign} is never closed"));
        }
        Ok(asked)
    }

    #[test]
    fn invalid_expressions_are_found() {
        let wrong = [
            "sum by (consumer) (rate(lazaret_handled_total[5m])",
            "sum by (consumer) (rate(lazaret_handled_totals[5m]))",
            "sum by (customer) (rate(lazaret_handled_total[5m]))",
            "lazaret_handled_total{queue=\"a\"}",
            "rates(lazaret_handled_total[5m])",
            "lazaret_attempt_seconds_bucket{le=\"1}",
            "lazaret_letters_bucket > 0",
            "lazaret_letters) > 0",
        ];
        for text in wrong {
            assert!(check(text, &[]).is_err(), "{text}");
        }
        let good = "histogram_quantile(0.9, sum by (le) (rate(lazaret_attempt_seconds_bucket{queue=~\"a|b\"}[5m]))) > 1e3";
        assert_eq!(check(good, &[]).unwrap(), ["lazaret_attempt_seconds"]);
    }
}

#[test]
fn every_alert_uses_existing_metrics_and_has_an_owner_and_a_runbook() {
    let rules = rules();
    let recorded: Vec<String> =
        rules.iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect();
    let docs = file("docs/observability.md");
    let mut seen = Vec::new();
    for rule in &rules {
        let expr = rule["expr"].as_str().unwrap();
        promql::check(expr, &recorded).unwrap_or_else(|why| panic!("{why} in {expr}"));
        let Some(name) = rule["alert"].as_str() else { continue };
        assert!(!seen.contains(&name), "{name} stands twice");
        seen.push(name);
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("critical" | "warning")), "{name}");
        assert!(rule["labels"]["owner"].as_str().is_some_and(|owner| !owner.is_empty()), "{name}");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        }
        assert!(rule["for"].as_str().is_some_and(|time| time.ends_with('m')), "{name}");
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let page = "{{ $externalLabels.lazaret_docs }}/observability.html#";
        let anchor = runbook.strip_prefix(page).expect(runbook);
        assert!(docs.lines().any(|line| line == format!("### {anchor}")), "{name}: no runbook {anchor}");
    }
}

#[test]
fn every_required_alert_exists() {
    for (asked, name) in ASKED_FOR {
        assert!(alert(name).is_some(), "{asked}");
        assert!(RULES.iter().any(|rule| rule.prometheus == Some(name)), "{asked}: no webhook tells it");
    }
}

#[test]
fn webhook_and_prometheus_alerts_agree_and_are_documented() {
    let docs = file("docs/observability.md");
    for rule in RULES {
        assert!(
            docs.lines().any(|line| line == format!("### {}", rule.event)),
            "no runbook for {}",
            rule.event
        );
        if let Some(name) = rule.prometheus {
            let found = alert(name).unwrap_or_else(|| panic!("no {name} for {}", rule.event));
            let severity = format!("{:?}", rule.severity).to_lowercase();
            assert_eq!(found["labels"]["severity"], severity.as_str(), "{}", rule.event);
        }
    }
}

#[test]
fn every_metric_is_documented_with_its_labels() {
    let docs = file("docs/observability.md");
    for family in FAMILIES {
        let labels = family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let line = format!("| `{}` | {} | {labels} | {} |", family.name, family.kind.as_str(), family.help);
        assert!(docs.contains(&line), "docs/observability.md lacks this line:\n{line}");
    }
}

/// Collects all values of a key, at any depth.
fn under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key {
                    found.push(value);
                }
                under(value, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| under(item, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_parses_and_covers_every_metric() {
    let dashboard: Value = serde_json::from_str(&file("deploy/grafana/lazaret.json")).unwrap();
    let mut found = Vec::new();
    under(&dashboard, "expr", &mut found);
    under(&dashboard, "definition", &mut found);
    let mut shown = Vec::new();
    for expr in found {
        let expr = expr.as_str().unwrap();
        shown.extend(promql::check(expr, &[]).unwrap_or_else(|why| panic!("{why} in {expr}")));
    }
    for family in FAMILIES {
        assert!(shown.contains(&family.name), "no panel shows {}", family.name);
        assert!(family.kind != Kind::Histogram || shown.contains(&family.name));
    }
    let mut ids = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let (id, title) = (panel["id"].as_u64().unwrap(), panel["title"].as_str().unwrap());
        assert!(!ids.contains(&id), "{title}: the id {id} stands twice");
        ids.push(id);
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{title} is too wide");
        if panel["type"] != "row" {
            assert!(
                !panel["targets"].as_array().unwrap().is_empty() && panel["description"].is_string(),
                "{title}"
            );
        }
    }
}

#[test]
fn every_alert_has_unit_tests_in_which_it_fires_and_in_which_it_does_not() {
    let tests = file("deploy/prometheus/alerts.test.yml");
    let tested: Value = serde_saphyr::from_str(&tests).unwrap();
    let mut expectations = Vec::new();
    under(&tested, "alert_rule_test", &mut expectations);
    let (mut fires, mut is_quiet) = (Vec::new(), Vec::new());
    for expected in expectations.into_iter().flat_map(|tests| tests.as_array().unwrap()) {
        let name = expected["alertname"].as_str().unwrap();
        assert!(alert(name).is_some(), "{name} is no alert");
        let fired = !expected["exp_alerts"].as_array().unwrap().is_empty();
        if fired { fires.push(name) } else { is_quiet.push(name) }
    }
    for rule in rules() {
        let Some(name) = rule["alert"].as_str() else { continue };
        assert!(fires.contains(&name), "no unit test in which {name} fires");
        assert!(is_quiet.contains(&name), "no unit test in which {name} does not fire");
    }
}

/// The program that checks and tests rules. Without it, a test says that it was not run; with `CI=true` it fails.
fn promtool() -> Option<PathBuf> {
    let path = std::env::var_os("LAZARET_TEST_PROMTOOL").map(PathBuf::from);
    if path.is_none() {
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!in_ci, "LAZARET_TEST_PROMTOOL is not set; `cargo xtask test` fetches promtool and sets it");
        println!(
            "not run: LAZARET_TEST_PROMTOOL is not set; `cargo xtask services` fetches promtool and prints it"
        );
    }
    path
}

#[test]
fn the_alert_rules_pass_their_unit_tests() {
    let Some(promtool) = promtool() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        let ran = Command::new(&promtool).args(arguments).current_dir(&folder).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(ran.status.success(), "{arguments:?}\n{said}");
    }
}
