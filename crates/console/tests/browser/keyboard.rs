//! The console without a mouse: every key in the help, and a replay from the list to its approval.

use serde_json::{Value, json};

use crate::site::{Setup, Site};
use crate::webdriver::{Browser, ENTER, ESCAPE, driver, wait_for};

/// Waits until the page has this path.
#[track_caller]
fn arrives(browser: &Browser, path: &str) {
    wait_for(&format!("{path}, not {}", browser.path()), || (browser.path() == path).then_some(()));
    // Keys work once the scripts have run, which show this button.
    browser.find("[data-help-button]:not([hidden])");
}

/// Waits until the page's path is below this one. Returns the rest of the path.
#[track_caller]
fn arrives_below(browser: &Browser, path: &str) -> String {
    let id = wait_for(path, || browser.path().strip_prefix(path).map(str::to_owned));
    browser.find("[data-help-button]:not([hidden])");
    id
}

/// Waits until an element has the focus, which a new page sets slightly later.
#[track_caller]
fn focuses(browser: &Browser, css: &str) {
    let matches = format!("return document.activeElement.matches({})", Value::from(css));
    wait_for(&format!("the focus on {css}"), || (browser.run(&matches) == true).then_some(()));
}

/// Presses keys that lead to a page.
#[track_caller]
fn go(browser: &Browser, keys: &str, path: &str) {
    browser.find("[data-help-button]:not([hidden])");
    browser.press(keys);
    arrives(browser, path);
}

#[test]
fn a_replay_is_planned_and_approved_by_two_people_without_a_mouse() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup { closed: true, approval: true, ..Setup::default() });
    site.fail(2);
    site.handler.repair();
    let (ada, bob) = (Browser::start(&driver), Browser::start(&driver));
    site.sign_in(&ada, "ada");
    site.sign_in(&bob, "bob");
    // Goes from the list to the group, its plan and the operation. The plan first asks for the reason.
    go(&ada, "gg", "/console/groups");
    ada.press("j");
    ada.press(ENTER);
    arrives_below(&ada, "/console/groups/");
    ada.press("R");
    arrives_below(&ada, "/console/plans/");
    focuses(&ada, "#reason");
    ada.press("fixed in 2.8.2");
    ada.press(ENTER);
    let operation = arrives_below(&ada, "/console/operations/");
    let state = || site.get(&format!("/v1/operations/{operation}"))["state"].clone();
    assert_eq!(state(), "awaiting-approval");
    // The key approves nothing for the person who planned it.
    ada.press("A");
    assert_eq!(ada.run("return document.activeElement.matches('#reason')"), false);
    // The second person finds the operation in the list.
    go(&bob, "gp", "/console/operations");
    bob.press("j");
    bob.press(ENTER);
    assert_eq!(arrives_below(&bob, "/console/operations/"), operation);
    bob.press("A");
    focuses(&bob, "#reason");
    assert_eq!(state(), "awaiting-approval", "a key alone approves nothing");
    bob.press("looked at it");
    bob.press(ENTER);
    wait_for("the end", || (state() == "done").then_some(()));
    site.wait_letters(0);
    let done = site.get(&format!("/v1/operations/{operation}"));
    assert_eq!(
        (&done["by"]["who"], &done["approved-by"]["who"], &done["approved-by"]["why"]),
        (&json!("ada"), &json!("bob"), &json!("looked at it")),
        "{done}"
    );
    assert_eq!((ada.errors(), bob.errors()), (Vec::new(), Vec::new()));
}

