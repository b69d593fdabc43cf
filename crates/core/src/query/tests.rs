//! Grammar and matching, by table and by property.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::failure::{CauseLink, Failure, Phase, Reason};
use crate::message::{Message, Position};

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn plain(text: &str) -> String {
    Query::parse(text).unwrap_or_else(|error| panic!("{error}")).to_string()
}

#[test]
fn a_query_has_a_plain_form() {
    let table = [
        ("", ""),
        ("  \n\t ", ""),
        ("a", "a"),
        ("a b", "a b"),
        ("a and b AND c", "a b c"),
        ("a or b c", "a or b c"),
        ("a OR b Or c", "a or b or c"),
        ("(a or b) c", "(a or b) c"),
        ("((a))", "a"),
        ("(a b) c", "a b c"),
        ("(a or b) or c", "a or b or c"),
        ("-a", "-a"),
        ("not a", "-a"),
        ("NOT(a b)", "-(a b)"),
        ("-(a or b)", "-(a or b)"),
        ("--a", "--a"),
        ("not not a", "--a"),
        ("not -a b", "--a b"),
        ("\"or\"", "\"or\""),
        ("\"a b\"", "\"a b\""),
        ("\"-a\"", "\"-a\""),
        ("ABC", "abc"),
        ("a-b", "\"a-b\""),
        ("a*", "a*"),
        ("\"a*\"", "\"a*\""),
        ("queue:payments", "queue:payments"),
        ("QUEUE:Payments", "queue:Payments"),
        ("queue:a/b,c*", "queue:a/b,c*"),
        ("state:dead", "state:dead"),
        ("state:PARKED,dead", "state:dead,parked"),
        ("state:open", "state:retrying,dead,parked,quarantined,waiting"),
        ("state:closed,dead", "state:dead,resolved,evicted,skipped,expired"),
        ("reason:timeout", "reason:TIMEOUT"),
        ("phase:Handle,ex*", "phase:handle,ex*"),
        ("error:\"connection reset\"", "error:\"connection reset\""),
        ("error:\"say \\\"hi\\\" \\\\\"", "error:\"say \\\"hi\\\" \\\\\""),
        ("error:C:\\temp", "error:c:\\temp"),
        ("age:>1h", "age:>1h"),
        ("age:>=90s,<10ms", "age:>=1m30s,<10ms"),
        ("age:>\"1h 30m\"", "age:>1h30m"),
        ("attempts:3", "attempts:=3"),
        ("attempts:>=3,<1", "attempts:>=3,<1"),
        ("crashes:>0 replays:<=2", "crashes:>0 replays:<=2"),
        ("seq:order-7", "seq:order-7"),
        ("seq:~x:00ff", "seq:~x:00ff"),
        ("key:\"a,b\"", "key:\"a,b\""),
        ("key:\"\"", "key:\"\""),
        ("group:g1_4F1C", "group:g1_4f1c"),
        ("group:g_4f1c*", "group:g_4f1c"),
        ("group:g1_4f1c@orders/orders", "group:g1_4f1c@orders/orders"),
        ("poison:TRUE", "poison:true"),
        ("enqueued:>2026-01-31", "enqueued:>2026-01-31T00:00:00Z"),
        ("failed:<=2026-01-31T12:00:00+02:00", "failed:<=2026-01-31T10:00:00Z"),
        ("due:<+10m", "due:<+10m"),
        ("payload./customer/id:42", "payload./customer/id:42"),
        ("payload.\"/a b:c\":\"x y\"", "payload.\"/a b:c\":\"x y\""),
        ("Payload.:x", "payload.:x"),
        ("payload./total:>50", "payload./total:>50"),
        ("payload./total:>=-1.50,<1e3", "payload./total:>=-1.50,<1e3"),
        ("payload./total:=50", "payload./total:=50"),
        ("payload./total:>\"50\"", "payload./total:>50"),
        ("payload./total:\">50\"", "payload./total:\">50\""),
        ("payload./a=b:1", "payload./a=b:1"),
        ("type:\"=x\"", "type:\"=x\""),
        ("error:<html>", "error:<html>"),
        ("a=b", "\"a=b\""),
        ("order=7", "\"order=7\""),
        ("\"attempts>3\"", "\"attempts>3\""),
        ("<html>", "\"<html>\""),
        ("~empty", "\"~empty\""),
        ("header.Tenant:acme", "header.tenant:acme"),
        ("header.\"a:b\":acme", "header.\"a:b\":acme"),
        ("\"x\" or y", "x or y"),
    ];
    for (text, expected) in table {
        assert_eq!(plain(text), expected, "{text}");
        assert_eq!(plain(expected), expected, "{text}");
        assert_eq!(Query::parse(text), Query::parse(expected), "{text}");
        assert_eq!(Query::parse(text).unwrap().text(), text);
    }
}

