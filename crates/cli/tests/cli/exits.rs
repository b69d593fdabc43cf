//! Every exit code of the contract, and what comes with it.

use std::io::{Read, Write};
use std::net::TcpListener;

use lazaret_api::Scope;
use lazaret_server::Approval;

use crate::support::{Bench, Setup, finish, lazaret, message, secret, token};

#[test]
fn each_code_means_one_thing() {
    let scopes = [Scope::Read, Scope::Triage, Scope::Approve];
    let tokens = vec![token("ada", &scopes), token("rita", &[Scope::Read]), token("feed", &[Scope::Ingest])];
    let open = Bench::new();
    open.letters(&[message("m-1", "a", "hopeless")], 1);
    let closed = Bench::with(Setup { tokens, approval: Approval::SecondPerson });
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
        // What went wrong is told, and data stays data.
        assert_eq!(ran.err.contains("error: "), matches!(code, 1 | 2 | 4 | 6), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn where_nothing_listens_it_is_said_what_to_start() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let ran = finish(lazaret(&["status", "--url", &url]), "").ends(1);
    assert!(ran.err.starts_with(&format!("error: nothing listens at {url}\n")), "{}", ran.err);
    assert!(ran.err.contains("lazaret run -c lazaret.yaml"), "{}", ran.err);
    let ran = finish(lazaret(&["retry", "--all", "--yes", "--reason", "x", "--url", &url]), "").ends(1);
    assert!(ran.err.contains("nothing listens"), "{}", ran.err);
    finish(lazaret(&["status", "--url", "localhost:7117"]), "").ends(2);
}

#[test]
fn something_else_that_answers_is_told_from_a_daemon() {
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
    assert!(ran.err.contains("answered 404, and not as Lazaret does"), "{}", ran.err);
    server.join().unwrap();
}

#[test]
#[cfg(unix)]
fn ctrl_c_detaches_and_the_operation_goes_on() {
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
fn the_usage_names_what_is_missing_and_not_what_a_variable_says() {
    let bench = Bench::new();
    let ran = bench.run(&["resume", "orders"]).ends(2);
    assert!(ran.err.contains("Usage: lazaret resume --reason <TEXT> <CONSUMER>\n"), "{}", ran.err);
    // The help still says which variable there is, and what it says.
    let help = bench.run(&["resume", "--help"]).ends(0).out;
    assert!(help.contains(&format!("LAZARET_URL={}", bench.url)), "{help}");
}

#[test]
fn error_codes_are_explained() {
    let explained = finish(lazaret(&["explain", "lz0120"]), "").ends(0);
    assert!(explained.out.starts_with("LZ0120: There is no such key here.\n"), "{}", explained.out);
    assert!(finish(lazaret(&["explain", "LZ0203"]), "").ends(0).out.starts_with("LZ0203: Not found.\n"));
    finish(lazaret(&["explain", "LZ9999"]), "").ends(4);
}

#[test]
fn a_daemon_is_asked_whether_it_lives_and_whether_it_works() {
    let bench = Bench::new();
    assert!(bench.run(&["health"]).ends(0).out.starts_with("alive, version "));
    assert_eq!(bench.run(&["health", "--json"]).ends(0).json()["status"], "ok");
    assert_eq!(bench.run(&["health", "--ready"]).ends(0).out, "ready\n");

    // A daemon that is there and does not work is told from one that is not there.
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
