//! The story of the demo in a real browser: a newcomer finds the cause on the page, repairs the bank, replays, and sees the lane drain.

use serde_json::Value;
use tempfile::TempDir;

use crate::terminal::Terminal;
use crate::webdriver::{Browser, driver, wait_for};

/// The error of every order of the bank.
const CAUSE: &str = "Harbour Bank is down";

/// Clicks the first element that matches and has this text. Orders flow, and live updates replace what is shown: it is found and clicked
/// at once.
#[track_caller]
fn click(browser: &Browser, css: &str, text: &str) {
    let script = format!(
        "const found = [...document.querySelectorAll({})].find(e => e.textContent.includes({})); \
         found?.click(); return Boolean(found)",
        Value::from(css),
        Value::from(text)
    );
    wait_for(&format!("{css} with {text:?} at {}", browser.url()), || {
        (browser.run(&script) == true).then_some(())
    });
}

/// Waits until the page is one below this path.
#[track_caller]
fn arrives(browser: &Browser, path: &str) {
    wait_for(path, || browser.path().starts_with(path).then_some(()));
}

/// Plans a retry on the page of the group, starts it, and waits for its end, without a reload.
#[track_caller]
fn replay(browser: &Browser) {
    click(browser, "button[name=action][value=retry]", "Plan retry");
    arrives(browser, "/console/plans/");
    browser.write("#reason", "the bank is up again");
    click(browser, "form[action$='/start'] button.primary", "Start");
    arrives(browser, "/console/operations/");
    browser.run("window.same = true");
    let state = "return document.querySelector('#operation-state h2')?.textContent";
    wait_for("the end of the replay", || (browser.run(state) == "done").then_some(()));
    assert_eq!(browser.run("return window.same === true"), true, "the page was not loaded anew");
}

#[test]
fn the_story_is_driven_from_the_page_that_the_demo_names() {
    let Some(driver) = driver() else { return };
    let folder = TempDir::new().unwrap();
    let variables = [("TMPDIR", folder.path().to_str().unwrap()), ("NO_COLOR", "1")];
    let mut terminal = Terminal::open((140, 30), &["demo"], &variables);
    let shown = terminal.shown_word("console http://127.0.0.1:");
    let address = shown.strip_prefix("console ").unwrap();
    // The last crash of the story: from now on the page stays. Lines of the log pass by; its group does not.
    terminal.shows("CRASHED  the process died").shows("press r to repair the bank");

    // From the overview to the cause, and to a lane that it blocks.
    let (page, lane) = (Browser::start(&driver), Browser::start(&driver));
    page.open(address);
    assert_eq!(page.path(), "/console/overview");
    let overview = page.url();
    click(&page, "main a.title-link", CAUSE);
    arrives(&page, "/console/groups/");
    page.wait_text("DEPENDENCY_UNAVAILABLE");
    let group = page.url();
    lane.open(&group);
    click(&lane, "[data-row] a.title-link", "OrderPlaced");
    arrives(&lane, "/console/letters/");
    lane.wait_text("blocked by its head");
    lane.wait_text(CAUSE);
    lane.run("window.same = true");

    // The bank is repaired where it runs, and replayed on the page.
    terminal.types("r").shows("Harbour Bank is up again");
    replay(&page);
    // A group without open letters offers no retry.
    let has_open = || {
        page.open(&group);
        page.has(".page-head button")
    };
    // An order that was attempted at the time of the repair may have died after the plan.
    if has_open() {
        replay(&page);
        assert!(!has_open(), "{}", page.text());
    }

    // The lane drains before the eyes of whoever looks at it, and the customers of the bank are unblocked.
    lane.wait_text("Closed: resolved");
    lane.wait_text("No open letter of this sequence");
    assert_eq!(lane.run("return window.same === true"), true, "the page was not loaded anew");
    terminal.shows("only poison letters remain");
    page.open(overview);
    page.wait_text("price is negative after the voucher");
    assert!(!page.text().contains(CAUSE), "{}", page.text());
    assert_eq!((page.errors(), lane.errors()), (Vec::new(), Vec::new()));
    terminal.types("q");
    terminal.ends(0);
}
