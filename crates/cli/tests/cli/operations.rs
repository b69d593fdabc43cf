//! Controlling operations.

use lazaret_core::policy::OnDead;

use crate::support::{Bench, Setup, ada, ended, message};

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
    // A letter of an operation is excluded from others.
    let plan = bench.run(&["plan", "retry", "seq:a", "-o", "json"]).ends(0).json();
    assert_eq!(plan["excluded"], serde_json::json!([{"reason": "in-operation", "letters": 1}]));

    let paused = bench.run(&["op", "pause", "op_1", "--reason", "wait", "-o", "json"]).ends(0).json();
    assert_eq!(paused["state"], "paused");
    // A paused operation is shown, not watched.
    assert_eq!(bench.run(&["status"]).ends(0).err, "next: lazaret op show op_1\n");
    // The reason is optional, but not empty.
    bench.run(&["op", "resume", "op_1", "--reason", " "]).ends(2);
    let resumed = bench.run(&["op", "resume", "op_1", "-o", "json"]).ends(0).json();
    assert_eq!(resumed["state"], "scheduled");
    let cancelled = bench.run(&["op", "cancel", "op_1", "--reason", "enough"]).ends(0);
    assert!(
        cancelled.out.starts_with("op_1 cancelled: 0 sent, 0 ok, 0 failed again, 1 skipped"),
        "{}",
        cancelled.out
    );
    // A finished operation cannot be cancelled.
    bench.run(&["op", "cancel", "op_1", "--reason", "enough"]).ends(1);
    bench.run(&["op", "watch", "op_1"]).ends(3);
    let audit = bench.run(&["audit", "-o", "jsonl"]).ends(0).out;
    assert!(audit.contains("\"why\":\"wait\"") && audit.contains("\"why\":\"enough\""), "{audit}");
}

#[test]
fn waiting_for_a_paused_consumer_reports_the_blocker() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    bench.repair();
    bench.run(&["pause", "orders", "--replay", "--reason", "deploy"]).ends(0);
    let arguments = ["retry", "--all", "--reason", "x", "--yes", "--wait", "-o", "json"];
    let why = format!("op_1 is blocked: replays of orders are paused by {}: deploy", ada());
    let resume = "lazaret resume orders --replay --reason TEXT";
    let waiting = bench.start_until(&arguments, &format!("warning: {why}\nnext: {resume}\n"));
    // The lists show the blocker as well.
    let list = bench.run(&["op", "ls"]).ends(0);
    assert!(list.out.ends_with(&format!("\n{why}\n")), "{}", list.out);
    assert_eq!(list.err, format!("next: {resume}\n  or: lazaret op show op_1\n"));
    let shown = bench.run(&["op", "show", "op_1"]).ends(0);
    let blocked = format!("blocked     replays of orders are paused by {}: deploy\n", ada());
    assert!(shown.out.contains(&blocked), "{}", shown.out);
    assert!(shown.err.starts_with(&format!("next: {resume}\n")), "{}", shown.err);
    bench.run(&["resume", "orders", "--replay", "--reason", "deployed"]).ends(0);
    assert_eq!(ended(waiting).ends(0).last()["ok"], 1);
}

#[test]
fn starting_a_blocked_operation_reports_the_blocker_at_once() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    bench.run(&["pause", "orders", "--reason", "deploy"]).ends(0);
    let begun = bench.run(&["retry", "seq:a", "--reason", "x", "--yes"]).ends(0);
    assert!(
        begun.err.starts_with(&format!("op_1 is blocked: orders is paused by {}: deploy\nnext: ", ada())),
        "{}",
        begun.err
    );
    bench.run(&["resume", "orders", "--reason", "deployed"]).ends(0);
    bench.eventually("it goes on", || bench.run(&["op", "ls", "-o", "jsonl"]).last()["state"] == "done");
    // A finished operation has no blockers.
    assert!(!bench.run(&["op", "ls"]).ends(0).out.contains("waits"));
}

