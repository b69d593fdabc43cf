//! Commands on a configuration file: init, check, doctor and run with the real binary.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lazaret_port_testkit::free_port;
use tempfile::TempDir;

#[cfg(unix)]
use crate::http;
use crate::support::{DEADLINE, Ran, ended, finish, lazaret};

/// Runs a command in a folder.
fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = lazaret(arguments);
    command.current_dir(folder);
    finish(command, "")
}

/// A configuration with a file source and a command that refuses messages of `bad`.
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
    // Exit code 65 means dead-letter.
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
    // The last lines report the open letters and the next commands.
    let last = "2 open letters: orders\nnext: lazaret run -c lazaret.yaml\nthen: lazaret groups\n";
    assert!(left.err.ends_with(last), "{}", left.err);
    // I1, I8: a second run finds the same letters and stores none twice.
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
    assert!(done.err.ends_with("\nall messages handled, no open letters\n"), "{}", done.err);
}

#[test]
fn open_letters_after_a_run_are_reported_by_consumer_and_as_json_logs() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let path = folder.path().join("lazaret.yaml");
    let config = fs::read_to_string(&path).unwrap();
    let (_, consumer) = config.split_once("  orders:\n").unwrap();
    fs::write(&path, format!("{config}  mail:\n{consumer}")).unwrap();
    let left = run(folder.path(), &["run", "--until-idle"]).ends(3);
    assert!(left.err.contains("\n4 open letters: mail 2, orders 2\nnext: "), "{}", left.err);
    // JSON logs contain JSON lines only.
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{config}telemetry: {{ log-format: json }}\n")).unwrap();
    let left = run(folder.path(), &["run", "--until-idle"]).ends(3);
    let lines: Vec<serde_json::Value> =
        left.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |name: &str| {
        let is_it = |line: &&serde_json::Value| {
            line["message"] == "letters remained open" && line["consumer"] == name
        };
        lines.iter().find(is_it).map(|line| line["letters"].clone())
    };
    assert_eq!((told("mail"), told("orders")), (Some(2.into()), Some(2.into())), "{}", left.err);
}

#[test]
fn a_mistake_is_reported_with_its_line_by_check_run_and_doctor() {
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
        ran.err.starts_with("error: no such file: nowhere.yaml") && ran.err.contains("lazaret init"),
        "{}",
        ran.err
    );
}