#[test]
fn or_binds_less_than_and() {
    let mixed = Query::parse("a b or c").unwrap();
    assert_eq!(mixed, Query::parse("(a b) or c").unwrap());
    assert_ne!(mixed, Query::parse("a (b or c)").unwrap());
    assert_ne!(Query::parse("-a b").unwrap(), Query::parse("-(a b)").unwrap());
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let table = [
        ("staet:dead", "staet", "there is no field staet", "did you mean state?"),
        ("a sequence:x", "sequence", "there is no field sequence", "did you mean seq?"),
        ("http://x", "http", "there is no field http", "put text with a colon into quotes"),
        ("payload:x", "payload", "there is no field payload", "write payload./json/pointer:value"),
        ("state:daed", "daed", "there is no state daed", "did you mean dead?"),
        ("state:dead,nope", "nope", "there is no state nope", "there are retrying"),
        ("phase:handel", "handel", "there is no phase handel", "did you mean handle?"),
        ("age:>1x", ">1x", "1x is not a duration", "durations look like"),
        ("age:>2026-01-01", ">2026-01-01", "2026-01-01 is not a duration", "durations look like"),
        ("age:1h", "1h", "age needs one of", "write age:>1h or age:<1h"),
        ("due:=1h", "=1h", "due needs one of", "write due:>1h"),
        ("failed:>soon", ">soon", "soon is neither a time nor a duration", "times look like"),
        ("attempts:many", "many", "many is not a number", "write attempts:3"),
        ("attempts:>-1", ">-1", ">-1 is not a number", "write attempts:3"),
        ("poison:maybe", "maybe", "poison is true or false", ""),
        ("group:4f1c", "4f1c", "4f1c is not the name of a group", "groups look like"),
        ("group:g1_xyz", "g1_xyz", "g1_xyz is not the name of a group", "groups look like"),
        ("error:\"abc", "\"", "this quote is never closed", ""),
        ("é \"abc\\", "\\", "a backslash stands alone", "in quotes"),
        ("\"a\\n\"", "\\n", "a backslash stands alone", "in quotes"),
        ("(a or b", "(", "this bracket is never closed", "quotes"),
        ("a ) b", ")", "this bracket closes nothing", "quotes"),
        ("a ()", "()", "nothing stands between these brackets", "quotes"),
        ("or a", "or", "nothing stands on the left of this or", "quotes"),
        ("a or", "or", "nothing stands on the right of this or", "quotes"),
        ("(a or) b", "or", "nothing stands on the right of this or", "quotes"),
        ("and a", "and", "nothing stands on the left of this and", "quotes"),
        ("a and", "and", "nothing stands on the right of this and", "quotes"),
        ("a and or b", "and", "nothing stands on the right of this and", "quotes"),
        ("not", "not", "this not stands before nothing", "quotes"),
        ("a not or b", "not", "this not stands before nothing", "quotes"),
        ("- a", "-", "this - stands before nothing", "directly before"),
        ("type:", "", "a value for type is missing here", ""),
        ("type:a,", "", "a value for type is missing here", ""),
        ("\"\"", "\"\"", "there is nothing to look for", ""),
        ("error:\"\"", "\"\"", "there is nothing to look for", ""),
        ("ab\"c\"", "\"", "a quote stands inside a word", "whole text in quotes"),
        ("error:f(x)", "(", "a bracket stands directly after a word", "quotes"),
        ("\"a\"b", "b", "a space is missing after the quote", "for a quote inside"),
        ("payload.a.b:1", "payload.a.b", "a JSON pointer begins with /", "write payload./a/b:value"),
        ("payload./a~:1", "payload./a~", "a ~ stands alone", "write ~0"),
        ("payload./a", "payload./a", "a colon and a value are missing here", "payload./pointer:value"),
        ("header.:x", "header.", "the name of the header is missing here", "header.NAME"),
        ("type:>x", ">x", "type is text, and > does not apply to it", "type:\">x\""),
        ("a type:=x", "=x", "type is text, and = does not apply to it", "write type:x, or"),
        ("header.Tenant:<5", "<5", "header.Tenant is text, and <", "header.Tenant:\"<5\""),
        ("payload./a:>abc", ">abc", "abc is not a number", "numbers look like 50"),
        ("payload./a:>1h", ">1h", "1h is not a number", "numbers look like 50"),
        ("payload./a:> 50", ">", "a number is missing here", "directly after the operator"),
        ("attempts: >3", "", "a value for attempts is missing here", "directly after the colon"),
        ("attempts :3", ":", "a field is missing before this colon", "write field:value"),
    ];
    for (text, place, message, hint) in table {
        let error = Query::parse(text).expect_err(text);
        assert_eq!(&text[error.position()], place, "{error}");
        assert!(error.message().starts_with(message), "{error}");
        assert_eq!(error.hint().is_none(), hint.is_empty(), "{error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{error}");
    }
}

