//! Options that were checked, and the commands made of them.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use lazaret_core::{HandlerError, Reason, Verdict};
use tokio::process::Command;

use super::options::{CommandOptions, Mode};
use crate::error::Error;
use crate::facts::Caller;

/// The longest time limit that is kept: more is for ever, and clocks overflow.
const TIMEOUT_LIMIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What both modes need.
pub(super) struct Setup {
    pub(super) options: CommandOptions,
    pub(super) timeout: Duration,
    pub(super) grace: Duration,
}

impl Setup {
    pub(super) fn check(options: CommandOptions) -> Result<Self, Error> {
        let wrong = |why: &str| Err(Error::Command(why.to_owned()));
        if options.program.first().is_none_or(String::is_empty) {
            return wrong("it has no program");
        }
        if options.program.iter().any(|part| part.contains('\0')) {
            return wrong("its program has a NUL in it");
        }
        for (name, value) in &options.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Error::Command(format!("{name:?} cannot be a variable with its value")));
            }
        }
        if options.timeout.is_zero() {
            return Err(Error::Zero { name: "the timeout" });
        }
        if options.workers == Some(0) {
            return Err(Error::Zero { name: "the number of workers" });
        }
        let timeout = options.timeout.min(TIMEOUT_LIMIT);
        let grace = options.grace.min(TIMEOUT_LIMIT);
        Ok(Self { options, timeout, grace })
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.options.caller
    }

    /// The program with its arguments and variables, and with pipes.
    pub(super) fn command(&self) -> Command {
        let options = &self.options;
        let (program, arguments) = options.program.split_first().expect("it was checked");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        match options.mode {
            // Nobody reads it, so nobody waits for a reader.
            Mode::Once => command.stdout(Stdio::null()),
            Mode::Lines => command.stdout(Stdio::piped()),
        };
        if let Some(folder) = &options.folder {
            command.current_dir(folder);
        }
        if options.inherits_env {
            let inherited = std::env::vars_os().map(|(name, _)| name);
            for name in inherited.filter(|name| is_ours(name.as_encoded_bytes())) {
                command.env_remove(name);
            }
        } else {
            command.env_clear();
        }
        command.envs(options.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The failure of a message for which the program could not be started.
    pub(super) fn not_started(&self, error: &io::Error) -> HandlerError {
        let program = self.options.program.first().map_or("", String::as_str);
        let text = format!("failed to start {program}: {error}");
        let failed = HandlerError::foreign("command", text);
        match error.kind() {
            io::ErrorKind::ArgumentListTooLong => {
                failed.reason(Reason::TOO_LARGE).suggest(Verdict::DeadLetter)
            }
            _ => failed.reason(Reason::HANDLER_UNREACHABLE).suggest(Verdict::Retry),
        }
    }
}

/// Whether a variable is one of those that tell of a message.
fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"LAZARET_") || name == b"TRACEPARENT" || name == b"TRACESTATE"
}

/// The failure of a message whose handler did not answer in time.
pub(super) fn late(limit: Duration, said: &str) -> HandlerError {
    let colon = if said.is_empty() { "" } else { ": " };
    let text = format!("no answer within {limit:?}{colon}{said}");
    HandlerError::foreign("command timeout", text).reason(Reason::TIMEOUT).suggest(Verdict::Retry)
}
