//! The content of the panels of a page.

use lazaret_core::failure::CauseLink;
use lazaret_core::store::{Act, Actor, LetterStore};
use lazaret_core::{Failure, QueueName, Reason};

use crate::pages::support::{Bench, bad, encoded, eventually, id};

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_lists_instances_and_the_numbers_of_its_chart() {
    let bench = Bench::new().await;
    bench.letters(None, &[bad("a", "1")], 1).await;
    bench.report_start("orders").await;
    // The chart begins with the first sample, and counts the failed attempt.
    let row = "</td><td class=\"num\">0</td><td class=\"num\">1</td></tr>";
    eventually("the chart", || async {
        let page = bench.get("/console/overview").await.expect(200);
        page.text.contains("class=\"chart\"")
            && page.between("id=\"throughput-table\"", "</details>").contains(row)
    })
    .await;
    let page = bench.get("/console/overview").await.expect(200);
    let instances = page.between("<h2>Instances</h2>", "</table>");
    assert!(instances.contains("host-of-orders") && instances.contains("1.2.3"), "{instances}");
    let numbers = page.between("id=\"throughput-table\"", "</details>");
    assert!(numbers.contains("<th class=\"num\">Failed</th>"), "{numbers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_shows_its_texts_and_sequences() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let group = letters[0]["group"].as_str().unwrap();
    assert_eq!(letters[1]["group"], group, "what varies makes no group of its own");
    let page = bench.get(&format!("/console/groups/{}", encoded(group))).await.expect(200);
    let texts = page.between("<h2>Texts</h2>", "</ul>");
    for text in ["{&quot;bad&quot;:&quot;1&quot;}", "{&quot;bad&quot;:&quot;2&quot;}"] {
        assert!(texts.contains(text), "{text}: {texts}");
    }
    let sequences = page.between("<h2>Sequences</h2>", "</table>");
    for key in ["a", "b"] {
        assert!(sequences.contains(&format!(">{key}</a>")), "{key}: {sequences}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_shows_the_causes_of_its_failure_and_folds_its_backtrace() {
    let bench = Bench::new().await;
    let mut failure = Failure::new(Reason::TIMEOUT, "ChargeError", "the charge failed")
        .with_backtrace("   0: core::panicking::panic\n   1: shop::charge");
    failure.chain = vec![
        CauseLink { error_type: Some("HttpError".to_owned()), message: "no answer <in time>".to_owned() },
        CauseLink { error_type: None, message: "connection reset".to_owned() },
    ];
    let letter = bench.store_failed(b"{}".to_vec(), failure).await;
    let page = bench.get(&format!("/console/letters/{letter}")).await.expect(200);
    let chain = page.between("aria-label=\"Causes\"", "</ol>");
    let place = |text: &str| chain.find(text).unwrap_or_else(|| panic!("no {text:?}: {chain}"));
    assert!(place("HttpError") < place("no answer &lt;in time&gt;"));
    assert!(place("no answer") < place("connection reset"), "the outermost first");
    let backtrace = page.between("id=\"backtrace-cause\"", "</details>");
    assert!(backtrace.contains("class=\"library\">   0: core::panicking"), "{backtrace}");
    assert!(backtrace.contains(">   1: shop::charge"), "{backtrace}");
    assert!(!backtrace.contains("class=\"library\">   1:"), "its own frame stands out: {backtrace}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_shows_who_did_what_to_it() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1"), bad("b", "2")], 2).await;
    let page_of = |letter: usize| format!("/console/letters/{}", id(&letters[letter]));
    bench.get(&page_of(0)).await.expect(200).lacks("<h2>Audit</h2>");
    bench.post(&format!("{}/assignee", page_of(0)), &[("name", "maria")]).await.location();
    let (queue, by) = (QueueName::of("orders", "orders"), Actor::new("ada", "cli", "known <bug>"));
    bench.store.act(&queue, id(&letters[0]).parse().unwrap(), Act::Evict, &by).await.unwrap();
    let page = bench.get(&page_of(0)).await.expect(200);
    page.shows("Closed: evicted").shows("By <strong>ada</strong>: known &lt;bug&gt;.");
    let audit = page.between("<h2>Audit</h2>", "</ul>");
    let place = |text: &str| audit.find(text).unwrap_or_else(|| panic!("no {text:?}: {audit}"));
    assert!(place("<span>evict</span>") < place("<span>assign</span>"), "the latest first");
    assert!(audit.contains("– → maria"), "{audit}");
    bench.get(&page_of(1)).await.expect(200).lacks("<h2>Audit</h2>").lacks("maria");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_retry_has_stages() {
    let bench = Bench::new().await;
    let letters = bench.letters(None, &[bad("a", "1")], 1).await;
    for (action, has_stages) in [("park", false), ("retry", true)] {
        let plan =
            bench.post("/console/plans", &[("action", action), ("id", id(&letters[0]))]).await.location();
        let operation = bench.post(&format!("{plan}/start"), &[("reason", "a test")]).await.location();
        let page = bench.get(&operation).await.expect(200);
        page.shows("<dt>Rate</dt>");
        for fact in ["<dt>Stages</dt>", "<dt>Stop at</dt>"] {
            assert_eq!(page.text.contains(fact), has_stages, "{action} {fact}");
        }
        eventually("its end", || async {
            let state = bench.get(&operation).await.expect(200).between("id=\"operation-state\"", "</h2>");
            state.contains(">done</span>") || state.contains("paused</span>")
        })
        .await;
    }
}
