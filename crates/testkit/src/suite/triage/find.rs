//! Finding and counting letters with a query.

use std::collections::BTreeSet;
use std::sync::Arc;

use lazaret_core::failure::{CauseLink, Failure, Phase};
use lazaret_core::query::{DEPTH_LIMIT, LENGTH_LIMIT, PAYLOAD_TERMS_LIMIT, Query, TERMS_LIMIT};
use lazaret_core::store::{
    Act, ErrorKind, HandOff, Limits, Matches, Placed, Placement, Requeue, Settlement, Store,
};
use lazaret_core::{Letter, LetterId, LetterState, Message, Position, QueueName, Reason};

use crate::suite::letters::{Fixture, operator};
use crate::suite::{Backend, secs};

fn query(text: &str) -> Query {
    Query::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn queue() -> QueueName {
    QueueName::of("payments", "ledger")
}

/// A dead letter of this queue that stands alone in its sequence.
fn dead<S>(t: &Backend<S>, queue: &QueueName, id: &str) -> Letter {
    let message = Message::new(id, "orders", Position::new(0, 0)).with_key(id.to_owned()).with_payload("{}");
    with_message(t, queue, id, message)
}

fn with_message<S>(t: &Backend<S>, queue: &QueueName, sequence: &str, message: Message) -> Letter {
    let mut letter = Letter::new(queue.clone(), sequence.into(), message.into(), t.now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    letter.attempts = 1;
    letter.first_failed_at = Some(t.now());
    letter.last_failed_at = Some(t.now());
    letter
}

async fn put<S: Store>(t: &Backend<S>, letter: Letter) {
    let placement = if letter.state.is_open() { Placement::Open } else { Placement::Closed };
    let queue = letter.queue.clone();
    let item = HandOff { letter, placement, grant: None };
    let placed = t.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    assert!(!matches!(placed, Placed::Held(_) | Placed::NotOpen(_)), "{placed:?}");
}

/// All letters that match, page by page.
async fn find_all<S: Store>(t: &Backend<S>, query: &Query, limit: usize) -> Vec<Letter> {
    let (mut letters, mut after) = (Vec::new(), None);
    loop {
        let page = t.store.find(query, after.as_deref(), limit).await.unwrap();
        assert!(page.letters.len() <= limit, "a page holds at most its limit");
        letters.extend(page.letters);
        after = page.next;
        if after.is_none() {
            return letters;
        }
    }
}

/// The message ids of the letters that a query finds, and the check that it counts as many.
async fn found<S: Store>(t: &Backend<S>, text: &str) -> Vec<String> {
    let query = query(text);
    let letters = find_all(t, &query, 3).await;
    let counted = t.store.count(&query).await.unwrap();
    assert_eq!(counted, Matches { letters: letters.len() as u64, exact: true }, "{text}");
    letters.iter().map(|letter| letter.message.id.to_string()).collect()
}

/// Letters that differ in every field that can be asked for, a minute apart. The oldest is `plain`.
async fn world<S: Store>(t: &Backend<S>) -> Vec<Letter> {
    let ledger = queue();
    let mut letters = vec![dead(t, &ledger, "plain")];

    let mut message = Message::new("rich", "clicks", Position::new(1, 7))
        .with_key("order-7")
        .with_type("ChargeCard")
        .with_header("Tenant", "acme")
        .with_payload(r#"{"customer":{"id":42,"vip":true},"items":["a","b"],"note":null}"#);
    message.headers.push("tenant", "globex");
    let mut rich = with_message(t, &ledger, "order-7", message);
    let mut cause =
        Failure::new(Reason::CONFLICT, "DbError", "Connection RESET by peer").in_phase(Phase::ExternalCall);
    cause.chain.push(CauseLink { error_type: None, message: "os error 104".into() });
    rich.cause = Some(cause);
    rich.state = LetterState::Retrying;
    rich.due_at = Some(t.now() + secs(3600));
    (rich.attempts, rich.crash_attempts, rich.replay_attempts) = (5, 2, 3);
    rich.poison = true;
    rich.owner = Some("payments-team".into());
    rich.assignee = Some("ada".into());
    letters.push(rich);

    let mut follower = dead(t, &ledger, "follower");
    follower.sequence = "order-7".into();
    (follower.state, follower.cause, follower.attempts) = (LetterState::Waiting, None, 0);
    (follower.first_failed_at, follower.last_failed_at) = (None, None);
    letters.push(follower);

    let mut typed = dead(t, &QueueName::of("payments", "audit"), "typed");
    typed.message = Arc::new(Message::clone(&typed.message).with_type("ChargeRefunded"));
    typed.state = LetterState::Parked;
    letters.push(typed);

    let mut skipped = dead(t, &QueueName::of("shipping", "shipping"), "skipped");
    skipped.state = LetterState::Skipped;
    letters.push(skipped);

    letters.push(dead(t, &QueueName::of("shipping", "shipping"), "plain"));

    for letter in &letters {
        put(t, letter.clone()).await;
        t.advance(secs(60));
    }
    let mut stored = Vec::new();
    for letter in letters {
        stored.push(t.store.get(&letter.queue, letter.id).await.unwrap().unwrap());
    }
    stored
}

pub async fn an_empty_store_finds_nothing<S: Store>(t: Fixture<S>) {
    for text in ["", "state:closed", "type:x", "seq:x", "message:x", "x", "payload./a:1", "queue:payments"] {
        assert!(found(&t, text).await.is_empty(), "{text}");
    }
    put(&t, dead(&t, &queue(), "m")).await;
    for text in ["state:closed", "type:x", "seq:x", "message:x", "x", "payload./a:1", "queue:other", "id:x"] {
        assert!(found(&t, text).await.is_empty(), "{text}");
    }
}

pub async fn each_field_finds_its_letters<S: Store>(t: Fixture<S>) {
    let letters = world(&t).await;
    let rich = &letters[1];
    let group_of = |letter: &Letter| letter.cause.as_ref().unwrap().fingerprint.to_string();
    let (group, common) = (group_of(rich), group_of(&letters[0]));
    let own = [
        (format!("id:{}", rich.id), vec!["rich"]),
        (format!("id:{}*", &rich.id.to_string()[..9]), vec!["rich"]),
        (format!("group:{group}"), vec!["rich"]),
        (format!("group:{}", &group[..8]), vec!["rich"]),
        (format!("group:{group}@payments/audit"), vec![]),
        (format!("group:{group}@no/queue"), vec![]),
        (format!("group:{group}@payments/ledger"), vec!["rich"]),
        (format!("group:{group}@payments/ledger,{group}@payments/ledger"), vec!["rich"]),
        (format!("-group:{group}@payments/ledger"), vec!["plain", "typed", "follower", "plain"]),
        (format!("group:{common}@shipping/shipping state:open,closed"), vec!["plain", "skipped"]),
    ];
    let table = [
        ("", vec!["plain", "typed", "follower", "rich", "plain"]),
        ("queue:payments", vec!["typed", "follower", "rich", "plain"]),
        ("queue:payments/ledger", vec!["follower", "rich", "plain"]),
        ("queue:*/audit", vec!["typed"]),
        ("consumer:shipping", vec!["plain"]),
        ("stream:clicks", vec!["rich"]),
        ("state:dead", vec!["plain", "plain"]),
        ("state:skipped", vec!["skipped"]),
        ("state:open", vec!["plain", "typed", "follower", "rich", "plain"]),
        ("type:ChargeCard", vec!["rich"]),
        ("type:Charge*", vec!["typed", "rich"]),
        ("type:*Refunded", vec!["typed"]),
        ("-type:*", vec!["plain", "follower", "plain"]),
        ("reason:conflict", vec!["rich"]),
        ("reason:TIMEOUT,CONFLICT", vec!["plain", "typed", "rich", "plain"]),
        ("-reason:TIMEOUT", vec!["follower", "rich"]),
        ("phase:external-call", vec!["rich"]),
        ("error:\"connection reset\"", vec!["rich"]),
        ("error:\"OS ERROR\"", vec!["rich"]),
        ("error:dberror", vec!["rich"]),
        ("age:>4m", vec!["rich", "plain"]),
        ("age:<=2m", vec!["plain"]),
        ("attempts:>=3", vec!["rich"]),
        ("attempts:0", vec!["follower"]),
        ("crashes:2 replays:>2", vec!["rich"]),
        ("seq:order-7", vec!["follower", "rich"]),
        ("seq:order-*", vec!["follower", "rich"]),
        ("key:order-7", vec!["rich"]),
        ("message:plain", vec!["plain", "plain"]),
        ("message:plain queue:payments", vec!["plain"]),
        ("message:ri*", vec!["rich"]),
        ("owner:payments-team", vec!["rich"]),
        ("assignee:*", vec!["rich"]),
        ("poison:true", vec!["rich"]),
        ("enqueued:<5m", vec!["plain"]),
        ("failed:>2000-01-01 -failed:>2100-01-01", vec!["plain", "typed", "rich", "plain"]),
        ("due:<+2h", vec!["rich"]),
        ("due:<+10m", vec![]),
        ("payload./customer/id:42", vec!["rich"]),
        ("payload./items/1:b", vec!["rich"]),
        ("payload./customer/id:>41.99", vec!["rich"]),
        ("payload./customer/id:>=42,<0", vec!["rich"]),
        ("payload./customer/id:=42.0", vec!["rich"]),
        ("payload./customer/id:>42", vec![]),
        ("-payload./customer/id:<43", vec!["plain", "typed", "follower", "plain"]),
        ("header.tenant:globex", vec!["rich"]),
        ("HEADER.TENANT:ac*", vec!["rich"]),
        ("RESET", vec!["rich"]),
        ("(rich or typed) -reset", vec!["typed"]),
        ("state:skipped or type:ChargeCard", vec!["skipped", "rich"]),
    ];
    let table = table.into_iter().map(|(text, expected)| (text.to_owned(), expected));
    for (text, expected) in table.chain(own) {
        assert_eq!(found(&t, &text).await, expected, "{text}");
    }
}

pub async fn what_is_found_is_what_matches<S: Store>(t: Fixture<S>) {
    // Each of these alone, negated, and with each other.
    let terms = [
        "queue:payments",
        "consumer:shipping",
        "stream:orders",
        "state:dead",
        "state:closed",
        "type:ChargeCard",
        "type:Charge*",
        "type:*d",
        "type:C*d*",
        "reason:TIMEOUT",
        "reason:C*",
        "phase:handle",
        "error:boom",
        "age:>3m",
        "attempts:>0,<1",
        "crashes:0",
        "replays:>0",
        "seq:order-7",
        "seq:plain,order-7",
        "seq:p*",
        "key:plain",
        "message:plain,rich",
        "group:g1_",
        "owner:*",
        "poison:false",
        "poison:true,false",
        "enqueued:>2500-01-01",
        "enqueued:<9000-01-01",
        "failed:<2m",
        "due:>0s",
        "payload./customer/vip:true",
        "header.tenant:acme",
        "plain",
        "id:*",
        "id:zz*",
    ];
    let letters = world(&t).await;
    let now = t.now();
    let mut texts = Vec::new();
    for (n, one) in terms.iter().enumerate() {
        texts.extend([(*one).to_owned(), format!("-{one}"), format!("state:open,closed {one}")]);
        for other in &terms[n + 1..] {
            texts.push(format!("{one} -{other}"));
            texts.push(format!("{other} or -({one} state:open)"));
        }
    }
    for text in texts {
        let query = query(&text);
        let newest_first = letters.iter().rev().filter(|letter| query.matches(letter, now));
        let expected: Vec<&Letter> = newest_first.collect();
        let found = find_all(&t, &query, 100).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{text}");
        let counted = t.store.count(&query).await.unwrap();
        assert_eq!(counted, Matches { letters: expected.len() as u64, exact: true }, "{text}");
    }
}

pub async fn the_latest_taken_in_comes_first_whatever_its_queue<S: Store>(t: Fixture<S>) {
    // The clock stands still: the order is that of the calls.
    let queues = ["c", "a", "b"].map(|name| QueueName::of(name, name));
    let mut expected = Vec::new();
    for n in 0..12 {
        let id = format!("m{n}");
        put(&t, dead(&t, &queues[n % 3], &id)).await;
        expected.insert(0, id);
    }
    assert_eq!(found(&t, "").await, expected);
    assert_eq!(found(&t, "queue:c,b").await, ["m11", "m9", "m8", "m6", "m5", "m3", "m2", "m0"]);
}

pub async fn a_letter_is_found_as_it_is_stored<S: Store>(t: Fixture<S>) {
    let letters = world(&t).await;
    for (text, place) in [("message:rich", 1), ("state:skipped", 4), ("payload./customer/id:42", 1)] {
        let page = t.store.find(&query(text), None, 10).await.unwrap();
        assert_eq!((page.letters, page.next), (vec![letters[place].clone()], None), "{text}");
    }
}

pub async fn paging_shows_each_letter_once_while_others_come<S: Store>(t: Fixture<S>) {
    let texts = ["", "reason:TIMEOUT", "error:boom", "payload.:*", "queue:payments state:dead"];
    for (n, text) in texts.into_iter().enumerate() {
        let queue = QueueName::of("payments", &format!("q{n}"));
        let old: BTreeSet<String> = (0..23).map(|n| format!("old-{n}")).collect();
        for id in &old {
            put(&t, dead(&t, &queue, id)).await;
        }
        let query = query(&format!("{text} queue:{queue}"));
        let (mut seen, mut after, mut new) = (Vec::new(), None, 0);
        loop {
            let page = t.store.find(&query, after.as_deref(), 5).await.unwrap();
            seen.extend(page.letters.iter().map(|letter| letter.message.id.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
            put(&t, dead(&t, &queue, &format!("new-{new}"))).await;
            new += 1;
        }
        let shown: BTreeSet<String> = seen.iter().cloned().collect();
        assert_eq!(shown.len(), seen.len(), "no letter is shown twice: {text}");
        assert!(shown.is_superset(&old), "none is left out: {text}");
        assert!(new >= 4, "there were pages: {text}");
    }
}

pub async fn paging_goes_on_while_letters_are_closed<S: Store>(t: Fixture<S>) {
    let queue = queue();
    let ids: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
    let mut letters = Vec::new();
    for id in &ids {
        let letter = dead(&t, &queue, id);
        letters.push(letter.id);
        put(&t, letter).await;
    }
    let first = t.store.find(&Query::everything(), None, 3).await.unwrap();
    let shown: Vec<&str> = first.letters.iter().map(|letter| letter.message.id.as_str()).collect();
    assert_eq!(shown, ["m9", "m8", "m7"]);
    // The last one shown, and one that was not shown yet.
    for closed in [7, 5] {
        t.store.act(&queue, letters[closed], Act::Evict, &operator()).await.unwrap();
    }
    let second = t.store.find(&Query::everything(), first.next.as_deref(), 3).await.unwrap();
    let shown: Vec<&str> = second.letters.iter().map(|letter| letter.message.id.as_str()).collect();
    assert_eq!(shown, ["m6", "m4", "m3"]);
}

pub async fn a_page_holds_at_most_its_limit<S: Store>(t: Fixture<S>) {
    for n in 0..4 {
        put(&t, dead(&t, &queue(), &format!("m{n}"))).await;
    }
    for (limit, pages) in [(1, 4), (3, 2), (4, 1), (5, 1), (usize::MAX, 1)] {
        let (mut after, mut count) = (None, 0);
        loop {
            let page = t.store.find(&Query::everything(), after.as_deref(), limit).await.unwrap();
            assert!(page.letters.len() <= limit);
            count += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(count, pages, "in pages of {limit}");
    }
}

pub async fn an_unknown_cursor_is_refused<S: Store>(t: Fixture<S>) {
    put(&t, dead(&t, &queue(), "m")).await;
    for cursor in
        ["", " ", "no cursor of mine", "-1", "+1", "1 ", "1.5", "99999999999999999999999", "1;--", "\0"]
    {
        for text in ["", "type:x", "id:zz"] {
            let refused = t.store.find(&query(text), Some(cursor), 10).await;
            let refused = refused.expect_err("the store should have refused");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{cursor:?}");
        }
    }
}

pub async fn closed_letters_are_found_where_a_state_is_named<S: Store>(t: Fixture<S>) {
    let queue = queue();
    let mut ids = Vec::new();
    for id in ["open", "evicted", "resolved"] {
        let letter = dead(&t, &queue, id);
        ids.push(letter.id);
        put(&t, letter).await;
    }
    t.store.act(&queue, ids[1], Act::Evict, &operator()).await.unwrap();
    t.store.act(&queue, ids[2], Act::Resolve, &operator()).await.unwrap();
    let table = [
        ("", vec!["open"]),
        ("reason:TIMEOUT", vec!["open"]),
        ("message:resolved", vec![]),
        ("state:closed", vec!["resolved", "evicted"]),
        ("state:evicted", vec!["evicted"]),
        ("-state:open", vec!["resolved", "evicted"]),
        ("state:open,closed", vec!["resolved", "evicted", "open"]),
        ("state:closed reason:TIMEOUT", vec!["resolved", "evicted"]),
        ("state:closed seq:evicted", vec!["evicted"]),
        ("state:closed message:resolved", vec!["resolved"]),
        ("state:evicted or message:open", vec!["evicted", "open"]),
    ];
    for (text, expected) in table {
        assert_eq!(found(&t, text).await, expected, "{text}");
    }
    t.store.act(&queue, ids[1], Act::Restore, &operator()).await.unwrap();
    for text in ["", "reason:TIMEOUT", "state:dead"] {
        assert_eq!(found(&t, text).await, ["evicted", "open"], "{text}");
    }
    assert_eq!(found(&t, "seq:evicted").await, ["evicted"]);
}

pub async fn what_changes_is_found_as_it_is_now<S: Store>(t: Fixture<S>) {
    let letter = dead(&t, &queue(), "m");
    let sequence = letter.sequence.clone();
    put(&t, letter).await;
    put(&t, dead(&t, &queue(), "other")).await;
    let claim = t.store.claim(&queue(), &sequence, "worker", secs(30)).await.unwrap().unwrap();
    let requeue = Requeue {
        state: LetterState::Parked,
        cause: Some(Failure::new(Reason::CONFLICT, "DbError", "deadlock")),
        attempts: 7,
        ..Requeue::of(&claim.head)
    };
    t.store.settle(&claim.lease, claim.head.id, Settlement::Requeue(Box::new(requeue))).await.unwrap();
    for text in ["reason:CONFLICT", "state:parked", "attempts:7", "error:deadlock", "-reason:TIMEOUT"] {
        assert_eq!(found(&t, text).await, ["m"], "{text}");
    }
    for text in ["reason:TIMEOUT", "state:dead", "attempts:1", "error:boom"] {
        assert_eq!(found(&t, text).await, ["other"], "{text}");
    }
}

pub async fn hostile_text_is_data<S: Store>(t: Fixture<S>) {
    let hostile = [
        "a'b",
        "a\"b",
        "a'; DROP TABLE letters; --",
        "100%",
        "100x",
        "a_b",
        "axb",
        "a\\b",
        "a\\\\b",
        "a\0b",
        "a\0c",
        "a",
        "a*b",
        "[a]",
        "a?b",
        "$1 ?1 :x @y",
        "é日\u{10ffff}\u{d7ff}",
        "\u{1b}[31m",
        " a ",
    ];
    for (n, text) in hostile.iter().enumerate() {
        let message = Message::new(*text, *text, Position::new(0, n as u64))
            .with_key((*text).to_owned())
            .with_type(*text)
            .with_header("h", (*text).to_owned());
        put(&t, with_message(&t, &queue(), text, message)).await;
    }
    for text in hostile {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        for field in ["message", "stream", "type", "seq", "key", "header.h"] {
            let exact = found(&t, &format!("{field}:\"{escaped}\"")).await;
            assert_eq!(exact, [text], "{field}");
        }
        let within = found(&t, &format!("\"{escaped}\"")).await;
        assert!(within.iter().any(|id| id == text), "{text:?} is not among {within:?}");
    }
    let prefixed = |prefix: &str| -> Vec<String> {
        hostile.iter().rev().filter(|text| text.starts_with(prefix)).map(|text| (*text).to_owned()).collect()
    };
    for prefix in ["a", "100", "a\0", "é日\u{10ffff}", "[", "a\\"] {
        for field in ["message", "stream", "type", "seq"] {
            assert_eq!(
                found(&t, &format!("{field}:{prefix}*")).await,
                prefixed(prefix),
                "{field}:{prefix:?}"
            );
        }
    }
    assert_eq!(found(&t, "type:*\0c").await, ["a\0c"]);
}

pub async fn the_largest_queries_are_answered<S: Store>(t: Fixture<S>) {
    // I7: whatever the parser lets through, the store can take.
    put(&t, dead(&t, &queue(), "m")).await;
    let fill = |piece: &str, between: &str| {
        let count = (LENGTH_LIMIT - 40) / (piece.len() + between.len());
        vec![piece; count].join(between)
    };
    let terms = |piece: &str, between: &str| vec![piece; TERMS_LIMIT - 1].join(between);
    let numbers: Vec<String> = (0..990).map(|n| format!("{n:x}")).collect();
    let matching = [
        format!("message:{},m", numbers.join(",")),
        format!("type:{},x or seq:m", numbers.join(",")),
        format!("attempts:9,{},1", fill("9", ",")),
        format!("seq:x,{},m", fill("x", ",")),
        format!("message:{},m", fill("x", ",")),
        format!("type:{},x or message:m", fill("a*", ",")),
        format!("{} or seq:m", terms("seq:x", " or ")),
        terms("(-seq:x)", ""),
        terms("age:<1h", " "),
        format!("{} or state:dead", terms("due:>1s", " or ")),
        format!("{} or seq:m", vec!["payload./a:1"; PAYLOAD_TERMS_LIMIT].join(" or ")),
        format!("{}m{}", "(".repeat(DEPTH_LIMIT), ")".repeat(DEPTH_LIMIT)),
        format!("{}seq:m", "-".repeat(DEPTH_LIMIT)),
        terms("boom", " "),
    ];
    for text in matching {
        assert_eq!(found(&t, &text).await, ["m"], "{text}");
    }
}

pub async fn counts_are_exact_for_queues_and_states<S: Store>(t: Fixture<S>) {
    world(&t).await;
    let table = [
        ("", 5),
        ("queue:payments", 4),
        ("queue:payments/ledger", 3),
        ("consumer:shipping state:open,closed", 2),
        ("state:closed", 1),
        ("-state:closed -queue:payments", 1),
        ("queue:nobody", 0),
        ("state:dead or queue:payments/audit", 3),
    ];
    for (text, letters) in table {
        let counted = t.store.count(&query(text)).await.unwrap();
        assert_eq!(counted, Matches { letters, exact: true }, "{text}");
    }
}

pub async fn counts_follow_every_change<S: Store>(t: Fixture<S>) {
    let queue = queue();
    let of = |n: usize| dead(&t, &queue, &format!("m{n}"));
    for n in 0..5 {
        put(&t, of(n)).await;
    }
    let count = async |text: &str| t.store.count(&query(text)).await.unwrap().letters;
    for text in ["", "state:dead", "reason:TIMEOUT", "boom"] {
        assert_eq!(count(text).await, 5, "{text}");
    }
    t.store.act(&queue, of(0).id, Act::Evict, &operator()).await.unwrap();
    t.store.act(&queue, of(1).id, Act::Park, &operator()).await.unwrap();
    for (text, letters) in [("", 4), ("state:dead", 3), ("state:parked boom", 1), ("state:evicted", 1)] {
        assert_eq!(count(text).await, letters, "{text}");
    }
}

pub async fn an_imported_letter_is_found_by_its_message<S: Store>(t: Fixture<S>) {
    put(&t, dead(&t, &queue(), "m1")).await;
    let own = dead(&t, &queue(), "m2");
    let letter = Letter { id: LetterId::of_import(&queue(), &own.message.id), ..own };
    let item = HandOff { letter: letter.clone(), placement: Placement::Imported, grant: None };
    t.store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    for text in ["message:m2", "message:m2 queue:payments/ledger", &format!("id:{}", letter.id)] {
        let found = find_all(&t, &query(text), 10).await;
        assert_eq!(found.iter().map(|letter| letter.id).collect::<Vec<_>>(), [letter.id], "{text}");
    }
}
