//! Looks at everything that a configuration speaks of before it is needed, and says what is wrong and how to mend it.
//!
//! Nothing is changed by it: no message is sent to a handler, no file is made or brought to another format, no group is joined.

mod disk;
mod handler;
#[cfg(feature = "kafka")]
mod kafka;
mod listen;
mod source;
mod store;

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lazaret_config::Config;
use serde::Serialize;

use crate::assemble;
use crate::read::read;

/// How long anything may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// A machine that says it is earlier than this (2026-01-01) has no idea what time it is.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// What was found about one thing. As JSON it has all four keys, whatever was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `store`, `shop handler`.
    pub subject: String,
    /// How it is.
    #[serde(rename = "outcome")]
    pub health: Health,
    /// What was seen.
    #[serde(rename = "detail")]
    pub seen: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    fn ok(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { subject: subject.into(), health: Health::Ok, seen: seen.into(), advice: None }
    }

    fn warn(subject: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { health: Health::Warn, advice: Some(advice.into()), ..Self::ok(subject, seen) }
    }

    fn fail(subject: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { health: Health::Fail, ..Self::warn(subject, seen, advice) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}: {}", self.health, self.subject, self.seen)?;
        self.advice.iter().try_for_each(|advice| write!(f, "\n      {advice}"))
    }
}

/// Looks at a configuration file and at all that it speaks of.
pub async fn examine(path: &Path) -> Vec<Finding> {
    let config = match read(path) {
        Ok(loaded) if loaded.warnings.is_empty() => loaded.config,
        Ok(loaded) => {
            let warnings = loaded.warnings.plain();
            let first = Finding::warn("configuration", warnings.trim_end(), "read the warnings above");
            return with(first, &loaded.config).await;
        }
        Err(error) => {
            let advice = "correct the file; nothing else was looked at";
            return vec![Finding::fail("configuration", error.to_string(), advice)];
        }
    };
    with(Finding::ok("configuration", format!("{} is fine", path.display())), &config).await
}

async fn with(first: Finding, config: &Config) -> Vec<Finding> {
    let mut found = vec![first, clock(SystemTime::now())];
    found.extend(store::examine(&config.store).await);
    found.push(listen::examine(&config.listen).await);
    if config.auth.is_some() {
        found.push(tokens(config));
    }
    if let Some(folder) = &config.flight_recorder {
        found.push(disk::folder("flight recorder", folder, disk::Maker::Lazaret));
        found.push(disk::room("flight recorder", folder));
    }
    for consumer in &config.consumers {
        found.push(handler::examine(consumer).await);
        found.extend(source::examine(consumer).await);
    }
    found
}

fn tokens(config: &Config) -> Finding {
    match assemble::tokens(config) {
        Ok(tokens) if tokens.is_empty() => {
            Finding::warn("tokens", "there are none: nobody is asked", "make one with `lazaret token`")
        }
        Ok(_) => Finding::ok("tokens", "they can be used"),
        Err(error) => {
            Finding::fail("tokens", error.to_string(), "correct `auth`, or make a token with `lazaret token`")
        }
    }
}

/// Due times, leases and expiry go by the clock.
fn clock(now: SystemTime) -> Finding {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let shown = jiff::Timestamp::try_from(now).map_or_else(|_| "?".to_owned(), |now| format!("{now:.0}"));
    if since < EARLIEST {
        return Finding::fail("clock", format!("it says {shown}"), "set the clock of this machine");
    }
    Finding::ok("clock", format!("it says {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_at_the_beginning_of_time_is_found() {
        assert_eq!(clock(SystemTime::UNIX_EPOCH + Duration::from_secs(60)).health, Health::Fail);
        assert_eq!(clock(SystemTime::UNIX_EPOCH + EARLIEST).health, Health::Ok);
    }

    #[test]
    fn a_finding_says_what_to_do_on_a_line_of_its_own() {
        let found = Finding::fail("store", "it is not there", "make it");
        assert_eq!(found.to_string(), "FAIL  store: it is not there\n      make it");
    }
}
