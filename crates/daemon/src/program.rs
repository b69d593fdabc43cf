//! What `lazaret run`, `lazaret check` and `lazaret doctor` do. Talk goes to standard error; the number is the exit code.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use lazaret_config::{Config, Diagnostics, Loaded};
use lazaret_telemetry::logs::{self, Format};
use tokio_util::sync::CancellationToken;

use crate::daemon::{Handle, Options, Report, Service};
use crate::doctor::{self, Finding, Health};
use crate::exit;
use crate::read::{Unreadable, read};
use crate::reload::Reloaded;
use crate::signals::{Asked, Signals};

/// Runs every consumer of a configuration file until SIGTERM or SIGINT, or until idle. A second such signal ends the process
/// at once, with 128 and the number of the signal. SIGHUP reads the file again.
pub async fn run(path: &Path, options: Options) -> u8 {
    let Loaded { config, warnings } = match read(path) {
        Ok(loaded) => loaded,
        Err(error) => return refuse(&error),
    };
    let format = if config.telemetry.json_logs { Format::Json } else { Format::Text };
    logs::init(format, config.telemetry.log_level);
    log(&warnings);
    match serve(path, config, options).await {
        Ok(report) => {
            let code = exit::code(&report);
            if !report.drained && code != exit::ERROR {
                conclude(&report.open_letters, path, format);
            }
            code
        }
        Err(error) => {
            tracing::error!(%error, "cannot run");
            exit::ERROR
        }
    }
}

/// Checks a configuration file, and says what is wrong with it.
pub fn check(path: &Path) -> u8 {
    judge(path, &read(path))
}

/// Says what came of reading a file.
pub fn judge(path: &Path, read: &Result<Loaded, Unreadable>) -> u8 {
    match read {
        Ok(loaded) => {
            if !loaded.warnings.is_empty() {
                talk(loaded.warnings.plain().trim_end());
            }
            talk(&format!("{} is fine: {}", path.display(), consumers(loaded.config.consumers.len())));
            exit::OK
        }
        Err(error) => refuse(error),
    }
}

/// Looks at everything that a configuration file speaks of, and says on standard output how it is and what to do.
pub async fn doctor(path: &Path) -> u8 {
    let found = doctor::examine(path).await;
    let lines: String = found.iter().map(|finding| format!("{finding}\n")).collect();
    // Who has read enough closes the pipe. That changes nothing about what was found.
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
    verdict(&found)
}

/// The exit code that goes with what a doctor found.
pub fn verdict(found: &[Finding]) -> u8 {
    let failed = found.iter().any(|finding| finding.health == Health::Fail);
    if failed { exit::ERROR } else { exit::OK }
}

async fn serve(path: &Path, config: Config, options: Options) -> Result<Report, Box<dyn std::error::Error>> {
    let mut signals = Signals::listen()?;
    let service = Service::open(config, options).await?;
    let handle = service.handle();
    let drain = CancellationToken::new();
    let mut running = tokio::spawn(service.run(drain.clone()));
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended??),
            asked = signals.next() => match asked {
                Asked::Reload => reload(path, &handle),
                Asked::Stop(_) if !drain.is_cancelled() => {
                    tracing::info!("stopping: settling what is in flight; a second signal ends at once");
                    drain.cancel();
                }
                // Nothing is lost by it: what is not settled comes again.
                Asked::Stop(number) => std::process::exit(128 + i32::from(number)),
            },
        }
    }
}

/// Says what is left when nothing is left to do, as the last words. Letters can be looked at only while a daemon runs.
fn conclude(open: &BTreeMap<String, u64>, path: &Path, format: Format) {
    match format {
        Format::Json if open.is_empty() => tracing::info!("all is handled: no letter is open"),
        Format::Json => {
            for (consumer, letters) in open {
                tracing::warn!(consumer, letters, "letters are open");
            }
        }
        Format::Text if open.is_empty() => talk("all is handled: no letter is open"),
        Format::Text => {
            talk(&remaining(open));
            talk(&format!("next: lazaret run -c {}", word(path)));
            talk("then: lazaret groups");
        }
    }
}

/// A path as a shell takes it for one word.
fn word(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// How many letters are open, and whose they are.
fn remaining(open: &BTreeMap<String, u64>) -> String {
    let all: u64 = open.values().sum();
    let letters = if all == 1 { "1 letter is open".to_owned() } else { format!("{all} letters are open") };
    let whose: Vec<String> = match open.len() {
        1 => open.keys().cloned().collect(),
        _ => open.iter().map(|(consumer, letters)| format!("{consumer} {letters}")).collect(),
    };
    format!("{letters}: {}", whose.join(", "))
}

/// Reads the file again. One that has mistakes changes nothing.
fn reload(path: &Path, handle: &Handle) {
    let Loaded { config, warnings } = match read(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::error!("the configuration was not reloaded, everything goes on as before:\n{error}");
            return;
        }
    };
    log(&warnings);
    tell(&handle.reload(config));
}

fn tell(done: &Reloaded) {
    if done.is_empty() {
        tracing::info!("the configuration was read again: nothing has changed");
        return;
    }
    for change in &done.taken {
        tracing::info!(%change, "taken over");
    }
    for consumer in &done.again {
        tracing::info!(consumer, "is tried again");
    }
    for change in &done.restart {
        tracing::warn!(%change, "not taken over: it needs a restart");
    }
    for change in &done.held_back {
        tracing::warn!(%change, "not taken over: its consumer waits for the restart as a whole");
    }
    let waits = done.restart.len() + done.held_back.len();
    match done.taken.len() {
        0 if waits > 0 => {
            tracing::warn!(waits, "nothing of the configuration was taken over; restart to have it");
        }
        taken if waits > 0 => {
            tracing::warn!(
                taken,
                waits,
                "a part of the configuration was taken over; restart to have the rest"
            );
        }
        taken => tracing::info!(taken, "the configuration was reloaded"),
    }
}

fn refuse(error: &Unreadable) -> u8 {
    match error {
        // Each of them says by itself that it is an error.
        Unreadable::Mistakes(_) => talk(&error.to_string()),
        _ => talk(&format!("error: {error}")),
    }
    exit::ERROR
}

/// Says something to whoever runs the command. Who does not listen is not told.
fn talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Warnings of a daemon belong into its log, which may be for machines.
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
    fn what_remains_is_told_by_consumer_where_there_are_several() {
        let of = |open: &[(&str, u64)]| {
            remaining(&open.iter().map(|(consumer, letters)| ((*consumer).to_owned(), *letters)).collect())
        };
        assert_eq!(of(&[("orders", 1)]), "1 letter is open: orders");
        assert_eq!(of(&[("orders", 2), ("mail", 1)]), "3 letters are open: mail 1, orders 2");
    }
}
