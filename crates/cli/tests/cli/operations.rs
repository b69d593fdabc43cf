//! Operations that are told what to do.

use crate::support::{Bench, ended, message};

#[test]
fn operations_are_listed_paused_resumed_and_cancelled() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    let arguments = [
        "retry",
        "seq:a",
        "--reason",
        "later",
        "--yes",
        "--at",
        "+1h",
        "--rate",
        "90/m",
        "--ramp",
        "1,5",
        "--stop-at",
        "10%",
    ];
    let begun = bench.run(&arguments).ends(0);
    assert!(begun.out.starts_with("op_1 scheduled: 0 sent"), "{}", begun.out);
    assert_eq!(begun.err, "next: lazaret op watch op_1\n");
    let operation = bench.run(&["op", "show", "op_1", "-o", "json"]).ends(0).json();
    assert_eq!((&operation["rate"], &operation["ramp"]), (&1.5.into(), &serde_json::json!([1, 5])));
    assert_eq!((&operation["stop-at"], &operation["by"]["why"]), (&0.1.into(), &"later".into()));
    assert!(operation["start-at"].is_string());

    let list = bench.run(&["op", "ls"]).ends(0);
    assert!(list.out.contains("op_1") && list.out.contains("scheduled"), "{}", list.out);
    assert_eq!(list.err, "next: lazaret op show op_1\n");
    assert!(bench.run(&["status"]).ends(0).out.contains("op_1"));
    // A letter that is part of an operation is not part of another.
    let plan = bench.run(&["plan", "retry", "seq:a", "-o", "json"]).ends(0).json();
    assert_eq!(plan["excluded"], serde_json::json!([{"reason": "in-operation", "letters": 1}]));

    let paused = bench.run(&["op", "pause", "op_1", "--reason", "wait", "-o", "json"]).ends(0).json();
    assert_eq!(paused["state"], "paused");
    // What is held does not move: it is shown, not watched.
    assert_eq!(bench.run(&["status"]).ends(0).err, "next: lazaret op show op_1\n");
    // A reason may be left out, and is not empty.
    bench.run(&["op", "resume", "op_1", "--reason", " "]).ends(2);
    let resumed = bench.run(&["op", "resume", "op_1", "-o", "json"]).ends(0).json();
    assert_eq!(resumed["state"], "scheduled");
    let cancelled = bench.run(&["op", "cancel", "op_1", "--reason", "enough"]).ends(0);
    assert!(
        cancelled.out.starts_with("op_1 cancelled: 0 sent, 0 ok, 0 failed again, 1 skipped"),
        "{}",
        cancelled.out
    );
    // What is over cannot be cancelled again.
    bench.run(&["op", "cancel", "op_1", "--reason", "enough"]).ends(1);
    bench.run(&["op", "watch", "op_1"]).ends(3);
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).out;
    assert!(audit.contains("\"why\":\"wait\"") && audit.contains("\"why\":\"enough\""), "{audit}");
}

#[test]
fn who_waits_for_a_paused_consumer_is_told_why() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    bench.mend();
    bench.run(&["pause", "orders", "--replay", "--reason", "deploy"]).ends(0);
    let arguments = ["retry", "--all", "--reason", "x", "--yes", "--wait", "-o", "json"];
    let why = "op_1 waits: replays of orders are paused by ada: deploy";
    let resume = "lazaret resume orders --replay --reason TEXT";
    let waiting = bench.start_until(&arguments, &format!("warning: {why}\nnext: {resume}\n"));
    // Whoever looks at it is told as well.
    let list = bench.run(&["op", "ls"]).ends(0);
    assert!(list.out.ends_with(&format!("\n{why}\n")), "{}", list.out);
    assert_eq!(list.err, format!("next: {resume}\n  or: lazaret op show op_1\n"));
    let shown = bench.run(&["op", "show", "op_1"]).ends(0);
    assert!(shown.out.contains("waits      replays of orders are paused by ada: deploy\n"), "{}", shown.out);
    assert!(shown.err.starts_with(&format!("next: {resume}\n")), "{}", shown.err);
    bench.run(&["resume", "orders", "--replay", "--reason", "deployed"]).ends(0);
    assert_eq!(ended(waiting).ends(0).last()["ok"], 1);
}

#[test]
fn who_begins_what_cannot_move_is_told_at_once() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    bench.run(&["pause", "orders", "--reason", "deploy"]).ends(0);
    let begun = bench.run(&["retry", "seq:a", "--reason", "x", "--yes"]).ends(0);
    assert!(begun.err.starts_with("op_1 waits: orders is paused by ada: deploy\nnext: "), "{}", begun.err);
    bench.run(&["resume", "orders", "--reason", "deployed"]).ends(0);
    bench.eventually("it goes on", || bench.run(&["op", "ls", "-o", "jsonl"]).last()["state"] == "done");
    // What is over waits for nobody.
    assert!(!bench.run(&["op", "ls"]).ends(0).out.contains("waits"));
}

#[test]
fn letters_that_another_operation_holds_are_told_with_its_name() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad"), message("m-3", "c", "bad")], 3);
    let later = |query| bench.run(&["retry", query, "--reason", "x", "--yes", "--at", "+1h"]).ends(0);
    later("seq:a");
    let again = later("seq:a");
    assert!(
        again
            .err
            .starts_with("nothing to do: left out: 1 held by operation op_1\nnext: lazaret op show op_1\n"),
        "{}",
        again.err
    );
    // Where several operations are under way it is the one with that letter.
    later("seq:b");
    let arguments = ["retry", "seq:a", "--reason", "x", "--yes", "-o", "json"];
    let again = bench.run(&arguments).ends(0).json();
    assert_eq!((&again["letters"], &again["held-by"]), (&0.into(), &serde_json::json!(["op_1"])), "{again}");
    assert_eq!(again["excluded"], serde_json::json!([{"reason": "in-operation", "letters": 1}]));
    let plan = bench.run(&["plan", "park", "seq:b"]).ends(0);
    assert!(plan.out.contains("1: 1 held by operation op_"), "{}", plan.out);
    // What is left of a selection is done, and what is left out is said.
    let part = later("state:dead");
    assert!(part.err.starts_with("left out: 2 held by operations op_"), "{}", part.err);
    let csv = bench.run(&["park", "seq:a", "--reason", "x", "--yes", "-o", "csv"]).ends(0).out;
    assert!(csv.lines().next().unwrap().ends_with(",excluded,held-by"), "{csv}");
}

#[test]
fn nothing_to_do_is_done_at_once() {
    let bench = Bench::new();
    let ran = bench.run(&["retry", "state:dead", "--reason", "x", "--yes", "--wait", "-o", "json"]).ends(0);
    assert_eq!((&ran.last()["state"], &ran.last()["sent"]), (&"done".into(), &0.into()));
}

#[test]
fn wrong_ways_to_go_about_it_are_told() {
    let bench = Bench::new();
    for wrong in [["--rate", "fast"], ["--ramp", "0"], ["--stop-at", "5"], ["--at", "tomorrow"]] {
        let mut arguments = vec!["retry", "--all", "--reason", "x", "--yes"];
        arguments.extend(wrong);
        let ran = bench.run(&arguments).ends(2);
        assert!(ran.err.contains(wrong[0]), "{}", ran.err);
    }
}
