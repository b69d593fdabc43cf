//! Consumers that fail beside others that do not.

use rustix::process::Signal;

use crate::support::{Folder, WORKER, attempts, event, get, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
defaults:
  handler: { command: { program: [python3, handler.py], mode: lines, workers: 1 } }
consumers:
  shop:
    source: { file: { path: events.jsonl } }
  late:
    source: { file: { path: late.jsonl } }
";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("lazaret.yaml", CONFIG);
    folder.write("handler.py", WORKER);
    folder.write("events.jsonl", &event(0, "k", "fine"));
    folder
}

#[test]
fn one_that_fails_is_shown_and_the_others_go_on() {
    let folder = folder();
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("the other's message", || (attempts(&folder).len() == 1).then_some(()));
    daemon.logs("correct the cause and send SIGHUP", 1);
    let (status, body) = get(&address, "/readyz");
    assert_eq!(status, 503);
    assert!(
        body.contains("late has failed") && body.contains("late.jsonl") && !body.contains("shop"),
        "{body}"
    );
    // Mended, and told so.
    folder.write("late.jsonl", &event(1, "k", "fine"));
    daemon.signal(Signal::HUP);
    wait_for("its message", || (attempts(&folder).len() == 2).then_some(()));
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_run_until_idle_ends_with_an_error_when_one_failed_for_good() {
    let folder = folder();
    assert_eq!(folder.run(&["run", "--until-idle"]), 1);
    assert_eq!(attempts(&folder).len(), 1, "the other one has done its work");
    folder.write("late.jsonl", "");
    assert_eq!(folder.run(&["run", "--until-idle"]), 0);
}

#[test]
fn a_message_that_says_stop_stops_its_consumer_before_it() {
    // I1
    let folder = folder();
    folder.write("late.jsonl", &event(1, "k", "stop"));
    assert_eq!(folder.run(&["run", "--until-idle"]), 1);
    assert_eq!(folder.run(&["run", "--until-idle"]), 1);
    let stops = attempts(&folder).iter().filter(|attempt| attempt.verdict == "stop").count();
    assert_eq!(stops, 2, "the position stayed before it");
}

#[test]
fn one_that_fails_for_a_reason_that_may_pass_is_started_anew_by_itself() {
    let folder = folder();
    let follow = CONFIG.replace("late.jsonl", "events.jsonl");
    folder.write("lazaret.yaml", &follow);
    folder.write("other.yaml", &follow.replace("lazaret.db", "other.db"));
    // Both have the same folder for their flight recorders, which one process has at a time.
    let mut first = folder.start(&["run"]);
    first.logs("consumer started", 2);
    let mut second = folder.start(&["run", "-c", "other.yaml"]);
    second.logs("restart scheduled", 2);
    assert!(folder.read("stderr.log").contains("is in use by another process"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    second.logs("consumer started", 4);
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), Some(0));
}
