//! What signals do.

use std::time::{Duration, Instant};

use lazaret_core::LetterState;
use rustix::process::Signal;

use crate::support::{Folder, WORKER, ask, attempts, event, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: { file: { path: events.jsonl, follow: true } }
    handler: { command: { program: [python3, handler.py], mode: lines, workers: 2, timeout: 5m } }
    advanced: { commit-interval: 10ms, drain-deadline: 5m }
";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("lazaret.yaml", CONFIG);
    folder.write("handler.py", WORKER);
    folder
}

#[test]
fn a_daemon_that_is_asked_to_stop_drains_and_repeats_nothing_later() {
    // I1
    for signal in [Signal::TERM, Signal::INT] {
        let folder = folder();
        let lines: String = (0..200).map(|n| event(n, &format!("k{}", n % 7), "fine")).collect();
        folder.write("events.jsonl", &lines);
        let daemon = folder.start(&["run"]);
        wait_for("half of the work", || (attempts(&folder).len() >= 100).then_some(()));
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0));
        assert_eq!(folder.run(&["run", "--until-idle"]), 0);
        // Everything that ran before the end was settled and committed.
        assert_eq!(attempts(&folder).len(), 200);
    }
}

#[test]
fn the_one_file_of_a_daemon_that_was_stopped_is_a_whole_copy() {
    // I1
    for signal in [Signal::TERM, Signal::INT] {
        let folder = folder();
        let lines: String =
            (0..40).map(|n| event(n, &format!("k{n}"), if n % 2 == 0 { "poison" } else { "fine" })).collect();
        folder.write("events.jsonl", &lines);
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        wait_for("all attempts", || (attempts(&folder).len() == 40).then_some(()));
        let reason = "{\"reason\": \"a look at the copy\"}";
        let json = "content-type: application/json\r\n";
        for act in ["pause", "resume"] {
            let (status, body) = ask(&address, "POST", &format!("/v1/consumers/shop/{act}"), json, reason);
            assert_eq!(status, 200, "{body}");
        }
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0));

        let copy = Folder::new();
        for name in ["lazaret.yaml", "handler.py", "events.jsonl", "lazaret.db"] {
            std::fs::copy(folder.path(name), copy.path(name)).unwrap();
        }
        let letters = copy.open_letters();
        assert_eq!(letters.len(), 20, "{letters:?}");
        assert!(letters.iter().all(|(_, state)| *state == LetterState::Dead), "{letters:?}");
        assert_eq!(copy.acts(), ["pause", "resume"]);
        // Positions are there, too: nothing is handled again. Letters are open, and so the code is 3.
        assert_eq!(copy.run(&["run", "--until-idle"]), 3);
        assert_eq!(attempts(&copy).len(), 0);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = folder();
    let slow =
        "{\"id\": \"e-0\", \"key\": \"k\", \"payload\": {\"n\": 0, \"kind\": \"fine\", \"takes\": 60}}\n";
    folder.write("events.jsonl", slow);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("an attempt", || {
        let (_, status) = crate::support::get(&address, "/v1/status");
        status.contains("\"in-flight\":1").then_some(())
    });
    daemon.signal(Signal::TERM);
    daemon.logs("drain started", 1);
    assert!(daemon.runs(), "the attempt is waited for");
    let asked = Instant::now();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(128 + 15));
    assert!(asked.elapsed() < Duration::from_secs(30), "the attempt takes a minute");
}
