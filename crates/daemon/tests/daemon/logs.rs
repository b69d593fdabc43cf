//! What stands in the log, and what does not.

use crate::support::{Folder, WORKER};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
telemetry: { log-level: trace, log-format: FORMAT }
consumers:
  shop:
    source: { file: { path: events.jsonl } }
    handler:
      command: { program: [python3, handler.py], mode: lines, workers: 1, env: { API_TOKEN: secret-of-the-handler } }
    breaker: off
    retry: { max-attempts: 3, initial-delay: 5ms, max-delay: 20ms, hold: 10ms }
";

fn run(format: &str) -> String {
    let folder = Folder::new();
    folder.write("lazaret.yaml", &CONFIG.replace("FORMAT", format));
    folder.write("handler.py", &WORKER.replace("never works", "words-of-a-failure"));
    let line = |n: usize, kind: &str| {
        format!(
            "{{\"id\": \"e-{n}\", \"key\": \"key-of-a-person\", \"headers\": {{\"h\": \"value-of-a-header\"}}, \
             \"payload\": {{\"n\": {n}, \"kind\": \"{kind}\", \"name\": \"payload-of-a-person\"}}}}\n"
        )
    };
    folder.write("events.jsonl", &format!("{}{}{}", line(0, "flaky"), line(1, "poison"), line(2, "fine")));
    assert_eq!(folder.run(&["run", "--until-idle"]), 3);
    folder.read("stderr.log")
}

#[test]
fn no_payload_key_header_or_text_of_a_failure_is_logged_at_any_level() {
    for format in ["text", "json"] {
        let log = run(format);
        assert!(
            log.contains("letter dead-lettered") && log.contains("e-1") && log.contains("POISONED"),
            "{log}"
        );
        for word in ["payload-of", "key-of", "value-of", "words-of", "secret-of"] {
            assert!(!log.contains(word), "{word} in:\n{log}");
        }
    }
}

#[test]
fn json_logs_are_one_object_a_line() {
    let log = run("json");
    for line in log.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["timestamp"].is_string() && line["message"].is_string());
        if line["message"] == "letter dead-lettered" {
            assert!(line["message_id"].is_string(), "{line}");
        }
    }
    assert!(log.contains("letter dead-lettered"), "{log}");
}
