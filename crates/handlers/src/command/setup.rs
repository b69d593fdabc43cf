//! Validated options, and the commands built from them.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use lazaret_core::{HandlerError, Reason, Verdict};
use tokio::process::Command;

use super::options::{CommandOptions, Mode};
use crate::attempt_info::Caller;
use crate::error::Error;

/// The maximum timeout. Longer timeouts would overflow clocks.
const TIMEOUT_LIMIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The validated options of both modes.
pub(super) struct Setup {
    pub(super) options: CommandOptions,
    pub(super) timeout: Duration,
    pub(super) grace: Duration,
}

impl Setup {
    pub(super) fn check(options: CommandOptions) -> Result<Self, Error> {
        let wrong = |why: &str| Err(Error::Command(why.to_owned()));
        if options.program.first().is_none_or(String::is_empty) {
            return wrong("the program is missing");
        }
        if options.program.iter().any(|part| part.contains('\0')) {
            return wrong("the program contains a NUL");
        }
        for (name, value) in &options.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Error::Command(format!("invalid variable {name:?}")));
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

    /// Builds the command with arguments, variables and pipes.
    pub(super) fn command(&self) -> Command {
        let options = &self.options;
        let (program, arguments) = options.program.split_first().expect("the options were validated");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        match options.mode {
            // Standard output is not read, so the program must not block on it.
            Mode::Once => command.stdout(Stdio::null()),
            Mode::Lines => command.stdout(Stdio::piped()),
        };
        if let Some(folder) = &options.folder {
            command.current_dir(folder);
        }
        let inherited = std::env::vars_os()
            .filter(|(name, _)| is_inherited(name.as_encoded_bytes(), &options.inherited_env));
        command.env_clear().envs(inherited);
        command.envs(options.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the failure of an attempt whose program failed to start.
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

/// Returns `true` if a variable of this process is inherited: its name or a prefix of it is listed.
fn is_inherited(name: &[u8], names: &[String]) -> bool {
    let is_named = names.iter().any(|wanted| match wanted.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => name == wanted.as_bytes(),
    });
    is_named && !is_reserved(name)
}

/// Returns `true` if a variable is reserved for Lazaret.
fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(b"LAZARET_") || name == b"TRACEPARENT" || name == b"TRACESTATE"
}

/// Returns the failure of an attempt that timed out.
pub(super) fn timed_out(limit: Duration, stderr: &str) -> HandlerError {
    let colon = if stderr.is_empty() { "" } else { ": " };
    let text = format!("no response within {limit:?}{colon}{stderr}");
    HandlerError::foreign("command timeout", text).reason(Reason::TIMEOUT).suggest(Verdict::Retry)
}
