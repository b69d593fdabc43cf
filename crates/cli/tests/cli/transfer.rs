//! Export and import between daemons.

use lazaret_api::Scope;
use lazaret_core::redaction::Redaction;

use crate::support::{Bench, Setup, message, secret, token};

#[test]
fn an_export_is_imported_unchanged() {
    // I5, I8
    let from = Bench::new();
    let hostile = message("m-3", "c\u{202e}\u{1b}", "bad \u{2028}\u{1b}[2J");
    from.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), hostile], 3);
    let export = from.run(&["export"]).ends(0);
    assert!(export.err.starts_with("3 letters exported\nnext: lazaret import"), "{}", export.err);
    let file = from.folder().join("letters.jsonl");
    std::fs::write(&file, &export.out).unwrap();

    let to = Bench::new();
    // Without a running consumer they stay unchanged.
    to.run(&["pause", "orders", "--reason", "test"]).ends(0);
    let taken = to.run(&["import", file.to_str().unwrap()]).ends(0);
    assert_eq!(taken.out, "3 letters imported, 0 already known, 0 failed\n");
    let mut before = export.lines();
    let mut after = to.run(&["export"]).ends(0).lines();
    for letters in [&mut before, &mut after] {
        letters.sort_by_key(|letter| letter["message"]["id"].to_string());
        for letter in letters.iter_mut() {
            // Index and touch time are assigned by the other store. An import has an id of its own.
            for name in ["id", "index", "last-touched-at", "enqueued-at"] {
                letter.as_object_mut().unwrap().remove(name);
            }
        }
    }
    // An imported letter says so, and is the same otherwise.
    for letter in &mut after {
        let context = letter["context"].as_object_mut().unwrap();
        for name in ["imported-by", "imported-at"] {
            assert!(context.remove(name).is_some_and(|value| value.is_string()), "{name}");
        }
    }
    assert_eq!(before, after);
    let again = to.run_with(&["import", "-", "-o", "json"], &export.out).ends(0).json();
    assert_eq!((&again["taken"], &again["known"]), (&0.into(), &3.into()));
    let again = ["import", "-", "--queue", "orders/orders", "--reason", "moved"];
    to.run_with(&again, &export.out).ends(0);
    let audit = to.run(&["audit", "-o", "jsonl"]).ends(0).out;
    assert!(audit.lines().any(|line| line.contains("\"import\"") && line.contains("\"moved\"")), "{audit}");
    // A queue that no consumer has is not created.
    let unknown = to.run_with(&["import", "-", "--queue", "other/mail"], &export.out).ends(3);
    assert!(unknown.out.starts_with("0 letters imported, 0 already known, 3 failed"), "{}", unknown.out);
    assert!(to.run(&["ls", "queue:other", "-o", "jsonl"]).ends(4).lines().is_empty());
}

#[test]
fn an_export_without_payloads_warns_that_it_cannot_be_imported() {
    let tokens = vec![token("rita", &[Scope::Read]), token("feed", &[Scope::Ingest])];
    let bench = Bench::with(Setup { tokens, ..Setup::default() });
    bench.feed_as(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], Some(&secret("feed")));
    bench.eventually("the letters are there", || {
        bench.run_as("rita", &["ls", "-o", "jsonl"]).ends(0).out.lines().count() == 2
    });
    let export = bench.run_as("rita", &["export"]).ends(0);
    assert_eq!(
        export.err,
        "2 letters exported\nwarning: 2 without payload and headers: the token lacks the scope payload; these letters cannot be \
         imported\nnext: lazaret token new --scope read,payload\n"
    );
    // That is so.
    let open = Bench::new();
    let refused = open.run_with(&["import", "-"], &export.out).ends(3);
    assert!(refused.out.contains("0 letters imported, 0 already known, 2 failed"), "{}", refused.out);
}

#[test]
fn invalid_lines_of_an_import_are_reported() {
    let bench = Bench::new();
    let ran = bench.run_with(&["import", "-"], "{}\nno json\n").ends(3);
    assert_eq!(ran.out, "0 letters imported, 0 already known, 2 failed\n");
    assert!(ran.err.contains("line 1: ") && ran.err.contains("line 2: "), "{}", ran.err);
    bench.run(&["export", "-o", "table"]).ends(2);
}

#[test]
fn an_export_supports_other_formats() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    assert_eq!(bench.run(&["export", "--json"]).ends(0).json().as_array().unwrap().len(), 2);
    assert_eq!(bench.run(&["export", "--json", "seq:z"]).ends(0).json(), serde_json::json!([]));
    let csv = bench.run(&["export", "-o", "csv", "seq:a"]).ends(0).out;
    assert!(csv.starts_with("id,queue,") && csv.trim_end().ends_with("\"\"\"bad\"\"\","), "{csv}");
    assert_eq!(bench.run(&["export", "--limit", "1"]).ends(0).out.lines().count(), 1);
}

#[test]
fn redacted_values_are_shown_and_exported_for_a_reason() {
    let redaction = Redaction::new(["tenant"], ["/card/number".parse().unwrap()]);
    let bench = Bench::with(Setup { redaction, ..Setup::default() });
    let payload = serde_json::json!({"bad": 1, "card": {"number": "4111"}});
    let mut letter = message("m-1", "a", "");
    letter["payload"] = payload.clone();
    bench.letters(&[letter], 1);
    let shown = bench.run(&["show", "message:m-1"]).ends(0).out;
    assert!(
        shown.contains("redacted: header.tenant, payload./card/number; show it with --reveal"),
        "{shown}"
    );
    assert!(!shown.contains("acme"), "{shown}");
    let content = bench.run(&["show", "message:m-1", "--json"]).ends(0).json()["content"].to_string();
    assert!(content.contains("[redacted]") && !content.contains("4111"), "{content}");
    assert!(!bench.run(&["show", "message:m-1", "--payload"]).ends(0).out.contains("4111"));
    let export = bench.run(&["export"]).ends(0);
    assert!(
        export.err.contains("1 with redacted values: these letters cannot be imported"),
        "{}",
        export.err
    );
    bench.run(&["show", "message:m-1", "--reveal"]).ends(2);
    let reveal = ["--reveal", "--reason", "refund"];
    let shown = bench.run(&[&["show", "message:m-1"][..], &reveal].concat()).ends(0).out;
    assert!(shown.contains("acme") && !shown.contains("redacted"), "{shown}");
    let bytes = bench.run(&[&["show", "message:m-1", "--payload"][..], &reveal].concat()).ends(0);
    assert_eq!(bytes.json(), payload);
    let exact = bench.run(&[&["export"][..], &reveal].concat()).ends(0);
    assert_eq!(exact.lines()[0]["content"]["redacted"], serde_json::Value::Null, "{}", exact.out);
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).lines();
    let reasons: Vec<_> = audit.iter().map(|entry| (&entry["action"], &entry["why"])).collect();
    assert_eq!(reasons, [(&"reveal".into(), &"refund".into()); 3], "each of them");
}
