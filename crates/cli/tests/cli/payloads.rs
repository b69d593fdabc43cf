//! Payloads that are no text, or larger than any inbox takes: they are shown, printed and exported, and stay exact.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_cli::sanitize::needs_escape;
use serde_json::Value;

use crate::support::{Bench, Ran};

/// JSON with a string that is not UTF-8, controls of a terminal, and bytes behind its end.
const INVALID: &[u8] = b"{\"a\": \"\xff\xfe\x1b[2J\"}\n\0end\xc3";
/// The most bytes that a letter takes on a screen.
const SCREEN: usize = 10_000;

#[track_caller]
fn assert_harmless(ran: &Ran) {
    let found = ran.out.chars().find(|c| needs_escape(*c) && *c != '\n');
    assert!(found.is_none(), "{found:?} in {:?}", &ran.out[..ran.out.len().min(SCREEN)]);
}

/// The payload in an exported letter.
#[track_caller]
fn exported(letter: &Value) -> Vec<u8> {
    let content = &letter["content"];
    assert!(content["payload"].is_null(), "bytes are not text");
    STANDARD.decode(content["payload-base64"].as_str().expect("bytes")).unwrap()
}

#[test]
fn a_payload_that_is_no_text_is_shown_printed_and_exported() {
    // I5
    let bench = Bench::new();
    bench.store_letter("invalid", INVALID.to_vec());
    let shown = bench.run(&["show", "message:invalid"]).ends(0);
    assert_harmless(&shown);
    let expected = format!("binary, shown as base64:\n{}\n", STANDARD.encode(INVALID));
    assert!(shown.out.ends_with(&expected), "{}", shown.out);
    for option in ["--payload", "--original"] {
        assert_eq!(bench.bytes_of(&["show", "message:invalid", option]), INVALID, "{option}");
    }
    assert_eq!(exported(&bench.run(&["show", "message:invalid", "-o", "json"]).ends(0).json()), INVALID);
    let export = bench.run(&["export", "message:invalid"]).ends(0);
    assert_harmless(&export);
    assert_eq!(exported(&export.last()), INVALID);
    let csv = bench.run(&["export", "-o", "csv"]).ends(0);
    assert_harmless(&csv);
    assert!(csv.out.lines().count() == 2 && csv.out.contains(&STANDARD.encode(INVALID)), "{}", csv.out);
    // Another store takes it as it is.
    let to = Bench::new();
    to.run(&["pause", "orders", "--reason", "test"]).ends(0);
    to.run_with(&["import", "-"], &export.out).ends(0);
    assert_eq!(to.bytes_of(&["show", "message:invalid", "--payload"]), INVALID);
}

#[test]
fn the_original_of_an_edited_payload_stays_exact() {
    // I5
    let bench = Bench::new();
    bench.store_letter("invalid", INVALID.to_vec());
    let edit = ["edit", "message:invalid", "--payload", "-", "--reason", "repaired", "--yes"];
    bench.run_with(&edit, "{\"a\": 1}").ends(0);
    assert_eq!(bench.bytes_of(&["show", "message:invalid", "--payload"]), b"{\"a\": 1}");
    assert_eq!(bench.bytes_of(&["show", "message:invalid", "--original"]), INVALID);
    let shown = bench.run(&["show", "message:invalid"]).ends(0);
    assert!(shown.out.contains("the payload as it arrived: lazaret show"), "{}", shown.out);
}

#[test]
fn sixty_megabytes_are_listed_shown_printed_and_exported() {
    // I5
    const SIZE: usize = 60 * 1024 * 1024;
    let mut payload = vec![b'x'; SIZE];
    (payload[0], payload[SIZE - 1]) = (0xff, 0xfe);
    let bench = Bench::new();
    bench.store_letter("large", payload.clone());
    assert_eq!(bench.run(&["ls", "-o", "jsonl"]).ends(0).last()["message"]["id"], "large");
    let shown = bench.run(&["show", "message:large"]).ends(0);
    assert!(shown.out.len() < SCREEN, "{} bytes", shown.out.len());
    assert!(shown.out.contains("--- payload (62,914,560 bytes"), "{}", shown.out);
    assert!(shown.out.contains("print the bytes with --payload"), "{}", shown.out);
    for option in ["--payload", "--original"] {
        let printed = bench.bytes_of(&["show", "message:large", option]);
        // Not compared by `assert_eq`, which would print them.
        assert!(printed == payload, "{option}: {} bytes", printed.len());
    }
    let export = bench.run(&["export", "message:large"]).ends(0);
    assert!(exported(&export.last()) == payload, "{} bytes", export.out.len());
    assert!(export.err.starts_with("1 letter exported\n"), "{}", export.err);
}