#[test]
fn check_prints_the_effective_configuration_and_doctor_checks_all_of_it() {
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
fn a_new_file_is_valid_and_never_overwrites_another() {
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
    // Without a terminal, nothing is asked.
    run(folder.path(), &["init"]).ends(0);
    run(folder.path(), &["check"]).ends(0);
    let text = fs::read_to_string(folder.path().join("lazaret.yaml")).unwrap();
    assert!(text.contains("-H 'content-type: application/json'"), "{text}");
    run(folder.path(), &["init", "-c", "bad.yaml", "--name", "a/b"]).ends(2);
    assert!(!folder.path().join("bad.yaml").exists());
}

#[test]
fn the_help_of_init_lists_only_what_the_build_has() {
    let folder = TempDir::new().unwrap();
    let help = run(folder.path(), &["init", "--help"]).ends(0).out;
    let built_in = [
        ("- inbox:", true),
        ("- kafka:", cfg!(feature = "kafka")),
        ("- mongodb:", cfg!(feature = "mongodb")),
        ("- postgres:", cfg!(feature = "postgres")),
        ("- postgres-outbox:", cfg!(feature = "postgres")),
    ];
    for (value, is_built_in) in built_in {
        assert_eq!(help.contains(value), is_built_in, "{value}\n{help}");
    }
}

/// Every written file is valid, and invalid choices write no file.
#[test]
fn every_choice_of_init_is_valid_or_refused_with_a_hint() {
    let folder = TempDir::new().unwrap();
    let mut written = 0;
    for source in ["inbox", "file", "kafka", "mongodb", "postgres-outbox"] {
        for handler in ["http", "command"] {
            for store in ["sqlite", "memory", "postgres", "mongodb"] {
                for order in ["key", "partition", "none"] {
                    let file = format!("{source}-{handler}-{store}-{order}.yaml");
                    let choices =
                        ["--source", source, "--handler", handler, "--store", store, "--order", order];
                    let ran = run(folder.path(), &[&["init", "-c", &file][..], &choices].concat());
                    let is_there = folder.path().join(&file).exists();
                    let needs_mongodb = source == "mongodb" || store == "mongodb";
                    let needs_postgres = source == "postgres-outbox" || store == "postgres";
                    let refused = (source == "inbox" && !["sqlite", "postgres"].contains(&store))
                        || (needs_postgres && !cfg!(feature = "postgres"))
                        || (source == "kafka" && !cfg!(feature = "kafka"))
                        || (needs_mongodb && !cfg!(feature = "mongodb"));
                    assert_eq!(
                        (ran.code, is_there),
                        if refused { (2, false) } else { (0, true) },
                        "{file}: {}",
                        ran.err
                    );
                    if refused {
                        assert!(ran.err.contains("hint: "), "{}", ran.err);
                        continue;
                    }
                    run(folder.path(), &["check", "-c", &file]).ends(0);
                    written += 1;
                }
            }
        }
    }
    assert!(written >= 18, "{written}");
    // The default source is an inbox.
    let ran = run(folder.path(), &["init", "-c", "memory.yaml", "--store", "memory"]).ends(2);
    assert!(
        ran.err.contains("an inbox needs a durable store") && ran.err.contains("--store sqlite"),
        "{}",
        ran.err
    );
}

const SUSPICIOUS: &str = "store: \"memory:\"\nconsumers: {}\n";
const WRONG: &str = "store: \"memory:\"\nlisen: 127.0.0.1:80\nconsumers: 5\n";

#[test]
fn problems_of_a_file_are_a_list_for_programs() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    fs::write(folder.path().join("suspicious.yaml"), SUSPICIOUS).unwrap();
    fs::write(folder.path().join("wrong.yaml"), WRONG).unwrap();
    let check =
        |file: &str, format: &[&str]| run(folder.path(), &[&["check", "-c", file][..], format].concat());
    // A valid file: an empty list.
    let ran = check("lazaret.yaml", &["-o", "json"]).ends(0);
    assert_eq!((ran.json(), &*ran.err), (serde_json::json!([]), ""));
    assert_eq!(check("lazaret.yaml", &["-o", "jsonl"]).ends(0).out, "");
    assert_eq!(
        check("lazaret.yaml", &["-o", "csv"]).ends(0).out,
        "code,severity,file,line,column,message,hint\n"
    );
    // A warning is listed and does not fail the check.
    let ran = check("suspicious.yaml", &["--json"]).ends(0);
    assert_eq!(ran.json()[0]["severity"], "warning");
    let ran = check("wrong.yaml", &["--json"]).ends(1);
    let list = ran.json();
    let facts: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (&found["code"], &found["severity"], &found["line"]))
        .collect();
    let (warning, error) = ("warning".into(), "error".into());
    assert_eq!(
        facts,
        [
            (&"LZ0169".into(), &warning, &1.into()),
            (&"LZ0120".into(), &error, &2.into()),
            (&"LZ0122".into(), &error, &3.into())
        ]
    );
    assert_eq!(
        list[1],
        serde_json::json!({
            "code": "LZ0120", "severity": "error", "file": "wrong.yaml", "line": 2, "column": 1,
            "message": "unknown key `lisen` at the top of the file", "hint": "did you mean `listen`?",
        })
    );
    assert_eq!(check("wrong.yaml", &["-o", "jsonl"]).ends(1).lines(), *list.as_array().unwrap());
    let csv = check("wrong.yaml", &["-o", "csv"]).ends(1).out;
    assert!(csv.lines().nth(2).unwrap().starts_with("LZ0120,error,wrong.yaml,2,1,"), "{csv}");
    // `run --check` prints the same, and a missing file is listed as well.
    assert_eq!(run(folder.path(), &["run", "--check", "-c", "wrong.yaml", "--json"]).ends(1).json(), list);
    let nowhere = check("nowhere.yaml", &["--json"]).ends(1).json();
    assert_eq!(
        (&nowhere[0]["message"], &nowhere[0]["line"]),
        (&"no such file: nowhere.yaml".into(), &serde_json::Value::Null)
    );
    assert!(nowhere[0]["hint"].as_str().unwrap().contains("lazaret init"));
    // YAML is not printed in place of a list.
    run(folder.path(), &["check", "--effective", "orders", "--json"]).ends(2);
}

#[test]
fn the_next_step_explains_the_first_error_and_not_a_warning_before_it() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("lazaret.yaml"), WRONG).unwrap();
    let ran = run(folder.path(), &["check"]).ends(1);
    assert!(ran.err.ends_with("next: lazaret explain LZ0120\n"), "{}", ran.err);
    fs::write(folder.path().join("lazaret.yaml"), SUSPICIOUS).unwrap();
    let ran = run(folder.path(), &["check"]).ends(0);
    assert!(!ran.err.contains("next:"), "{}", ran.err);
}

