//! All screens: no errors under the content security policy, both themes, and a narrow screen.

use serde_json::{Value, json};

use crate::site::{OWNER, Setup, Site};
use crate::webdriver::{Browser, driver, wait_for};

/// Lists the elements that make the page wider than the screen, if there are any.
const TOO_WIDE: &str = "const root = document.documentElement; \
    if (root.scrollWidth <= root.clientWidth) return []; \
    return [...document.querySelectorAll('body *')] \
        .filter(e => e.getBoundingClientRect().right > root.clientWidth + 0.5) \
        .map(e => `${e.tagName}.${e.className} ${e.textContent.slice(0, 40)}`)";

/// Lists the headers of tables that are wider than their panels. The tables of charts may scroll.
const CUT_TABLES: &str = "return [...document.querySelectorAll('.scroll')] \
    .filter(e => !e.closest('details') && e.scrollWidth > e.clientWidth) \
    .map(e => `${e.scrollWidth} px in ${e.clientWidth} px: ${e.querySelector('thead')?.innerText}`)";

/// Lists the visible headers of the first table with a trend, which is the table of groups.
const COLUMNS: &str = "const table = [...document.querySelectorAll('main table')].find(e => e.querySelector('.spark')); \
    return [...table.querySelectorAll('th')].filter(e => e.offsetWidth > 0).map(e => e.textContent).filter(text => text)";

/// Returns the paths of all screens, on a site with letters and an operation.
pub(crate) fn all(site: &Site) -> Vec<String> {
    site.fail(3);
    let group = site.first_group();
    let letter = site.last_letter();
    let all = json!({"action": "retry", "query": "", "all": true, "reason": "a test"});
    let operation = created(site, "/v1/operations", &all);
    let plan = created(site, "/v1/plans", &json!({"action": "evict", "query": "", "all": true}));
    vec![
        "/console/overview".to_owned(),
        "/console/groups".to_owned(),
        group,
        format!("/console/letters/{letter}"),
        "/console/letters".to_owned(),
        format!("/console/letters/{letter}/edit"),
        "/console/operations".to_owned(),
        format!("/console/operations/{operation}"),
        format!("/console/plans/{plan}"),
        "/console/admin".to_owned(),
        format!("/console/admin/rules?letter={letter}&payload=/n"),
    ]
}

/// Creates something through the API. Returns its id.
fn created(site: &Site, path: &str, body: &Value) -> String {
    let answer = site.api("POST", path, body);
    assert_eq!(answer.status, 201, "{}", answer.body);
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    answer["id"].as_str().unwrap().to_owned()
}

/// Opens a screen and waits until it is shown.
#[track_caller]
pub(crate) fn open(browser: &Browser, site: &Site, path: &str) {
    browser.open(site.url(path));
    wait_for(path, || (browser.run("return document.readyState") == "complete").then_some(()));
    assert!(browser.has("main h1"), "{path}: {}", browser.text());
}

#[test]
fn no_screen_has_errors_in_any_theme_or_scrolls_sideways_on_a_phone() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    let paths = all(&site);
    let browser = Browser::start(&driver);
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for width in [1280, 2560, 390] {
            browser.set_width(width);
            for path in &paths {
                open(&browser, &site, path);
                let wide = browser.run(TOO_WIDE);
                assert_eq!(wide, json!([]), "{path} at {width} px is wider than the screen");
                assert_eq!(browser.errors(), Vec::<String>::new(), "{path} {scheme} {width}");
            }
        }
        backgrounds.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(backgrounds[0], backgrounds[1], "the dark theme is another one");
}

#[test]
fn no_table_of_groups_or_consumers_is_cut_beside_the_navigation() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.fail(3);
    let browser = Browser::start(&driver);
    for path in ["/console/groups", "/console/overview"] {
        for width in [1200, 1024, 800] {
            browser.set_width(width);
            open(&browser, &site, path);
            assert_eq!(browser.run(CUT_TABLES), json!([]), "{path} at {width} px");
            assert!(browser.text().contains(OWNER), "{path} at {width} px: {}", browser.text());
        }
        browser.set_width(1200);
        let columns =
            ["Cause", "Trend, 24 h", "Letters", "Blocked", "Behind", "Oldest", "First seen", "Last seen"];
        assert_eq!(browser.run(COLUMNS), json!(columns), "{path}");
    }
}

/// Returns messages with words that are longer than a column, in every field that a list shows.
fn long_words() -> Vec<Value> {
    let message = |n: usize| {
        json!({
            "id": format!("m-{n}"),
            "key": format!("customer-{}", n / 2),
            "type": "CustomerSubscriptionRenewed",
            "headers": {"error": "connection to notification.internal.example.com:8443 refused after 3 attempts"},
            "payload": {"n": n},
        })
    };
    (0..6).map(message).collect()
}

#[test]
fn every_list_fits_its_panel_from_a_phone_to_a_wide_screen() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.feed(&long_words());
    site.wait_letters(6);
    let group = site.first_group();
    let letter = site.last_letter();
    let reason = "the reason of an operation may be longer than one line of a phone";
    // Creates a draft and an operation.
    let query = "state:dead type:CustomerSubscriptionRenewed reason:INVALID_SCHEMA";
    created(&site, "/v1/plans", &json!({"action": "park", "query": query}));
    let retry = json!({"action": "retry", "query": "", "all": true, "reason": reason});
    let operation = created(&site, "/v1/operations", &retry);
    // The handler is not repaired, so the canary stops, and the rest stays.
    wait_for("the stop", || {
        (site.get(&format!("/v1/operations/{operation}"))["state"] == "paused").then_some(())
    });
    let paths = [
        "/console/overview".to_owned(),
        "/console/groups".to_owned(),
        group,
        "/console/letters".to_owned(),
        format!("/console/letters/{letter}"),
        "/console/operations".to_owned(),
        format!("/console/operations/{operation}"),
    ];
    let browser = Browser::start(&driver);
    let mut cut = Vec::new();
    for width in [390, 800, 1024, 1200, 1440, 1920, 2560] {
        browser.set_width(width);
        for path in &paths {
            open(&browser, &site, path);
            let tables = browser.run(CUT_TABLES);
            cut.extend(
                tables.as_array().unwrap().iter().map(|table| format!("{path} at {width} px: {table}")),
            );
        }
    }
    assert!(cut.is_empty(), "{}", cut.join("\n"));
    // Columns that a phone hides are shown elsewhere in the row.
    browser.set_width(390);
    open(&browser, &site, "/console/letters");
    let state = "const shown = document.querySelector('[data-row] .only-narrow .badge'); return shown.offsetWidth > 0";
    assert_eq!(browser.run(state), true, "the state of a letter: {}", browser.text());
}
