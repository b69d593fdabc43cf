//! The overview shows what a person must know about consumers and operations.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::BrokerCounts;
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Letter, LetterId, LetterState, Message, Position, QueueName};
use lazaret_engine::DeadLetterOptions;
use serde_json::json;

use crate::pages::support::{Answer, Bench, bad, eventually, id};

async fn overview(bench: &Bench) -> Answer {
    bench.get("/console/overview").await.expect(200)
}

/// The ages that the overview shows: of the only consumer, and of all consumers.
fn ages(page: &Answer) -> (String, String) {
    let of_all = page.text.split("</span><span class=\"label\">oldest").next().unwrap();
    let of_all = of_all.rsplit('>').next().unwrap().to_owned();
    let row = page.between("<tr data-row", "</tr>");
    (row.rsplit("<td class=\"num\">").next().unwrap().trim_end_matches("</td>").to_owned(), of_all)
}

fn both(age: &str) -> (String, String) {
    (age.to_owned(), age.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_that_holds_a_consumer_is_named() {
    // I9
    let limits = Limits { max_sequences: Some(1), ..Limits::NONE };
    let bench = Bench::with_dead_letters(DeadLetterOptions { limits, ..DeadLetterOptions::default() }).await;
    overview(&bench).await.lacks("is held by its limit");
    bench.feed(None, &[bad("a", "1"), bad("b", "2")]).await;
    eventually("it is named", || async {
        overview(&bench).await.text.contains("</strong> is held by its limit max-sequences.")
    })
    .await;
    overview(&bench).await.shows("nothing is lost").shows("max-sequences is 1").lacks("is blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_topics_of_a_consumer_hold_is_counted_also_when_it_is_nothing() {
    let bench = Bench::new().await;
    let page = overview(&bench).await;
    page.lacks("in dead-letter topics");
    assert_eq!(ages(&page), both("–"));
    bench.set_in_broker(Some(BrokerCounts::default()));
    let page = overview(&bench).await;
    page.shows(">0 in dead-letter topics<").shows(">0 in retry topics<").lacks("counted in the broker");
    assert_eq!(ages(&page), both("–"));
    let oldest_dead_at = Some(Timestamp::now() - SignedDuration::from_hours(50));
    bench.set_in_broker(Some(BrokerCounts { retrying: 2, dead: 1234, oldest_dead_at }));
    let page = overview(&bench).await;
    page.shows(">1,234 in dead-letter topics<").shows(">2 in retry topics<");
    page.shows(" has 1,234 in dead-letter topics and 2 in retry topics, counted in the broker.");
    page.shows("<td class=\"num\">1,234</td>");
    assert_eq!(ages(&page), both("2d02h"));
    // Letters of the store are added, and they are what the link leads to.
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let page = overview(&bench).await;
    page.shows(">1,234 in dead-letter topics<").shows(">1,236</a></td>");
    let link = page.between("<td class=\"num\"><a href=\"", "\">1,236</a></td>").replace("&amp;", "&");
    bench.get(&link).await.expect(200).shows(id(&letters[0])).shows(id(&letters[1]));
    assert_eq!(ages(&page), both("2d02h"));
    bench.set_in_broker(None);
    overview(&bench).await.lacks("in dead-letter topics");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_hangs_is_as_old_as_it_has_been_running() {
    let bench = Bench::new().await;
    bench.feed(None, &[json!({"id": "h", "key": "h", "payload": {"note": "never returns"}})]).await;
    let is_old =
        |age: &str| age.strip_suffix('s').is_some_and(|age| age.parse::<u64>().is_ok_and(|age| age >= 3));
    eventually("both ages grow", || async {
        let (of_consumer, of_all) = ages(&overview(&bench).await);
        is_old(&of_consumer) && is_old(&of_all)
    })
    .await;
    overview(&bench).await.lacks("an attempt has been running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_stream_is_named() {
    let bench = Bench::new().await;
    overview(&bench).await.lacks("was recreated");
    bench.recreate_stream("case-<events>").await;
    overview(&bench).await.shows("case-&lt;events&gt; was recreated and is read from its beginning");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_will_expire_are_told_with_a_link_to_them() {
    let ttl = Some(Duration::from_secs(7200));
    let bench = Bench::with_dead_letters(DeadLetterOptions { ttl, ..DeadLetterOptions::default() }).await;
    overview(&bench).await.lacks("letters expire");
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    let page = overview(&bench).await;
    page.shows(": letters expire, the next one in ").shows("unless it is replayed or resolved");
    let link = page.between("replayed or resolved. <a href=\"", "\"").replace("&amp;", "&");
    bench.get(&link).await.expect(200).shows(id(&letters[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_the_plan_of_an_operation_excludes_are_told() {
    let bench = Bench::new().await;
    bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    for query in ["seq:a", "state:dead"] {
        overview(&bench).await.lacks("excluded: ");
        let begin =
            json!({"action": "retry", "query": query, "at": "2040-01-01T00:00:00Z", "reason": "later"});
        let request = bench.request(reqwest::Method::POST, "/v1/operations", None);
        let request = request.header("content-type", "application/json").body(begin.to_string());
        bench.send(request).await.expect(201);
    }
    overview(&bench).await.shows("excluded: 1 held by another operation<");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_letter_whose_payload_was_not_stored_says_so() {
    let without = DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() };
    let bench = Bench::with_dead_letters(without).await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    assert_eq!(letters[0]["state"], "dead");
    let page = bench.get(&format!("/console/letters/{}", id(&letters[0]))).await.expect(200);
    page.shows("The payload was not stored: the consumer has <code>include-payload: false</code>.");
    page.lacks("tombstone").lacks("was closed").lacks("are hidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_letter_does_not_say_that_its_payload_was_not_stored() {
    let bench = Bench::new().await;
    let why = "the encrypted payload cannot be decrypted: it was changed";
    let message = Message { undecodable: Some(why.into()), ..Message::new("m", "s", Position::new(0, 0)) };
    let queue = QueueName::of("orders", "orders");
    let mut letter = Letter::new(queue.clone(), "a".into(), message.into(), Timestamp::now());
    letter.id = LetterId::of_import(&queue, &letter.message.id);
    (letter.state, letter.payload_left_out) = (LetterState::Dead, true);
    let path = format!("/console/letters/{}", letter.id);
    let item = HandOff { letter, placement: Placement::Imported, grant: None };
    bench.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let page = bench.get(&path).await.expect(200);
    page.shows("The payload is not there: it is damaged, or was not stored.").shows(why);
    page.lacks("include-payload").lacks("tombstone");
}
