//! A daemon that is killed in the middle of an operation. The page recovers, and the count is exact.

use crate::site::{Setup, Site};
use crate::webdriver::{Browser, driver, wait_for};

#[test]
fn the_page_of_an_operation_recovers_from_a_killed_daemon_and_its_count_is_exact() {
    // Fewer letters than would blow the fuse.
    const LETTERS: u64 = 40;
    let Some(driver) = driver() else { return };
    let mut site = Site::start(&Setup::default());
    site.fail(LETTERS as usize);
    site.handler.repair();
    // One letter of the first stage, and five of the second. The daemon waits for the others when it is
    // killed.
    site.handler.answer_only(Some(6));
    let browser = Browser::start(&driver);
    browser.open(site.url(&site.first_group()));
    crate::triage::start_retry(&browser);
    let operation =
        wait_for("the operation", || browser.path().strip_prefix("/console/operations/").map(str::to_owned));
    wait_for("some letters", || (site.handler.handled() >= 6).then_some(()));
    // This variable is set in the page. A page that was loaded again does not have it.
    browser.run("window.same = true");
    site.kill();
    let handled = site.handler.handled() as u64;
    assert!(handled < LETTERS, "killed in the middle");
    site.handler.answer_only(None);
    browser.wait_text("Stale since");
    site.run();
    let path = format!("/v1/operations/{operation}");
    wait_for("the end of the operation", || (site.get(&path)["state"] == "done").then_some(()));
    let done = site.get(&path);
    assert_eq!(done["ok"].as_u64(), Some(LETTERS), "{done}");
    assert_eq!(site.open_letters(), 0);
    // The page updates by itself.
    browser.wait_text(&LETTERS.to_string());
    wait_for("the state on the page", || {
        let text = browser.run("return document.querySelector('main').innerText.toLowerCase()");
        text.as_str().is_some_and(|text| text.contains("done")).then_some(())
    });
    assert_eq!(browser.run("return window.same === true"), true, "without a reload");
}
