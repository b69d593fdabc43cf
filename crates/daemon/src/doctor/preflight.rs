//! Runs all checks in order.

use std::path::Path;
use std::time::{Duration, SystemTime};

use lazaret_config::Config;

use super::finding::Finding;
use super::{disk, encryption, handler, listen, source, store};
use crate::assemble;
use crate::read::read;

/// An earlier time than this (2026-01-01) means that the clock is not set.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);

/// Runs preflight checks on a configuration file.
pub async fn preflight(path: &Path) -> Vec<Finding> {
    let config = match read(path) {
        Ok(loaded) if loaded.warnings.is_empty() => loaded.config,
        Ok(loaded) => {
            let warnings = loaded.warnings.plain();
            let first = Finding::warn("configuration", warnings.trim_end(), "review the warnings above");
            return check_all(first, &loaded.config).await;
        }
        Err(error) => {
            let advice = "correct the file; no other check was run";
            return vec![Finding::fail("configuration", error.to_string(), advice)];
        }
    };
    check_all(Finding::ok("configuration", format!("{} is valid", path.display())), &config).await
}

/// Runs all checks after the one of the file.
async fn check_all(first: Finding, config: &Config) -> Vec<Finding> {
    let mut found = vec![first, clock(SystemTime::now())];
    found.extend(store::check(&config.store).await);
    found.extend(encryption::check(config).await);
    found.push(listen::check(&config.listen).await);
    found.extend(config.tls.as_ref().map(listen::check_tls));
    found.extend(config.socket.as_deref().map(listen::check_socket));
    if config.auth.is_some() {
        found.push(tokens(config));
    }
    if let Some(folder) = &config.flight_recorder {
        found.push(disk::folder("flight recorder", folder, disk::MissingFolder::Created));
        found.push(disk::free_space("flight recorder", folder));
    }
    for consumer in &config.consumers {
        found.push(handler::check(consumer).await);
        found.extend(source::check(consumer, &config.store).await);
        #[cfg(feature = "mongodb")]
        found.extend(super::mongodb::check_copies(consumer).await);
        #[cfg(feature = "kafka")]
        found.extend(super::kafka::check_adopted(consumer).await);
    }
    found
}

fn tokens(config: &Config) -> Finding {
    let checked = assemble::tokens(config).and_then(|_| assemble::remarks_on_tokens_file(config));
    match checked {
        Ok(remarks) if remarks.is_empty() => Finding::ok("tokens", "all tokens are valid"),
        Ok(remarks) => {
            Finding::warn("tokens", remarks.join("; "), "correct the names in `consumers` of the tokens")
        }
        Err(error) => Finding::fail(
            "tokens",
            error.to_string(),
            "correct `auth`, or create a token with `lazaret token`",
        ),
    }
}

/// Checks the clock, which due times, leases and expiry depend on.
fn clock(now: SystemTime) -> Finding {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let shown = jiff::Timestamp::try_from(now).map_or_else(|_| "?".to_owned(), |now| format!("{now:.0}"));
    if since < EARLIEST {
        return Finding::fail("clock", format!("the time is {shown}"), "set the clock of this machine");
    }
    Finding::ok("clock", format!("the time is {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[test]
    fn a_clock_that_is_not_set_fails() {
        assert_eq!(clock(SystemTime::UNIX_EPOCH + Duration::from_secs(60)).health, Health::Fail);
        assert_eq!(clock(SystemTime::UNIX_EPOCH + EARLIEST).health, Health::Ok);
    }
}
