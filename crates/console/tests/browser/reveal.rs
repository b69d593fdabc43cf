//! Redacted values are shown after a reason was given, only on that page, and only to callers with the right.

use serde_json::json;

use crate::site::{Setup, Site};
use crate::webdriver::{Browser, driver, wait_for};

const CARD: &str = "4111-1111";

#[test]
fn a_redacted_value_is_revealed_for_a_reason_and_on_that_page_only() {
    let Some(driver) = driver() else { return };
    let lines = "redact: { headers: [authorization], payload: [/card/number] }\n".to_owned();
    let site = Site::start(&Setup { closed: true, lines, ..Setup::default() });
    let headers = json!({"Authorization": "Bearer s3cr3t"});
    let payload = json!({"card": {"number": CARD}, "amount": 5});
    site.feed(&[json!({"id": "m", "key": "k", "type": "Charge", "headers": headers, "payload": payload})]);
    site.wait_letters(1);
    let letter = format!("/console/letters/{}", site.last_letter());
    let (ada, clerk) = (Browser::start(&driver), Browser::start(&driver));
    site.sign_in(&ada, "ada");
    site.sign_in(&clerk, "clerk");
    for browser in [&ada, &clerk] {
        browser.open(site.url(&letter));
        browser.wait_text("2 redacted values");
        assert!(!browser.text().contains(CARD) && !browser.text().contains("s3cr3t"), "{}", browser.text());
    }
    assert!(clerk.has("form[action$='/reveal'] button[disabled]"), "needs the right: {}", clerk.text());
    let form = ada.run("return document.querySelector(\"form[action$='/reveal']\").textContent");
    assert!(form.as_str().is_some_and(|form| form.contains("lazaret show --reveal")), "its command: {form}");
    ada.write("form[action$='/reveal'] input[name=reason]", "refund of order 7");
    ada.click("form[action$='/reveal'] button");
    ada.wait_text(CARD);
    ada.wait_text("Revealed on this page only");
    assert!(ada.text().contains("s3cr3t") && !ada.text().contains("[redacted]"), "{}", ada.text());
    let audit = site.get("/v1/audit")["entries"].clone();
    let reveals = audit.as_array().unwrap().iter().filter(|entry| entry["action"] == "reveal");
    let by: Vec<_> = reveals.map(|entry| (&entry["who"], &entry["why"])).collect();
    assert_eq!(by, [(&json!("ada"), &json!("refund of order 7"))], "{audit}");
    // Opening the address of the revealed page again reveals nothing.
    assert!(ada.path().ends_with("/reveal"), "{}", ada.path());
    ada.open(site.url(&ada.path()));
    wait_for("the redacted page", || (!ada.text().contains(CARD)).then_some(()));
    ada.wait_text("2 redacted values");
    assert_eq!(ada.errors(), Vec::<String>::new());
}
