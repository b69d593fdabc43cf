//! Every exit code of the contract, with its messages.

use std::io::{Read, Write};
use std::net::TcpListener;

use lazaret_api::Scope;
use lazaret_server::Approval;

use crate::support::{Bench, Setup, finish, lazaret, message, secret, token};

#[test]
fn each_exit_code_has_one_meaning() {
    let scopes = [Scope::Read, Scope::Triage, Scope::Approve];
    let tokens = vec![token("ada", &scopes), token("rita", &[Scope::Read]), token("feed", &[Scope::Ingest])];
    let open = Bench::new();
    open.letters(&[message("m-1", "a", "hopeless")], 1);
    let closed = Bench::with(Setup { tokens, approval: Approval::SecondPerson, ..Setup::default() });
    closed.feed_as(&[message("m-1", "a", "bad")], Some(&secret("feed")));
    closed.eventually("the letter is there", || {
        closed.run_as("ada", &["ls", "-o", "jsonl"]).ends(0).out.lines().count() == 1
    });

    let retry = &["retry", "--all", "--reason", "x", "--yes", "--wait"][..];
    let table: [(&str, &[&str], i32); 12] = [
        ("", &["status"], 0),
        ("", &["ls", "state:parked"], 0),
        ("", &["import", "/nowhere/file"], 1),
        ("", &["ls", "nonsense:x"], 2),
        ("", &["ls", "--nonsense"], 2),
        ("", &["nonsense"], 2),
        ("", retry, 3),
        ("", &["op", "show", "op_99"], 4),
        ("", &["retry", "--plan", "p_99", "--reason", "x", "--yes"], 4),
        ("ada", retry, 5),
        ("rita", retry, 6),
        ("eve", &["status"], 6),
    ];
    for (who, arguments, code) in table {
        let ran = if who.is_empty() { open.run(arguments) } else { closed.run_as(who, arguments) };
        assert_eq!(ran.code, code, "{arguments:?} by {who:?}\nout: {}\nerr: {}", ran.out, ran.err);
        // Errors go to standard error only.
        assert_eq!(ran.err.contains("error: "), matches!(code, 1 | 2 | 4 | 6), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn a_refused_connection_hints_at_how_to_start_the_daemon() {
    let port = lazaret_port_testkit::free_port();
    let url = format!("http://127.0.0.1:{port}");
    let ran = finish(lazaret(&["status", "--url", &url]), "").ends(1);
    assert!(
        ran.err.starts_with(&format!("error: connection refused: no daemon listens at {url}\n")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("lazaret run -c lazaret.yaml"), "{}", ran.err);
    let ran = finish(lazaret(&["retry", "--all", "--yes", "--reason", "x", "--url", &url]), "").ends(1);
    assert!(ran.err.contains("connection refused"), "{}", ran.err);
    finish(lazaret(&["status", "--url", "localhost:7117"]), "").ends(2);
}

#[test]
fn another_server_is_told_from_a_daemon() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
            .unwrap();
    });
    let ran = finish(lazaret(&["status", "--url", &url]), "").ends(1);
    assert!(ran.err.contains("status 404 is not from a Lazaret daemon"), "{}", ran.err);
    server.join().unwrap();
}

#[test]
#[cfg(unix)]
fn ctrl_c_detaches_and_the_operation_continues() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let arguments = ["retry", "--all", "--reason", "x", "--yes", "--wait", "--at", "+1h"];
    let child = bench.start_until(&arguments, "op_1 scheduled");
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(crate::support::ended(child).code, 130);
    assert_eq!(bench.run(&["op", "show", "op_1", "-o", "json"]).ends(0).json()["state"], "scheduled");
}

#[test]
fn the_usage_line_lists_missing_arguments_and_no_environment_variables() {
    let bench = Bench::new();
    let ran = bench.run(&["resume", "orders"]).ends(2);
    assert!(ran.err.contains("Usage: lazaret resume --reason <TEXT> <CONSUMER>\n"), "{}", ran.err);
    // The help still shows the variable and its value.
    let help = bench.run(&["resume", "--help"]).ends(0).out;
    assert!(help.contains(&format!("LAZARET_URL={}", bench.url)), "{help}");
}

#[test]
fn error_codes_are_explained() {
    let explained = finish(lazaret(&["explain", "lz0120"]), "").ends(0);
    assert!(explained.out.starts_with("LZ0120: Unknown key.\n"), "{}", explained.out);
    assert!(finish(lazaret(&["explain", "LZ0203"]), "").ends(0).out.starts_with("LZ0203: Not found.\n"));
    finish(lazaret(&["explain", "LZ9999"]), "").ends(4);
    let reason = finish(lazaret(&["explain", "timeout"]), "").ends(0);
    assert!(
        reason
            .out
            .starts_with("TIMEOUT: The handler, or a service that it called, did not respond in time.\n")
    );
    assert!(reason.out.contains("Default verdict: retry"), "{}", reason.out);
    let own = finish(lazaret(&["explain", "CARD_DECLINED"]), "").ends(0);
    assert!(
        own.out.contains("none of Lazaret's")
            && own.out.contains("has chosen the verdict by that")
            && own.out.contains("TIMEOUT, RATE_LIMITED"),
        "{}",
        own.out
    );
    finish(lazaret(&["explain", "no such code"]), "").ends(4);
}

#[test]
fn health_checks_liveness_and_readiness() {
    let bench = Bench::new();
    assert!(bench.run(&["health"]).ends(0).out.starts_with("alive, version "));
    assert_eq!(bench.run(&["health", "--json"]).ends(0).json()["status"], "ok");
    assert_eq!(bench.run(&["health", "--ready"]).ends(0).out, "ready\n");

    // A daemon that is not ready is told from one that does not run.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let body = r#"{"ready":false,"reasons":["orders has failed: no broker"]}"#;
        let head = format!("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let sick = finish(lazaret(&["health", "--ready", "--url", &url]), "").ends(1);
    assert_eq!(sick.out, "not ready\norders has failed: no broker\n");
    answer.join().unwrap();
    finish(lazaret(&["health", "--url", &url]), "").ends(1);
}