#[test]
fn letters_held_by_another_operation_are_excluded_with_its_id() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad"), message("m-3", "c", "bad")], 3);
    let later = |query| bench.run(&["retry", query, "--reason", "x", "--yes", "--at", "+1h"]);
    later("seq:a").ends(0);
    // Nothing was taken, so it is no success.
    let again = later("seq:a").ends(3);
    assert!(
        again
            .err
            .starts_with("nothing to do: excluded: 1 held by operation op_1\nnext: lazaret op show op_1\n"),
        "{}",
        again.err
    );
    // With several running operations, the holder is the one with that letter.
    later("seq:b").ends(0);
    let arguments = ["retry", "seq:a", "--reason", "x", "--yes", "-o", "json"];
    let again = bench.run(&arguments).ends(3).json();
    assert_eq!((&again["letters"], &again["held-by"]), (&0.into(), &serde_json::json!(["op_1"])), "{again}");
    assert_eq!(again["excluded"], serde_json::json!([{"reason": "in-operation", "letters": 1}]));
    let plan = bench.run(&["plan", "park", "seq:b"]).ends(0);
    assert!(plan.out.contains("1: 1 held by operation op_"), "{}", plan.out);
    // The rest of the selection is processed, and exclusions are reported.
    let part = later("state:dead").ends(0);
    assert!(part.err.starts_with("excluded: 2 held by operations op_"), "{}", part.err);
    let csv = bench.run(&["park", "seq:a", "--reason", "x", "--yes", "-o", "csv"]).ends(3).out;
    assert!(csv.lines().next().unwrap().ends_with(",excluded,held-by"), "{csv}");
}

#[test]
fn a_plan_says_which_letters_run_out_of_order() {
    let bench = Bench::with(Setup { on_dead: OnDead::Continue, ..Setup::default() });
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "b", "bad")], 2);
    let plan = bench.run(&["plan", "retry", "state:dead"]).ends(0);
    let note = "2 of 2 letters out of order: they left their sequences when they died (on-dead: continue)";
    assert!(plan.out.contains(note), "{}", plan.out);
    let one = bench.run(&["plan", "release", "key:a"]).ends(0);
    assert!(one.out.contains("1 of 1 letter out of order: it left its sequence when it died"), "{}", one.out);
    let count = |bench: &Bench, action| {
        bench.run(&["plan", action, "state:dead", "-o", "json"]).ends(0).json()["out-of-order"].clone()
    };
    // Nothing runs when letters are evicted.
    assert_eq!((count(&bench, "retry"), count(&bench, "evict")), (2.into(), 0.into()));
    // A letter that holds its sequence is replayed in order.
    let holding = Bench::new();
    holding.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good")], 2);
    assert_eq!(count(&holding, "retry"), 0);
    let plan = holding.run(&["plan", "retry", "state:dead"]).ends(0);
    assert!(!plan.out.contains("out of order"), "{}", plan.out);
}

#[test]
fn where_nothing_matches_no_operation_is_started() {
    let bench = Bench::new();
    let retry = ["retry", "state:dead", "--reason", "x", "--yes", "--wait"];
    let ran = bench.run(&retry).ends(0);
    assert_eq!(ran.err, "nothing to do: no letters match\nnext: lazaret status\n");
    assert_eq!(ran.out, "not started: 0 sent, 0 ok, 0 failed again, 0 skipped\n");
    let outcome = bench.run(&[&retry[..], &["-o", "json"]].concat()).ends(0).last();
    let counts = (&outcome["sent"], &outcome["ok"], &outcome["skipped"]);
    assert_eq!((&outcome["state"], counts), (&"done".into(), (&0.into(), &0.into(), &0.into())), "{outcome}");
    assert!(outcome["id"].is_null() && outcome["failed-again"] == 0, "{outcome}");
    let csv = bench.run(&[&retry[..], &["-o", "csv"]].concat()).ends(0).out;
    assert!(
        csv.starts_with("id,state,sent,") && csv.lines().nth(1).unwrap().starts_with(",done,0,"),
        "{csv}"
    );
    assert_eq!(bench.run(&["op", "ls", "-o", "jsonl"]).ends(0).out, "");
}

#[test]
fn invalid_rollout_options_are_usage_errors() {
    let bench = Bench::new();
    for wrong in [["--rate", "fast"], ["--ramp", "0"], ["--stop-at", "5"], ["--at", "tomorrow"]] {
        let mut arguments = vec!["retry", "--all", "--reason", "x", "--yes"];
        arguments.extend(wrong);
        let ran = bench.run(&arguments).ends(2);
        assert!(ran.err.contains(wrong[0]), "{}", ran.err);
    }
}
