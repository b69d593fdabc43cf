//! Installs or unpacks programs that a service needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::remove;

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
    let advice = advice(&packages);
    if !is_installed("apt-get") || !is_root() {
        return Err(format!("{programs} not found; {advice}"));
    }
    eprintln!("installing {}", packages.join(" "));
    let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
    for arguments in [&["update"][..], &install] {
        apt_get(arguments, Path::new("."))
            .map_err(|why| format!("failed to install {programs}: {why}; {advice}"))?;
    }
    match missing.iter().find(|tool| !is_installed(tool.program)) {
        Some(tool) => Err(format!("{} not found although {} is installed", tool.program, tool.package)),
        None => Ok(()),
    }
}

/// Unpacks the package of a program below a folder, once, and returns the program. For packages that start a server when they
/// are installed. It need not be root who does.
pub(super) fn unpack(tool: Tool, folder: &Path) -> Result<PathBuf, String> {
    let home = folder.join(tool.package);
    let program = home.join("usr/bin").join(tool.program);
    if program.is_file() {
        return Ok(program);
    }
    let advice = advice(&[tool.package]);
    if !is_installed("apt-get") || !is_installed("dpkg-deb") {
        return Err(format!("{} not found; {advice}", tool.program));
    }
    eprintln!("fetching {}", tool.package);
    let fetched = folder.join("fetched");
    let fetch = || -> Result<(), String> {
        // An earlier run may have been interrupted.
        remove(&fetched)?;
        remove(&home)?;
        fs::create_dir_all(&fetched).map_err(|error| format!("{}: {error}", fetched.display()))?;
        if is_root() {
            apt_get(&["update"], &fetched)?;
        }
        apt_get(&["download", tool.package], &fetched)?;
        let unpacked = fetched.join("unpacked");
        extract(&package_in(&fetched)?, &unpacked)?;
        fs::rename(&unpacked, &home).map_err(|error| format!("{}: {error}", home.display()))?;
        remove(&fetched)
    };
    fetch().map_err(|why| format!("failed to fetch {}: {why}; {advice}", tool.package))?;
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("the package {} has no usr/bin/{}", tool.package, tool.program)),
    }
}

fn advice(packages: &[&str]) -> String {
    format!("install {} and try again", packages.join(" "))
}

/// Runs apt-get in a folder.
fn apt_get(arguments: &[&str], folder: &Path) -> Result<(), String> {
    // Standard output is for the variables; apt's messages go to standard error.
    let status = Command::new("apt-get")
        .args(["--quiet", "--quiet"])
        .args(arguments)
        .current_dir(folder)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .map_err(|error| format!("failed to start apt-get: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("apt-get failed with {status}")) }
}

/// Returns the package that was downloaded into a folder.
fn package_in(folder: &Path) -> Result<PathBuf, String> {
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = files.filter_map(|file| file.ok().map(|file| file.path()));
    let package = paths.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    package.ok_or_else(|| format!("no package in {}", folder.display()))
}

fn extract(package: &Path, folder: &Path) -> Result<(), String> {
    let status = Command::new("dpkg-deb")
        .arg("--extract")
        .args([package, folder])
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .map_err(|error| format!("failed to start dpkg-deb: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("dpkg-deb failed with {status}")) }
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
    fn a_package_is_unpacked_once() {
        let folder = std::env::temp_dir().join(format!("lazaret-unpack-{}", std::process::id()));
        let program = folder.join("no-such-package/usr/bin/tool");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, "").unwrap();
        let unpacked = unpack(Tool { program: "tool", package: "no-such-package" }, &folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(unpacked, Ok(program));
    }

    #[test]
    fn the_downloaded_package_is_found() {
        let folder = std::env::temp_dir().join(format!("lazaret-package-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(package_in(&folder).is_err());
        let package = folder.join("tool_2.42.0+ds-5_amd64.deb");
        for file in [&package, &folder.join("tool.log")] {
            fs::write(file, "").unwrap();
        }
        let found = package_in(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Ok(package));
    }

    #[test]
    fn an_installed_program_is_found() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
        assert!(ensure(&[Tool { program: "sh", package: "dash" }]).is_ok());
    }
}