#[test]
fn a_term_of_another_language_is_not_searched_as_text() {
    let table = [
        ("attempts>3", "attempts>3", "a colon is missing between attempts", "did you mean attempts:>3?"),
        ("a Attempts>=3 b", "Attempts>=3", "a colon is missing", "did you mean attempts:>=3?"),
        ("attempt>3", "attempt>3", "a colon is missing between attempts", "did you mean attempts:>3?"),
        ("age>1h", "age>1h", "a colon is missing between age", "did you mean age:>1h?"),
        ("age=1h", "age=1h", "a colon is missing between age", "did you mean age:>1h?"),
        ("state=dead", "state=dead", "a colon is missing between state", "did you mean state:dead?"),
        ("state==dead", "state==dead", "a colon is missing between state", "did you mean state:dead?"),
        ("status=dead", "status=dead", "a colon is missing between state", "did you mean state:dead?"),
        ("-state=dead", "state=dead", "a colon is missing between state", "did you mean state:dead?"),
        ("state!=dead", "state!=dead", "a colon is missing between state", "did you mean -state:dead?"),
        ("type=~Charge", "type=~Charge", "a colon is missing between type", "did you mean type:*Charge*?"),
        ("reason=\"TIMEOUT\"", "reason=", "a colon is missing between reason", "write reason:value"),
        ("payload./total>50", "payload./total>50", "a colon is missing", "did you mean payload./total:>50?"),
        ("payload./a=b", "payload./a=b", "a colon is missing", "did you mean payload./a:b?"),
        (
            "header.tenant=acme",
            "header.tenant=acme",
            "a colon is missing",
            "did you mean header.tenant:acme?",
        ),
        (
            "failed>2026-01-31T12:00:00Z",
            "failed>2026-01-31T12:00:00Z",
            "a colon is missing between failed",
            "did you mean failed:>2026-01-31T12:00:00Z?",
        ),
        ("attempts> 3", "attempts>", "a colon is missing between attempts", "did you mean attempts:>3?"),
        ("attempts > 3", ">", "this > stands alone", "did you mean attempts:>3?"),
        ("(attempts >3)", ">3", "a space stands between attempts and its value", "did you mean attempts:>3?"),
        ("state == dead", "==", "this == stands alone", "did you mean state:dead?"),
        ("a = b", "=", "this = stands alone", "write field:value"),
    ];
    for (text, place, message, hint) in table {
        let error = Query::parse(text).expect_err(text);
        assert_eq!(&text[error.position()], place, "{error}");
        assert!(error.message().starts_with(message), "{error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{error}");
    }
}

