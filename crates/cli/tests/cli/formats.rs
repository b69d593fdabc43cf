//! Every command that prints data supports every format, and ends its messages with the next command.

use crate::support::{Bench, Ran, message};

/// A bench with a dead letter, one behind it, an evicted one and a finished operation.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "b", "bad")], 3);
    bench.run(&["evict", "seq:b", "--reason", "x", "--yes", "--wait"]).ends(0);
    bench
}

/// Commands with their standard input. None affects the data of another.
const COMMANDS: [(&[&str], &str); 34] = [
    (&["status"], ""),
    (&["health"], ""),
    (&["health", "--ready"], ""),
    (&["groups"], ""),
    (&["group", "GROUP"], ""),
    (&["ls"], ""),
    (&["show", "message:m-1"], ""),
    (&["seq", "orders", "a"], ""),
    (&["plan", "park", "state:dead"], ""),
    (&["op", "ls"], ""),
    (&["op", "show", "op_1"], ""),
    (&["op", "show", "op_1", "--items"], ""),
    (&["op", "watch", "op_1"], ""),
    (&["retry", "state:parked", "--reason", "x", "--yes", "--wait"], ""),
    (&["evict", "state:parked", "--reason", "x", "--yes"], ""),
    (&["park", "state:parked", "--reason", "x", "--yes"], ""),
    (&["release", "state:parked", "--reason", "x", "--yes"], ""),
    (&["restore", "seq:z", "--reason", "x", "--yes"], ""),
    (&["purge", "seq:z", "--reason", "x", "--yes"], ""),
    (&["edit", "message:m-1", "--payload", "-", "--reason", "x", "--yes"], "\"bad\""),
    (&["resolve", "state:parked", "--reason", "x", "--yes"], ""),
    (&["quarantine", "state:parked", "--reason", "x", "--yes"], ""),
    (&["comment", "message:m-1", "x"], ""),
    (&["assign", "message:m-1", "ada"], ""),
    (&["send", "orders", "--id", "s-1"], "good"),
    (&["pause", "orders", "--replay", "--reason", "x"], ""),
    (&["resume", "orders", "--replay", "--reason", "x"], ""),
    (&["import", "-"], ""),
    (&["audit"], ""),
    (&["audit", "verify"], ""),
    (&["token", "new"], ""),
    (&["token", "hash"], "lz_0123456789abcdefghijklmnopqrstuvwxyz"),
    (&["explain", "LZ0120"], ""),
    (&["explain", "TIMEOUT"], ""),
];

fn run(bench: &Bench, arguments: &[&str], input: &str, format: &str) -> Ran {
    let group = bench.run(&["groups", "-o", "jsonl"]).ends(0).last()["id"].as_str().unwrap().to_owned();
    let mut arguments: Vec<&str> =
        arguments.iter().map(|word| if *word == "GROUP" { &*group } else { word }).collect();
    arguments.extend(["-o", format]);
    bench.run_with(&arguments, input).ends(0)
}

#[test]
fn data_is_printed_in_the_chosen_format() {
    let bench = bench();
    for (arguments, input) in COMMANDS {
        let in_format = |format| run(&bench, arguments, input, format);
        assert!(in_format("json").json().is_object(), "{arguments:?}");
        assert!(!in_format("jsonl").lines().is_empty(), "{arguments:?}");
        let csv = in_format("csv").out;
        let header = csv.lines().next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_lowercase() || "-.,".contains(c);
        assert!(!header.is_empty() && header.chars().all(is_name), "{arguments:?}: {csv}");
        assert!(csv.lines().count() >= 2, "{arguments:?}: {csv}");
    }
    // `explain` prints every field of a code.
    let explained = run(&bench, &["explain", "lz0203"], "", "json").json();
    assert_eq!((&explained["code"], &explained["status"]), (&"LZ0203".into(), &404.into()), "{explained}");
    assert!(explained["page"].as_str().is_some_and(|page| !page.is_empty()), "{explained}");
}

#[test]
fn messages_end_with_the_next_command() {
    let bench = bench();
    for (arguments, input) in COMMANDS {
        let ran = run(&bench, arguments, input, "table");
        let last = ran.err.lines().last().unwrap_or_default();
        let is_command = last.starts_with("next: lazaret ") || last.starts_with("  or: lazaret ");
        assert!(is_command, "{arguments:?}: {:?}", ran.err);
    }
    // An audit without entries is no exception.
    let new = Bench::new();
    for arguments in [&["audit"][..], &["audit", "--last", "5"]] {
        assert_eq!(new.run(arguments).ends(0).err, "no audit entries\nnext: lazaret status\n");
    }
}
