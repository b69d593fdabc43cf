//! Reading: status, groups, letters, sequences, the audit log and events.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use lazaret_engine::DeadLetterOptions;
use serde_json::Value;

use crate::support::{Bench, Setup, ada, ended, finish, lazaret, message};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[track_caller]
fn has(value: &Value, names: &str) {
    for name in names.split(' ') {
        assert!(keys(value).contains(&name), "{name} is missing in {value}");
    }
}

#[test]
fn status_shows_consumers_and_operations() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "b", "good")], 2);
    let status = bench.run(&["status", "-o", "json"]).ends(0).json();
    let consumer = &status["consumers"][0];
    has(
        consumer,
        "name state paused lag in-flight handled failed retrying dead parked quarantined waiting oldest-age-seconds fuse breaker",
    );
    assert_eq!(
        (&consumer["name"], &consumer["dead"], &consumer["waiting"]),
        (&"orders".into(), &1.into(), &1.into())
    );
    assert_eq!(status["operations"], Value::Array(vec![]));
    let durable = status["store"]["durable"].as_bool().unwrap();
    assert_eq!(bench.run(&["--json", "status"]).ends(0).json()["consumers"][0]["name"], "orders");

    let table = bench.run(&["status"]).ends(0);
    assert!(table.out.starts_with("CONSUMER  STATE"), "{}", table.out);
    assert!(table.out.contains("orders    running"), "{}", table.out);
    assert_eq!(table.err, "next: lazaret groups\n");
    assert_eq!(table.out.contains("store not durable: letters"), !durable, "{}", table.out);
    let csv = bench.run(&["status", "-o", "csv"]).ends(0).out;
    assert!(csv.starts_with("name,state,lag,") && csv.contains("\norders,running,"), "{csv}");
}

#[test]
fn letters_are_listed_with_every_field_of_the_contract() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good")], 2);
    let letters = bench.run(&["ls", "-o", "jsonl"]).ends(0).lines();
    for letter in &letters {
        has(
            letter,
            "id queue consumer stream sequence index state reason phase error attempts crash-attempts replay-attempts message \
             enqueued-at first-failed-at last-failed-at last-touched-at due-at expires-at owner poison group diagnostics",
        );
        has(&letter["message"], "id key type position");
    }
    let dead = letters.iter().find(|letter| letter["state"] == "dead").unwrap();
    assert_eq!(dead["error"]["message"], "cannot take \"bad\"");
    assert_eq!((&dead["message"]["id"], &dead["sequence"]), (&"m-1".into(), &"a".into()));

    let table = bench.run(&["ls", "state:dead"]).ends(0);
    let short = &dead["id"].as_str().unwrap()[..8];
    assert!(table.out.contains(short) && table.out.contains("DOMAIN_INVALID"), "{}", table.out);
    assert_eq!(table.err, format!("1 letter\nnext: lazaret show {short}\n"));
    let none = bench.run(&["ls", "state:parked"]).ends(0);
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "no letters match\nnext: lazaret ls\n"));
    // Several arguments form one query.
    assert_eq!(bench.run(&["ls", "state:dead", "seq:b", "-o", "jsonl"]).ends(0).out, "");
}

#[test]
fn an_invalid_query_is_shown_with_the_position() {
    let bench = Bench::new();
    let ran = bench.run(&["ls", "state:dead staet:x"]).ends(2);
    let told = "error: LZ0201: invalid query: there is no field staet: did you mean state?\n";
    assert_eq!(ran.err, format!("{told}  state:dead staet:x\n             ^^^^^\n"));
    assert_eq!(ran.out, "");
}

#[test]
fn a_query_that_means_something_else_is_an_error() {
    let bench = Bench::new();
    for (query, told) in [
        ("attempts>3", "did you mean attempts:>3?"),
        ("age>1h", "did you mean age:>1h?"),
        ("state=dead", "did you mean state:dead?"),
        ("payload./total>50", "did you mean payload./total:>50?"),
        ("type:>Order", "type is text, and > does not apply to it"),
    ] {
        let ran = bench.run(&["ls", query]).ends(2);
        assert!(ran.err.contains(told) && ran.err.contains('^') && ran.out.is_empty(), "{}", ran.err);
    }
}

