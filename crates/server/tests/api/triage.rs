//! Reading and changing single letters.

use std::collections::HashSet;
use std::time::Duration;

use lazaret_core::store::{HandOff, LetterStore, Limits as StoreLimits, Placement, Triage};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_sqlite::SqliteStore;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Bench, ORDERS, QUEUE, encoded, eventually};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// Stores dead letters in a queue whose consumer runs elsewhere: sequence and message id.
async fn elsewhere(bench: &Bench, queue: &str, letters: &[(&str, &str)]) {
    let queue = QueueName::from(queue);
    let item = |(offset, (sequence, id)): (usize, &(&str, &str))| {
        let message = Message::new(*id, "events", Position::new(0, offset as u64)).with_payload("x");
        let mut letter = Letter::new(queue.clone(), (*sequence).into(), message.into(), Timestamp::now());
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "DbError", "connection reset"));
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    let items = letters.iter().enumerate().map(item).collect();
    for placed in bench.store.hand_off(&queue, &StoreLimits::NONE, items).await.unwrap() {
        placed.unwrap();
    }
}

fn consumer<'a>(status: &'a Value, name: &str) -> &'a Value {
    status["consumers"].as_array().unwrap().iter().find(|consumer| consumer["name"] == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_audit_does_not_match_the_entry_that_was_noted() {
    let bench = Bench::new().await;
    for n in 0..3 {
        let pause = json!({"replay": n % 2 == 0, "reason": "x"});
        bench.post("/v1/consumers/orders/pause", pause).await.expect(200);
    }
    let check = bench.get("/v1/audit/verify").await.expect(200).json;
    let (number, hash) = (check["intact"].as_u64().unwrap(), check["hash"].as_str().unwrap().to_owned());
    assert_eq!(
        bench.get(&format!("/v1/audit/verify?number={number}&hash={hash}")).await.json["broken"],
        json!(null)
    );
    let other = "0".repeat(64);
    for (number, hash) in [(number + 1, hash.as_str()), (number - 1, hash.as_str()), (number, other.as_str())]
    {
        let check =
            bench.get(&format!("/v1/audit/verify?number={number}&hash={hash}")).await.expect(200).json;
        assert_eq!(check["broken"], number, "{check}");
    }
    bench.get("/v1/audit/verify?number=1").await.problem(400, "LZ0200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_leaves_out_its_value_changes_nothing() {
    let bench = Bench::new().await;
    let letter = bench.letters(&[("a", "bad")], 1).await.remove(0);
    let path = |field: &str| format!("/v1/letters/{}/{field}", letter["id"].as_str().unwrap());
    let whole = format!("/v1/letters/{}", letter["id"].as_str().unwrap());
    let before = json!("2199-01-01T00:00:00Z");
    let too_late = json!({"expires-at": "2999-01-01T00:00:00Z", "reason": "x"});
    bench.put(&path("expiry"), too_late).await.problem(400, "LZ0200");
    bench.put(&path("expiry"), json!({"expires-at": before, "reason": "x"})).await.expect(200);
    bench.put(&path("expiry"), json!({"reason": "x"})).await.problem(400, "LZ0200");
    bench.put(&path("assignee"), json!({"reason": "x"})).await.problem(400, "LZ0200");
    assert_eq!(bench.get(&whole).await.json["expires-at"], before);
    bench.put(&path("expiry"), json!({"expires-at": null, "reason": "x"})).await.expect(200);
    assert_eq!(bench.get(&whole).await.json["expires-at"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_includes_consumers_here_and_elsewhere() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad1"), ("a", "later"), ("b", "fine")], 2).await;
    elsewhere(&bench, "billing/mail", &[("s", "m1")]).await;
    eventually("all is settled", || async {
        let status = bench.get("/v1/status").await.json;
        let here = consumer(&status, ORDERS);
        here["in-flight"] == 0 && here["handled"] == 1 && here["lag"] == 0
    })
    .await;
    let status = bench.get("/v1/status").await.expect(200).json;
    let here = consumer(&status, ORDERS);
    assert_eq!((&here["state"], &here["paused"], &here["lag"]), (&json!("running"), &json!(null), &json!(0)));
    assert_eq!((&here["dead"], &here["waiting"], &here["failed"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!((&here["fuse"], &here["breaker"]), (&json!("intact"), &json!("closed")));
    assert!(here["oldest-age-seconds"].as_f64().unwrap() >= 0.0);
    let there = consumer(&status, "billing");
    assert_eq!(
        (&there["state"], &there["dead"], &there["handled"]),
        (&json!("elsewhere"), &json!(1), &json!(null))
    );
    assert_eq!(status["operations"], json!([]));
    for (name, has) in SqliteStore::CAPABILITIES.named() {
        assert_eq!(status["store"][name], json!(has), "{name}");
    }

    bench.post("/v1/consumers/orders/pause", json!({"reason": "deployment"})).await.expect(200);
    let paused = bench.get("/v1/consumers/orders").await.expect(200).json;
    assert_eq!((&paused["state"], &paused["paused"]["why"]), (&json!("paused"), &json!("deployment")));
    bench.get("/readyz").await.expect(200);
    bench.post("/v1/consumers/billing/pause", json!({"sequence": "a/ü", "reason": "x"})).await.expect(200);
    let there = bench.get("/v1/consumers/billing").await.expect(200).json;
    assert_eq!((&there["pauses"][0]["sequence"], &there["paused"]), (&json!("a/ü"), &json!(null)));
    let resumed = bench.post("/v1/consumers/billing/resume", json!({"sequence": "a/ü", "reason": "x"})).await;
    assert_eq!(resumed.json, json!({"resumed": true}));
    let again = bench.post("/v1/consumers/billing/resume", json!({"sequence": "a/ü", "reason": "x"})).await;
    assert_eq!(again.json, json!({"resumed": false}));
    bench.post("/v1/consumers/typo/pause", json!({"reason": "x"})).await.problem(404, "LZ0203");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_contain_every_letter_once() {
    let bench = Bench::new().await;
    let names: Vec<(String, String)> = (0..250).map(|n| (format!("s{n}"), format!("m{n}"))).collect();
    let names: Vec<(&str, &str)> =
        names.iter().map(|(sequence, id)| (sequence.as_str(), id.as_str())).collect();
    elsewhere(&bench, "billing/billing", &names).await;
    let mut ids = HashSet::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page = bench.get(&format!("/v1/letters?q=queue:billing&limit=60{after}")).await.expect(200).json;
        for letter in page["letters"].as_array().unwrap() {
            assert!(ids.insert(letter["id"].as_str().unwrap().to_owned()), "twice");
        }
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!((ids.len(), pages), (250, 5));
    let clamped = bench.get("/v1/letters?limit=1000000").await.expect(200).json;
    assert_eq!(clamped["letters"].as_array().unwrap().len(), 250);
    assert_eq!(bench.get("/v1/letters?limit=0").await.json["letters"].as_array().unwrap().len(), 1);
    // NDJSON returns every match in one response, in the same order.
    let lines = |path: &str| bench.request(Method::GET, path).header("accept", "application/x-ndjson");
    let all = bench.send(lines("/v1/letters")).await.expect(200);
    let streamed: Vec<Value> = all.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(streamed.len(), 250);
    streamed.iter().for_each(|letter| bench.contract.validate_named("Letter", letter));
    assert_eq!(streamed[..100], clamped["letters"].as_array().unwrap()[..100]);
    assert_eq!(bench.send(lines("/v1/letters?limit=130")).await.text.lines().count(), 130);
    // The audit is paged and streamed as well.
    for n in 0..5 {
        let reason = format!("test {n}");
        bench.post("/v1/consumers/orders/pause", json!({"replay": true, "reason": reason})).await.expect(200);
    }
    let first = bench.get("/v1/audit?limit=3").await.json;
    let second =
        bench.get(&format!("/v1/audit?limit=3&after={}", first["next"].as_str().unwrap())).await.json;
    assert_eq!((second["entries"][0]["number"].as_u64(), &second["next"]), (Some(4), &json!(null)));
    assert_eq!(bench.send(lines("/v1/audit")).await.text.lines().count(), 5);
    let check = bench.get("/v1/audit/verify").await.expect(200).json;
    assert_eq!((&check["ok"], &check["intact"], &check["broken"]), (&json!(true), &json!(5), &json!(null)));
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_counted_filtered_and_found_by_their_fingerprint() {
    let bench = Bench::new().await;
    elsewhere(&bench, "billing/mail", &[("a", "1"), ("a", "2"), ("b", "3")]).await;
    bench.letters(&[("k", "bad")], 4).await;
    let groups = bench.get("/v1/groups").await.expect(200).json;
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    let (first, second) = (&groups[0], &groups[1]);
    assert_eq!(
        (&first["queue"], &first["letters"], &first["sequences"]),
        (&json!("billing/mail"), &json!(3), &json!(2))
    );
    assert_eq!((&first["blocked-behind"], &first["error"]["type"]), (&json!(1), &json!("DbError")));
    assert_eq!(first["trend"].as_array().unwrap().len(), 24);
    for (query, expected) in
        [("queue:orders", 1), ("reason:TIMEOUT", 1), ("error:reset or error:bad", 2), ("state:parked", 0)]
    {
        let found = bench.get(&format!("/v1/groups?q={}", encoded(query))).await.expect(200).json;
        assert_eq!(found["groups"].as_array().unwrap().len(), expected, "{query}");
    }
    let one = bench.get("/v1/groups?limit=1").await.json;
    let two = bench.get(&format!("/v1/groups?limit=1&after={}", one["next"].as_str().unwrap())).await.json;
    assert_eq!(&two["groups"][0]["id"], &second["id"]);
    let fingerprint = first["fingerprint"].as_str().unwrap();
    assert_eq!(bench.get(&format!("/v1/groups/{fingerprint}")).await.expect(200).json["id"], first["id"]);
    elsewhere(&bench, "other/mail", &[("a", "1")]).await;
    bench.get(&format!("/v1/groups/{fingerprint}")).await.problem(409, "LZ0218");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_tells_when_its_next_letter_expires() {
    let bench = Bench::new().await;
    elsewhere(&bench, "billing/mail", &[("a", "1"), ("b", "2")]).await;
    let letters = bench.get("/v1/letters").await.expect(200).json;
    let id = |n: usize| letters["letters"][n]["id"].as_str().unwrap();
    let group = format!("/v1/groups/{}", encoded(letters["letters"][0]["group"].as_str().unwrap()));
    let next = async || bench.get(&group).await.expect(200).json["next-expiry-at"].clone();
    assert_eq!(next().await, json!(null), "none of them expires");
    for (n, at) in [(0, "2199-01-01T00:00:00Z"), (1, "2198-01-01T00:00:00Z")] {
        let path = format!("/v1/letters/{}/expiry", id(n));
        bench.put(&path, json!({"expires-at": at, "reason": "nobody needs it later"})).await.expect(200);
    }
    assert_eq!(next().await, json!("2198-01-01T00:00:00Z"));
    let listed = bench.get("/v1/groups").await.expect(200).json;
    assert_eq!(listed["groups"][0]["next-expiry-at"], json!("2198-01-01T00:00:00Z"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_is_found_whatever_its_name_is() {
    let bench = Bench::new().await;
    let names = ["a/b c", "ü&=?#", "100%", "../..", "\u{1f600}", "a'b\"c;--"];
    for name in names {
        elsewhere(&bench, "billing/mail", &[(name, &format!("1{name}")), (name, &format!("2{name}"))]).await;
        let path = format!("/v1/sequences?queue={}&sequence={}", encoded("billing/mail"), encoded(name));
        let found = bench.get(&path).await.expect(200).json;
        assert_eq!((&found["sequence"], &found["size"]), (&json!(name), &json!(2)));
        let page = bench.get(&format!("{path}&limit=1")).await.json;
        let rest = bench.get(&format!("{path}&after={}", page["next"].as_str().unwrap())).await.json;
        assert_eq!(rest["letters"][0]["message"]["id"], format!("2{name}"));
        let message = format!("/v1/letters?q={}", encoded(&format!("message:{}", json!(format!("1{name}")))));
        assert_eq!(
            bench.get(&message).await.expect(200).json["letters"].as_array().unwrap().len(),
            1,
            "{name}"
        );
    }
    let none =
        bench.get(&format!("/v1/sequences?queue={}&sequence=none", encoded(QUEUE))).await.expect(200).json;
    assert_eq!((&none["size"], &none["letters"]), (&json!(0), &json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_manual_change_of_a_letter_is_audited() {
    // I11
    let bench = Bench::new().await;
    let letters = bench.letters(&[("a", "bad1"), ("a", "fine")], 2).await;
    let head = format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap());
    bench.post(&format!("{head}/comments"), json!({"text": "looking at it"})).await.expect(200);
    bench.post(&format!("{head}/comments"), json!({"text": " "})).await.problem(400, "LZ0200");
    bench.put(&format!("{head}/assignee"), json!({"name": "ada"})).await.expect(200);
    bench.put(&format!("{head}/assignee"), json!({"name": ""})).await.problem(400, "LZ0200");
    let edit = json!({"payload": "{\"bad\": 2}", "reason": "typo"});
    bench.put(&format!("{head}/payload"), edit).await.expect(200);
    let both = json!({"payload": "x", "tombstone": true, "reason": "typo"});
    bench.put(&format!("{head}/payload"), both).await.problem(400, "LZ0200");
    let shown = bench.get(&head).await.json;
    assert_eq!((&shown["assignee"], &shown["content"]["payload"]), (&json!("ada"), &json!("{\"bad\": 2}")));
    assert_eq!(
        (&shown["edits"][0]["original"], &shown["edits"][0]["why"]),
        (&json!("\"bad1\""), &json!("typo"))
    );
    assert_eq!(shown["comments"][0]["text"], "looking at it");
    // The head is closed, and the letters behind it are handled at once.
    let evicted = bench.post(&format!("{head}/evict"), json!({"reason": "obsolete"})).await.expect(200);
    assert_eq!(evicted.json["state"], "evicted");
    bench.open_letters(0).await;
    bench.post(&format!("{head}/evict"), json!({"reason": "again"})).await.problem(409, "LZ0218");
    bench.post(&format!("{head}/restore"), json!({"reason": "no, not obsolete"})).await.expect(200);
    // After the fix it is released and handled.
    bench.fix_handler();
    bench.post(&format!("{head}/purge"), json!({"reason": "x"})).await.problem(409, "LZ0218");
    bench.post(&format!("{head}/release"), json!({"reason": "mended"})).await.expect(200);
    eventually("it is resolved", || async { bench.get(&head).await.json["state"] == "resolved" }).await;
    bench.post(&format!("{head}/purge"), json!({"reason": "privacy"})).await.expect(204);
    bench.get(&head).await.problem(404, "LZ0203");
    let audit = bench.get("/v1/audit").await.json;
    let done: Vec<&str> =
        audit["entries"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(done, ["comment", "assign", "edit", "evict", "restore", "release", "purge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_restore_and_purge_change_each_letter_by_itself() {
    let bench = Bench::new().await;
    elsewhere(&bench, "billing/mail", &[("a", "1"), ("a", "2"), ("b", "3")]).await;
    let begin = json!({"action": "park", "query": "queue:nobody", "reason": "x"});
    bench.post("/v1/operations", begin).await.expect(201);
    for id in bench.open_letters(3).await.iter().map(|letter| letter["id"].as_str().unwrap()) {
        bench.post(&format!("/v1/letters/{id}/evict"), json!({"reason": "x"})).await.expect(200);
    }
    bench.post("/v1/letters/restore", json!({"reason": "x"})).await.problem(400, "LZ0226");
    bench.post("/v1/letters/restore", json!({"query": "state:evicted"})).await.problem(400, "LZ0210");
    let restored =
        bench.post("/v1/letters/restore", json!({"query": "state:evicted seq:a", "reason": "x"})).await;
    assert_eq!(restored.expect(200).json, json!({"done": 2, "failed": [], "more": false}));
    let path = format!("/v1/sequences?queue={}&sequence=a", encoded("billing/mail"));
    let order: Vec<Value> = bench.get(&path).await.json["letters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["message"]["id"].clone())
        .collect();
    assert_eq!(order, [json!("1"), json!("2")], "each is in its old place");
    let nobody = "00000000-0000-8000-8000-000000000000";
    let open = bench.open_letters(2).await[0]["id"].clone();
    let purged =
        bench.post("/v1/letters/purge", json!({"ids": [nobody, open], "reason": "x"})).await.expect(200).json;
    assert_eq!(purged["done"], 0);
    let codes: Vec<&str> =
        purged["failed"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["LZ0203", "LZ0218"]);
    let purged = bench
        .post("/v1/letters/purge", json!({"query": "state:closed", "reason": "x"}))
        .await
        .expect(200)
        .json;
    assert_eq!(purged["done"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_evicts_open_letters_and_erases_closed_ones() {
    let bench = Bench::new().await;
    elsewhere(&bench, "billing/mail", &[("a", "1"), ("a", "2"), ("b", "3")]).await;
    let open = bench.open_letters(3).await;
    let third = open.iter().find(|letter| letter["message"]["id"] == "3").unwrap()["id"].as_str().unwrap();
    bench.post(&format!("/v1/letters/{third}/evict"), json!({"reason": "x"})).await.expect(200);
    bench.post("/v1/letters/erase", json!({"reason": "x"})).await.problem(400, "LZ0226");
    bench.post("/v1/letters/erase", json!({"query": "seq:a"})).await.problem(400, "LZ0210");
    // Without a state, open and closed ones.
    let erased =
        bench.post("/v1/letters/erase", json!({"query": "queue:billing", "reason": "request 7"})).await;
    let mut erased = erased.expect(200).json;
    // The file is rewritten apart from the request, and the status tells how far that is.
    let remains = erased.as_object_mut().unwrap().remove("remains").unwrap();
    assert!(remains.as_str().unwrap().contains("in the background"), "{remains}");
    assert_eq!(erased, json!({"done": 3, "failed": [], "more": false}));
    assert_eq!(bench.get("/v1/status").await.json["erasure"], remains);
    bench.store.scrub().await.unwrap();
    assert_eq!(bench.get("/v1/status").await.json.get("erasure"), None);
    bench.open_letters(0).await;
    let shown = bench.get(&format!("/v1/letters/{third}")).await.json;
    assert_eq!(
        (&shown["erased"]["why"], &shown["content"]["payload-state"]),
        (&json!("request 7"), &json!("left-out"))
    );
    assert_eq!((&shown["state"], &shown["error"]["message"]), (&json!("evicted"), &json!("[erased]")));
    let again = bench.post("/v1/letters/erase", json!({"query": "queue:billing", "reason": "again"})).await;
    assert_eq!(again.expect(200).json["done"], 0, "they are passed over");
    let named =
        bench.post("/v1/letters/erase", json!({"ids": [third], "reason": "again"})).await.expect(200).json;
    assert_eq!((&named["done"], &named["failed"][0]["code"]), (&json!(0), &json!("LZ0218")));
    bench.post(&format!("/v1/letters/{third}/restore"), json!({"reason": "x"})).await.problem(409, "LZ0218");
    let payload = bench.get(&format!("/v1/letters/{third}/payload")).await;
    assert!(payload.problem(404, "LZ0203").text.contains("it was erased"));
    let comment = json!({"text": "it was ada@example.com"});
    bench.post(&format!("/v1/letters/{third}/comments"), comment).await.problem(409, "LZ0218");
    assert_eq!(bench.get(&format!("/v1/letters/{third}")).await.json["comments"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_imported_once_and_in_order() {
    // I2, I5, I8
    let from = Bench::new().await;
    from.letters(&[("a", "bad1"), ("a", "2"), ("b", "bad3"), ("a", "4")], 4).await;
    let lines = from.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = from.send(lines).await.expect(200).text;
    for line in export.lines() {
        from.contract.validate_named("LetterDetail", &serde_json::from_str(line).unwrap());
    }
    let to = Bench::new().await;
    let import = |path: &str, body: String| {
        to.request(Method::POST, path).header("content-type", "application/x-ndjson").body(body)
    };
    let path = "/v1/letters/import?queue=billing%2Fbilling";
    let unknown = to.send(import(path, export.clone())).await.expect(200).json;
    assert_eq!(
        (&unknown["taken"], &unknown["failures"]),
        (&json!(0), &json!(4)),
        "no consumer has this queue"
    );
    assert!(unknown["failed"][0]["why"].as_str().unwrap().starts_with("unknown queue"), "{unknown}");
    to.registry.starting("billing", lazaret_server::Approval::None);
    let broken = format!("{export}nonsense\n");
    let answer = to.send(import(path, broken)).await.expect(200).json;
    assert_eq!((&answer["taken"], &answer["known"], &answer["failures"]), (&json!(4), &json!(0), &json!(1)));
    assert_eq!(answer["failed"][0]["line"], 5);
    let again = to.send(import(path, export.clone())).await.expect(200).json;
    assert_eq!((&again["taken"], &again["known"], &again["failures"]), (&json!(0), &json!(4), &json!(0)));
    let sequence = format!("/v1/sequences?queue={}&sequence=a", encoded("billing/billing"));
    let letters = to.get(&sequence).await.json["letters"].as_array().unwrap().clone();
    let order: Vec<&str> = letters.iter().map(|letter| letter["message"]["id"].as_str().unwrap()).collect();
    assert_eq!(order, ["a-bad1", "a-2", "a-4"]);
    let id = letters[0]["id"].as_str().unwrap();
    let moved = to.get(&format!("/v1/letters/{id}")).await.json;
    assert_eq!(
        (&moved["content"]["payload"], &moved["reason"]),
        (&json!("\"bad1\""), &json!("DOMAIN_INVALID"))
    );
    assert_eq!(moved["content"]["headers"], json!([{"name": "tenant", "value": "acme"}]));
    assert_eq!(moved["context"]["imported-by"], "local");
    assert!(moved["context"]["imported-at"].is_string(), "{moved}");
    // Imported into the queue of a running consumer, they are handled.
    to.fix_handler();
    to.send(import("/v1/letters/import", export)).await.expect(200);
    let release = json!({"action": "retry", "query": "queue:orders", "reason": "mended"});
    let operation = to.post("/v1/operations", release).await.expect(201).json;
    let over = to.over(operation["id"].as_str().unwrap()).await;
    assert_eq!((&over["ok"], &over["skipped"]), (&json!(4), &json!(0)), "{over}");
    // I11: who, why, where and how many.
    let audit = to.get("/v1/audit").await.json;
    let entries: Vec<&Value> =
        audit["entries"].as_array().unwrap().iter().filter(|entry| entry["action"] == "import").collect();
    assert_eq!(entries.len(), 3, "{audit}");
    assert_eq!(
        (&entries[0]["subject"], &entries[0]["after"]),
        (&json!("billing/billing"), &json!("4 letters"))
    );
    assert_eq!((&entries[0]["who"], &entries[0]["why"]), (&json!("local"), &json!("import")));
    let wrong = to.request(Method::POST, "/v1/letters/import").header("content-type", "text/csv").body("x");
    to.send(wrong).await.problem(415, "LZ0212");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_here_wrote_the_comments_of_an_imported_letter() {
    let from = Bench::new().await;
    from.letters(&[("a", "bad1")], 1).await;
    let lines = from.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = from.send(lines).await.expect(200).text;
    let mut letter: Value = serde_json::from_str(export.trim()).unwrap();
    let comment = json!({"by": "ada", "at": "2026-01-01T00:00:00Z", "text": "approved by the auditor"});
    letter["comments"] = json!([comment]);
    letter["context"]["imported-by"] = json!("ada");
    let to = Bench::new().await;
    let import = |letter: &Value| {
        to.request(Method::POST, "/v1/letters/import")
            .header("content-type", "application/x-ndjson")
            .body(format!("{letter}\n"))
    };
    let mut flooded = letter.clone();
    flooded["comments"] = json!(vec![comment; 50_000]);
    // I7
    let refused = to.send(import(&flooded)).await.expect(200).json;
    assert_eq!((&refused["taken"], &refused["failures"]), (&json!(0), &json!(1)));
    assert_eq!(refused["failed"][0]["why"], "50000 comments, the limit is 100");
    assert_eq!(to.send(import(&letter)).await.expect(200).json["taken"], 1);
    let id = to.open_letters(1).await[0]["id"].as_str().unwrap().to_owned();
    let imported = to.get(&format!("/v1/letters/{id}")).await.json;
    assert_eq!(imported["comments"][0]["by"], "ada (imported)");
    assert_eq!(imported["context"]["imported-by"], "local");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_imported_as_closed_does_not_swallow_the_message_that_comes_later() {
    // I1, I8: its id and its position were never those of a message that this consumer settled.
    let from = Bench::new().await;
    from.letters(&[("a", "bad1"), ("b", "bad2")], 2).await;
    let lines = from.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = from.send(lines).await.expect(200).text;
    let closed = |state: &str| {
        let lines = export.lines().map(|line| {
            let mut letter: Value = serde_json::from_str(line).unwrap();
            letter["state"] = json!(state);
            letter["message"]["position"] = json!("0:1000000");
            letter.to_string()
        });
        lines.map(|line| line + "\n").collect::<String>()
    };
    let to = Bench::new().await;
    let import = |body: String| {
        let path = "/v1/letters/import?queue=billing%2Fmail";
        to.request(Method::POST, path).header("content-type", "application/x-ndjson").body(body)
    };
    // Imports go to queues that exist.
    let queue = QueueName::from("billing/mail");
    let other = Message::new("other", "other", Position::new(0, 0)).with_payload("x");
    let mut other = Letter::new(queue.clone(), "other".into(), other.into(), Timestamp::now());
    other.state = LetterState::Dead;
    let item = HandOff { letter: other, placement: Placement::Open, grant: None };
    to.store.hand_off(&queue, &StoreLimits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let taken = to.send(import(closed("resolved"))).await.expect(200).json;
    assert_eq!((&taken["taken"], &taken["known"]), (&json!(2), &json!(0)), "{taken}");
    let again = to.send(import(closed("resolved"))).await.expect(200).json;
    assert_eq!((&again["taken"], &again["known"]), (&json!(0), &json!(2)), "{again}");

    let message = Message::new("a-bad1", "events", Position::new(0, 7)).with_payload("x");
    assert_eq!(to.store.lookup(&queue, std::slice::from_ref(&message.id)).await.unwrap(), [None]);
    for stream in ["events", "orders"] {
        let partition = lazaret_core::Partition::new(stream, 0);
        let grant = to.store.assign(&queue, &[partition]).await.unwrap().remove(0);
        assert_eq!(grant.horizon, None, "an import moves no horizon");
    }
    let partition = message.partition();
    let fence = to.store.assign(&queue, std::slice::from_ref(&partition)).await.unwrap().remove(0).fence;
    let mut letter = Letter::new(queue.clone(), "a".into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    let grant = Some(lazaret_core::store::GrantFence { partition, fence, turn: 0 });
    let item = HandOff { letter, placement: Placement::Open, grant };
    let placed = to.store.hand_off(&queue, &StoreLimits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    assert_eq!(placed, lazaret_core::store::Placed::Opened, "the failed message has a letter of its own");
    // What the queue knows itself is not imported beside it.
    let known = to.send(import(closed("evicted"))).await.expect(200).json;
    assert_eq!((&known["taken"], &known["known"]), (&json!(0), &json!(2)), "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_keeps_json_and_can_be_reverted() {
    let bench = Bench::new().await;
    let letters = bench.letters(&[("a", "bad1")], 1).await;
    let letter = format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap());
    let payload = format!("{letter}/payload");
    bench.put(&payload, json!({"revert": true, "reason": "r"})).await.problem(409, "LZ0218");
    let broken = bench.put(&payload, json!({"payload": "{\"a\": ", "reason": "r"})).await;
    let broken = broken.problem(409, "LZ0218").json;
    assert!(broken["detail"].as_str().unwrap().contains("is JSON, and the new one is not"), "{broken}");
    bench.put(&payload, json!({"payload": "{\"a\": ", "force": true, "reason": "r"})).await.expect(200);
    // The payload is broken now, so that another broken one is no mistake.
    bench.put(&payload, json!({"payload": "{\"b\": ", "reason": "r"})).await.expect(200);
    bench.put(&payload, json!({"revert": true, "reason": "enough"})).await.expect(200);
    let shown = bench.get(&letter).await.expect(200).json;
    assert_eq!(shown["content"]["payload"], "\"bad1\"");
    assert_eq!(shown["edits"].as_array().unwrap().len(), 3);
    // I11
    let audit = bench.get("/v1/audit").await.expect(200).json;
    let last = audit["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["action"], &last["why"]), (&json!("edit"), &json!("enough")), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_resolved_and_quarantined_in_bulk() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad1"), ("b", "bad2"), ("c", "bad3"), ("c", "fine")], 4).await;
    let body = json!({"query": "seq:a or seq:b", "reason": "handled by hand"});
    let done = bench.post("/v1/letters/resolve", body).await.expect(200).json;
    assert_eq!((&done["done"], &done["failed"]), (&json!(2), &json!([])));
    let body = json!({"query": "state:dead", "reason": "leaks a card number"});
    assert_eq!(bench.post("/v1/letters/quarantine", body).await.expect(200).json["done"], 1);
    let states = |query: &str| format!("/v1/letters?q={}", encoded(query));
    let count = async |query: &str| {
        bench.get(&states(query)).await.expect(200).json["letters"].as_array().unwrap().len()
    };
    assert_eq!((count("state:resolved").await, count("state:quarantined").await), (2, 1));
    assert_eq!(count("state:waiting").await, 1, "the letter behind a quarantined one waits");
    // I11: one entry per letter.
    let audit = bench.get("/v1/audit").await.expect(200).json;
    let entries = audit["entries"].as_array().unwrap();
    let of = |action: &str| entries.iter().filter(|entry| entry["action"] == action).count();
    assert_eq!((of("resolve"), of("quarantine")), (2, 1), "{audit}");
    bench.post("/v1/letters/resolve", json!({"all": true})).await.problem(400, "LZ0210");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_conflict_with_a_lease_suggests_to_try_again() {
    let bench = Bench::new().await;
    let letters = bench.letters(&[("a", "bad1")], 1).await;
    let id = letters[0]["id"].as_str().unwrap();
    let claimed = bench.store.claim(&QueueName::from(QUEUE), &"a".into(), "worker", HOUR).await.unwrap();
    let hint = "a worker holds the sequence at this moment: try again";
    let (park, body) = (format!("/v1/letters/{id}/park"), json!({"ids": [id], "reason": "x"}));
    let one = bench.post(&park, json!({"reason": "x"})).await.problem(409, "LZ0218").json;
    assert_eq!(one["hint"], hint);
    let many = bench.post("/v1/letters/resolve", body.clone()).await.expect(200).json;
    assert_eq!((&many["failed"][0]["code"], &many["failed"][0]["hint"]), (&json!("LZ0218"), &json!(hint)));
    // It is in the wrong state, whoever holds its sequence.
    let wrong = bench.post("/v1/letters/restore", body.clone()).await.expect(200).json;
    let detail = format!("cannot restore letter {id}: it is dead, not evicted");
    assert_eq!(wrong["failed"], json!([{"id": id, "code": "LZ0218", "detail": detail}]));
    bench.store.release(&claimed.unwrap().lease).await.unwrap();
    assert_eq!(bench.post("/v1/letters/resolve", body).await.expect(200).json["done"], 1);
}
