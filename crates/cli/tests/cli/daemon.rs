//! The commands about a configuration file: written, checked, looked at and run by the real binary.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{DEADLINE, Ran, ended, finish, lazaret};

/// Runs a command in a folder.
fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = lazaret(arguments);
    command.current_dir(folder);
    finish(command, "")
}

/// A file source with a command that takes all messages but those of `bad`.
fn configure(folder: &Path) {
    let config = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  orders:
    source: { file: { path: events.jsonl } }
    handler: { command: { program: [sh, handler.sh], timeout: 10s } }
    retry: { max-attempts: 1 }
";
    fs::write(folder.join("lazaret.yaml"), config).unwrap();
    // 65 is a dead letter by the contract.
    fs::write(folder.join("handler.sh"), "grep -q bad && exit 65; exit 0\n").unwrap();
    let events = r#"{"id": "e-1", "key": "a", "payload": "good"}
{"id": "e-2", "key": "b", "payload": "bad"}
{"id": "e-3", "key": "b", "payload": "behind"}
"#;
    fs::write(folder.join("events.jsonl"), events).unwrap();
}

#[test]
fn a_run_until_idle_ends_with_three_when_letters_remain_and_with_nothing_when_none_do() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    run(folder.path(), &["run", "--check"]).ends(0);
    let left = run(folder.path(), &["run", "--until-idle"]).ends(3);
    // The last words say what is left and what can be done: letters are looked at while a daemon runs.
    let last = "2 letters are open: orders\nnext: lazaret run -c lazaret.yaml\nthen: lazaret groups\n";
    assert!(left.err.ends_with(last), "{}", left.err);
    // I1, I8: a second run finds the same letters and takes nothing in twice.
    run(folder.path(), &["run", "-c", "lazaret.yaml", "--until-idle"]).ends(3);
    fs::write(
        folder.path().join("events.jsonl"),
        "{\"id\": \"e-1\", \"key\": \"a\", \"payload\": \"good\"}\n",
    )
    .unwrap();
    for file in ["lazaret.db", "lazaret.db-wal", "lazaret.db-shm", "lazaret.db-redo"] {
        let _ = fs::remove_file(folder.path().join(file));
    }
    let done = run(folder.path(), &["run", "--until-idle"]).ends(0);
    assert!(done.err.ends_with("\nall is handled: no letter is open\n"), "{}", done.err);
}

#[test]
fn what_a_run_leaves_is_told_by_consumer_and_to_machines() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let path = folder.path().join("lazaret.yaml");
    let config = fs::read_to_string(&path).unwrap();
    let (_, consumer) = config.split_once("  orders:\n").unwrap();
    fs::write(&path, format!("{config}  mail:\n{consumer}")).unwrap();
    let left = run(folder.path(), &["run", "--until-idle"]).ends(3);
    assert!(left.err.contains("\n4 letters are open: mail 2, orders 2\nnext: "), "{}", left.err);
    // Lines for machines stay lines for machines.
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{config}telemetry: {{ log-format: json }}\n")).unwrap();
    let left = run(folder.path(), &["run", "--until-idle"]).ends(3);
    let lines: Vec<serde_json::Value> =
        left.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |name: &str| {
        let is_it =
            |line: &&serde_json::Value| line["message"] == "letters are open" && line["consumer"] == name;
        lines.iter().find(is_it).map(|line| line["letters"].clone())
    };
    assert_eq!((told("mail"), told("orders")), (Some(2.into()), Some(2.into())), "{}", left.err);
}

#[test]
fn a_mistake_is_told_with_its_line_by_check_run_and_doctor() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let wrong = fs::read_to_string(folder.path().join("lazaret.yaml")).unwrap();
    let wrong = wrong.replace("max-attempts: 1", "max-atempts: 1");
    fs::write(folder.path().join("wrong.yaml"), wrong).unwrap();
    for arguments in [&["check", "-c", "wrong.yaml"][..], &["run", "-c", "wrong.yaml"]] {
        let ran = run(folder.path(), arguments).ends(1);
        assert!(ran.err.contains("wrong.yaml:8:") && ran.err.contains("max-attempts"), "{}", ran.err);
    }
    let ran = run(folder.path(), &["check", "-c", "wrong.yaml"]).ends(1);
    assert!(ran.err.ends_with("next: lazaret explain LZ0120\n"), "{}", ran.err);
    run(folder.path(), &["doctor", "-c", "wrong.yaml"]).ends(1);
    let ran = run(folder.path(), &["check", "-c", "nowhere.yaml"]).ends(1);
    assert!(
        ran.err.starts_with("error: there is no file nowhere.yaml") && ran.err.contains("lazaret init"),
        "{}",
        ran.err
    );
}

