//! Runs axe-core on every screen, in both themes.

use serde_json::Value;

use crate::screens::{all, open};
use crate::site::{Setup, Site};
use crate::webdriver::{Browser, axe, driver};

/// Returns the violations that axe-core rates as serious or critical.
fn violations(browser: &Browser, axe: &str) -> Vec<String> {
    // The driver runs scripts outside the page's content security policy.
    browser.run(axe);
    let found = browser.run_async(
        "const done = arguments[arguments.length - 1]; \
         axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations), e => done([{impact: 'critical', id: String(e), nodes: []}]))",
    );
    let violation = |found: &Value| {
        let places: Vec<&str> = found["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|node| node["html"].as_str())
            .take(3)
            .collect();
        format!("{}: {}\n  {}", found["id"], found["help"], places.join("\n  "))
    };
    let is_serious = |found: &&Value| found["impact"] == "serious" || found["impact"] == "critical";
    found.as_array().unwrap().iter().filter(is_serious).map(violation).collect()
}

#[test]
fn axe_finds_no_serious_violation_on_any_screen() {
    let (Some(driver), Some(axe)) = (driver(), axe()) else { return };
    let site = Site::start(&Setup::default());
    let paths = all(&site);
    let browser = Browser::start(&driver);
    let mut found = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for path in &paths {
            open(&browser, &site, path);
            found
                .extend(violations(&browser, &axe).into_iter().map(|text| format!("{path} {scheme} {text}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn axe_finds_no_serious_violation_on_the_sign_in() {
    let (Some(driver), Some(axe)) = (driver(), axe()) else { return };
    let site = Site::start(&Setup { closed: true, ..Setup::default() });
    let browser = Browser::start(&driver);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.open(site.url("/console/overview"));
        assert_eq!(browser.path(), "/console/login");
        let found = violations(&browser, &axe);
        assert!(found.is_empty(), "{scheme} {}", found.join("\n"));
    }
}

#[test]
fn axe_finds_a_planted_violation() {
    let (Some(driver), Some(axe)) = (driver(), axe()) else { return };
    let browser = Browser::start(&driver);
    browser.open("data:text/html,<html lang=en><title>x</title><main><h1>x</h1><input><img src=x></main>");
    let found = violations(&browser, &axe);
    assert!(found.iter().any(|text| text.contains("image-alt")), "{found:?}");
}
