//! `top`: one frame as text, and on a terminal.

use lazaret_api::Scope;
use lazaret_core::policy::OnDead;
use lazaret_server::Approval;

use crate::support::{Bench, Setup, finish, lazaret, message, secret, token};
use crate::terminal::Terminal;

const ENTER: &str = "\r";
const ESCAPE: &str = "\u{1b}";

/// A bench with one blocked key, behind whose head a letter waits.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good")], 2);
    bench
}

fn top(bench: &Bench) -> Terminal {
    Terminal::start(bench, 160, &["top", "--interval", "100ms"], &[("NO_COLOR", "1")])
}

#[test]
fn one_frame_is_printed_without_a_terminal() {
    let bench = bench();
    let frame = bench.run(&["top", "--once"]).ends(0).out;
    let lane = format!("{:<8}{:<18}m-1 ← m-2", "a", "dead");
    let parts =
        ["orders   running", "1 dead", "1 waiting", "1 KEY BLOCKED", &lane, "DOMAIN_INVALID", &bench.url];
    for part in parts {
        assert!(frame.contains(part), "{part} is not in\n{frame}");
    }
    assert!(!frame.contains('\u{1b}') && !frame.contains("LOG") && !frame.contains(" q "), "{frame}");
    let mut narrow = bench.command(&["top", "--once"]);
    narrow.env("COLUMNS", "40");
    let frame = finish(narrow, "").ends(0).out;
    assert!(frame.lines().all(|line| line.chars().count() <= 40), "{frame}");
}

#[test]
fn a_letter_that_left_its_sequence_blocks_no_key() {
    let bench = Bench::with(Setup { on_dead: OnDead::Continue, ..Setup::default() });
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good")], 1);
    let frame = bench.run(&["top", "--once"]).ends(0).out;
    assert!(frame.contains("1 dead") && frame.contains("0 KEYS BLOCKED"), "{frame}");
}

#[test]
fn without_a_terminal_it_says_what_to_do_instead() {
    let bench = bench();
    let ran = bench.run(&["top"]).ends(2);
    assert!(ran.err.contains("top needs a terminal") && ran.err.contains("--once"), "{}", ran.err);
    let ran = bench.run(&["top", "--json"]).ends(2);
    assert!(ran.err.contains("lazaret status --watch --json"), "{}", ran.err);
    let ran = finish(lazaret(&["top", "--once", "--url", "http://127.0.0.1:1"]), "").ends(1);
    assert!(ran.err.contains("connection refused"), "{}", ran.err);
}

#[test]
fn a_person_looks_at_a_lane_and_replays_it() {
    let bench = bench();
    let mut terminal = top(&bench);
    terminal.shows("> orders").shows("1 KEY BLOCKED").types("j").shows("> a ").types(ENTER);
    terminal.shows("HEAD").shows("1 letter waits behind the head").types(ENTER);
    terminal.shows("--- cause").shows("cannot take").types(ESCAPE).shows("HEAD");
    bench.repair();
    terminal
        .types("q")
        .types("r")
        .shows("replay 2 letters")
        .shows("2 letters of 1 sequence")
        .shows("not required");
    // Without a reason nothing begins.
    terminal.types(ENTER).shows("reason:").types("repaired in 2.8.2").shows("reason: repaired in 2.8.2");
    assert_eq!(bench.run(&["op", "ls", "-o", "jsonl"]).ends(0).out, "");
    terminal
        .types(ENTER)
        .shows("lazaret op watch op_1")
        .types("q")
        .shows("0 KEYS BLOCKED")
        .shows("op_1 running: 2 letters");
    let operation = bench.run(&["op", "show", "op_1", "-o", "json"]).ends(0).json();
    assert_eq!(
        (&operation["by"]["why"], &operation["action"]),
        (&"repaired in 2.8.2".into(), &"retry".into())
    );
    terminal.types("q");
    let shown = terminal.ends(0);
    assert!(shown.contains("\u{1b}[?25h\u{1b}[?1049l"), "the screen is restored");
    assert!(!shown.contains("\u{1b}[0"), "NO_COLOR is respected");
}

