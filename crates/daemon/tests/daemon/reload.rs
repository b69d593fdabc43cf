//! Another configuration, while everything runs.

use rustix::process::Signal;

use crate::support::{Folder, WORKER, attempts, event, wait_for};

fn config(attempts: u32, extra: &str) -> String {
    format!(
        "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl, follow: true }} }}
    handler: {{ command: {{ program: [python3, handler.py], mode: lines, workers: 2 }} }}
    breaker: off
    retry: {{ max-attempts: {attempts}, initial-delay: 5ms, max-delay: 20ms, hold: 10ms }}
    advanced: {{ commit-interval: 20ms, lease: 60s, refresh: 50ms, drain-deadline: 10m }}
{extra}"
    )
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("lazaret.yaml", &config(5, ""));
    folder.write("handler.py", WORKER);
    folder.write("events.jsonl", "");
    folder
}

#[test]
fn a_reload_while_messages_flow_loses_nothing_and_keeps_order() {
    // I1, I2
    let (folder, reloads, each) = (folder(), 4, 60);
    let mut daemon = folder.start(&["run"]);
    daemon.logs("consumer started", 1);
    let kind = |n: usize| if n.is_multiple_of(3) { "flaky" } else { "fine" };
    for reload in 0..reloads {
        let lines: String =
            (reload * each..(reload + 1) * each).map(|n| event(n, &format!("k{}", n % 7), kind(n))).collect();
        folder.append("events.jsonl", &lines);
        wait_for("work in progress", || (attempts(&folder).len() > reload * each).then_some(()));
        folder.write("lazaret.yaml", &config(6 + reload as u32, ""));
        daemon.signal(Signal::HUP);
        daemon.logs("consumer restarted with new policies", reload + 1);
    }
    let all = reloads * each;
    let handled = || attempts(&folder).into_iter().filter(|attempt| attempt.verdict == "handled");
    wait_for("the end of the work", || (handled().count() >= all).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    for key in 0..7 {
        let key = format!("k{key}");
        let order: Vec<_> = handled().filter(|attempt| attempt.key == key).map(|attempt| attempt.n).collect();
        let expected: Vec<_> = (0..all).filter(|n| format!("k{}", n % 7) == key).collect();
        assert_eq!(order, expected, "each once and in order");
    }
    assert!(folder.open_letters().is_empty());
}

#[test]
fn a_file_with_mistakes_changes_nothing_and_what_needs_a_restart_is_said() {
    let folder = folder();
    let mut daemon = folder.start(&["run"]);
    daemon.logs("consumer started", 1);
    folder.write("lazaret.yaml", "consumers: 5\n");
    daemon.signal(Signal::HUP);
    daemon.logs("the previous configuration stays active", 1);
    folder.write("lazaret.yaml", &config(4, "    concurrency: 3\n"));
    daemon.signal(Signal::HUP);
    daemon.logs("no changes applied, restart required", 1);
    let log = folder.read("stderr.log");
    let line =
        |word: &str| log.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {log}"));
    assert!(
        line("consumers.shop.concurrency").contains("configuration change not applied, restart required"),
        "{log}"
    );
    assert!(
        line("max-attempts: 5 -> 4").contains("another change of the consumer requires a restart"),
        "{log}"
    );
    assert!(!log.contains("change applied") && !log.contains("consumer restarted"), "{log}");
    folder.append("events.jsonl", &event(0, "k", "fine"));
    wait_for("a message", || (attempts(&folder).len() == 1).then_some(()));
    folder.write("lazaret.yaml", &config(5, ""));
    daemon.signal(Signal::HUP);
    daemon.logs("configuration reloaded without changes", 1);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}