#[test]
fn a_negated_term_is_part_of_the_query_and_options_after_dashes_are_not() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    let lines = |arguments: &[&str]| bench.run(arguments).ends(0).out.lines().count();
    assert_eq!(lines(&["ls", "-seq:a", "-o", "jsonl"]), 1);
    assert_eq!(lines(&["ls", "-type:OrderPlaced", "-o", "jsonl"]), 0);
    assert_eq!(lines(&["ls", "-o", "jsonl", "--", "-seq:a"]), 1);
    let ran = bench.run(&["ls", "--", "-seq:a", "--limit", "1"]).ends(2);
    assert!(ran.err.contains("put options before --"), "{}", ran.err);
    let ran = bench.run(&["ls", "-tpye:X"]).ends(2);
    assert!(ran.err.contains("there is no field tpye: did you mean type?"), "{}", ran.err);
}

#[test]
fn a_consumer_or_queue_that_does_not_exist_is_named() {
    let bench = Bench::new();
    for arguments in [
        &["ls", "queue:order"][..],
        &["ls", "consumer:order", "-o", "jsonl"],
        &["groups", "queue:order"],
        &["plan", "retry", "queue:order"],
        &["retry", "queue:order", "--reason", "r", "--yes"],
        &["purge", "queue:order", "--reason", "r", "--yes"],
        &["export", "queue:order"],
        &["tail", "--consumer", "order"],
        &["seq", "order", "a"],
    ] {
        let ran = bench.run(arguments).ends(4);
        let names = ["there are orders", "there is only orders"].iter().any(|known| ran.err.contains(known));
        assert!(ran.err.contains("there is no ") && names, "{}", ran.err);
    }
    // A known one without letters is no error.
    bench.run(&["ls", "queue:orders,order"]).ends(0);
    let ran = bench.run(&["ls", "dead"]).ends(0);
    assert!(ran.err.contains("did you mean state:dead?"), "{}", ran.err);
}

#[test]
fn groups_are_found_by_prefix() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad"), message("m-3", "a", "good")], 3);
    let page = bench.run(&["groups", "-o", "json"]).ends(0).json();
    let group = &page["groups"][0];
    assert_eq!((&group["letters"], &group["blocked-behind"]), (&2.into(), &1.into()));
    let table = bench.run(&["groups", "queue:orders"]).ends(0);
    let id = group["id"].as_str().unwrap();
    let short = id[..11].to_owned();
    assert!(table.out.contains(&short), "{}", table.out);
    // The complete id: a queue that is not listed may have a group with the same fingerprint.
    assert_eq!(
        table.err,
        format!("1 group: 2 letters failed, 1 waits behind them\nnext: lazaret group {id}\n")
    );
    bench.run(&["group", id]).ends(0);

    let shown = bench.run(&["group", &short]).ends(0);
    assert!(shown.out.contains("DOMAIN_INVALID") && shown.out.contains("2 open (2 dead)"), "{}", shown.out);
    assert!(shown.err.starts_with("next: lazaret ls "), "{}", shown.err);
    assert_eq!(
        bench.run(&["group", group["id"].as_str().unwrap(), "-o", "json"]).ends(0).json()["id"],
        group["id"]
    );
    // The suggested command works unchanged.
    let query = shown.err.lines().next().unwrap().trim_start_matches("next: lazaret ls ");
    assert_eq!(bench.run(&["ls", query, "-o", "jsonl"]).ends(0).lines().len(), 2);
    bench.run(&["group", "g1_ffffffff"]).ends(4);
    // Without open letters, no retry is suggested.
    bench.run(&["evict", "--all", "--reason", "x", "--yes", "--wait"]).ends(0);
    let shown = bench.run(&["group", &short]).ends(0);
    assert!(shown.err.contains("state:closed") && !shown.err.contains("plan retry"), "{}", shown.err);
}

