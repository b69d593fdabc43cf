//! Installs programs that a service needs.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program and its Debian package.
#[derive(Clone, Copy)]
pub(super) struct Tool {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

/// Ensures that these programs are installed. Installs missing ones as root; otherwise the error names the packages.
pub(super) fn ensure(tools: &[Tool]) -> Result<(), String> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_installed(tool.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs = missing.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ");
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let advice = format!("install {} and try again", packages.join(" "));
    if !is_installed("apt-get") || !is_root() {
        return Err(format!("{programs} not found; {advice}"));
    }
    eprintln!("installing {}", packages.join(" "));
    let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
    for arguments in [&["update"][..], &install] {
        // Standard output is for the variables; apt's messages go to standard error.
        let status = Command::new("apt-get")
            .args(["--quiet", "--quiet"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .status()
            .map_err(|error| format!("failed to start apt-get: {error}"))?;
        if !status.success() {
            return Err(format!("failed to install {programs}: apt-get failed with {status}; {advice}"));
        }
    }
    match missing.iter().find(|tool| !is_installed(tool.program)) {
        Some(tool) => Err(format!("{} not found although {} is installed", tool.program, tool.package)),
        None => Ok(()),
    }
}

/// Returns whether a directory of `PATH` has this program.
fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Returns the path of a program, from the directories of `PATH`.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_found() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
        assert!(ensure(&[Tool { program: "sh", package: "dash" }]).is_ok());
    }
}
