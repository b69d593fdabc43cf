//! Two people in two browsers. The second approves what the first has planned, and the first cannot
//! approve it.

use serde_json::json;

use crate::site::{Setup, Site};
use crate::webdriver::{Browser, driver, wait_for};

#[test]
fn the_second_person_approves_what_the_first_cannot() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup { closed: true, approval: true, ..Setup::default() });
    site.fail(3);
    site.handler.repair();
    let (ada, bob) = (Browser::start(&driver), Browser::start(&driver));
    site.sign_in(&ada, "ada");
    site.sign_in(&bob, "bob");
    let operation = plan_and_start(&site, &ada);
    let state = || site.get(&format!("/v1/operations/{operation}"))["state"].clone();
    assert_eq!(state(), "awaiting-approval");
    let page = site.url(&format!("/console/operations/{operation}"));
    for browser in [&ada, &bob] {
        browser.open(&page);
    }
    // The first person's page has no enabled button, and the server refuses what the page does not offer.
    assert!(ada.has("button[formaction$='/approve'][disabled]"), "{}", ada.text());
    let csrf = ada.run("return document.querySelector('input[name=csrf]').value");
    let refused = ada.run_async(&format!(
        "const done = arguments[arguments.length - 1]; \
         const body = new URLSearchParams({{csrf: {csrf}, reason: 'by myself'}}); \
         fetch('/console/operations/{operation}/approve', {{method: 'POST', body}}).then(r => done(r.status))"
    ));
    assert_eq!(refused, 403);
    assert_eq!(state(), "awaiting-approval");
    bob.write("#reason", "looked at it");
    bob.click("button[formaction$='/approve']");
    wait_for("the operation", || (state() == "done").then_some(()));
    site.wait_letters(0);
    let audit = site.get("/v1/audit")["entries"].clone();
    let by = |action: &str| {
        let entry = audit
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["action"].as_str().is_some_and(|known| known.contains(action)));
        entry.map(|entry| entry["who"].clone())
    };
    assert_eq!(by("approve"), Some(json!("bob")), "{audit}");
}

/// Plans and starts a retry of the first group through the pages. Returns the operation.
fn plan_and_start(site: &Site, browser: &Browser) -> String {
    browser.open(site.url(&site.first_group()));
    crate::triage::start_retry(browser);
    wait_for("the operation", || browser.path().strip_prefix("/console/operations/").map(str::to_owned))
}
