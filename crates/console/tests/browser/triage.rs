//! Triage: from an alert to a canary in a few clicks, with live updates.

use serde_json::{Value, json};

use crate::site::{Setup, Site};
use crate::webdriver::{Browser, driver, wait_for};

/// Starts a retry from the page of a group with two clicks: plan, and start after a reason.
#[track_caller]
pub(crate) fn start_retry(browser: &Browser) {
    browser.click("button.primary[name=action][value=retry]");
    browser.write("#reason", "fixed in 2.8.2");
    browser.click("form[action$='/start'] button.primary");
}

#[test]
fn an_alert_leads_to_a_canary_in_four_clicks() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(10);
    site.handler.repair();
    let browser = Browser::start(&driver);
    // The first click is on the link in the alert.
    browser.open(site.url(&site.first_group()));
    // The second and third click.
    start_retry(&browser);
    let operation =
        wait_for("the operation", || browser.path().strip_prefix("/console/operations/").map(str::to_owned));
    let state = || site.get(&format!("/v1/operations/{operation}"));
    assert!(state()["ramp"].as_array().is_some_and(|ramp| !ramp.is_empty()), "a canary first: {}", state());
    wait_for("the end", || (state()["state"] == "done").then_some(()));
    assert_eq!(state()["ok"], 10);
    browser.wait_text("10");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn pages_show_what_happens_without_a_reload() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(1);
    let browser = Browser::start(&driver);
    browser.open(site.url("/console/overview"));
    browser.run("window.same = true");
    site.fail(41);
    browser.wait_text("42");
    assert_eq!(browser.run("return window.same === true"), true, "the page was not loaded anew");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_part_that_was_replaced_still_offers_to_copy_its_command() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(1);
    let retry =
        json!({"action": "retry", "query": "", "all": true, "reason": "later", "needs-approval": true});
    let answer = site.api("POST", "/v1/operations", &retry);
    assert_eq!(answer.status, 201, "{}", answer.body);
    let operation: Value = serde_json::from_str(&answer.body).unwrap();
    let operation = operation["id"].as_str().unwrap();
    let browser = Browser::start(&driver);
    browser.open(site.url(&format!("/console/operations/{operation}")));
    browser.wait_text(&format!("lazaret op watch {operation}"));
    let is_shown = || browser.run("return document.querySelector('[data-copy=cli]')?.offsetWidth > 0");
    wait_for("the button", || (is_shown() == true).then_some(()));
    let path = format!("/v1/operations/{operation}/cancel");
    let cancelled = site.api("POST", &path, &json!({"reason": "not needed"}));
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    browser.wait_text(&format!("lazaret op show {operation}"));
    assert_eq!(is_shown(), true, "after the update");
}

#[test]
fn nothing_moves_while_a_row_is_marked() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(1);
    let browser = Browser::start(&driver);
    browser.open(site.url("/console/groups"));
    browser.click("[data-row] input[type=checkbox]");
    let letters = || browser.run("return document.querySelector('[data-row] td.num').textContent");
    site.fail(1);
    browser.wait_text("Updates wait");
    assert_eq!(letters(), "1", "as it was marked");
    assert!(browser.has("[data-row] input[type=checkbox]:checked"));
    browser.click("[data-live-apply]");
    wait_for("the update", || (letters() == "2").then_some(()));
    assert_eq!(browser.errors(), Vec::<String>::new());
}
