//! The overview shows what holds a consumer back, with its cause and the remedy.

use serde_json::Value;

use crate::pages::support::{Bench, bad, eventually};

/// Returns messages, each with its own key.
fn messages(count: usize, text: &str) -> Vec<Value> {
    (0..count).map(|number| bad(&format!("k{number}"), text)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_breaker_says_why_and_when_it_probes() {
    let bench = Bench::new().await;
    // More failures than the number in a row that opens the breaker.
    bench.feed(None, &messages(25, "the bank is away")).await;
    let told = ["circuit breaker open", "DEPENDENCY_UNAVAILABLE", "the bank is away", "Next probe "];
    eventually("the overview says it", || async {
        let page = bench.get("/console/overview").await.expect(200);
        told.iter().all(|text| page.text.contains(text))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blown_fuse_says_why_and_can_be_ended() {
    let bench = Bench::new().await;
    // More permanent failures than are allowed in a row.
    bench.feed(None, &messages(60, "broken")).await;
    let overview = || async { bench.get("/console/overview").await.expect(200) };
    let told = [" fuse <span class=\"badge bad\">", "paused by <strong>lazaret</strong>", "failed for good"];
    eventually("the overview says it", || async {
        let page = overview().await;
        told.iter().all(|text| page.text.contains(text))
    })
    .await;
    let resume = overview().await.between("action=\"/console/consumers/orders/resume\"", "</form>");
    assert!(resume.contains("lazaret resume --reason TEXT orders"), "{resume}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_no_letters_is_an_alert_until_it_does() {
    // I9
    let bench = Bench::new().await;
    bench.letters(None, &[bad("a", "1")], 1).await;
    let alert = "is blocked: the store does not accept letters";
    bench.get("/console/overview").await.expect(200).lacks(alert);
    bench.set_outage(true);
    bench.feed(None, &[bad("b", "2")]).await;
    let tells = || async { bench.get("/console/overview").await.expect(200).text.contains(alert) };
    eventually("the overview says it", &tells).await;
    let page = bench.get("/console/overview").await.expect(200);
    let banner = page.between("role=\"alert\">", "</div>");
    assert!(banner.contains("<strong>orders</strong>") && banner.contains("nothing is lost"), "{banner}");
    bench.set_outage(false);
    eventually("the letter is stored", || async {
        bench.api(None, "/v1/letters/count").await["letters"] == 2
    })
    .await;
    eventually("the overview says it no longer", || async { !tells().await }).await;
}
