//! The demo: headless, on a terminal, and interrupted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::{DEADLINE, ended, finish, lazaret};

/// The demo with a folder of its own for what is temporary.
fn demo(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = lazaret(&[&["demo"], arguments].concat());
    command.env("TMPDIR", folder);
    command
}

#[track_caller]
fn is_empty(folder: &Path) {
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_headless_demo_completes_and_every_guarantee_holds() {
    // I1, I2, I4, I5, I8, I11, I12
    let folder = TempDir::new().unwrap();
    let ran = finish(demo(folder.path(), &["--headless", "--seconds", "1", "-o", "json"]), "").ends(0);
    let outcome = ran.json();
    assert_eq!(outcome["ok"], true, "{outcome}");
    let checks = outcome["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks.iter().map(|check| check["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["I1", "I2", "I4", "I5", "I8", "I11", "I12", "story", "console"]);
    assert!(checks.iter().all(|check| check["ok"] == true), "{outcome}");
    // The handler was really called, failed and crashed; the counts are consistent.
    let number = |name: &str| outcome[name].as_u64().unwrap();
    let open = outcome["open"].as_array().unwrap();
    assert_eq!(number("handled") + open.len() as u64, number("orders"));
    assert!(number("attempts") > number("orders") && number("failed-attempts") > 50, "{outcome}");
    assert!(number("deaths") >= 2, "{outcome}");
    assert_eq!(number("resolved") + open.len() as u64, number("letters"));
    let mut reasons: Vec<&str> = open.iter().filter_map(|letter| letter["reason"].as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["CRASHED", "DOMAIN_INVALID", "DOMAIN_INVALID", "INVALID_SCHEMA", "PANICKED"]);
    // Log lines go to standard error, the outcome is data.
    assert!(
        ran.err.contains("Harbour Bank is up again") && ran.err.contains("serving the API at"),
        "{}",
        ran.err
    );
    is_empty(folder.path());
}

#[test]
fn without_a_terminal_the_demo_logs_lines_and_ends_with_tables() {
    let folder = TempDir::new().unwrap();
    let ran = finish(demo(folder.path(), &["--seconds", "1"]), "").ends(0);
    for part in ["killed by SIGABRT", "dead-lettered: CRASHED", " done: ", "GUARANTEE", "only poison remains"]
    {
        assert!(ran.out.contains(part), "{part} is not in\n{}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}') && !ran.out.contains("NO "), "{}", ran.out);
    assert!(ran.err.contains("next: ") && ran.err.ends_with(" run\n"), "{}", ran.err);
    is_empty(folder.path());
}

#[test]
fn an_outcome_can_be_printed_as_csv() {
    let folder = TempDir::new().unwrap();
    let ran = finish(demo(folder.path(), &["--headless", "--seconds", "1", "-o", "csv"]), "").ends(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("ok,orders,handled,"), "{}", ran.out);
    assert!(lines[1].starts_with("true,") && !lines[1].contains(",,"), "{}", ran.out);
    is_empty(folder.path());
}

#[test]
fn usage_errors_are_reported_before_anything_starts() {
    let folder = TempDir::new().unwrap();
    for arguments in [&["--seconds", "0"], &["--seconds", "x"]] {
        finish(demo(folder.path(), arguments), "").ends(2);
    }
    // The worker cannot be started by hand.
    let ran = finish(demo(folder.path(), &["--worker", folder.path().to_str().unwrap()]), "").ends(1);
    assert!(ran.err.contains("started by `lazaret demo`"), "{}", ran.err);
    is_empty(folder.path());
}

#[test]
#[cfg(unix)]
fn an_interrupted_demo_removes_its_files() {
    for signal in ["-INT", "-TERM"] {
        let folder = TempDir::new().unwrap();
        let mut command = demo(folder.path(), &["--headless", "--seconds", "60"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It runs when the worker has read orders.
        let deadline = Instant::now() + DEADLINE;
        let journal = || {
            let found = std::fs::read_dir(folder.path()).unwrap().next()?;
            std::fs::metadata(found.unwrap().path().join("journal.jsonl")).ok().filter(|file| file.len() > 0)
        };
        while journal().is_none() {
            assert!(Instant::now() < deadline, "the demo does not start");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        ended(child).ends(130);
        is_empty(folder.path());
    }
}

#[test]
#[cfg(unix)]
fn a_user_repairs_the_bank_replays_and_quits_with_keys() {
    use crate::terminal::Terminal;
    let folder = TempDir::new().unwrap();
    let temporary = folder.path().to_str().unwrap();
    let variables = [("TMPDIR", temporary), ("NO_COLOR", "1")];
    let mut terminal = Terminal::open((140, 30), &["demo"], &variables);
    terminal.shows("CUSTOMERS BLOCKED").shows("RESTARTING").shows("press r to repair the bank").types("r");
    terminal.shows("Harbour Bank is up again").shows("press p to replay").types("p");
    terminal.shows("op_1 done [########################]").shows("only poison letters remain");
    assert!(!terminal.is_as_before(), "keys come as they are pressed");
    terminal.types("q");
    let shown = terminal.ends(0);
    let (_, after) = shown.rsplit_once("\u{1b}[?25h\u{1b}[?1049l").expect("the screen is restored");
    assert!(after.contains("orders sent") && after.contains("next: "), "{after}");
    is_empty(folder.path());
}

#[test]
#[cfg(unix)]
fn colors_of_the_demo_can_be_disabled_and_ctrl_c_quits() {
    use crate::terminal::Terminal;
    let folder = TempDir::new().unwrap();
    let variables = [("TMPDIR", folder.path().to_str().unwrap()), ("NO_COLOR", "1")];
    let mut terminal = Terminal::open((60, 20), &["demo"], &variables);
    terminal.shows("CUSTOMERS BLOCKED").types("\u{3}");
    let shown = terminal.ends(0);
    assert!(!shown.contains("\u{1b}[0") && !shown.contains("\u{1b}[31m"), "{shown:?}");
    let mut short = Terminal::open((60, 20), &["demo", "--seconds", "1"], &variables);
    short.sees("orders sent");
    short.ends(0);
    is_empty(folder.path());
}