#[test]
fn numbers_of_a_payload_are_compared_by_value() {
    let message = Message::new("m", "s", Position::new(0, 0)).with_payload(
        r#"{"total": 50.10, "id": 9007199254740993, "amount": "75.00", "name": "x9", "list": [60], "yes": true, "no": null}"#,
    );
    let letter = Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), now());
    let table = [
        ("payload./total:>50", true),
        ("payload./total:>50.1", false),
        ("payload./total:>=50.1", true),
        ("payload./total:=50.1", true),
        ("payload./total:50.1", false),
        ("payload./total:<1e2", true),
        ("payload./total:<5,>50", true),
        ("-payload./total:>50", false),
        ("payload./id:>9007199254740992", true),
        ("payload./id:=9007199254740992", false),
        ("payload./amount:>50", true),
        ("payload./list/0:>50", true),
        ("payload./list:>50", false),
        ("payload./name:>0", false),
        ("payload./yes:>0", false),
        ("payload./no:<1", false),
        ("payload./missing:<1", false),
    ];
    for (text, expected) in table {
        assert_eq!(matches(text, &letter), expected, "{text}");
    }
}

#[test]
fn length_and_depth_are_limited() {
    // I7
    let long = format!("{} ", "a".repeat(LENGTH_LIMIT - 1));
    assert!(Query::parse(&long).is_ok());
    let error = Query::parse(&format!("{long}é")).unwrap_err();
    assert_eq!(error.position(), LENGTH_LIMIT..LENGTH_LIMIT + 2);
    let nested = |depth| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Query::parse(&nested(DEPTH_LIMIT)).is_ok());
    assert_eq!(Query::parse(&nested(DEPTH_LIMIT + 1)).unwrap_err().position(), DEPTH_LIMIT..DEPTH_LIMIT + 1);
    assert!(Query::parse(&format!("{}a", "-".repeat(DEPTH_LIMIT))).is_ok());
    assert!(Query::parse(&format!("{}a", "-".repeat(DEPTH_LIMIT + 1))).is_err());
    assert!(Query::parse(&format!("{}a", "not ".repeat(1000))).is_err());
    // Depth counts nesting, not siblings.
    assert!(Query::parse(&"(a) -b ".repeat(60)).is_ok());
}

/// A letter in which every field that a query can name is set.
fn letter() -> Letter {
    let payload = r#"{"customer":{"id":42,"name":"Ann \"A\" Lee","vip":true,"note":null,"a/b":1.50},
        "items":[{"sku":"x-1"},{"sku":"y-2"}],"big":123456789012345678901234567890,"id":"1","id":"2"}"#;
    let mut message = Message::new("evt-1", "orders", Position::new(0, 7))
        .with_key("order-7")
        .with_type("ChargeCard")
        .with_header("Tenant", "acme")
        .with_payload(payload);
    message.headers.push("tenant", "globex");
    message.headers.push("binary", vec![0xff, 0x00]);
    let mut letter = Letter::new(
        QueueName::of("payments", "ledger"),
        "order-7".into(),
        message.into(),
        now() - Duration::from_secs(2 * 3600),
    );
    letter.state = LetterState::Dead;
    let mut cause = Failure::new(Reason::TIMEOUT, "HttpError", "Connection RESET by peer [50% of x_y]")
        .in_phase(Phase::ExternalCall);
    cause.chain.push(CauseLink { error_type: None, message: "os error 104".into() });
    letter.cause = Some(cause);
    (letter.attempts, letter.crash_attempts, letter.replay_attempts) = (5, 1, 0);
    letter.poison = true;
    letter.last_failed_at = Some(now() - Duration::from_secs(60));
    letter.due_at = Some(now() + Duration::from_secs(600));
    letter.owner = Some("payments-team".into());
    letter
}

/// A letter in which everything that may be missing is.
fn bare() -> Letter {
    let message = Message::new("evt-2", "orders", Position::new(0, 8));
    Letter::new(QueueName::of("payments", "payments"), "~m:evt-2".into(), message.into(), now())
}

fn matches(text: &str, letter: &Letter) -> bool {
    Query::parse(text).unwrap_or_else(|error| panic!("{error}")).matches(letter, now())
}

