//! Sends generated requests to the API of a real daemon, and checks the responses against its OpenAPI document.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Cargo, workspace_root};
use crate::services;

/// The version of Schemathesis.
const SCHEMATHESIS: &str = "4.32.5";
/// The default bound of a run: requests per operation of the API.
const EXAMPLES: u32 = 30;
const SEED: u64 = 1;
/// How long the daemon may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Checks that hold for every request. The others judge what is a matter of taste for an API, or know it less well than its own tests
/// (`crates/server/tests/api/support/contract.rs` checks every response of the tests).
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance,negative_data_rejection,positive_data_acceptance,\
    missing_required_header,unsupported_method,ignored_auth";

/// A run of generated requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiFuzzing {
    examples: u32,
    seed: u64,
    path: Option<String>,
}

impl ApiFuzzing {
    /// Parses the arguments.
    ///
    /// # Errors
    /// When one is invalid.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut run = Self { examples: EXAMPLES, seed: SEED, path: None };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let wrong = || format!("{word} needs a number, not {value:?}");
            match word.as_str() {
                "--examples" => run.examples = value.parse().map_err(|_| wrong())?,
                "--seed" => run.seed = value.parse().map_err(|_| wrong())?,
                "--path" => run.path = Some(value.clone()),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(run)
    }

    /// Starts a daemon, and runs Schemathesis against it.
    ///
    /// # Errors
    /// When a check fails, or a tool does.
    pub(crate) fn run(&self) -> Result<(), String> {
        let root = workspace_root()?;
        std::env::set_current_dir(&root)
            .map_err(|error| format!("failed to enter the workspace: {error}"))?;
        let target = services::target()?;
        let schemathesis = schemathesis(&target)?;
        Cargo::new("build -p lazaret-cli --bin lazaret").run()?;
        let folder = target.join("fuzz-api");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let daemon = Daemon::start(&target.join("debug").join("lazaret"), &folder)?;
        daemon.fill()?;
        let mut command = Command::new(schemathesis);
        command
            .arg("run")
            .arg(format!("http://{}/v1/openapi.json", daemon.address))
            .arg("--header")
            .arg(format!("Authorization: Bearer {}", daemon.token))
            .args(["--phases", "examples,coverage,fuzzing", "--checks", CHECKS, "--continue-on-failure"])
            .args(["--max-examples", &self.examples.to_string(), "--seed", &self.seed.to_string()])
            .args(["--request-timeout", "20", "--generation-database", "none", "--no-color"])
            // Never ends: its tests are in `crates/server/tests/api/events.rs`.
            .args(["--exclude-path", "/v1/events"])
            .env("SCHEMATHESIS_HOOKS", root.join("xtask").join("src").join("fuzz_api_hooks.py"))
            .current_dir(&folder);
        if let Some(path) = &self.path {
            command.args(["--include-path", path]);
        }
        let status = command.status().map_err(|error| format!("failed to start Schemathesis: {error}"))?;
        let alive = daemon.stop()?;
        match status.success() && alive {
            true => Ok(()),
            false if !alive => {
                Err(format!("the daemon crashed: see {}", folder.join("daemon.log").display()))
            }
            false => Err(format!("the API violates its OpenAPI document: Schemathesis ended with {status}")),
        }
    }
}

/// A running daemon with a store, a token and some letters.
struct Daemon {
    child: Child,
    address: String,
    token: String,
}

impl Daemon {
    fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        let (token, hash) = token(program)?;
        let address = free_address().map_err(|error| format!("no free port: {error}"))?;
        let config = format!(
            "listen: {address}\nstore: sqlite:lazaret.db\nauth:\n  tokens:\n    - {{ name: fuzz, hash: \"{hash}\", \
             scopes: [admin] }}\nconsumers:\n  orders:\n    \
             source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [\"false\"] }} }}\n    \
             retry: {{ max-attempts: 1 }}\n    fuse: off\n    breaker: off\n"
        );
        let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::write(folder.join("lazaret.yaml"), config).map_err(wrong)?;
        let log = fs::File::create(folder.join("daemon.log")).map_err(wrong)?;
        let child = Command::new(program)
            .args(["run", "-c", "lazaret.yaml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("failed to start the daemon: {error}"))?;
        let mut daemon = Self { child, address, token };
        let started = Instant::now();
        while daemon.call("GET", "/readyz", "").is_none_or(|status| status != 200) {
            let has_ended = daemon.child.try_wait().map_or(true, |status| status.is_some());
            if has_ended || started.elapsed() > START_LIMIT {
                return Err(format!("the daemon did not start: see {}", folder.join("daemon.log").display()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(daemon)
    }

    /// Posts messages that fail, so that there are letters.
    fn fill(&self) -> Result<(), String> {
        for number in 0..20 {
            let body = format!("{{\"number\":{number}}}");
            match self.call("POST", "/v1/inbox/orders", &body) {
                Some(202) => {}
                other => return Err(format!("the inbox answered {other:?}")),
            }
        }
        Ok(())
    }

    /// Sends a request, and returns the status.
    fn call(&self, method: &str, path: &str, body: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let (address, token, length) = (&self.address, &self.token, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    /// Stops the daemon. Returns whether it was still running.
    fn stop(mut self) -> Result<bool, String> {
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

/// Creates a token. Returns it and its hash.
fn token(program: &Path) -> Result<(String, String), String> {
    let output = Command::new(program).args(["token", "--name", "fuzz", "-o", "json"]).output();
    let output = output.map_err(|error| format!("failed to create a token: {error}"))?;
    let value: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`lazaret token` printed no JSON: {error}"))?;
    let text = |name: &str| {
        value[name].as_str().map(str::to_owned).ok_or_else(|| format!("`lazaret token` printed no {name}"))
    };
    Ok((text("token")?, text("hash")?))
}

/// An address of this machine that was free a moment ago.
fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Returns the path of Schemathesis, installed below the target folder if it is missing.
fn schemathesis(target: &Path) -> Result<PathBuf, String> {
    // Another version has another folder: an installed one is not taken for it.
    let folder = target.join("tools").join(format!("schemathesis-{SCHEMATHESIS}"));
    let program = folder.join("bin").join("st");
    if !program.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let package = format!("schemathesis=={SCHEMATHESIS}");
        run(Command::new(folder.join("bin").join("pip")).args(["install", "--quiet", &package]))?;
    }
    Ok(program)
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed with {status}")),
        Err(error) => Err(format!("failed to start {command:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_bound_the_run() {
        let words = ["--examples", "5", "--seed", "9", "--path", "/v1/plans"].map(str::to_owned);
        let run = ApiFuzzing::parse(&words).unwrap();
        assert_eq!((run.examples, run.seed, run.path.as_deref()), (5, 9, Some("/v1/plans")));
        assert!(ApiFuzzing::parse(&["--examples".to_owned()]).is_err());
    }
}
