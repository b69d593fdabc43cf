//! What a daemon keeps of the secrets in error texts.

use crate::support::{Folder, event};

const CARD: &str = "4111 1111 1111 1111";

/// Fails for good, and names a card number.
const HANDLER: &str = r#"
import sys
sys.stdin.read()
print("the card 4111 1111 1111 1111 was declined", file=sys.stderr)
sys.exit(65)
"#;

/// Runs a message into that handler. Returns the bytes of the store, and the log.
fn run(redact: &str) -> (Vec<u8>, String) {
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
redact: {redact}
telemetry: {{ log-level: debug, log-error-messages: true }}
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl }} }}
    handler: {{ command: {{ program: [python3, handler.py], timeout: 5m }} }}
    retry: {{ max-attempts: 1 }}
"
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", HANDLER);
    folder.write("events.jsonl", &event(1, "k", "fine"));
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder.path(".")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("lazaret.db") {
            bytes.extend(std::fs::read(path).unwrap());
        }
    }
    (bytes, folder.read("stderr.log"))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn what_is_redacted_before_it_is_stored_is_not_in_the_file() {
    let (stored, log) = run("{ errors: [card-numbers] }");
    assert!(contains(&stored, CARD), "what is only shown redacted is stored as it is");
    assert!(log.contains("the card [redacted] was declined") && !log.contains(CARD), "{log}");
    let (stored, log) = run("{ errors: [card-numbers], store: true }");
    assert!(!contains(&stored, CARD), "the file has the card number");
    assert!(contains(&stored, "the card [redacted] was declined"));
    assert!(!log.contains(CARD), "{log}");
}
