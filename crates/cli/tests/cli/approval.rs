//! Scopes, and operations that need a second person.

use lazaret_api::Scope;
use lazaret_server::Approval;

use crate::support::{Bench, Setup, ended, finish, message, secret, token};

fn bench(approval: Approval) -> Bench {
    let all = [Scope::Read, Scope::Payload, Scope::Triage, Scope::Approve];
    let tokens = vec![
        token("ada", &all),
        token("bob", &all),
        token("rita", &[Scope::Read]),
        token("feed", &[Scope::Ingest]),
    ];
    let bench = Bench::with(Setup { tokens, approval, ..Setup::default() });
    bench.feed_as(&[message("m-1", "a", "bad")], Some(&secret("feed")));
    bench.eventually("the letter is there", || {
        bench.run_as("rita", &["ls", "-o", "jsonl"]).ends(0).out.lines().count() == 1
    });
    bench
}

#[test]
fn a_second_person_approves_an_operation() {
    let bench = bench(Approval::SecondPerson);
    bench.repair();
    let plan = bench.run_as("ada", &["plan", "retry", "--all", "-o", "json"]).ends(0).json();
    assert_eq!(plan["needs-approval"], true);
    // Waiting makes no difference: nothing happens until a person approves.
    let begun = bench
        .run_as("ada", &["retry", "--all", "--reason", "mended", "--yes", "--wait", "-o", "json"])
        .ends(5);
    assert_eq!(begun.last()["state"], "awaiting-approval");
    let shown = bench.run_as("ada", &["op", "show", "op_1"]).ends(0);
    assert!(shown.err.starts_with("next: lazaret op approve op_1"), "{}", shown.err);
    let status = bench.run_as("ada", &["status"]).ends(0);
    assert_eq!(status.err, "next: lazaret op approve op_1 --reason TEXT\n");
    let own = bench.run_as("ada", &["op", "approve", "op_1", "--reason", "mine"]).ends(6);
    assert!(own.err.contains("LZ0220"), "{}", own.err);

    let mut watch = bench.command(&["op", "watch", "op_1", "-o", "json"]);
    watch
        .env("LAZARET_TOKEN", secret("ada"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let watching = watch.spawn().unwrap();
    bench.run_as("bob", &["op", "approve", "op_1", "--reason", "looks right"]).ends(0);
    let outcome = ended(watching).ends(0).last();
    assert_eq!(
        (&outcome["state"], &outcome["ok"], &outcome["approved-by"]["who"]),
        (&"done".into(), &1.into(), &"bob".into())
    );
}

#[test]
fn a_rejected_operation_exits_as_denied() {
    let bench = bench(Approval::SecondPerson);
    bench.run_as("ada", &["retry", "--all", "--reason", "x", "--yes"]).ends(5);
    let rejected = bench.run_as("bob", &["op", "reject", "op_1", "--reason", "no"]).ends(0);
    assert!(
        rejected.out.starts_with("op_1 rejected: 0 sent, 0 ok, 0 failed again, 1 skipped"),
        "{}",
        rejected.out
    );
    bench.run_as("ada", &["op", "watch", "op_1"]).ends(6);
}

#[test]
fn a_token_without_the_scope_is_refused() {
    let bench = bench(Approval::None);
    let none = bench.run(&["ls"]).ends(6);
    assert!(
        none.err.contains("LZ0205") && none.err.contains("LAZARET_TOKEN or --token-file"),
        "{}",
        none.err
    );
    bench.run_as("eve", &["status"]).ends(6);
    for arguments in [
        &["retry", "--all", "--reason", "x", "--yes"][..],
        &["evict", "--all", "--reason", "x", "--yes"],
        &["pause", "orders", "--reason", "x"],
        &["purge", "--all", "--reason", "x", "--yes"],
    ] {
        let denied = bench.run_as("rita", arguments).ends(6);
        assert!(
            denied.err.contains("LZ0207") && denied.err.contains("rita needs the scope"),
            "{}",
            denied.err
        );
    }
    // Without the scope, a letter is shown without its payload.
    let id = bench.run_as("rita", &["ls", "-o", "jsonl"]).last()["id"].as_str().unwrap().to_owned();
    let shown = bench.run_as("rita", &["show", &id]).ends(0);
    assert!(
        shown.out.contains("hidden: the token lacks the scope payload") && !shown.out.contains("acme"),
        "{}",
        shown.out
    );
    bench.run_as("rita", &["show", &id, "--payload"]).ends(6);
}

#[test]
fn a_token_can_be_read_from_a_file() {
    let bench = bench(Approval::None);
    let file = bench.folder().join("token");
    std::fs::write(&file, format!("{}\n", secret("rita"))).unwrap();
    let file = file.to_str().unwrap();
    bench.run(&["status", "--token-file", file]).ends(0);
    // The option overrides the variable.
    bench.run_as("eve", &["status", "--token-file", file]).ends(0);
    std::fs::write(file, "\n").unwrap();
    bench.run(&["status", "--token-file", file]).ends(2);
    bench.run(&["status", "--token-file", "/nowhere/token"]).ends(1);
    // A secret is never shown.
    let mut command = bench.command(&["ls"]);
    command.env("LAZARET_TOKEN", "lz_secret\u{1b}[2J");
    let ran = finish(command, "").ends(2);
    assert!(!ran.err.contains("lz_secret"), "{}", ran.err);
}
