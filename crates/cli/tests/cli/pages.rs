//! Many letters: tables are paged, lines print all, and a closed pipe is no error.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Bench, ended, message};

const MANY: usize = 120;

fn bench() -> Bench {
    let bench = Bench::new();
    let messages: Vec<Value> =
        (0..MANY).map(|n| message(&format!("m-{n}"), &format!("k-{n}"), "bad")).collect();
    bench.letters(&messages, MANY);
    bench
}

#[test]
fn tables_page_and_lines_print_every_match() {
    let bench = bench();
    let first = bench.run(&["ls"]).ends(0);
    assert_eq!(first.out.lines().count(), 51);
    assert!(first.err.starts_with("50 of 120 letters\nnext: lazaret ls --after "), "{}", first.err);

    // The suggested cursor continues to the end.
    let cursor = |talk: &str| {
        talk.split("--after ").nth(1).map(|rest| rest.split([',', '\n']).next().unwrap().to_owned())
    };
    let second = bench.run(&["ls", "--after", &cursor(&first.err).unwrap()]).ends(0);
    let third = bench.run(&["ls", "--after", &cursor(&second.err).unwrap()]).ends(0);
    assert_eq!((second.out.lines().count(), third.out.lines().count()), (51, 21));
    assert_eq!(cursor(&third.err), None);

    let page = bench.run(&["ls", "-o", "json", "--limit", "7"]).ends(0).json();
    assert_eq!(page["letters"].as_array().unwrap().len(), 7);
    assert!(page["next"].is_string());

    let csv = bench.run(&["ls", "-o", "csv"]).ends(0).out;
    assert_eq!(csv.lines().count(), MANY + 1);
    assert!(csv.starts_with("id,queue,consumer,stream,sequence,"), "{csv}");
    assert_eq!(bench.run(&["ls", "-o", "csv", "--limit", "3"]).ends(0).out.lines().count(), 4);
    assert_eq!(bench.run(&["ls", "-o", "csv", "state:parked"]).ends(0).out.lines().count(), 1);
    let mut ids: Vec<_> = bench.run(&["ls", "-o", "jsonl"]).ends(0).lines();
    ids.sort_by_key(|letter| letter["id"].to_string());
    ids.dedup_by_key(|letter| letter["id"].to_string());
    assert_eq!(ids.len(), MANY);
    assert_eq!(bench.run(&["ls", "-o", "jsonl", "--limit", "100"]).ends(0).lines().len(), 100);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let bench = bench();
    let mut child = bench
        .command(&["export"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // `head -1`: 120 complete letters do not fit into a pipe.
    let mut out = BufReader::with_capacity(16, child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(out);
    let mut err = child.stderr.take().unwrap();
    assert_eq!(ended(child).code, 0);
    let mut talk = String::new();
    std::io::Read::read_to_string(&mut err, &mut talk).unwrap();
    assert_eq!(talk, "");
    assert!(serde_json::from_str::<Value>(&line).is_ok());
}

#[test]
fn the_letters_of_an_operation_page_too() {
    let bench = bench();
    let ran = bench
        .run(&[
            "park",
            "--all",
            "--reason",
            "test",
            "--yes",
            "--wait",
            "--ramp",
            "none",
            "--rate",
            "unlimited",
        ])
        .ends(0);
    assert!(ran.out.starts_with("op_1 done: 120 sent, 120 ok, 0 failed again, 0 skipped"), "{}", ran.out);
    let items = bench.run(&["op", "show", "op_1", "--items", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(items.len(), MANY);
    assert!(items.iter().all(|item| item["outcome"] == "ok"));
    let failed = bench.run(&["op", "show", "op_1", "--outcome", "failed-again"]).ends(0);
    assert_eq!((failed.out.as_str(), failed.err.as_str()), ("", "no letters\nnext: lazaret op show op_1\n"));
    assert_eq!(bench.run(&["op", "show", "op_1", "--items"]).ends(0).out.lines().count(), 51);
}
