//! A real browser, controlled over WebDriver with the few calls that the tests need.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http;

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
/// The interval between checks.
const LOOK: Duration = Duration::from_millis(25);
/// The key of an element in responses.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys that have no character.
pub(crate) const ENTER: &str = "\u{E007}";
pub(crate) const ESCAPE: &str = "\u{E00C}";

/// Returns the path of the driver. Without one, a test prints that it did not run. With `CI=true`, it
/// fails instead.
pub(crate) fn driver() -> Option<PathBuf> {
    given("LAZARET_TEST_CHROMEDRIVER")
}

/// Returns the script of axe-core.
pub(crate) fn axe() -> Option<String> {
    given("LAZARET_TEST_AXE").map(|path| std::fs::read_to_string(path).unwrap())
}

fn given(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    if path.is_none() {
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!in_ci, "{name} is not set; `cargo xtask test` installs a browser and sets it");
        println!("not run: {name} is not set; `cargo xtask services` installs a browser and prints it");
    }
    path
}

/// Waits until something exists.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(LOOK);
    }
}

/// A browser with its own profile. It ends with the test.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    _profile: tempfile::TempDir,
}

/// Starts the driver and reads its port.
///
/// The driver takes a free port of `::1`, and the same port of `127.0.0.1`. If another test's connection
/// uses the latter, the driver exits. No driver is returned then, and the next start gets a different
/// port.
fn start_driver(driver: &PathBuf) -> Option<(Child, u16)> {
    let mut child = Command::new(driver)
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let port = port_in(&line);
        said.push(line);
        port
    });
    let Some(port) = port else {
        let status = child.wait().unwrap();
        let taken = said.iter().any(|line| line.contains("port not available"));
        assert!(taken, "the driver ended with {status} and said: {said:#?}");
        return None;
    };
    // The driver must not block on a full pipe.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Some((child, port))
}

/// Returns the port in the line with which the driver reports that it is ready.
fn port_in(line: &str) -> Option<u16> {
    line.strip_suffix('.')?.rsplit_once("successfully on port ")?.1.parse().ok()
}

/// An element of a page.
#[derive(Clone, Debug)]
pub(crate) struct Element(String);

impl Browser {
    /// Starts a browser.
    pub(crate) fn start(driver: &PathBuf) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (child, port) = wait_for("a port that is free in both families", || start_driver(driver));
        let address = format!("127.0.0.1:{port}");
        let mut browser = Self { driver: child, address, session: String::new(), _profile: profile };
        let folder = browser._profile.path().display().to_string();
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--window-size=1280,900",
            &format!("--user-data-dir={folder}"),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = browser.call("POST", "/session", &wanted);
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open(&self, url: impl Display) {
        self.ask("POST", "url", &json!({"url": url.to_string()}));
    }

    /// Returns the URL of the page.
    pub(crate) fn url(&self) -> String {
        self.ask("GET", "url", &Value::Null).as_str().unwrap().to_owned()
    }

    /// Returns the path of the page, without its query.
    pub(crate) fn path(&self) -> String {
        let url = self.url();
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        format!("/{}", path.split(['?', '#']).next().unwrap_or_default())
    }

    /// Finds all elements.
    pub(crate) fn all(&self, css: &str) -> Vec<Element> {
        let found = self.ask("POST", "elements", &json!({"using": "css selector", "value": css}));
        let found = found.as_array().unwrap().iter();
        found.map(|element| Element(element[ELEMENT].as_str().unwrap().to_owned())).collect()
    }

    /// Returns `true` if the page has such an element.
    pub(crate) fn has(&self, css: &str) -> bool {
        !self.all(css).is_empty()
    }

    /// Waits for an element.
    #[track_caller]
    pub(crate) fn find(&self, css: &str) -> Element {
        wait_for(&format!("{css} at {}", self.url()), || self.all(css).into_iter().next())
    }

    /// Waits for an element and clicks it.
    #[track_caller]
    pub(crate) fn click(&self, css: &str) {
        let Element(id) = self.find(css);
        self.ask("POST", &format!("element/{id}/click"), &json!({}));
    }

    /// Waits for a field and types into it.
    #[track_caller]
    pub(crate) fn write(&self, css: &str, text: &str) {
        let Element(id) = self.find(css);
        self.ask("POST", &format!("element/{id}/clear"), &json!({}));
        self.ask("POST", &format!("element/{id}/value"), &json!({"text": text}));
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let pressed: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.ask(
            "POST",
            "actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": pressed}]}),
        );
    }

    /// Runs a script in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask("POST", "execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs a script in the page that passes its result to `arguments[0]`.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.ask("POST", "execute/async", &json!({"script": script, "args": []}))
    }

    /// Returns the visible text of the page.
    pub(crate) fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub(crate) fn wait_text(&self, text: &str) {
        let started = Instant::now();
        while !self.text().contains(text) {
            assert!(started.elapsed() < DEADLINE, "no {text:?} at {}:\n{}", self.url(), self.text());
            std::thread::sleep(LOOK);
        }
    }

    /// Sets the width of the screen, as on a device.
    pub(crate) fn set_width(&self, width: u32) {
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the preferred colour scheme: `dark` or `light`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Returns the errors that the browser has logged since the last call, from scripts and from the
    /// content security policy.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.ask("POST", "se/log", &json!({"type": "browser"}));
        let severe = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.ask("POST", "goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    #[track_caller]
    fn ask(&self, method: &str, command: &str, body: &Value) -> Value {
        self.call(method, &format!("/session/{}/{command}", self.session), body)
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let answer = http::send(&self.address, method, path, &[("content-type", "application/json")], &body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let mut value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        assert!(answer.status == 200, "{method} {path} {body}: {}", value["value"]["message"]);
        value["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Quits the browser, which would otherwise outlive its driver.
        let path = format!("/session/{}", self.session);
        let _ = http::send(&self.address, "DELETE", &path, &[], "");
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
