//! Sends generated requests to the API of a real daemon, with several tokens. Checks the responses against the OpenAPI document, and
//! that no token gets to see a planted secret that it may not see.

mod daemon;
mod planted;
mod recorder;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::process::{Cargo, workspace_root};
use crate::services;
use daemon::{Daemon, LIMIT};
use planted::{Planted, Setup, Token};
use recorder::Recorder;

/// The version of Schemathesis.
const SCHEMATHESIS: &str = "4.32.5";
/// The default bound of a run: requests per operation of the API, in each phase.
const EXAMPLES: u32 = 30;
const SEED: u64 = 1;
/// The default bound of the requests of one token, in seconds. The number of requests ends them long before.
const SECONDS: u64 = 1800;
/// Examples of the document, values at the bounds of every schema, and generated ones.
const PHASES: &str = "examples,coverage,fuzzing";
/// The stream of events. It never ends, so Schemathesis does not read it.
const EVENTS: &str = "/v1/events";

/// Checks of responses. They hold for every token.
const RESPONSE_CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance";
/// Checks of what is accepted and refused, for a token that may do everything. Others judge what is a matter of taste for an API, or
/// know it less well than its own tests (`crates/server/tests/api/support/contract.rs` checks every response of the tests).
const REQUEST_CHECKS: &str = "negative_data_rejection,positive_data_acceptance,missing_required_header,unsupported_method,\
    ignored_auth";

/// A run of generated requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiFuzzing {
    examples: u32,
    seed: u64,
    seconds: u64,
    path: Option<String>,
}

impl ApiFuzzing {
    /// Parses the arguments.
    ///
    /// # Errors
    /// When one is invalid.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut run = Self { examples: EXAMPLES, seed: SEED, seconds: SECONDS, path: None };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let wrong = || format!("{word} needs a number, not {value:?}");
            match word.as_str() {
                "--examples" => run.examples = value.parse().map_err(|_| wrong())?,
                "--seed" => run.seed = value.parse().map_err(|_| wrong())?,
                "--seconds" => run.seconds = value.parse().map_err(|_| wrong())?,
                "--path" => run.path = Some(value.clone()),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(run)
    }

    /// Starts a daemon, plants secrets, and runs Schemathesis against it with each token.
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
        let program = target.join("debug").join("lazaret");
        let setup = Setup::new(&program)?;
        let daemon = Daemon::start(&program, &folder, &setup.config)?;
        let planted = setup.plant(&daemon)?;
        planted.check_scan()?;
        let hooks = root.join("xtask").join("src").join("fuzz_api_hooks.py");
        let mut failures = Vec::new();
        for (token, text) in planted.tokens() {
            println!("\n=== {}", token.name);
            let mut command = self.command(&schemathesis, &hooks, token);
            command.current_dir(&folder).env("LAZARET_FUZZ_NAMES", planted.names());
            if let Err(why) = self.run_as(token, text, command, &daemon, &planted) {
                println!("{}: {why}", token.name);
                failures.push(format!("{}: {why}", token.name));
            }
        }
        if !daemon.stop()? {
            failures.push(format!("the daemon crashed: see {}", folder.join("daemon.log").display()));
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
    }

    /// The call of Schemathesis, without the address and the token.
    fn command(&self, schemathesis: &Path, hooks: &Path, token: &Token) -> Command {
        let checks = match token.is_admin() {
            true => format!("{RESPONSE_CHECKS},{REQUEST_CHECKS}"),
            false => RESPONSE_CHECKS.to_owned(),
        };
        let mut command = Command::new(schemathesis);
        command
            .arg("run")
            .args(["--phases", PHASES, "--checks", &checks, "--continue-on-failure"])
            .args(["--max-examples", &self.examples.to_string(), "--seed", &self.seed.to_string()])
            .args(["--request-timeout", "20", "--generation-database", "none", "--no-color"])
            .args(["--exclude-path", EVENTS])
            .env("SCHEMATHESIS_HOOKS", hooks);
        if !token.is_admin() {
            // Most routes are closed to them, which is what the warnings are about.
            command.args(["--warnings", "off"]);
        }
        if let Some(path) = &self.path {
            command.args(["--include-path", path]);
        }
        command
    }