#[test]
fn each_field_matches_what_it_should() {
    let yes = [
        "",
        "queue:payments",
        "queue:payments/ledger",
        "queue:pay*",
        "consumer:payments",
        "stream:orders",
        "state:dead",
        "state:open",
        "state:parked,dead",
        "type:ChargeCard",
        "type:Charge*",
        "type:*Card",
        "reason:TIMEOUT",
        "reason:time*",
        "phase:external-call",
        "error:\"connection reset\"",
        "error:HTTPERROR",
        "error:\"OS error\"",
        "error:connection*peer*",
        "error:50%",
        "error:x_y",
        "age:>1h",
        "age:<3h",
        "age:>=2h",
        "age:<=2h",
        "attempts:>=3",
        "attempts:5",
        "attempts:1,5",
        "crashes:>0",
        "replays:0",
        "seq:order-7",
        "seq:order-*",
        "key:order-7",
        "message:evt-1",
        "message:evt-*",
        "owner:payments-team",
        "owner:*",
        "poison:true",
        "enqueued:<1h",
        "enqueued:>3h",
        "enqueued:>=2026-03-01",
        "enqueued:<2026-03-01T10:00:01Z",
        "failed:>5m",
        "due:>0s",
        "due:<+10m,<=+10m",
        "due:<+11m",
        "payload./customer/id:42",
        "payload./customer/id:4*",
        "payload./customer/id:*",
        "payload./customer/name:\"Ann \\\"A\\\" Lee\"",
        "payload./customer/vip:true",
        "payload./customer/note:null",
        "payload./customer/a~1b:1.50",
        "payload./customer:*",
        "payload./items/1/sku:y-2",
        "payload./big:123456789012345678901234567890",
        "payload./id:2",
        "header.tenant:acme",
        "header.TENANT:globex",
        "header.binary:*",
        "reset",
        "httperror",
        "timeout",
        "EVT-1",
        "order",
        "evt-*",
        "a or reset",
        "(zzz or reset) -yyy",
        "-state:parked",
        "-(zzz or yyy)",
        "not assignee:*",
    ];
    for text in yes {
        assert!(matches(text, &letter()), "{text}");
        if !text.is_empty() {
            assert!(!matches(&format!("state:open -({text})"), &letter()), "-({text})");
        }
    }
    let no = [
        "queue:pay",
        "queue:ledger",
        "consumer:payments/ledger",
        "stream:order",
        "state:parked",
        "state:closed",
        "type:charge*",
        "type:Charge",
        "type:\"Charge*\"",
        "reason:TIME",
        "phase:handle",
        "error:refused",
        "error:connection*reset",
        "age:>2h",
        "age:<2h",
        "attempts:>5",
        "attempts:1,2",
        "crashes:0",
        "replays:>0",
        "seq:order",
        "key:evt-1",
        "message:evt",
        "owner:payments",
        "assignee:*",
        "poison:false",
        "enqueued:>1h",
        "failed:<5m",
        "due:<0s",
        "due:<+10m",
        "payload./customer/id:4",
        "payload./customer/id:42.0",
        "payload./customer/a~1b:1.5",
        "payload./customer:x",
        "payload./customer/name/x:1",
        "payload./items/01/sku:y-2",
        "payload./items/2/sku:*",
        "payload./id:1",
        "payload./nothing:*",
        "payload.:x",
        "header.tenant:acm",
        "header.other:*",
        "header.binary:x",
        "ledger",
        "zzz",
        "reset zzz",
        "-reset",
        "-(reset or zzz)",
    ];
    for text in no {
        assert!(!matches(text, &letter()), "{text}");
    }
}

#[test]
fn a_letter_id_and_a_group_are_found_by_their_beginning() {
    let letter = letter();
    let id = letter.id.to_string();
    let group = letter.cause.as_ref().unwrap().fingerprint.to_string();
    for text in [
        format!("id:{id}"),
        format!("id:{}", id.to_uppercase()),
        format!("id:{}*", &id[..8]),
        id[4..12].to_owned(),
        format!("group:{group}"),
        format!("group:{}", &group[..6]),
        format!("group:g_{}", &group[3..6]),
        format!("group:{group}@payments/ledger"),
        "group:g1_".to_owned(),
    ] {
        assert!(matches(&text, &letter), "{text}");
    }
    for text in [
        format!("id:{}", &id[..8]),
        format!("group:g2_{}", &group[3..]),
        format!("group:{group}@payments/payments"),
    ] {
        assert!(!matches(&text, &letter), "{text}");
    }
}

