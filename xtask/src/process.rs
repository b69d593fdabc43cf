//! Runs cargo, forwards its output and counts passed tests.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A call of cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cargo {
    arguments: Vec<String>,
    /// Environment variables that are set in addition to the inherited ones.
    variables: Vec<(String, String)>,
}

impl Cargo {
    /// Creates a call with these arguments, separated by spaces.
    pub(crate) fn new(arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { arguments, variables: Vec::new() }
    }

    /// Adds an environment variable.
    pub(crate) fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Appends arguments.
    pub(crate) fn with_arguments(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Returns the environment variables that are set in addition to the inherited ones.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Runs the call, forwards its output, and returns the number of passed tests in it.
    pub(crate) fn run(&self) -> Result<u64, String> {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start `{self}`: {error}"))?;
        let output = child.stdout.take().expect("the output is piped");
        let passed = forward(output, io::stdout().lock())
            .map_err(|error| format!("failed to forward the output of `{self}`: {error}"));
        // Waited for in any case, so that no zombie remains.
        let status = child.wait().map_err(|error| format!("failed to wait for `{self}`: {error}"))?;
        match status.success() {
            true => passed,
            false => Err(format!("`{self}` failed with {status}")),
        }
    }

    /// Runs the call and returns its standard output.
    pub(crate) fn output(&self) -> Result<String, String> {
        let output = self
            .command()
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("failed to start `{self}`: {error}"))?;
        if !output.status.success() {
            return Err(format!("`{self}` failed with {}", output.status));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("`{self}` wrote invalid UTF-8: {error}"))
    }

    /// Builds the command. It keeps the working directory, so that paths in arguments stay valid.
    fn command(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        // Those of this package: build scripts that read them would run again whenever cargo is called by hand in between.
        let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
            command.env_remove(name);
        }
        command.args(&self.arguments).envs(self.variables.iter().cloned());
        command
    }
}

/// Formats the call as a shell command.
impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={value:?} ")?;
        }
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

/// Copies lines from the reader to the writer, and counts passed tests.
fn forward(from: impl Read, mut to: impl Write) -> io::Result<u64> {
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

/// Returns the number of passed tests in a success line of a test program; 0 for other lines.
pub(crate) fn passed_in(line: &str) -> u64 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split_once(" passed;"));
    count.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// Returns the root of the workspace.
pub(crate) fn workspace_root() -> Result<PathBuf, String> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    let root = PathBuf::from(own).parent().map(PathBuf::from);
    root.ok_or_else(|| "xtask is not in a workspace".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_forwarded_byte_for_byte_and_passed_tests_are_counted() {
        let output = b"running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\xff\nno end of line \
            test result: ok. 9 passed;\ntest result: ok. 40 passed; 0 failed\ntest result: FAILED. 3 passed; 1 failed";
        let mut copy = Vec::new();
        assert_eq!(forward(&output[..], &mut copy).unwrap(), 42);
        assert_eq!(copy, output);
    }

    #[test]
    fn a_call_is_formatted_as_a_shell_command() {
        let call = Cargo::new("doc  --no-deps").with_variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(call.to_string(), r#"RUSTDOCFLAGS="-D warnings" cargo doc --no-deps"#);
    }
}
