//! What `status` and `top` say about consumers and operations that need attention.

use jiff::{SignedDuration, Timestamp};
use lazaret_api::BrokerCounts;
use lazaret_core::store::Limits;
use lazaret_engine::DeadLetterOptions;
use serde_json::{Value, json};

use crate::support::{Bench, Setup, message};

fn orders(bench: &Bench) -> Value {
    bench.run(&["status", "-o", "json"]).ends(0).json()["consumers"][0].clone()
}

/// The cell of a column that is aligned to the right, in the first row of the table.
#[track_caller]
fn cell(table: &str, column: &str) -> String {
    let mut lines = table.lines();
    let (columns, row) = (lines.next().unwrap(), lines.next().unwrap());
    let end = columns.find(column).unwrap_or_else(|| panic!("no {column}: {table}")) + column.len();
    row[..end].split(' ').next_back().unwrap().to_owned()
}

#[test]
fn the_limit_that_holds_a_consumer_is_told() {
    // I9
    let limits = Limits { max_sequences: Some(1), ..Limits::NONE };
    let dead_letter = DeadLetterOptions { limits, ..DeadLetterOptions::default() };
    let bench = Bench::with(Setup { dead_letter, ..Setup::default() });
    assert!(!bench.run(&["status"]).ends(0).out.contains("held by"));
    bench.feed(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")]);
    bench.eventually("it is held", || orders(&bench)["held-by"] == "max-sequences");
    let text = bench.run(&["status"]).ends(0).out;
    assert!(text.contains("\norders is held by its limit: max-sequences\n"), "{text}");
    assert!(text.contains("\norders waits: ") && text.contains("max-sequences is 1"), "{text}");
    let csv = bench.run(&["status", "-o", "csv"]).ends(0).out;
    assert!(csv.contains(",max-sequences,"), "{csv}");
    let frame = bench.run(&["top", "--once"]).ends(0).out;
    assert!(frame.contains("held by its limit: max-sequences"), "{frame}");
}

#[test]
fn what_the_topics_of_a_consumer_hold_is_counted_and_told() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let table = || bench.run(&["status"]).ends(0).out;
    assert_eq!(cell(&table(), "DEAD"), "1");
    assert!(orders(&bench)["in-broker"].is_null());
    let oldest = Timestamp::now() - SignedDuration::from_hours(50);
    bench.set_in_broker(Some(BrokerCounts { retrying: 2, dead: 3, oldest_dead_at: Some(oldest) }));
    let shown = orders(&bench);
    assert_eq!(shown["dead"], 1, "the JSON has the letters of the store apart");
    assert_eq!(shown["in-broker"], json!({"retrying": 2, "dead": 3, "oldest-dead-at": oldest.to_string()}));
    let text = table();
    assert_eq!((cell(&text, "DEAD"), cell(&text, "OLDEST")), ("4".to_owned(), "2d02h".to_owned()), "{text}");
    let note = "\norders has 3 in dead-letter topics and 2 in retry topics, counted in the broker\n";
    assert!(text.contains(note), "{text}");
    let csv = bench.run(&["status", "-o", "csv"]).ends(0).out;
    let mut lines = csv.lines();
    assert!(lines.next().unwrap().ends_with(",in-broker.retrying,in-broker.dead,in-broker.oldest-dead-at"));
    assert!(lines.next().unwrap().ends_with(&format!(",2,3,{oldest}")), "{csv}");
    let frame = bench.run(&["top", "--once"]).ends(0).out;
    assert!(frame.contains("4 dead") && frame.contains("1 open letter, 3 in dead-letter topics"), "{frame}");
    // Until the broker answers, there is nothing to tell.
    bench.set_in_broker(None);
    let text = table();
    assert!(cell(&text, "DEAD") == "1" && !text.contains("counted in the broker"), "{text}");
}

#[test]
fn a_recreated_stream_is_told() {
    let bench = Bench::new();
    assert!(orders(&bench)["incarnations"].is_null());
    bench.recreate_stream("case-events");
    let lives = orders(&bench)["incarnations"].clone();
    let life = (&lives[0]["stream"], &lives[0]["incarnation"], &lives[0]["id"]);
    assert_eq!(life, (&"case-events".into(), &1.into(), &"second".into()), "{lives}");
    let text = bench.run(&["status"]).ends(0).out;
    let (_, rest) = text.split_once("\norders: case-events was recreated, seen ").expect(&text);
    assert!(rest.lines().next().unwrap().ends_with(" ago, and is read from its beginning"), "{text}");
}

#[test]
fn letters_that_will_expire_are_told() {
    let ttl = Some(std::time::Duration::from_secs(7200));
    let dead_letter = DeadLetterOptions { ttl, ..DeadLetterOptions::default() };
    let bench = Bench::with(Setup { dead_letter, ..Setup::default() });
    assert!(!bench.run(&["status"]).ends(0).out.contains("expire"));
    bench.letters(&[message("m-1", "a", "bad")], 1);
    assert!(orders(&bench)["queues"][0]["next-expiry-at"].is_string());
    let text = bench.run(&["status"]).ends(0).out;
    let (_, rest) = text.split_once("\norders letters expire: the next one in ").expect(&text);
    assert!(rest.lines().next().unwrap().ends_with(", unless it is replayed or resolved"), "{text}");
}

#[test]
fn letters_that_the_plan_of_an_operation_excludes_are_told() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    let later = |query| bench.run(&["retry", query, "--reason", "x", "--yes", "--at", "+1h"]).ends(0);
    later("seq:a");
    assert!(!bench.run(&["status"]).ends(0).out.contains("excludes"));
    later("state:dead");
    let operations = bench.run(&["status", "-o", "json"]).ends(0).json()["operations"].clone();
    let excluded = json!([{"reason": "in-operation", "letters": 1}]);
    assert_eq!((&operations[0]["excluded"], &operations[1]["excluded"]), (&excluded, &Value::Null));
    let text = bench.run(&["status"]).ends(0).out;
    let id = operations[0]["id"].as_str().unwrap();
    let line = format!("\n{id} excludes 1 letter: 1 held by another operation\n");
    assert!(text.contains(&line), "{text}");
}