#[test]
fn a_group_and_the_status_tell_when_the_next_letter_expires() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    let letters = bench.run(&["ls", "-o", "jsonl"]).ends(0).lines();
    let group = letters[0]["group"].as_str().unwrap();
    let shown = bench.run(&["group", group]).ends(0).out;
    let line = shown.lines().find(|line| line.starts_with("next expires ")).expect(&shown);
    assert!(line.contains("(in 29d23h)"), "the default is 30 days: {line}");
    let status = bench.run(&["status"]).ends(0).out;
    assert!(!status.contains("letters expire"), "{status}");
    let in_hours = jiff::Timestamp::now() + std::time::Duration::from_secs(3 * 3600 + 1800);
    bench.set_expiry(letters[1]["id"].as_str().unwrap(), in_hours);
    let shown = bench.run(&["group", group]).ends(0).out;
    let line = shown.lines().find(|line| line.starts_with("next expires ")).expect(&shown);
    assert!(line.contains("(in 3h"), "{line}");
    let status = bench.run(&["status"]).ends(0).out;
    assert!(status.contains("orders letters expire: the next one in 3h"), "{status}");
    let letters = bench.run(&["ls", "-o", "jsonl"]).ends(0).lines();
    let found = bench.run(&["group", group, "-o", "json"]).ends(0).json();
    let next = &found["next-expiry-at"];
    assert!(next.is_string() && letters.iter().any(|letter| letter["expires-at"] == *next), "{found}");
    let csv = bench.run(&["groups", "-o", "csv"]).ends(0).out;
    let (header, row) = csv.trim_end().split_once('\n').unwrap();
    assert!(header.ends_with(",next-expiry-at") && row.ends_with(next.as_str().unwrap()), "{csv}");
}

#[test]
fn a_letter_is_shown_complete_with_its_raw_payload() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad\nthing")], 1);
    let id = bench.run(&["ls", "-o", "jsonl"]).last()["id"].as_str().unwrap().to_owned();
    let shown = bench.run(&["show", &id[..8]]).ends(0);
    for part in [
        "dead",
        "orders/orders",
        "DOMAIN_INVALID in phase handle",
        "tenant: acme",
        "--- history",
        r#""bad\nthing""#,
    ] {
        assert!(shown.out.contains(part), "{part} in {}", shown.out);
    }
    let next =
        format!("next: lazaret retry --ids {0} --reason TEXT\n  or: lazaret seq orders/orders a\n", &id[..8]);
    assert_eq!(shown.err, next);
    let detail = bench.run(&["show", &id, "-o", "json"]).ends(0).json();
    assert_eq!(detail["content"]["payload"], r#""bad\nthing""#);
    assert_eq!(bench.run(&["show", &id, "--payload"]).ends(0).out, r#""bad\nthing""#);
    bench.run(&["show", "00000000"]).ends(4);
    bench.run(&["show", "00000000-0000-0000-0000-000000000000"]).ends(4);
    bench.run(&["show", "nonsense"]).ends(2);
}

#[test]
fn an_open_letter_whose_payload_was_not_stored_says_so() {
    let dead_letter = DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() };
    let bench = Bench::with(Setup { dead_letter, ..Setup::default() });
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let detail = bench.run(&["show", "message:m-1", "-o", "json"]).ends(0).json();
    assert_eq!((&detail["state"], &detail["content"]["payload-state"]), (&"dead".into(), &"left-out".into()));
    let shown = bench.run(&["show", "message:m-1"]).ends(0).out;
    assert!(shown.contains("--- payload (0 bytes"), "{shown}");
    assert!(shown.contains("\nnot stored: the consumer has include-payload: false\n"), "{shown}");
    for wrong in ["tombstone", "was closed", "hidden"] {
        assert!(!shown.contains(wrong), "{shown}");
    }
    let none = bench.run(&["show", "message:m-1", "--payload"]).ends(4);
    assert!(none.out.is_empty(), "{}", none.out);
    assert!(none.err.contains("it was not stored: the consumer has include-payload: false"), "{}", none.err);
}

#[test]
fn a_letter_is_shown_by_a_query_that_matches_it_alone() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad")], 2);
    let shown = bench.run(&["show", "message:m-2", "-o", "json"]).ends(0).json();
    assert_eq!(shown["message"]["id"], "m-2");
    let several = bench.run(&["show", "reason:DOMAIN_INVALID"]).ends(2);
    assert!(several.err.contains("several letters match"), "{}", several.err);
    let none = bench.run(&["show", "message:m-3"]).ends(4);
    assert!(none.err.contains("no letter matches"), "{}", none.err);
    // A closed letter is found as well; open ones take precedence.
    bench.run(&["evict", "message:m-2", "--reason", "x", "--yes", "--wait"]).ends(0);
    let closed = bench.run(&["show", "message:m-2", "-o", "json"]).ends(0).json();
    assert_eq!((&closed["message"]["id"], &closed["state"]), (&"m-2".into(), &"evicted".into()));
    let open = bench.run(&["show", "reason:DOMAIN_INVALID", "-o", "json"]).ends(0).json();
    assert_eq!(open["message"]["id"], "m-1");
    bench.run(&["show", "message:m-2 state:open"]).ends(4);
    bench.run(&["show", "mesage:m-2"]).ends(2);
}

