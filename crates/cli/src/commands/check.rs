//! `check`: validates a configuration file, or prints the effective configuration of a consumer.

use std::path::{Path, PathBuf};

use clap::Args;
use lazaret_config::{Diagnostic, Diagnostics, Loaded, Severity};
use lazaret_daemon::{ReadError, program, read};
use serde::Serialize;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, print_values};

/// The option that selects the configuration file.
#[derive(Debug, Args)]
pub(super) struct File {
    /// Use this configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = "lazaret.yaml")]
    pub(super) config: PathBuf,
}

/// Validate a configuration file.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    file: File,

    /// Print the effective configuration of a consumer, with the origin of each value
    #[arg(long, value_name = "CONSUMER")]
    effective: Option<String>,
}

impl Run for Check {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if self.effective.is_some() && context.format() != Format::Table {
            let hint = "drop -o and --json, or drop --effective to print the problems";
            return Err(Error::usage_hint("--effective only prints YAML", hint));
        }
        let (exit, loaded) = check(context, &self.file.config)?;
        let (Some(consumer), Some(loaded)) = (self.effective, loaded) else { return Ok(exit) };
        let text = loaded.config.effective(&consumer);
        let text = text.ok_or_else(|| {
            Error::not_found(format!("consumer {consumer:?} not found in {}", self.file.config.display()))
        })?;
        context.screen.raw(text.as_bytes())?;
        Ok(exit)
    }
}

/// Validates a file and prints its problems, as text or in the chosen format. Returns the configuration if it is valid.
///
/// # Errors
/// When the problems cannot be written.
pub(super) fn check(context: &Context, path: &Path) -> Result<(Exit, Option<Loaded>)> {
    let read = read(path);
    if context.format() != Format::Table {
        let problems = Problem::all(path, &read);
        print_values(&context.screen, context.format(), &Problem::CSV, &problems)?;
        if let Some(left_off) = found(&read).map(Diagnostics::omitted).filter(|left_off| *left_off > 0) {
            context.screen.info(&format!("and {left_off} more"));
        }
        let exit = if read.is_ok() { Exit::Ok } else { Exit::Error };
        return Ok((exit, read.ok()));
    }
    let exit = Exit::of_daemon(program::report_check(path, &read));
    let errors = found(&read).map(Diagnostics::list).unwrap_or_default();
    // Suggest the first error; warnings do not make the file invalid.
    if let Some(first) = errors.iter().find(|found| found.severity() == Severity::Error) {
        context.screen.next_command(&format!("lazaret explain {}", first.code()));
    }
    Ok((exit, read.ok()))
}

/// Returns the diagnostics, if the file could be parsed.
fn found(read: &std::result::Result<Loaded, ReadError>) -> Option<&Diagnostics> {
    match read {
        Ok(loaded) => Some(&loaded.warnings),
        Err(ReadError::Invalid(found)) => Some(found),
        Err(_) => None,
    }
}

/// A problem of the file, for JSON and CSV.
#[derive(Debug, Serialize)]
struct Problem {
    /// The error code; none when the file cannot be read.
    code: Option<&'static str>,
    severity: &'static str,
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    message: String,
    hint: String,
}

impl Problem {
    const CSV: [&'static str; 7] = ["code", "severity", "file", "line", "column", "message", "hint"];

    fn all(path: &Path, read: &std::result::Result<Loaded, ReadError>) -> Vec<Self> {
        match (found(read), read) {
            (Some(found), _) => found.list().iter().map(Self::of).collect(),
            (None, Err(error)) => {
                let (message, hint) = error.message_and_hint();
                let file = path.display().to_string();
                let (code, severity, hint) = (None, "error", hint.to_owned());
                vec![Self { code, severity, file, line: None, column: None, message, hint }]
            }
            (None, Ok(_)) => Vec::new(),
        }
    }

    fn of(found: &Diagnostic) -> Self {
        let (line, column) = found.source().position(found.span().start);
        Self {
            code: Some(found.code().as_str()),
            severity: match found.severity() {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            file: found.source().name().to_owned(),
            line: Some(line),
            column: Some(column),
            message: found.message().to_owned(),
            hint: found.hint().to_owned(),
        }
    }
}
