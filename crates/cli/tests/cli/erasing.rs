//! `erase`: the content of letters is gone, their traces stay.

use std::path::Path;

use crate::support::Bench;

const SECRET: &str = "PAN-4111-1111";

fn leaks(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let holds = |path: &Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
    };
    files.filter(|path| holds(path)).map(|path| path.display().to_string()).collect()
}

#[test]
fn the_letters_of_a_person_are_erased_and_say_so() {
    let bench = Bench::new();
    for (id, payload) in [("m-1", SECRET), ("m-2", SECRET), ("m-3", "another")] {
        bench.store_letter(id, format!("{{\"card\": \"{payload}\"}}").into_bytes());
    }
    bench.run(&["comment", "message:m-1", SECRET]).ends(0);
    bench.run(&["evict", "message:m-2", "--reason", "obsolete", "--yes", "--wait"]).ends(0);
    assert!(!leaks(bench.folder()).is_empty());
    // Open and closed ones, without a question.
    let query = format!("payload./card:{SECRET}");
    bench.run(&["erase", &query, "--reason", " ", "--yes"]).ends(2);
    bench.run(&["erase", &query, "--reason", "request 7"]).ends(2);
    let erased = bench.run(&["erase", &query, "--reason", "request 7", "--yes"]).ends(0);
    assert!(erased.out.starts_with("2 letters erased, 0 failed"), "{}", erased.out);
    // The file is rewritten in the background, and the status tells how far that is.
    bench.eventually("the file is rewritten", || {
        bench.run(&["status", "-o", "json"]).ends(0).json().get("erasure").is_none()
    });
    assert_eq!(leaks(bench.folder()), [""; 0]);

    let letters = bench.run(&["ls", "state:closed", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        assert_eq!((&letter["state"], &letter["reason"]), (&"evicted".into(), &"DOMAIN_INVALID".into()));
        let id = letter["id"].as_str().unwrap();
        let shown = bench.run(&["show", id]).ends(0);
        assert!(shown.out.contains("erased  ") && shown.out.contains("request 7"), "{}", shown.out);
        let detail = bench.run(&["show", id, "-o", "json"]).ends(0).json();
        assert_eq!(
            (&detail["erased"]["why"], &detail["comments"]),
            (&"request 7".into(), &serde_json::json!([]))
        );
        let restored = bench.run(&["restore", "--ids", id, "--reason", "x", "--yes"]).ends(3);
        assert!(restored.err.contains("its content was erased"), "{}", restored.err);
    }
    // Again it finds nothing, and the other letter is as it was.
    let again = bench.run(&["erase", "seq:m-1", "--reason", "request 7", "--yes"]).ends(0);
    assert!(again.out.starts_with("0 letters erased"), "{}", again.out);
    assert_eq!(bench.bytes_of(&["show", "message:m-3", "--payload"]), b"{\"card\": \"another\"}");
    bench.run(&["audit", "verify"]).ends(0);
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).lines();
    let erasures = audit.iter().filter(|entry| entry["action"] == "erase");
    assert_eq!(erasures.count(), 2);
}
