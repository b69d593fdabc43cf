//! `check`: what is wrong with a configuration file, or what holds by it.

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

/// The configuration file.
#[derive(Debug, Args)]
pub(super) struct File {
    /// The configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = "lazaret.yaml")]
    pub(super) config: PathBuf,
}

/// Check a configuration file.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    file: File,

    /// Print all that holds for this consumer, and where each value comes from
    #[arg(long, value_name = "CONSUMER")]
    effective: Option<String>,
}

impl Run for Check {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if self.effective.is_some() && context.format() != Format::Table {
            let hint = "leave out -o and --json, or --effective to have the problems";
            return Err(Error::usage_hint("--effective prints YAML and nothing else", hint));
        }
        let (exit, loaded) = check(context, &self.file.config)?;
        let (Some(consumer), Some(loaded)) = (self.effective, loaded) else { return Ok(exit) };
        let text = loaded.config.effective(&consumer);
        let text =
            text.ok_or_else(|| Error::not_found(format!("there is no consumer {consumer:?} in it")))?;
        context.screen.raw(text.as_bytes())?;
        Ok(exit)
    }
}

/// Checks a file and says what is wrong with it: to people in words, to programs as a list. Gives what can be used.
///
/// # Errors
/// When the list cannot be written.
pub(super) fn check(context: &Context, path: &Path) -> Result<(Exit, Option<Loaded>)> {
    let read = read(path);
    if context.format() != Format::Table {
        let problems = Problem::all(path, &read);
        print_values(&context.screen, context.format(), &Problem::CSV, &problems)?;
        if let Some(omitted) = found(&read).map(Diagnostics::omitted).filter(|omitted| *omitted > 0) {
            context.screen.say(&format!("and {omitted} more"));
        }
        let exit = if read.is_ok() { Exit::Ok } else { Exit::Error };
        return Ok((exit, read.ok()));
    }
    let exit = Exit::of_daemon(program::report_check(path, &read));
    let errors = found(&read).map(Diagnostics::list).unwrap_or_default();
    // A warning before it is not what keeps the file from being used.
    if let Some(first) = errors.iter().find(|found| found.severity() == Severity::Error) {
        context.screen.next(&format!("lazaret explain {}", first.code()));
    }
    Ok((exit, read.ok()))
}

/// What was found in the file, if it is one.
fn found(read: &std::result::Result<Loaded, ReadError>) -> Option<&Diagnostics> {
    match read {
        Ok(loaded) => Some(&loaded.warnings),
        Err(ReadError::Invalid(found)) => Some(found),
        Err(_) => None,
    }
}

/// Something that is wrong with the file, or suspicious, for programs.
#[derive(Debug, Serialize)]
struct Problem {
    /// The code; a file that cannot be read has none.
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
