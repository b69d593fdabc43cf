//! Takes the screenshots of the documentation: every screen of the console of a running demo, in both themes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Cargo, workspace_root};
use crate::services;

/// The folder of the images, below the root of the workspace.
const FOLDER: &str = "docs/images";
/// The line of the demo that names the address of the console.
const ADDRESS: &str = "open the console in a browser: http://";
/// How long the demo sends orders: long enough for all screenshots.
const SECONDS: &str = "600";
/// The dead letters of the outage that the screens should show.
const DEAD_LETTERS: u64 = 12;
/// The size of the window: modest, so that the images stay small.
const WINDOW: &str = "1200,760";
/// The themes, and how Chromium is told to prefer them.
const THEMES: [(&str, u8); 2] = [("light", 1), ("dark", 0)];
/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);

/// Runs the demo, and takes all screenshots. The demo is stopped in any case.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace_root()?;
    let browser = services::browser()?;
    let build = "build --package lazaret-cli --no-default-features --features demo";
    Cargo::new(build).run()?;
    let demo = Demo::start()?;
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let profile = services::target()?.join("screenshots-profile");
    let mut bytes = 0;
    for (name, path) in screens(&demo.address)? {
        for (theme, scheme) in THEMES {
            let file = folder.join(format!("console-{name}-{theme}.png"));
            let url = format!("http://{}{path}", demo.address);
            shoot(&browser, &profile, scheme, &url, &file)?;
            bytes += std::fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?.len();
        }
    }
    // A profile is of no use to the next run.
    let _ = std::fs::remove_dir_all(&profile);
    println!("{} images in {FOLDER}, {} KiB", 6 * THEMES.len(), bytes / 1024);
    Ok(())
}

/// A running demo.
struct Demo {
    child: Child,
    /// The host and port of its console.
    address: String,
}

impl Demo {
    /// Starts the demo, and waits for the address of its console.
    fn start() -> Result<Self, String> {
        let program = services::target()?.join("debug").join("lazaret");
        let mut child = Command::new(&program)
            .args(["demo", "--seconds", SECONDS])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start {}: {error}", program.display()))?;
        let output = child.stdout.take().expect("the output is piped");
        let mut demo = Self { child, address: String::new() };
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once(ADDRESS)?.1.split('/').next()?.to_owned()));
        demo.address = address.ok_or("the demo ended without an address of the console")?;
        // The demo must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(demo)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // A signal, so that the demo removes its files.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Waits until the story has something to show, starts an operation, and returns the six screens and their paths.
fn screens(address: &str) -> Result<[(&'static str, String); 6], String> {
    let dead = "state:dead reason:DEPENDENCY_UNAVAILABLE";
    let count = format!("/v1/letters/count?q={}", encoded(dead));
    wait_for("dead letters of the outage", || {
        let found = get(address, &count).ok()?;
        (found["letters"].as_u64()? >= DEAD_LETTERS).then_some(())
    })?;
    let head = head_with_waiters(address)?;
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = get(address, "/v1/groups")?["groups"]
        .as_array()
        .and_then(|groups| groups.iter().find(|group| group["reason"] == "DEPENDENCY_UNAVAILABLE").cloned())
        .ok_or("the outage has no group")?;
    let request = json!({"action": "retry", "query": dead, "reason": "the bank is said to be up again"});
    let operation = send(address, "POST", "/v1/operations", &request.to_string())?;
    let operation = format!("/v1/operations/{}", id(&operation["id"]));
    wait_for("the stop rule", || (get(address, &operation).ok()?["state"] == "paused").then_some(()))?;
    Ok([
        ("overview", "/console/overview".to_owned()),
        ("groups", "/console/groups".to_owned()),
        ("group", format!("/console/groups/{}", encoded(&id(&group["id"])))),
        ("letter", format!("/console/letters/{head}")),
        ("operation", operation.replace("/v1/", "/console/")),
        ("admin", "/console/admin".to_owned()),
    ])
}

/// The head of a lane in which letters of the outage wait.
fn head_with_waiters(address: &str) -> Result<String, String> {
    let path = format!("/v1/letters?limit=100&q={}", encoded("state:dead reason:DEPENDENCY_UNAVAILABLE"));
    wait_for("a lane with waiting letters", || {
        let found = get(address, &path).ok()?;
        found["letters"].as_array()?.iter().find_map(|letter| {
            let (queue, sequence) = (letter["queue"].as_str()?, letter["sequence"].as_str()?);
            let path = format!("/v1/sequences?queue={}&sequence={}", encoded(queue), encoded(sequence));
            let lane = get(address, &path).ok()?;
            (lane["size"].as_u64()? > 2).then(|| letter["id"].as_str().map(str::to_owned))?
        })
    })
}

fn shoot(browser: &Path, profile: &Path, scheme: u8, url: &str, file: &Path) -> Result<(), String> {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--hide-scrollbars", "--disable-background-networking"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--window-size={WINDOW}"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--screenshot={}", file.display()))
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("failed to start {}: {error}", browser.display()))?;
    match output.status.success() && file.is_file() {
        true => Ok(()),
        false => Err(format!("no screenshot of {url}:\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T, String> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if started.elapsed() > TIMEOUT {
            return Err(format!("waited in vain for {what}"));
        }
        std::thread::sleep(LOOK);
    }
}

fn get(address: &str, path: &str) -> Result<Value, String> {
    send(address, "GET", path, "")
}

/// Calls the API with HTTP/1.0: the response then ends with the connection, and has no chunks.
fn send(address: &str, method: &str, path: &str, body: &str) -> Result<Value, String> {
    let failed = |error: std::io::Error| format!("{method} {path}: {error}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(failed)?;
    let mut response = String::new();
    stream.read_to_string(&mut response).map_err(failed)?;
    let (head, body) =
        response.split_once("\r\n\r\n").ok_or_else(|| format!("{method} {path}: no response"))?;
    match head.split(' ').nth(1) {
        Some(status) if status.starts_with('2') => {
            serde_json::from_str(body).map_err(|error| format!("{method} {path}: {error}"))
        }
        _ => Err(format!("{method} {path}: {body}")),
    }
}

/// Percent-encodes every byte that is not plain.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(encoded("g1_0f@orders/orders a:b"), "g1_0f%40orders%2Forders%20a%3Ab");
    }
}