#[test]
fn what_a_letter_does_not_have_matches_nothing() {
    let bare = bare();
    let absent = [
        "type:*",
        "reason:*",
        "phase:*",
        "error:*",
        "key:*",
        "owner:*",
        "assignee:*",
        "group:g1_",
        "failed:>2000-01-01",
        "due:>2000-01-01",
        "payload.:*",
        "header.x:*",
    ];
    for text in absent {
        assert!(!matches(text, &bare), "{text}");
        assert!(matches(&format!("-{text}"), &bare), "-{text}");
    }
}

#[test]
fn keys_are_found_as_they_are_and_as_they_are_shown() {
    let mut letter = bare();
    for (key, queries) in [
        (&b""[..], &["key:\"\"", "key:~empty"][..]),
        (b"a\0b", &["key:\"a\0b\"", "key:~x:610062"]),
        (b"\xff", &["key:~x:ff", "key:~x:*"]),
        (b"order-7", &["key:order-7"]),
    ] {
        let message = Message::new("evt-2", "orders", Position::new(0, 8)).with_key(key.to_vec());
        letter.message = message.into();
        for query in queries {
            assert!(matches(query, &letter), "{query:?}");
        }
    }
}

#[test]
fn a_payload_that_is_no_json_matches_no_pointer() {
    let mut letter = letter();
    for payload in ["", "{", "{\"a\":1} x", "{\"a\":1,}", "\u{feff}{\"a\":1}"] {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload(payload);
        letter.message = message.into();
        assert!(!matches("payload./a:*", &letter), "{payload}");
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    letter.message = Message::new("m", "s", Position::new(0, 0)).with_payload(deep).into();
    assert!(!matches(&format!("payload.{}:1", "/0".repeat(1000)), &letter));
}

#[test]
fn closed_letters_match_only_where_a_state_is_named() {
    let mut letter = letter();
    letter.state = LetterState::Resolved;
    assert!(!matches("", &letter) && !matches("reset", &letter));
    assert!(matches("state:resolved", &letter) && matches("state:closed reset", &letter));
    assert!(matches("-state:dead", &letter), "a state that is excluded is named, too");
    let names = |text| Query::parse(text).unwrap().names_state();
    assert!(names("state:dead") && names("a or -(b state:open)") && !names("type:state"));
    let open = |text| Query::parse(text).unwrap().is_about_open();
    assert!(open("") && open("a or b") && open("state:dead,open x"));
    assert!(!open("state:dead or x") && !open("-state:dead") && !open("state:dead,expired"));
}

#[test]
fn queue_and_state_are_decided_without_a_letter() {
    let text = "(queue:pay* -state:dead) or consumer:orders state:closed";
    let query = Query::parse(text).unwrap();
    for queue in ["payments/ledger", "orders/orders", "other/orders"].map(QueueName::from) {
        for state in LetterState::ALL {
            let letter = Letter { queue: queue.clone(), state, ..letter() };
            assert_eq!(query.matches_all_of(&queue, state), Some(query.matches(&letter, now())));
        }
    }
    assert_eq!(Query::everything().matches_all_of(&"a/a".into(), LetterState::Evicted), Some(false));
    let more = Query::parse("queue:a or x").unwrap();
    assert_eq!(more.matches_all_of(&"a/a".into(), LetterState::Dead), None);
}

/// Text that looks like a query, with every sign that means something.
fn text_like_a_query() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(" ".to_owned()),
        "[()\"\\\\:,*-]",
        "(or|AND|not|state:dead|type:|age:>1h|payload\\./|header\\.|group:g1_|error:|attempts|<|>=|=|!=)",
        "[a-zA-Z0-9é日ΑΣİß]{1,3}",
        "\\PC",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// Any tree, made by writing it down.
fn any_query() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[a-zA-Z0-9é*/_.-]{1,6}",
        "[<>=]=?-?[0-9]{1,4}(\\.[0-9]{1,2})?",
        "[^\"\\\\]{1,6}".prop_map(|text| format!("\"{text}\"")),
        Just("\"q\\\"\\\\\"".to_owned()),
    ];
    let field = prop::sample::select(vec![
        "id",
        "queue",
        "consumer",
        "stream",
        "type",
        "reason",
        "error",
        "seq",
        "key",
        "message",
        "owner",
        "assignee",
        "payload./a/b",
        "payload.\"/x y\"",
        "header.h",
        "header.\"h:\"",
    ]);
    let term = prop_oneof![
        (field, prop::collection::vec(value.clone(), 1..3))
            .prop_map(|(field, any)| format!("{field}:{}", any.join(","))),
        value.prop_map(|text| text.trim_start_matches('-').to_owned()),
        prop::sample::select(vec!["state:open", "attempts:>3", "age:<1h", "due:>+5m", "poison:true"])
            .prop_map(str::to_owned),
    ];
    term.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| format!("({})", all.join(" "))),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|any| format!("({})", any.join(" or "))),
            inner.prop_map(|one| format!("not {one}")),
        ]
    })
}