#[test]
fn findings_of_doctor_are_a_list_for_programs() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    fs::remove_file(folder.path().join("events.jsonl")).unwrap();
    let doctor = |format: &[&str]| run(folder.path(), &[&["doctor"][..], format].concat()).ends(1);
    let list = doctor(&["--json"]).json();
    let list = list.as_array().unwrap();
    let of = |subject: &str| list.iter().find(|found| found["subject"] == subject).unwrap();
    assert_eq!(
        *of("orders source"),
        serde_json::json!({
            "subject": "orders source", "outcome": "fail",
            "detail": "events.jsonl: No such file or directory (os error 2)", "advice": "create the file, or correct `path`",
        })
    );
    assert_eq!((&of("store")["outcome"], &of("store")["advice"]), (&"ok".into(), &serde_json::Value::Null));
    let subjects =
        |list: &[serde_json::Value]| list.iter().map(|found| found["subject"].clone()).collect::<Vec<_>>();
    assert_eq!(subjects(&doctor(&["-o", "jsonl"]).lines()), subjects(list));
    let csv = doctor(&["-o", "csv"]).out;
    assert!(
        csv.starts_with("subject,outcome,detail,advice\n") && csv.contains("\norders source,fail,"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), list.len() + 1);
}

/// Scripts may read only the beginning of the output, or nothing.
#[test]
fn no_command_fails_on_a_closed_pipe() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    fs::write(folder.path().join("wrong.yaml"), WRONG).unwrap();
    let commands: [(&[&str], i32); 12] = [
        (&["doctor"], 0),
        (&["doctor", "--json"], 0),
        (&["doctor", "-c", "wrong.yaml"], 1),
        (&["check"], 0),
        (&["check", "-c", "wrong.yaml"], 1),
        (&["check", "-c", "nowhere.yaml"], 1),
        (&["schema"], 0),
        (&["explain", "LZ0120"], 0),
        (&["completion", "bash"], 0),
        (&["token"], 0),
        (&["init", "-c", "new.yaml"], 0),
        (&["status", "--url", "http://127.0.0.1:1"], 1),
    ];
    for (arguments, code) in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = lazaret(arguments);
        command.current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn the_schema_is_valid_json() {
    let ran = finish(lazaret(&["schema"]), "").ends(0);
    let schema = ran.json();
    assert!(schema["properties"]["consumers"].is_object(), "{}", ran.out);
}

/// A daemon that is killed when the test fails.
pub(crate) struct Daemon(pub(crate) Option<Child>);

