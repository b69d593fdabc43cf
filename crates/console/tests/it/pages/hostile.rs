//! A page shows everything in a message as text.

use lazaret_api::text::needs_escape;
use serde_json::json;

use crate::pages::support::{Answer, Bench, encoded, id};

/// A text that attackers might send.
const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)> bad \u{202e}\u{1b}[31m\u{2028} =cmd()";

/// Asserts that a page contains none of it as markup, and no hidden characters except in values that
/// forms send back.
#[track_caller]
fn is_harmless(page: &Answer) {
    for markup in ["<script>alert", "<img", "<svg/", "onerror=alert(2)>\""] {
        page.lacks(markup);
    }
    let mut shown = page.text.as_str();
    loop {
        let value = shown.find("value=\"").map(|at| (at, at + 7, "\""));
        let area = shown.find("<textarea").map(|at| (at, at + 9, "</textarea>"));
        let Some((start, from, end)) = value.into_iter().chain(area).min() else { break };
        assert_visible(&shown[..start], page);
        shown = shown[from..].split_once(end).unwrap().1;
    }
    assert_visible(shown, page);
}

#[track_caller]
fn assert_visible(text: &str, page: &Answer) {
    let hidden = text.chars().find(|c| !matches!(c, '\n' | '\t') && needs_escape(*c));
    assert_eq!(hidden, None, "{}: {text}", page.path);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_a_message_is_escaped_on_every_page() {
    let bench = Bench::new().await;
    let mut headers = serde_json::Map::new();
    headers.insert(HOSTILE.to_owned(), json!(HOSTILE));
    let message = json!({"id": HOSTILE, "key": HOSTILE, "type": HOSTILE, "headers": headers, "payload": {HOSTILE: HOSTILE}});
    let letters = bench.letters(None, &[message], 1).await;
    let letter = format!("/console/letters/{}", id(&letters[0]));
    bench.post(&format!("{letter}/comments"), &[("text", HOSTILE)]).await.location();
    bench
        .post("/console/consumers/orders/pause", &[("reason", HOSTILE), ("replay", "true")])
        .await
        .location();
    let group = letters[0]["group"].as_str().unwrap();
    let plan = bench.post("/console/plans", &[("action", "park"), ("id", id(&letters[0]))]).await.location();
    let operation =
        bench.post(&format!("{plan}/start"), &[("reason", HOSTILE), ("at", "+1h")]).await.location();
    let search = format!("/console/letters?q={}", encoded(HOSTILE));
    let sequence = format!("/console/sequences?queue=orders%2Forders&sequence={}", encoded(HOSTILE));
    let pages = [
        "/console/overview".to_owned(),
        "/console/groups".to_owned(),
        "/console/letters".to_owned(),
        "/console/operations".to_owned(),
        "/console/admin".to_owned(),
        format!("/console/groups/{}", encoded(group)),
        letter.clone(),
        format!("{letter}?view=text"),
        format!("{letter}?view=hex"),
        format!("{letter}/edit"),
        format!("{letter}/payload"),
        sequence,
        search,
        plan,
        operation,
        format!("/console/{}", encoded(HOSTILE)),
        format!("/console/letters/{}", encoded(HOSTILE)),
    ];
    for path in pages {
        let page = bench.get(&path).await;
        assert!(page.status == 200 || page.status == 400 || page.status == 404, "{path}: {}", page.status);
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8", "{path}");
        is_harmless(&page);
    }
    let shown = bench.get(&letter).await;
    shown.shows("&lt;script&gt;alert(1)").shows("\\u{202e}").shows("\\u{1b}");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_stay_exact() {
    let bench = Bench::new().await;
    let line = r#"{"id": "n", "key": "n", "payload": {"bad": true, "id": 9007199254740993, "price": 1.10, "huge": 1e400}}"#;
    let request = bench.request(reqwest::Method::POST, "/v1/inbox/orders/batch", None);
    bench.send(request.header("content-type", "application/x-ndjson").body(line)).await.expect(202);
    let letters = bench.letters(None, &[json!({"id": "m", "key": "m", "payload": "bad"})], 2).await;
    let exact = letters.iter().find(|letter| letter["message"]["id"] == "n").unwrap();
    let page = bench.get(&format!("/console/letters/{}", id(exact))).await.expect(200);
    page.shows(">9007199254740993<").shows(">1.10<").shows(">1e400<");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_shown_as_hex_and_downloaded_unchanged() {
    let bench = Bench::new().await;
    let letters =
        bench.letters(None, &[json!({"id": "x", "key": "x", "payload-base64": "//4AbAo="})], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    bench.get(&path).await.expect(200).shows("ff fe 00 6c 0a").lacks("?view=tree").lacks("?view=text");
    bench.get(&format!("{path}/edit")).await.expect(200).shows("cannot be edited here");
    let download = bench.get(&format!("{path}/download")).await.expect(200);
    assert_eq!(download.bytes, b"\xff\xfe\x00l\n");
    assert_eq!(download.header("content-type"), "application/octet-stream");
    assert!(download.header("content-disposition").starts_with("attachment; filename="));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_is_shown_in_parts() {
    let bench = Bench::new().await;
    let size = 900_000;
    let text = format!("bad<{}", "é".repeat((size - 6) / 2));
    let letters = bench.letters(None, &[json!({"id": "big", "key": "big", "payload": text})], 1).await;
    let path = format!("/console/letters/{}", id(&letters[0]));
    let page = bench.get(&path).await.expect(200);
    assert!(page.bytes.len() < 200_000, "{} bytes", page.bytes.len());
    page.shows("The first 64.0 KiB of 878.9 KiB").shows("/payload?offset=65536");
    let part = bench.get(&format!("{path}/payload?offset=65537")).await.expect(200);
    part.shows("00010000").shows("rel=\"next\"").shows("rel=\"prev\"");
    bench.get(&format!("{path}/payload?offset=99999999999")).await.expect(200);
    let whole = bench.get(&format!("{path}/download")).await.expect(200);
    assert_eq!(whole.bytes.len(), text.len() + 2, "with the quotes of JSON");
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_and_wide_payloads_are_cut_as_a_tree_and_complete_otherwise() {
    const SHOWN_NODES: usize = 2000;
    // Deeper than JSON parsers go, and with more nodes than a browser handles well.
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    let wide = format!("[{}1]", "1,".repeat(20_000));
    for (payload, cut) in [(deep, "… 1 more"), (wide, "The tree shows the first 2000 nodes")] {
        let bench = Bench::new().await;
        let path = format!("/console/letters/{}", bench.store_letter(payload.clone().into_bytes()).await);
        let page = bench.get(&path).await.expect(200);
        page.shows("class=\"tree\"").shows(cut);
        let tree = page.between("class=\"tree\"", "</section>");
        let nodes = tree.matches("class=\"leaf\"").count() + tree.matches("<details").count();
        assert!(nodes <= SHOWN_NODES, "{nodes} nodes");
        assert!(page.bytes.len() < 300_000, "{} bytes", page.bytes.len());
        bench.get(&format!("{path}?view=text")).await.expect(200).shows(&payload);
        bench.get("/console/letters").await.expect(200).shows(&path);
        assert!(bench.get(&format!("{path}/download")).await.expect(200).bytes == payload.as_bytes());
        // The payload can be edited as text, and unchanged parts are not lost.
        bench.get(&format!("{path}/edit")).await.expect(200).shows(&payload[..100]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_megabytes_of_bytes_are_listed_shown_and_downloaded() {
    const SIZE: usize = 60 * 1024 * 1024;
    let bench = Bench::new().await;
    let mut payload = vec![b'x'; SIZE];
    payload[0] = 0xff;
    payload[SIZE - 1] = 0xfe;
    let path = format!("/console/letters/{}", bench.store_letter(payload.clone()).await);
    bench.get("/console/letters").await.expect(200).shows(&path);
    let page = bench.get(&path).await.expect(200);
    page.shows("ff 78 78").shows("of 60.0 MiB");
    assert!(page.bytes.len() < 200_000, "{} bytes", page.bytes.len());
    bench.get(&format!("{path}/payload?offset={}", SIZE - 16)).await.expect(200).shows("78 fe");
    bench.get(&format!("{path}/edit")).await.expect(200).shows("cannot be edited here");
    assert!(bench.get(&format!("{path}/download")).await.expect(200).bytes == payload, "another payload");
}