proptest! {
    #[test]
    fn reading_never_panics_and_what_it_reads_it_writes(text in text_like_a_query()) {
        match Query::parse(&text) {
            Ok(query) => {
                prop_assert_eq!(&Query::parse(query.text()).unwrap(), &query);
                let plain = query.to_string();
                prop_assert_eq!(Query::parse(&plain), Ok(query.clone()), "{}", plain);
                _ = query.matches(&letter(), now());
            }
            Err(error) => {
                prop_assert!(text.get(error.position()).is_some());
                let told = error.to_string();
                prop_assert_eq!(told.lines().count(), 3, "{}", told);
                prop_assert!(told.chars().all(|c| c == '\n' || !c.is_control()));
            }
        }
    }

    #[test]
    fn reading_any_text_never_panics(text in any::<String>()) {
        if let Err(error) = Query::parse(&text) {
            prop_assert!(text.get(error.position()).is_some());
        }
    }

    #[test]
    fn the_plain_form_reads_back(text in any_query()) {
        if let Ok(query) = Query::parse(&text) {
            let plain = query.to_string();
            prop_assert_eq!(Query::parse(&plain), Ok(query), "{} as {}", text, plain);
        }
    }

    #[test]
    fn a_widened_query_matches_whatever_is_left_out(text in any_query(), values in any::<u64>()) {
        if let Ok(query) = Query::parse(&text) {
            let left_out = |term: &Term| matches!(term, Term::Error(_) | Term::Free(_) | Term::Text(..));
            let widened = query.widened(&left_out);
            prop_assert!(!widened.expr().any_term(&left_out), "{} as {}", text, widened);
            for letter in [letter(), bare()] {
                let place = std::cell::Cell::new(0);
                // Any values of the terms that are left out.
                let holds = query.expr().evaluate(&|term| {
                    place.set(place.get() + 1);
                    if left_out(term) { (values >> (place.get() % 64)) & 1 == 1 } else { term.matches(&letter, now()) }
                });
                let open = query.names_state() || letter.state.is_open();
                prop_assert!(!(holds && open) || widened.matches(&letter, now()), "{} as {}", text, widened);
            }
        }
    }

    #[test]
    fn a_negated_query_matches_the_other_letters(text in any_query()) {
        let not = format!("state:open -({text})");
        if let (Ok(query), Ok(not)) = (Query::parse(&format!("state:open ({text})")), Query::parse(&not)) {
            for letter in [letter(), bare()] {
                prop_assert_ne!(query.matches(&letter, now()), not.matches(&letter, now()));
            }
        }
    }
}

#[test]
fn the_number_of_terms_is_bounded() {
    // I7
    let many = |term: &str, count: usize| vec![term; count].join(" or ");
    assert!(Query::parse(&many("a", TERMS_LIMIT)).is_ok());
    let refused = Query::parse(&many("a", TERMS_LIMIT + 1)).unwrap_err();
    assert!(refused.message().contains("129 terms"), "{refused}");
    for term in ["payload./a:1", "header.a:1"] {
        assert!(Query::parse(&many(term, PAYLOAD_TERMS_LIMIT)).is_ok());
        assert!(Query::parse(&many(term, PAYLOAD_TERMS_LIMIT + 1)).is_err(), "{term}");
    }
}
