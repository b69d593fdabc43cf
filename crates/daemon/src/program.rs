//! Implements `lazaret run`, `lazaret serve`, `lazaret check` and `lazaret doctor`. Messages go to standard error; the result is the exit code.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use lazaret_config::{Config, Diagnostics, Loaded, LogFormat, NoEnv, load};
use lazaret_telemetry::logs::{self, Format};
use tokio_util::sync::CancellationToken;

use crate::build::capabilities;
use crate::daemon::{Handle, Options, Report, Service};
use crate::doctor::{self, Finding, Health};
use crate::exit;
use crate::read::{ReadError, read};
use crate::reload::Reloaded;
use crate::signals::{Signal, Signals};

/// Runs all consumers of a configuration file until SIGTERM or SIGINT, or until idle. A second signal exits at once, with 128 plus
/// the number of the signal. SIGHUP reloads the file.
pub async fn run(path: &Path, options: Options) -> u8 {
    let Loaded { config, warnings } = match read(path) {
        Ok(loaded) => loaded,
        Err(error) => return refuse(&error),
    };
    let format = begin_logs(&config, &warnings);
    match run_until_end(Some(path), config, options).await {
        Ok(report) => {
            let code = exit::code(&report);
            if !report.drained && code != exit::ERROR {
                conclude(&report.open_letters, path, format);
            }
            code
        }
        Err(code) => code,
    }
}

/// What `lazaret serve` serves.
#[derive(Clone, Debug)]
pub enum Served {
    /// The store of a configuration file, with its addresses, tokens, inboxes and settings of replays.
    File(PathBuf),
    /// The store at this URL, at this address. Without tokens, so the address is a loopback address.
    Store {
        /// The URL.
        url: String,
        /// The address: host and port.
        listen: String,
    },
}

/// Serves the API of a store without running consumers, until SIGTERM or SIGINT.
pub async fn serve(what: &Served) -> u8 {
    let loaded = match what {
        Served::File(path) => read(path),
        Served::Store { url, listen } => read_store(url, listen),
    };
    let Loaded { config, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return refuse(&error),
    };
    begin_logs(&config, &warnings);
    let path = match what {
        Served::File(path) => Some(path.as_path()),
        Served::Store { .. } => None,
    };
    let options = Options { run_consumers: false, ..Options::default() };
    match run_until_end(path, config, options).await {
        Ok(_) => exit::OK,
        Err(code) => code,
    }
}

/// Checks a configuration of a store and an address.
fn read_store(url: &str, listen: &str) -> Result<Loaded, ReadError> {
    // A string of JSON is one of YAML; nothing in it is a variable.
    let quoted = |text: &str| serde_json::Value::from(text.replace("${", "$${")).to_string();
    let text = format!("listen: {}\nstore: {}\nconsumers: {{}}\n", quoted(listen), quoted(url));
    load("--store", text.as_bytes(), &NoEnv, &capabilities())
        .map_err(|found| ReadError::Invalid(Box::new(found)))
}

/// Starts the logs, with the warnings about the file.
fn begin_logs(config: &Config, warnings: &Diagnostics) -> Format {
    let format = match config.telemetry.log_format {
        LogFormat::Json => Format::Json,
        _ => Format::Text,
    };
    logs::init(format, config.telemetry.log_level.as_str());
    log(warnings);
    format
}

/// Runs the daemon. An error is logged, and becomes the exit code.
async fn run_until_end(path: Option<&Path>, config: Config, options: Options) -> Result<Report, u8> {
    run_service(path, config, options).await.map_err(|error| {
        tracing::error!(%error, "daemon failed");
        exit::ERROR
    })
}

/// Checks a configuration file, and prints the diagnostics.
pub fn check(path: &Path) -> u8 {
    report_check(path, &read(path))
}

/// Prints the result of reading a file.
pub fn report_check(path: &Path, read: &Result<Loaded, ReadError>) -> u8 {
    match read {
        Ok(loaded) => {
            if !loaded.warnings.is_empty() {
                print(loaded.warnings.plain().trim_end());
            }
            print(&format!("{} is valid: {}", path.display(), consumers(loaded.config.consumers.len())));
            exit::OK
        }
        Err(error) => refuse(error),
    }
}

/// Runs preflight checks on a configuration, and prints the findings on standard output.
pub async fn doctor(path: &Path) -> u8 {
    let found = doctor::preflight(path).await;
    let lines: String = found.iter().map(|finding| format!("{finding}\n")).collect();
    // A closed pipe does not change the result.
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
    verdict(&found)
}

/// Returns the exit code for the findings.
pub fn verdict(found: &[Finding]) -> u8 {
    let failed = found.iter().any(|finding| finding.health == Health::Fail);
    if failed { exit::ERROR } else { exit::OK }
}

