//! Fuzz targets: the query language and JSON Lines.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lazaret_core::query::{LENGTH_LIMIT, Query};
use lazaret_core::source::{NewMessage, jsonl};
use lazaret_core::{
    Failure, Letter, LetterState, Message, MessageId, Position, QueueName, Reason, Timestamp,
};
use lazaret_fuzz::{Fuzz, Shape};
use serde_json::{Map, Value};

fn letters() -> Vec<Letter> {
    let message = |id: &str| Message::new(id, "orders", Position::new(0, 41));
    let letter = |message: Message| {
        let queue = QueueName::of("payments", "charge");
        Letter::new(queue, "order-7".into(), message.into(), Timestamp::UNIX_EPOCH)
    };
    let plain = letter(message("m-1"));
    let rich = message("m-2").with_key("order-7").with_type("ChargeCard").with_header("tenant", "acme");
    let mut rich = letter(rich.with_payload(r#"{"customer":{"id":42,"tags":["a",null]}}"#));
    rich.state = LetterState::Dead;
    rich.cause = Some(Failure::new(Reason::TIMEOUT, "DbError", "connection reset"));
    rich.owner = Some("team".into());
    vec![plain, rich]
}

/// Checks that an error has a place inside of the text, and is safe to print.
fn check_error(text: &str, error: &lazaret_core::query::QueryError) -> Result<(), String> {
    let at = error.position();
    let is_inside = at.start <= at.end && text.get(at).is_some();
    let is_safe = error.to_string().chars().all(|c| c == '\n' || !c.is_control());
    match is_inside && is_safe && !error.message().is_empty() {
        true => Ok(()),
        false => Err(format!("an error without a place: {error:?}")),
    }
}

fn query_target() -> Fuzz {
    let corpus = [
        "queue:payments state:dead type:Charge* reason:TIMEOUT error:\"connection reset\" age:>1h attempts:>=3",
        "seq:order-7 group:g1_4f1c payload./customer/id:42 header.tenant:acme (a or b) -x",
        "reason:timeout  (age:>90s OR not owner:*)",
        "id:00112233445566778899aabbccddeeff state:open,closed",
        "a \"b c\" (d (e or f) -(g h)) or not (i -j)",
        "enqueued:>2026-01-01 due:<2026-01-01T00:00:00Z age:<=1d12h attempts:3..7",
        "payload./a~1b/~0/0:\"x y\" header.\"a b\":c* key:\"\" poison:true",
        "payload./customer/id:>=41.5,<1e2 -payload./total:=0",
        "queue:payments state:dead",
        "state:open,closed or queue:other",
    ];
    let words = [
        "state:",
        "queue:",
        "reason:",
        "type:",
        "payload./",
        "header.",
        "age:>",
        "attempts:>=",
        "or",
        "not",
        "-",
        "(",
        ")",
        "*",
        "\"",
        ":",
        ",",
        "\\",
        "..",
        "id:",
        "group:g1_",
        "owner:*",
        "due:<",
        "enqueued:",
        "stream:",
        " -state:dead ",
        " -state:open ",
        " -queue:other ",
        " state:waiting ",
    ];
    Fuzz::target("query").corpus(corpus).words(words).shape(Shape::Text)
}

/// A check of queries that are printed by `print` and counted by `counts`: whether all letters of a queue in a state match.
fn query_check(
    print: impl Fn(&Query) -> String,
    counts: impl Fn(&Query, &Letter) -> Option<bool>,
) -> impl Fn(&[u8]) -> Result<(), String> {
    let (letters, now) = (letters(), Timestamp::from_second(1_000_000).unwrap());
    move |input| {
        let text = String::from_utf8_lossy(input);
        let query = match Query::parse(&text) {
            Ok(query) => query,
            Err(error) => return check_error(&text, &error),
        };
        let plain = print(&query);
        // The plain form may be longer than what was written, and beyond the limit.
        if plain.len() > LENGTH_LIMIT {
            return Ok(());
        }
        let again = Query::parse(&plain).map_err(|error| format!("printed as {plain:?}: {error}"))?;
        if again != query || print(&again) != plain {
            return Err(format!("{query:?} is printed as {plain:?}, which is {again:?}"));
        }
        for letter in &letters {
            let matches = query.matches(letter, now);
            if matches != again.matches(letter, now) {
                return Err(format!("{plain:?} matches other letters"));
            }
            if counts(&query, letter).is_some_and(|all| all != matches) {
                return Err(format!("{plain:?} counts other letters than it matches"));
            }
        }
        Ok(())
    }
}

fn counts(query: &Query, letter: &Letter) -> Option<bool> {
    query.matches_all_of(&letter.queue, letter.state)
}

#[test]
fn query() {
    query_target().run(query_check(Query::to_string, counts));
}

#[test]
fn planted_bugs_of_queries_are_found() {
    // Escapes are lost in print.
    query_target().finds(query_check(|query| query.to_string().replace("\\\\", "\\"), counts));
    // What is excluded is counted.
    query_target().finds(query_check(Query::to_string, |query, letter| {
        counts(query, letter).map(|all| all != query.to_string().contains('-'))
    }));
}

/// Writes a message as a line.
fn line(message: &NewMessage) -> Vec<u8> {
    let mut members = Map::new();
    let mut put = |name: &str, value: Option<&str>| {
        value.map(|value| members.insert(name.to_owned(), Value::String(value.to_owned())));
    };
    put("id", message.id.as_ref().map(MessageId::as_str));
    put("key", message.key.as_ref().map(|key| std::str::from_utf8(key).unwrap()));
    put("type", message.event_type.as_deref());
    put("time", message.timestamp.map(|time| time.to_string()).as_deref());
    put("content-type", message.content_type.as_deref());
    put("correlation", message.correlation.as_deref());
    put("payload-base64", message.payload.as_ref().map(|payload| STANDARD.encode(payload)).as_deref());
    let mut text = serde_json::to_string(&members).unwrap();
    // Written by hand: a map would lose repeated headers.
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let pair = |(name, value): (&str, &Bytes)| {
        format!("{}:{}", quoted(name), quoted(std::str::from_utf8(value).unwrap()))
    };
    let headers: Vec<String> = message.headers.iter().map(pair).collect();
    text.pop();
    text += if members.is_empty() { "" } else { "," };
    text += &format!("\"headers\":{{{}}}}}", headers.join(","));
    text.into_bytes()
}

fn json_lines_target() -> Fuzz {
    let corpus = [
        r#"{"id":"e-1","key":"order-7","type":"OrderPlaced","headers":{"a":"b","a":"c"},"time":"2026-01-01T00:00:00Z","payload":{"total":1.10}}"#,
        r#"{"payload":null}"#,
        r#"{"payload-base64":"AP8=","content-type":"application/octet-stream","correlation":"c-1","id":null}"#,
        r#"  {"payload": [1, 2,  {"a": "\ud83e\udd80\u0000"}], "other": {"ignored": true}}  "#,
    ];
    let words =
        ["payload", "payload-base64", "id", "key", "headers", "content-type", "time", "AA==", "A", "\\u0000"];
    Fuzz::target("json-lines").corpus(corpus).words(words).shape(Shape::Json)
}

/// A check of lines that are parsed by `parse`.
fn json_lines_check(parse: impl Fn(Bytes) -> NewMessage) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        let raw = Bytes::copy_from_slice(input);
        let message = parse(raw.clone());
        if let Some(why) = &message.undecodable {
            let kept = message.payload.as_ref() == Some(&raw);
            return if kept && !why.is_empty() { Ok(()) } else { Err("the raw bytes are lost".into()) };
        }
        if message.id.as_ref().is_some_and(|id| id.as_str().is_empty()) {
            return Err("an empty id".into());
        }
        let mut again = parse(line(&message).into());
        // Bytes have no media type of their own.
        again.content_type = again.content_type.or_else(|| message.content_type.clone());
        if again == message { Ok(()) } else { Err(format!("{message:?} became {again:?}")) }
    }
}

#[test]
fn json_lines() {
    json_lines_target().run(json_lines_check(jsonl::message));
}

#[test]
fn planted_bugs_of_json_lines_are_found() {
    // The bytes of a line that cannot be decoded are kept without the spaces around them.
    json_lines_target().finds(json_lines_check(|raw| {
        let mut message = jsonl::message(raw);
        if message.undecodable.is_some() {
            message.payload = message.payload.map(|payload| Bytes::copy_from_slice(payload.trim_ascii()));
        }
        message
    }));
    // An empty id is an id.
    json_lines_target().finds(json_lines_check(|raw| {
        let text = String::from_utf8_lossy(&raw).replacen(r#""id":"""#, r#""id":null"#, 1);
        let is_empty = text.as_bytes() != raw;
        let message = jsonl::message(if is_empty { text.into() } else { raw });
        if is_empty { NewMessage { id: Some("".into()), ..message } } else { message }
    }));
}
