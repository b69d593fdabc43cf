//! Messages with hostile content.

use lazaret_cli::sanitize::needs_escape;

use crate::support::{Bench, Ran, message};

const KEY: &str = "\u{1b}]52;c;cm0=\u{7}\u{202e}key\u{200b}\r\n'$(x)`\"";
const PAYLOAD: &str =
    "bad \u{1b}[2J\u{1b}[31m \u{9b}31m \u{202e}evil\u{2066} \u{feff}\nnext: lazaret purge --all";

#[track_caller]
fn harmless(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let found = text.chars().find(|c| needs_escape(*c) && *c != '\n');
        assert!(found.is_none(), "{found:?} in {text:?}");
    }
}

fn bench() -> Bench {
    let bench = Bench::new();
    let mut first = message("\u{1b}[1m=id", KEY, PAYLOAD);
    first["type"] = "=HYPERLINK(\"http://x\",\"y\")\u{1b}[0m".into();
    first["headers"] = serde_json::json!({"x\u{1b}[1m": "v\u{202e}\n"});
    bench.letters(&[first, message("m-2", KEY, "good")], 2);
    bench
}

#[test]
fn text_from_messages_is_sanitized() {
    let bench = bench();
    let letter = bench.run(&["ls", "state:dead", "-o", "jsonl"]).ends(0).last();
    let field = |name: &str| letter[name].as_str().unwrap().to_owned();
    let (id, sequence) = (field("id"), field("sequence"));
    for arguments in [
        &["ls"][..],
        &["ls", "-o", "csv"],
        &["ls", "-o", "json"],
        &["ls", "-o", "jsonl"],
        &["groups"],
        &["groups", "-o", "csv"],
        &["show", &id],
        &["show", &id, "--full"],
        &["show", &id, "-o", "json"],
        &["seq", "orders", &sequence],
        &["export"],
        &["export", "-o", "csv"],
        &["status"],
        &["status", "--watch", "-n", "1"],
        &["top", "--once"],
        &["audit"],
        &["plan", "park", "state:dead"],
        &["pause", "orders", "--sequence", KEY, "--reason", "\u{1b}[2Jwhy"],
        &["status"],
        &["audit"],
    ] {
        harmless(&bench.run(arguments).ends(0));
    }
    // User input in error messages is sanitized as well.
    harmless(&bench.run(&["ls", "\u{1b}[2J:x"]).ends(2));
    harmless(&bench.run(&["show", "\u{1b}[2J"]).ends(2));
    harmless(&bench.run(&["seq", "orders", KEY]).ends(4));
    harmless(&bench.run(&["group", "g1_4f@\u{1b}[2J/x"]).ends(4));
    harmless(&bench.run(&["retry", "--plan", "\u{1b}[2J", "--reason", "x", "--yes"]).ends(4));
}

#[test]
#[cfg(unix)]
fn the_suggested_resume_command_selects_the_same_sequence() {
    let bench = bench();
    let next = |ran: &Ran| {
        harmless(ran);
        let next = ran.err.lines().find_map(|line| line.strip_prefix("next: ")).unwrap().to_owned();
        next.replace("TEXT", "test")
    };
    for command in [&["pause", "orders", "--sequence", KEY, "--reason", "x"][..], &["status"]] {
        bench.run(&["pause", "orders", "--sequence", KEY, "--reason", "x"]).ends(0);
        let command = next(&bench.run(command).ends(0));
        // As copied into a shell.
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_lazaret")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("{command} -o json")]).env("PATH", path).env("LAZARET_URL", &bench.url);
        let ran = crate::support::finish(shell, "").ends(0);
        assert_eq!(ran.json(), serde_json::json!({"resumed": true}), "{command}");
    }
}

#[test]
fn a_payload_cannot_imitate_output_lines() {
    let bench = bench();
    let ran = bench.run(&["groups"]).ends(0);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    let ran = bench.run(&["ls"]).ends(0);
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    assert_eq!(ran.err.lines().filter(|line| line.starts_with("next: ")).count(), 1);
}

#[test]
fn json_is_exact() {
    // I5
    let bench = bench();
    let letter = bench.run(&["ls", "state:dead", "-o", "jsonl"]).ends(0).last();
    assert_eq!(letter["message"]["key"], KEY);
    assert_eq!(letter["message"]["id"], "\u{1b}[1m=id");
    let detail = bench.run(&["show", letter["id"].as_str().unwrap(), "-o", "json"]).ends(0).json();
    let payload: String = serde_json::from_str(detail["content"]["payload"].as_str().unwrap()).unwrap();
    assert_eq!(payload, PAYLOAD);
    let exported = bench.run(&["export", "state:dead"]).ends(0).last();
    assert_eq!(exported["content"]["payload"], detail["content"]["payload"]);
}

#[test]
fn csv_contains_no_formulas() {
    let bench = bench();
    let csv = bench.run(&["ls", "state:dead", "-o", "csv"]).ends(0).out;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(csv.contains("\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")"), "{csv}");
    assert!(!csv.contains(",=") && !csv.contains(",\"="), "{csv}");
}