impl Daemon {
    pub(crate) fn child(&mut self) -> &mut Child {
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

/// Waits until the daemon responds.
pub(crate) fn wait_for(url: &str, daemon: &mut Child) {
    let deadline = Instant::now() + DEADLINE;
    while finish(lazaret(&["status", "--url", url]), "").code != 0 {
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon has ended");
        assert!(Instant::now() < deadline, "the daemon does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[cfg(unix)]
fn the_letters_of_a_daemon_are_repaired_and_replayed_with_the_same_binary() {
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
    ask(&["edit", id, "--payload", "/dev/null", "--reason", "mend", "--yes", "--force"]).ends(0);
    ask(&["retry", "--ids", id, "--reason", "mended", "--yes", "--wait"]).ends(0);
    let stopped = Command::new("kill").args(["-TERM", &daemon.child().id().to_string()]).status().unwrap();
    assert!(stopped.success());
    ended(daemon.0.take().unwrap()).ends(0);
    // I2: the waiting letter was handled without intervention.
    run(folder.path(), &["run", "--until-idle"]).ends(0);
}

#[test]
#[cfg(unix)]
fn a_daemon_is_asked_over_tls_and_over_its_socket() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let (path, port) = (folder.path(), free_port());
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(path.join("tls.crt"), made.cert.pem()).unwrap();
    fs::write(path.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let config = fs::read_to_string(path.join("lazaret.yaml")).unwrap();
    let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let config = format!("{config}tls: {{ certificate: tls.crt, key: tls.key }}\nsocket: api.sock\n");
    fs::write(path.join("lazaret.yaml"), config).unwrap();
    let mut daemon = lazaret(&["run"]);
    daemon.current_dir(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Daemon(Some(daemon.spawn().unwrap()));
    let socket = format!("unix:{}", path.join("api.sock").display());
    wait_for(&socket, daemon.child());
    run(path, &["health", "--url", "unix:api.sock"]).ends(0);
    let missing = run(path, &["health", "--url", "unix:no.sock"]).ends(1);
    assert!(missing.err.contains("unix:no.sock"), "{}", missing.err);
    let url = format!("https://localhost:{port}");
    run(path, &["health", "--url", &url, "--ca-file", "tls.crt"]).ends(0);
    run(path, &["health", "--url", &url]).ends(1);
    let mut by_variables = lazaret(&["status"]);
    by_variables.current_dir(path).env("LAZARET_URL", &url).env("LAZARET_CA_FILE", "tls.crt");
    finish(by_variables, "").ends(0);
    let no_file = run(path, &["health", "--url", &url, "--ca-file", "none.crt"]).ends(1);
    assert!(no_file.err.contains("none.crt"), "{}", no_file.err);
    let no_certificate = run(path, &["health", "--url", &url, "--ca-file", "tls.key"]).ends(2);
    assert!(no_certificate.err.contains("tls.key contains no certificate"), "{}", no_certificate.err);
}

#[test]
fn a_store_is_backed_up_and_restored() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    configure(path);
    run(path, &["backup", "early.db"]).ends(1);
    assert!(!path.join("lazaret.db").exists(), "a backup creates no store");
    run(path, &["run", "--until-idle"]).ends(3);
    let done = run(path, &["backup", "backup.db", "-c", "lazaret.yaml"]).ends(0);
    assert!(done.out.starts_with("lazaret.db backed up to backup.db, "), "{}", done.out);
    run(path, &["backup", "backup.db"]).ends(1);

    let refused = run(path, &["restore", "backup.db"]).ends(2);
    assert!(refused.err.contains("--force"), "{}", refused.err);
    run(path, &["restore", "no such file.db", "--force"]).ends(4);
    // A missing or damaged file is no query for letters.
    for missing in ["monday.db", "backups/monday", "./monday"] {
        let refused = run(path, &["restore", missing, "--reason", "x", "--yes"]).ends(4);
        assert!(refused.err.contains(&format!("the backup {missing} does not exist")), "{}", refused.err);
    }
    fs::write(path.join("damaged"), "no database").unwrap();
    let refused = run(path, &["restore", "damaged", "--reason", "x", "--yes"]).ends(2);
    assert!(refused.err.contains("damaged is no backup of a store"), "{}", refused.err);
    run(path, &["restore", "--force", "--reason", "x"]).ends(2);
    let restored = run(path, &["restore", "backup.db", "--force", "-o", "json"]).ends(0);
    let answer: serde_json::Value = serde_json::from_str(&restored.out).unwrap();
    assert_eq!(answer["set-aside"][0], "lazaret.db.replaced-1");
    // The letters are there again, and the positions are those of the backup.
    run(path, &["run", "--until-idle"]).ends(3);
    fs::remove_file(path.join("lazaret.db")).unwrap();
    run(path, &["restore", "backup.db", "--store", "sqlite:lazaret.db"]).ends(0);
    run(path, &["run", "--until-idle"]).ends(3);
    // Without a file, letters are restored, and that needs a reason.
    let letters = run(path, &["restore", "state:evicted"]).ends(2);
    assert!(letters.err.contains("--reason"), "{}", letters.err);
}

#[test]
#[cfg(unix)]
fn a_store_is_served_without_its_consumers() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    run(folder.path(), &["run", "--until-idle"]).ends(3);
    let port = free_port();
    let (listen, url) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}"));
    let mut server = lazaret(&["serve", "--store", "sqlite:lazaret.db", "--listen", &listen]);
    server.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Daemon(Some(server.spawn().unwrap()));
    wait_for(&url, server.child());
    let status = finish(lazaret(&["status", "--url", &url, "-o", "json"]), "").ends(0);
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    let orders = &status["consumers"][0];
    assert_eq!((&orders["state"], &orders["dead"]), (&"elsewhere".into(), &1.into()));
    assert_eq!(status["instances"][0]["consumers"], serde_json::json!([]));
    // A letter can be released; nothing runs it here.
    let dead = finish(lazaret(&["ls", "state:dead", "-o", "jsonl", "--url", &url]), "").ends(0);
    let id = dead.lines().remove(0)["id"].as_str().unwrap().to_owned();
    let released = ["release", "--ids", &id, "--reason", "mended", "--yes", "--url", &url];
    finish(lazaret(&released), "").ends(0);
    let stopped = Command::new("kill").args(["-TERM", &server.child().id().to_string()]).status().unwrap();
    assert!(stopped.success());
    ended(server.0.take().unwrap()).ends(0);
}

#[test]
#[cfg(unix)]
fn the_console_is_served_without_consumers() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    run(folder.path(), &["run", "--until-idle"]).ends(3);
    let port = free_port();
    let path = folder.path().join("lazaret.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"))).unwrap();
    let address = format!("127.0.0.1:{port}");
    for arguments in [
        &["serve", "--store", "sqlite:lazaret.db", "--listen", address.as_str()][..],
        &["serve", "-c", "lazaret.yaml"],
    ] {
        let mut server = lazaret(arguments);
        server.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Daemon(Some(server.spawn().unwrap()));
        let url = format!("http://{address}");
        wait_for(&url, server.child());
        let page = |path: &str| {
            let answer = http::send(&address, "GET", path, &[], "").unwrap();
            assert_eq!(answer.status, 200, "{arguments:?} {path}: {}", answer.body);
            answer.body
        };
        let root = http::send(&address, "GET", "/", &[], "").unwrap();
        assert_eq!((root.status, root.header("location")), (303, Some("/console/")), "{arguments:?}");
        let overview = page("/console/overview");
        for part in ["elsewhere", "exit code 65", "API only"] {
            assert!(overview.contains(part), "{arguments:?} {part}: {overview}");
        }
        let dead = finish(lazaret(&["ls", "state:dead", "-o", "jsonl", "--url", &url]), "").ends(0).last();
        let letter = page(&format!("/console/letters/{}", dead["id"].as_str().unwrap()));
        assert!(letter.contains("1 letter behind it"), "the lane: {letter}");
        let admin = page("/console/admin");
        assert!(admin.contains(&format!("listen: '{address}'")), "its configuration: {admin}");
        // Only a configuration names consumers.
        let of_consumer = admin.contains("max-attempts: 1");
        assert_eq!(of_consumer, arguments.contains(&"-c"), "{arguments:?}: {admin}");
        let stopped =
            Command::new("kill").args(["-TERM", &server.child().id().to_string()]).status().unwrap();
        assert!(stopped.success());
        ended(server.0.take().unwrap()).ends(0);
    }
}