    /// Sends the requests with a token, while it listens to events. Looks for secrets in all responses.
    fn run_as(
        &self,
        token: &Token,
        text: &str,
        mut command: Command,
        daemon: &Daemon,
        planted: &Planted,
    ) -> Result<(), String> {
        let recorder = Recorder::start(&daemon.address, planted.hidden_from(token))
            .map_err(|error| format!("failed to start the recorder: {error}"))?;
        let events = Events::open(&recorder.address, text)
            .map_err(|error| format!("failed to open the stream of events: {error}"))?;
        planted.post_live(token.name)?;
        command.arg("--header").arg(format!("Authorization: Bearer {text}"));
        command.arg(format!("http://{}/v1/openapi.json", recorder.address));
        let status = self.finish(&mut command);
        let has_events = !token.may_read() || events.wait_for("event: letter-stored");
        events.close();
        let findings = recorder.finish()?;
        println!("{} responses to {} were searched for secrets", findings.responses, token.name);
        if let Some((secret, request)) = findings.secrets.iter().next() {
            let count = findings.secrets.len();
            return Err(format!(
                "it sees {count} secrets, such as {secret:?} in the response to {request:?}"
            ));
        }
        if let Some(request) = findings.unreadable {
            return Err(format!("the response to {request:?} is compressed, so that it cannot be searched"));
        }
        if !has_events {
            return Err("it has got no events".to_owned());
        }
        match status? {
            status if status.success() => Ok(()),
            status => Err(format!("the API violates its OpenAPI document: Schemathesis ended with {status}")),
        }
    }

    /// Runs Schemathesis to its end, within the time.
    fn finish(&self, command: &mut Command) -> Result<ExitStatus, String> {
        let failed = |error: std::io::Error| format!("failed to run Schemathesis: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            if started.elapsed() > Duration::from_secs(self.seconds) {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                return Err(format!("Schemathesis did not end within {} s", self.seconds));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// An open stream of events, or the refusal of one.
struct Events {
    stream: TcpStream,
    heard: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Events {
    /// Asks for all events, kept ones included.
    fn open(address: &str, token: &str) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        let path = format!("{EVENTS}?last-event-id=unknown");
        stream.write_all(daemon::request(address, token, "GET", &path, "").as_bytes())?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let reading = std::thread::spawn({
            let (mut stream, heard) = (stream.try_clone()?, heard.clone());
            move || {
                let mut buffer = [0; 8192];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..read]);
                }
            }
        });
        Ok(Self { stream, heard, reading })
    }

    /// Waits until the stream contains a text. Returns `false` if it does not in time.
    fn wait_for(&self, text: &str) -> bool {
        let started = Instant::now();
        loop {
            let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if String::from_utf8_lossy(&heard).contains(text) {
                return true;
            }
            if started.elapsed() > LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn close(self) {
        // The server may have closed it.
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.reading.join();
    }
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
        let words = ["--examples", "5", "--seed", "9", "--path", "/v1/plans", "--seconds", "60"];
        let run = ApiFuzzing::parse(&words.map(str::to_owned)).unwrap();
        assert_eq!((run.examples, run.seed, run.seconds, run.path.as_deref()), (5, 9, 60, Some("/v1/plans")));
        assert_eq!(ApiFuzzing::parse(&[]).unwrap().seconds, SECONDS);
        assert!(ApiFuzzing::parse(&["--examples".to_owned()]).is_err());
    }

    #[test]
    fn every_phase_runs_with_every_token() {
        let run = ApiFuzzing::parse(&[]).unwrap();
        for token in planted::all() {
            let command = run.command(Path::new("st"), Path::new("hooks.py"), token);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            let value = |name: &str| words.iter().skip_while(|word| *word != name).nth(1).cloned();
            assert_eq!(value("--phases").as_deref(), Some("examples,coverage,fuzzing"));
            assert_eq!(value("--max-examples").as_deref(), Some("30"));
            let checks = value("--checks").unwrap();
            assert_eq!(checks.contains("positive_data_acceptance"), token.name == "admin", "{checks}");
            assert!(checks.contains("response_schema_conformance") && !checks.contains(' '), "{checks}");
        }
    }
}