#[test]
fn a_consumer_is_paused_and_resumed_with_a_reason() {
    let bench = bench();
    let state = || bench.run(&["status", "-o", "json"]).ends(0).json()["consumers"][0]["state"].clone();
    let mut terminal = top(&bench);
    terminal.shows("> orders").types("p").shows("pause orders").types(ESCAPE).shows("nothing was changed");
    assert_eq!(state(), "running");
    terminal.types("p").shows("reason:").types("deploy 2.8").types(ENTER).shows("orders paused: deploy 2.8");
    terminal.shows("ago: deploy 2.8");
    assert_eq!(state(), "paused");
    terminal.types("p").shows("resume orders").types("done").types(ENTER).shows("orders resumed");
    bench.eventually("it runs", || state() == "running");
    // A key is paused alone.
    terminal
        .types("j")
        .shows("> a ")
        .types("p")
        .shows("pause a")
        .types("look")
        .types(ENTER)
        .shows("paused m-1");
    assert_eq!(state(), "running");
    terminal.types("?").shows("quit; Ctrl-C").types("\u{3}");
    terminal.ends(0);
}

#[test]
fn an_operation_that_needs_a_second_person_names_the_command() {
    let all = [Scope::Read, Scope::Payload, Scope::Triage, Scope::Approve];
    let tokens = vec![token("ada", &all), token("rita", &[Scope::Read]), token("feed", &[Scope::Ingest])];
    let bench = Bench::with(Setup { tokens, approval: Approval::SecondPerson, ..Setup::default() });
    bench.feed_as(&[message("m-1", "a", "bad")], Some(&secret("feed")));
    bench.eventually("the letter is there", || {
        bench.run_as("rita", &["ls", "-o", "jsonl"]).ends(0).out.lines().count() == 1
    });
    let open = |name: &str| {
        let token = secret(name);
        Terminal::start(&bench, 120, &["top"], &[("NO_COLOR", "1"), ("LAZARET_TOKEN", &token)])
    };
    let mut terminal = open("ada");
    terminal
        .shows("1 KEY BLOCKED")
        .types("j")
        .shows("> a ")
        .types("r")
        .shows("required from a second person");
    terminal.types("mended").types(ENTER).shows("a second person must approve it before it starts");
    terminal.shows("lazaret op approve op_1 --reason TEXT").types("q").shows("op_1 awaiting-approval [");
    terminal.types("q");
    terminal.ends(0);
    // A token that may only read sees the screen, and the daemon refuses the rest.
    let mut reader = open("rita");
    reader.shows("1 KEY BLOCKED").types("j").shows("> a ").types("r").shows("LZ0").types("qq");
    reader.ends(0);
}

#[test]
fn an_unreachable_daemon_is_told_and_waited_for() {
    let variables = [("NO_COLOR", "1"), ("LAZARET_URL", "http://127.0.0.1:1")];
    let mut terminal = Terminal::open((100, 24), &["top", "--interval", "100ms"], &variables);
    terminal.shows("connection refused").shows("; retrying for").types("q");
    terminal.ends(0);
}

#[test]
fn the_terminal_is_restored_when_the_process_is_terminated() {
    let bench = bench();
    for signal in ["-TERM", "-HUP"] {
        let mut terminal = top(&bench);
        terminal.shows("1 KEY BLOCKED").signal(signal);
        assert!(terminal.ends(0).contains("\u{1b}[?25h\u{1b}[?1049l"), "{signal}");
    }
}

#[test]
fn a_resized_terminal_is_filled_again() {
    let bench = bench();
    let mut terminal = top(&bench);
    terminal.shows("help").resize((30, 14));
    // The address does not fit beside the title anymore.
    terminal.shows("Lazaret top\nhttp://127.0.0.1:").types("?").shows("PgUp").types("qq");
    terminal.ends(0);
}
