//! Runs a program, passes its output on, and reads along.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program to run: cargo, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cargo {
    arguments: Vec<String>,
    /// Variables that are set for the program on top of the inherited ones.
    variables: Vec<(String, String)>,
}

impl Cargo {
    /// Cargo with these arguments, separated by spaces.
    pub(crate) fn new(arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { arguments, variables: Vec::new() }
    }

    /// The same call with one more variable.
    pub(crate) fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same call with more arguments behind.
    pub(crate) fn with_arguments(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Runs it, passes its output on, and says how many tests its output says have passed.
    pub(crate) fn run(&self) -> Result<u64, String> {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start `{self}`: {error}"))?;
        let output = child.stdout.take().expect("the output is piped");
        let passed = pass_on(output, io::stdout().lock())
            .map_err(|error| format!("failed to pass on the output of `{self}`: {error}"));
        // Waited for in any case, so that it is not left behind.
        let status = child.wait().map_err(|error| format!("failed to wait for `{self}`: {error}"))?;
        match status.success() {
            true => passed,
            false => Err(format!("`{self}` ended with {status}")),
        }
    }

    /// Runs it and gives back what it wrote to its standard output.
    pub(crate) fn output(&self) -> Result<String, String> {
        let output = self
            .command()
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("failed to start `{self}`: {error}"))?;
        if !output.status.success() {
            return Err(format!("`{self}` ended with {}", output.status));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("`{self}` wrote no UTF-8: {error}"))
    }

    /// The working directory stays the caller's, so that the paths in its arguments mean what the caller meant.
    fn command(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command.args(&self.arguments).envs(self.variables.iter().cloned());
        command
    }
}

/// The line that a person would type.
impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={value:?} ")?;
        }
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

/// Copies what is read to the writer, line by line, and adds up the tests that passed.
fn pass_on(from: impl Read, mut to: impl Write) -> io::Result<u64> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut passed = 0;
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        passed += passed_in(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(passed)
}

/// How many tests passed, if this is the line with which a test program ends well.
fn passed_in(line: &str) -> u64 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split_once(" passed;"));
    count.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// The folder that holds the workspace.
pub(crate) fn workspace_root() -> Result<PathBuf, String> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    let root = PathBuf::from(own).parent().map(PathBuf::from);
    root.ok_or_else(|| "xtask lies in no workspace".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_passed_on_byte_for_byte_and_the_tests_are_added_up() {
        let output = b"running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\xff\nno end of line \
            test result: ok. 9 passed;\ntest result: ok. 40 passed; 0 failed\ntest result: FAILED. 3 passed; 1 failed";
        let mut copy = Vec::new();
        assert_eq!(pass_on(&output[..], &mut copy).unwrap(), 42);
        assert_eq!(copy, output);
    }

    #[test]
    fn a_call_reads_like_a_command_line() {
        let call = Cargo::new("doc  --no-deps").with_variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(call.to_string(), r#"RUSTDOCFLAGS="-D warnings" cargo doc --no-deps"#);
    }
}