#[test]
fn what_serve_and_backup_cannot_do_is_said_without_a_password() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), &["serve"]).ends(2);
    let secret = "postgres://lazaret:hunter2@127.0.0.1:1/shop";
    let open = run(folder.path(), &["serve", "--store", "sqlite:x.db", "--listen", "0.0.0.0:7117"]).ends(1);
    assert!(open.err.contains("LZ0140"), "{}", open.err);
    let away = run(folder.path(), &["serve", "--store", secret]).ends(1);
    assert!(!away.err.contains("hunter2"), "{}", away.err);
    let refused = run(folder.path(), &["backup", "x.db", "--store", secret]).ends(2);
    assert!(refused.err.contains("pg_dump") && !refused.err.contains("hunter2"), "{}", refused.err);
}

#[test]
#[cfg(unix)]
fn a_file_that_is_waited_for_is_no_failure() {
    let folder = TempDir::new().unwrap();
    configure(folder.path());
    let port = free_port();
    let config = fs::read_to_string(folder.path().join("lazaret.yaml")).unwrap();
    let config = config
        .replace("127.0.0.1:0", &format!("127.0.0.1:{port}"))
        .replace("{ path: events.jsonl }", "{ path: later.jsonl, follow: true }");
    fs::write(folder.path().join("lazaret.yaml"), config).unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let mut daemon = lazaret(&["run"]);
    daemon.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Daemon(Some(daemon.spawn().unwrap()));
    wait_for(&url, daemon.child());
    let ask = |arguments: &[&str]| finish(lazaret(&[arguments, &["--url", &url]].concat()), "");
    let reaches = |state: &str| {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let consumer = ask(&["status", "-o", "json"]).ends(0).json()["consumers"][0].clone();
            assert_ne!(consumer["state"], "failed", "{consumer}");
            if consumer["state"] == state {
                return consumer;
            }
            assert!(Instant::now() < deadline, "{consumer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let waiting = reaches("waiting");
    assert!(waiting["error"].as_str().unwrap().contains("later.jsonl does not exist yet"), "{waiting}");
    assert_eq!(waiting["handler"], "command sh");
    let shown = ask(&["status"]).ends(0).out;
    assert!(shown.contains("orders waits: "), "{shown}");
    fs::rename(folder.path().join("events.jsonl"), folder.path().join("later.jsonl")).unwrap();
    reaches("running");
}