#[test]
fn continuation_lines_of_an_error_are_indented() {
    let bench = Bench::new();
    // "bad", and a line that imitates Lazaret's output.
    let sent = serde_json::json!({"id": "m-1", "key": "a", "payload-base64": "YmFkCnN0YXRlICByZXNvbHZlZA=="});
    bench.letters(&[sent], 1);
    let shown = bench.run(&["show", "message:m-1"]).ends(0).out;
    assert!(shown.contains(": cannot take bad\n  state  resolved\n--- "), "{shown}");
}

#[test]
fn a_sequence_shows_its_head_and_waiting_letters() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "a", "good"), message("m-3", "a", "good")], 3);
    let shown = bench.run(&["seq", "orders", "a"]).ends(0);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[0].starts_with("a in orders/orders: 2 letters wait behind the head"), "{}", lines[0]);
    assert!(lines[2].starts_with("HEAD") && lines[2].contains("m-1"), "{}", lines[2]);
    assert!(lines[3].starts_with("+1") && lines[3].contains("m-2"), "{}", lines[3]);
    let sequence = bench.run(&["seq", "orders/orders", "a", "-o", "json"]).ends(0).json();
    assert_eq!((&sequence["size"], sequence["letters"].as_array().unwrap().len()), (&3.into(), 3));
    let none = bench.run(&["seq", "orders", "z"]).ends(4);
    assert!(none.err.starts_with("error: ") && none.err.contains("lazaret ls 'seq:z "), "{}", none.err);
}

#[test]
fn the_audit_log_is_listed_and_verified() {
    let bench = Bench::new();
    bench.run(&["pause", "orders", "--replay", "--reason", "a test"]).ends(0);
    bench.run(&["resume", "orders", "--replay", "--reason", "enough"]).ends(0);
    let entries = bench.run(&["audit", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(entries.len(), 2);
    assert_eq!(
        (&entries[0]["who"], &entries[0]["via"], &entries[0]["why"]),
        (&ada().into(), &"cli".into(), &"a test".into())
    );
    let table = bench.run(&["audit"]).ends(0);
    assert!(table.out.contains("a test") && table.err == "next: lazaret audit verify\n", "{table:?}");
    let last = bench.run(&["audit", "--last", "1", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(last, entries[1..]);
    let check = bench.run(&["audit", "verify", "-o", "json"]).ends(0).json();
    assert_eq!((&check["ok"], &check["intact"]), (&true.into(), &2.into()));
    assert!(bench.run(&["audit", "verify"]).ends(0).out.contains("intact, 2 entries"));
}

#[test]
fn tail_streams_events() {
    let bench = Bench::new();
    let child = bench.start_until(&["tail", "--kind", "letter-stored", "--limit", "1"], "streaming");
    bench.feed(&[message("m-1", "a", "bad")]);
    let out = ended(child).ends(0).out;
    assert!(out.contains("letter-stored") && out.contains("orders/orders"), "{out}");
    assert_eq!(out.lines().count(), 1);
    bench.run(&["tail", "--kind", "nonsense"]).ends(2);
}

#[test]
fn tail_resumes_after_a_broken_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked_after = Vec::new();
        for number in [5, 6] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut after = None;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(id) = line.to_lowercase().strip_prefix("last-event-id:") {
                    after = Some(id.trim().to_owned());
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            asked_after.push(after);
            let event =
                format!(r#"{{"kind":"consumer","at":"1970-01-01T00:00:0{number}Z","consumer":"c{number}"}}"#);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            write!(stream, "{head}retry: 1\n\n: hi\n\nid: {number}\nevent: consumer\ndata: {event}\n\n")
                .unwrap();
        }
        asked_after
    });
    let ran = finish(lazaret(&["--url", &url, "tail", "-o", "jsonl", "--limit", "2"]), "").ends(0);
    let consumers: Vec<_> = ran.lines().iter().map(|event| event["consumer"].clone()).collect();
    assert_eq!(consumers, ["c5", "c6"]);
    assert_eq!(server.join().unwrap(), [None, Some("5".to_owned())]);
}
