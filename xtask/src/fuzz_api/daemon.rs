//! A daemon with a store, tokens and consumers whose handlers fail.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long the daemon may take to start, and to do what it is asked.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A running daemon.
pub(super) struct Daemon {
    child: Child,
    pub(super) address: String,
}

impl Daemon {
    /// Starts a daemon with this configuration, to which the address is added.
    pub(super) fn start(program: &Path, folder: &Path, config: &str) -> Result<Self, String> {
        let address = free_address().map_err(|error| format!("no free port: {error}"))?;
        let wrong = |error: io::Error| format!("{}: {error}", folder.display());
        fs::write(folder.join("lazaret.yaml"), format!("listen: {address}\n{config}")).map_err(wrong)?;
        let log = fs::File::create(folder.join("daemon.log")).map_err(wrong)?;
        let child = Command::new(program)
            .args(["run", "-c", "lazaret.yaml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("failed to start the daemon: {error}"))?;
        let mut daemon = Self { child, address };
        let started = Instant::now();
        while call(&daemon.address, "", "GET", "/readyz", "").is_none_or(|answer| answer.status != 200) {
            let has_ended = daemon.child.try_wait().map_or(true, |status| status.is_some());
            if has_ended || started.elapsed() > LIMIT {
                return Err(format!("the daemon did not start: see {}", folder.join("daemon.log").display()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(daemon)
    }

    /// Stops the daemon. Returns whether it was still running.
    pub(super) fn stop(mut self) -> Result<bool, String> {
        let alive = self.child.try_wait().map_err(|error| error.to_string())?.is_none();
        self.child.kill().map_err(|error| format!("failed to stop the daemon: {error}"))?;
        Ok(alive)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After an error on the way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The body; null if it is not JSON.
    pub(super) json: Value,
}

/// Sends a request to this address.
pub(super) fn call(address: &str, token: &str, method: &str, path: &str, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request(address, token, method, path, body).as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some(Answer { status, json: serde_json::from_str(body).unwrap_or_default() })
}

/// The text of a request. Its connection ends with the response. Without a token it is one of somebody unknown.
pub(super) fn request(address: &str, token: &str, method: &str, path: &str, body: &str) -> String {
    let authorization = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}Content-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// An address of this machine that was free a moment ago.
fn free_address() -> io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