#[test]
fn rows_are_marked_and_their_eviction_is_planned_by_keys() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(3);
    let browser = Browser::start(&driver);
    browser.open(site.url("/console/letters"));
    arrives(&browser, "/console/letters");
    let marked = || browser.run("return document.querySelectorAll('[data-row][data-marked]').length");
    browser.press("j");
    browser.press("x");
    browser.press("j");
    browser.press("x");
    assert_eq!(marked(), 2);
    browser.press("k");
    browser.press("x");
    assert_eq!(marked(), 1, "again, and it is not marked");
    let row = browser.run("return document.querySelector('[data-row] input:checked').value");
    browser.press("E");
    let plan = arrives_below(&browser, "/console/plans/");
    let plan = site.get(&format!("/v1/plans/{plan}"));
    assert_eq!((&plan["action"], &plan["letters"]), (&json!("evict"), &json!(1)), "{plan}");
    browser.wait_text(&row.as_str().unwrap()[..8]);
    // The plan is now a draft, which keys can also open from the list of operations.
    browser.press(ESCAPE);
    go(&browser, "gp", "/console/operations");
    browser.press("j");
    browser.press(ENTER);
    arrives_below(&browser, "/console/plans/");
    assert_eq!(site.open_letters(), 3, "nothing was evicted");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn keys_lead_through_the_console() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    let message = |n: usize| json!({"id": format!("m-{n}"), "key": "k", "type": "OrderPlaced", "payload": n});
    site.feed(&[message(1), message(2)]);
    site.wait_letters(2);
    let browser = Browser::start(&driver);
    browser.open(site.url("/console/admin"));
    arrives(&browser, "/console/admin");
    for (key, page) in
        [("o", "overview"), ("g", "groups"), ("l", "letters"), ("p", "operations"), ("a", "admin")]
    {
        go(&browser, &format!("g{key}"), &format!("/console/{page}"));
    }
    // A key opens and closes the list of keys.
    browser.press("?");
    wait_for("the help", || browser.has("dialog[open]").then_some(()));
    let help = browser.text();
    for key in ["this help", "mark the row", "plan an eviction", "previous and next letter", "theme"] {
        assert!(help.contains(key), "{key}: {help}");
    }
    browser.press(ESCAPE);
    wait_for("no help", || (!browser.has("dialog[open]")).then_some(()));
    // In the page's search box, letters are text.
    go(&browser, "gl", "/console/letters");
    browser.press("/");
    focuses(&browser, "input[data-search=page]");
    browser.press("state:dead");
    browser.press(ENTER);
    wait_for("the result", || browser.url().ends_with("?q=state%3Adead").then_some(()));
    browser.find("[data-help-button]:not([hidden])");
    browser.press("/");
    browser.press("j");
    browser.press(ESCAPE);
    focuses(&browser, "body");
    browser.press("j");
    browser.press(ENTER);
    // Keys move along the lane.
    let head = arrives_below(&browser, "/console/letters/");
    browser.press("]");
    let behind = wait_for("the letter behind it", || {
        let path = browser.path();
        path.strip_prefix("/console/letters/").filter(|id| *id != head).map(str::to_owned)
    });
    arrives(&browser, &format!("/console/letters/{behind}"));
    browser.press("[");
    arrives(&browser, &format!("/console/letters/{head}"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_theme_is_chosen_by_a_key_and_kept() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    let browser = Browser::start(&driver);
    browser.prefer("light");
    browser.open(site.url("/console/overview"));
    arrives(&browser, "/console/overview");
    let background = || browser.run("return getComputedStyle(document.body).backgroundColor");
    let system = background();
    browser.press("t");
    browser.wait_text("Theme: light");
    assert_eq!(background(), system, "the system prefers it as well");
    browser.press("t");
    browser.wait_text("Theme: dark");
    let dark = background();
    assert_ne!(dark, system);
    // This also holds on other pages.
    go(&browser, "gg", "/console/groups");
    assert_eq!(background(), dark);
    browser.press("t");
    browser.wait_text("Theme: system");
    assert_eq!(background(), system);
}

#[test]
fn keys_can_be_switched_off() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    let browser = Browser::start(&driver);
    browser.open(site.url("/console/overview"));
    arrives(&browser, "/console/overview");
    browser.press("?");
    wait_for("the help", || browser.has("dialog[open]").then_some(()));
    browser.click("[data-keys-toggle]");
    browser.press(ESCAPE);
    wait_for("no help", || (!browser.has("dialog[open]")).then_some(()));
    browser.press("t");
    browser.press("?");
    assert!(!browser.has("dialog[open]"));
    assert!(browser.text().contains("Theme: system"), "{}", browser.text());
    // The button still opens the help, which enables the keys again.
    browser.click("[data-help-button]");
    browser.click("[data-keys-toggle]");
    browser.press(ESCAPE);
    wait_for("no help", || (!browser.has("dialog[open]")).then_some(()));
    browser.press("t");
    browser.wait_text("Theme: light");
}
