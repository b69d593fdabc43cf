//! Hostile content in every field is shown as text, and never runs.

use serde_json::{Value, json};

use crate::screens::open;
use crate::site::{Setup, Site, group_page};
use crate::webdriver::{Browser, driver};

/// Texts that would run, load or break out if they were not escaped. Each of them sets `window.owned`.
const SCRIPTS: [&str; 8] = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"><svg onload=window.owned=1>",
    "'><iframe srcdoc='<script>parent.owned=1</script>'></iframe>",
    "javascript:window.owned=1",
    "</title></textarea></style></script><script>window.owned=1</script>",
    "{{constructor.constructor('window.owned=1')()}}",
    "<a href=\"javascript:window.owned=1\" autofocus onfocus=window.owned=1>x</a>",
];

/// Returns messages with these texts in their id, key, type, headers, payload and error.
fn messages() -> Vec<Value> {
    let message = |(n, text): (usize, &&str)| {
        json!({
            "id": format!("{n}-{text}"),
            "key": format!("{n}-{text}"),
            "type": *text,
            "headers": {"error": *text, "note": *text, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            "payload": {*text: *text, "list": [*text], "bidi": "\u{202e}abc", "number": 9007199254740993_u64},
        })
    };
    SCRIPTS.iter().enumerate().map(message).collect()
}

fn assert_harmless(browser: &Browser, path: &str) {
    assert_eq!(browser.run("return window.owned === undefined"), true, "a script ran at {path}");
    assert_eq!(browser.run("return document.querySelectorAll('iframe, main script, main svg[onload], [onerror], [onfocus]').length"), 0, "{path}");
    let links = browser.run("return [...document.querySelectorAll('a[href]')].map(a => a.protocol)");
    let is_web = |scheme: &Value| scheme == "http:" || scheme == "https:";
    assert!(links.as_array().unwrap().iter().all(is_web), "{path}: {links}");
    assert_eq!(browser.errors(), Vec::<String>::new(), "{path}");
}

#[test]
fn hostile_content_never_runs() {
    let Some(driver) = driver() else { return };
    let site = Site::start(&Setup::default());
    site.feed(&messages());
    site.wait_letters(SCRIPTS.len() as u64);
    let browser = Browser::start(&driver);
    let letters = site.get("/v1/letters")["letters"].as_array().unwrap().clone();
    let id = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
    // Text that people write is also hostile.
    let letter = id(&letters[0]);
    for (method, path, body) in [
        ("POST", "comments", json!({"text": SCRIPTS[0]})),
        ("PUT", "assignee", json!({"name": SCRIPTS[2]})),
        ("PUT", "owner", json!({"name": SCRIPTS[1]})),
    ] {
        let answer = site.api(method, &format!("/v1/letters/{letter}/{path}"), &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let paused =
        site.api("POST", "/v1/consumers/orders/pause", &json!({"replay": true, "reason": SCRIPTS[5]}));
    assert_eq!(paused.status, 200, "{}", paused.body);
    let mut paths =
        vec!["/console/overview".to_owned(), "/console/groups".to_owned(), "/console/admin".to_owned()];
    let groups = site.get("/v1/groups")["groups"].as_array().unwrap().clone();
    paths.extend(groups.iter().map(group_page));
    paths.extend(letters.iter().map(|letter| format!("/console/letters/{}", id(letter))));
    for path in &paths {
        open(&browser, &site, path);
        assert_harmless(&browser, path);
    }
    let shown = browser.run("return document.body.textContent");
    let shown = shown.as_str().unwrap();
    assert!(SCRIPTS.iter().any(|text| shown.contains(text)), "it is shown as text: {shown}");
    // The page repeats the query.
    for text in SCRIPTS {
        let query: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        browser.open(site.url(&format!("/console/groups?q={query}")));
        assert_eq!(browser.run("return window.owned === undefined"), true, "{text}");
    }
}
