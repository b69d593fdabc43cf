//! `status --watch`: the status as a stream.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::support::{Bench, DEADLINE, ended, message};

/// Starts a command. Returns it with its lines of output as they come.
fn start(bench: &Bench, arguments: &[&str]) -> (std::process::Child, Receiver<String>) {
    let mut command = bench.command(arguments);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, receive) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(send.send(line))));
    (child, receive)
}

#[test]
fn a_change_is_a_line_of_json() {
    let bench = Bench::new();
    let (child, lines) = start(&bench, &["status", "--watch", "--json", "--interval", "100ms"]);
    let next = || -> Value { serde_json::from_str(&lines.recv_timeout(DEADLINE).unwrap()).unwrap() };
    assert_eq!(next()["consumers"][0]["dead"], 0);
    bench.feed(&[message("m-1", "a", "bad")]);
    // The attempt may be seen before its letter.
    while next()["consumers"][0]["dead"] != 1 {}
    let process = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    ended(child).ends(130);
}

#[test]
fn a_limit_ends_it_and_each_format_has_its_own_form() {
    let bench = Bench::new();
    let table = bench.run(&["status", "--watch", "-n", "1"]).ends(0).out;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with('Z') && lines[1].starts_with("CONSUMER"), "{table}");
    let csv = bench.run(&["status", "--watch", "-n", "1", "-o", "csv"]).ends(0).out;
    assert!(csv.starts_with("name,state,") && csv.lines().count() == 2, "{csv}");
    for wrong in [
        &["status", "--interval", "1s"][..],
        &["status", "-n", "1"],
        &["status", "--watch", "--interval", "1ms"],
    ] {
        bench.run(wrong).ends(2);
    }
}