async fn run_service(
    path: Option<&Path>,
    config: Config,
    options: Options,
) -> Result<Report, Box<dyn std::error::Error>> {
    let mut signals = Signals::listen()?;
    // The store may be waited for.
    let mut opening = Box::pin(Service::open(config, options));
    let service = loop {
        tokio::select! {
            opened = &mut opening => break opened?,
            signal = signals.next() => match signal {
                Signal::Reload => tracing::warn!("configuration not reloaded: the daemon is starting"),
                Signal::Stop(_) => {
                    tracing::info!("daemon stopped before its store was open");
                    return Ok(Report { failed: Vec::new(), open_letters: BTreeMap::new(), drained: true });
                }
            },
        }
    };
    drop(opening);
    let handle = service.handle();
    let drain = CancellationToken::new();
    let mut running = tokio::spawn(service.run(drain.clone()));
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended??),
            signal = signals.next() => match signal {
                Signal::Reload => match path {
                    Some(path) => reload(path, &handle),
                    None => tracing::warn!("configuration not reloaded: there is no file"),
                },
                Signal::Stop(_) if !drain.is_cancelled() => {
                    tracing::info!("drain started; a second signal exits at once");
                    drain.cancel();
                }
                // Nothing is lost: unsettled messages are redelivered.
                Signal::Stop(number) => std::process::exit(128 + i32::from(number)),
            },
        }
    }
}

/// Reports the open letters at the end of a run with `--until-idle`. Letters can be inspected only while a daemon runs.
fn conclude(open: &BTreeMap<String, u64>, path: &Path, format: Format) {
    match format {
        Format::Json if open.is_empty() => tracing::info!("all messages handled, no open letters"),
        Format::Json => {
            for (consumer, letters) in open {
                tracing::warn!(consumer, letters, "letters remained open");
            }
        }
        Format::Text if open.is_empty() => print("all messages handled, no open letters"),
        Format::Text => {
            print(&remaining(open));
            print(&format!("next: lazaret run -c {}", shell_word(path)));
            print("then: lazaret groups");
        }
    }
}

/// Quotes a path for a shell.
fn shell_word(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Describes the number of open letters per consumer.
fn remaining(open: &BTreeMap<String, u64>) -> String {
    let all: u64 = open.values().sum();
    let letters = if all == 1 { "1 open letter".to_owned() } else { format!("{all} open letters") };
    let consumers: Vec<String> = match open.len() {
        1 => open.keys().cloned().collect(),
        _ => open.iter().map(|(consumer, letters)| format!("{consumer} {letters}")).collect(),
    };
    format!("{letters}: {}", consumers.join(", "))
}

/// Reloads the file. An invalid file changes nothing.
fn reload(path: &Path, handle: &Handle) {
    let Loaded { config, warnings } = match read(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::error!("configuration reload failed, the previous configuration stays active:\n{error}");
            return;
        }
    };
    log(&warnings);
    log_reload(&handle.reload(config));
}

/// Logs the result of a reload.
fn log_reload(done: &Reloaded) {
    if done.is_empty() {
        tracing::info!("configuration reloaded without changes");
        return;
    }
    if let Some(tokens) = done.tokens {
        tracing::info!(tokens, "tokens reloaded");
    }
    if let Some(error) = &done.tokens_error {
        tracing::error!(error, "tokens reload failed, the previous tokens stay active");
    }
    for change in &done.applied {
        tracing::info!(%change, "configuration change applied");
    }
    for consumer in &done.restarted {
        tracing::info!(consumer, "failed consumer restarted");
    }
    for change in &done.needs_restart {
        tracing::warn!(%change, "configuration change not applied, restart required");
    }
    for change in &done.deferred {
        tracing::warn!(%change, "configuration change deferred, another change of the consumer requires a restart");
    }
    let pending = done.needs_restart.len() + done.deferred.len();
    match done.applied.len() {
        0 if pending > 0 => {
            tracing::warn!(pending, "configuration reloaded, no changes applied, restart required");
        }
        applied if pending > 0 => {
            tracing::warn!(applied, pending, "configuration reloaded in part, restart required");
        }
        applied => tracing::info!(applied, "configuration reloaded"),
    }
}

fn refuse(error: &ReadError) -> u8 {
    match error {
        // Diagnostics include their severity.
        ReadError::Invalid(_) => print(&error.to_string()),
        _ => print(&format!("error: {error}")),
    }
    exit::ERROR
}

/// Prints a line on standard error. A closed pipe is ignored.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Logs the warnings of a configuration.
fn log(warnings: &Diagnostics) {
    if !warnings.is_empty() {
        tracing::warn!("{}", warnings.plain().trim_end());
    }
}

fn consumers(count: usize) -> String {
    format!("{count} consumer{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_letters_are_listed_by_consumer() {
        let of = |open: &[(&str, u64)]| {
            remaining(&open.iter().map(|(consumer, letters)| ((*consumer).to_owned(), *letters)).collect())
        };
        assert_eq!(of(&[("orders", 1)]), "1 open letter: orders");
        assert_eq!(of(&[("orders", 2), ("mail", 1)]), "3 open letters: mail 1, orders 2");
    }
}