#[test]
fn check_tells_what_holds_for_a_consumer_and_doctor_looks_at_all_of_it() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let ran = run(folder.path(), &["check", "--effective", "orders"]).ends(0);
    assert!(ran.out.contains("max-attempts") && ran.out.contains("multiplier"), "{}", ran.out);
    run(folder.path(), &["check", "--effective", "nobody"]).ends(4);
    let ran = run(folder.path(), &["doctor"]).ends(0);
    assert!(ran.out.contains("store: ") && ran.out.contains("source: events.jsonl"), "{}", ran.out);
    fs::remove_file(folder.path().join("events.jsonl")).unwrap();
    let ran = run(folder.path(), &["doctor"]);
    assert!(ran.code == 1 && ran.out.contains("events.jsonl"), "{} {}", ran.code, ran.out);
}

#[test]
fn a_new_file_passes_its_check_and_is_never_written_over_another() {
    let folder = TempDir::new().unwrap();
    for source in ["inbox", "file"] {
        let file = format!("{source}.yaml");
        let init = ["init", "-c", &file, "--name", "payments", "--source", source, "--handler", "command"];
        run(folder.path(), &init).ends(0);
        let ran = run(folder.path(), &["check", "-c", &file]).ends(0);
        assert!(ran.err.contains("1 consumer"), "{}", ran.err);
        let before = fs::read_to_string(folder.path().join(&file)).unwrap();
        run(folder.path(), &init).ends(2);
        assert_eq!(fs::read_to_string(folder.path().join(&file)).unwrap(), before);
    }
    // Nothing asks where there is no terminal.
    run(folder.path(), &["init"]).ends(0);
    run(folder.path(), &["check"]).ends(0);
    run(folder.path(), &["init", "-c", "bad.yaml", "--name", "a/b"]).ends(2);
    assert!(!folder.path().join("bad.yaml").exists());
}

#[test]
fn the_schema_is_one() {
    let ran = finish(lazaret(&["schema"]), "").ends(0);
    let schema = ran.json();
    assert!(schema["properties"]["consumers"].is_object(), "{}", ran.out);
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A daemon that does not outlive a test that fails.
struct Daemon(Option<Child>);

impl Daemon {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the daemon answers.
fn wait_for(url: &str, daemon: &mut Child) {
    let deadline = Instant::now() + DEADLINE;
    while finish(lazaret(&["status", "--url", url]), "").code != 0 {
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon has ended");
        assert!(Instant::now() < deadline, "the daemon does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[cfg(unix)]
fn the_letters_of_a_daemon_are_mended_and_replayed_with_the_same_binary() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let port = free_port();
    let config = fs::read_to_string(folder.path().join("lazaret.yaml")).unwrap();
    let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    fs::write(folder.path().join("lazaret.yaml"), config).unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let mut daemon = lazaret(&["run"]);
    daemon.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Daemon(Some(daemon.spawn().unwrap()));
    wait_for(&url, daemon.child());
    let ask = |arguments: &[&str]| finish(lazaret(&[arguments, &["--url", &url]].concat()), "");
    let deadline = Instant::now() + DEADLINE;
    let dead = loop {
        let found = ask(&["ls", "state:dead", "-o", "jsonl"]).ends(0);
        if let Some(letter) = found.lines().pop() {
            break letter;
        }
        assert!(Instant::now() < deadline, "no dead letter came");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((&dead["message"]["id"], &dead["reason"]), (&"e-2".into(), &"INVALID_SCHEMA".into()));
    let id = dead["id"].as_str().unwrap();
    ask(&["edit", id, "--payload", "/dev/null", "--reason", "mend", "--yes"]).ends(0);
    ask(&["retry", "--ids", id, "--reason", "mended", "--yes", "--wait"]).ends(0);
    let stopped = Command::new("kill").args(["-TERM", &daemon.child().id().to_string()]).status().unwrap();
    assert!(stopped.success());
    ended(daemon.0.take().unwrap()).ends(0);
    // I2: what waited behind it went on by itself.
    run(folder.path(), &["run", "--until-idle"]).ends(0);
}
