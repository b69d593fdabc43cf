//! Brings programs that a service needs onto the machine.

use std::process::{Command, Stdio};

/// A program and the Debian package that has it.
pub(super) struct Tool {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

/// Makes sure that these programs are there. Only root may install what is missing; others are told what to do.
pub(super) fn ensure(tools: &[Tool]) -> Result<(), String> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_there(tool.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs = missing.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ");
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let advice = format!("install {} and try again", packages.join(" "));
    if !is_there("apt-get") || !is_root() {
        return Err(format!("{programs} cannot be found; {advice}"));
    }
    eprintln!("installing {}", packages.join(" "));
    let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
    for arguments in [&["update"][..], &install] {
        // Data to stdout is the addresses; what apt has to say is talk.
        let status = Command::new("apt-get")
            .args(["--quiet", "--quiet"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .status()
            .map_err(|error| format!("failed to start apt-get: {error}"))?;
        if !status.success() {
            return Err(format!("{programs} could not be installed, apt-get ended with {status}; {advice}"));
        }
    }
    match missing.iter().find(|tool| !is_there(tool.program)) {
        Some(tool) => Err(format!("{} cannot be found although {} is installed", tool.program, tool.package)),
        None => Ok(()),
    }
}

/// Whether a folder of `PATH` has a program of this name.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_there_is_found() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program-anywhere"));
        assert!(ensure(&[Tool { program: "sh", package: "dash" }]).is_ok());
    }
}
