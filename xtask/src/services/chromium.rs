//! Headless Chromium for the tests of the console: the browser and its driver from the distribution, and axe-core from npm.
//!
//! Nothing runs between tests: each test starts its own driver, so that no browser of one outlives it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Variable;
use super::install::{Tool, ensure, find};
use super::maven::last_lines;

const BROWSER: Tool = Tool { program: "chromium", package: "chromium" };
const DRIVER: Tool = Tool { program: "chromedriver", package: "chromium-driver" };
const NPM: Tool = Tool { program: "npm", package: "npm" };
/// The accessibility checks. They are used in tests only, and are not part of any program.
const AXE: &str = "axe-core";
const AXE_VERSION: &str = "4.10.3";

/// Installs the browser, and fetches axe-core once per version.
pub(super) fn start(folder: &Path) -> Result<Vec<Variable>, String> {
    ensure(&[BROWSER, DRIVER])?;
    let driver = find(DRIVER.program).ok_or_else(|| format!("{} not found", DRIVER.program))?;
    let axe = fetch_axe(folder)?;
    let variable = |name: &str, path: PathBuf| (name.to_owned(), path.display().to_string());
    Ok(vec![variable("LAZARET_TEST_CHROMEDRIVER", driver), variable("LAZARET_TEST_AXE", axe)])
}

/// Installs the browser if it is missing. Returns its path.
pub(crate) fn browser() -> Result<PathBuf, String> {
    ensure(&[BROWSER])?;
    find(BROWSER.program).ok_or_else(|| format!("{} not found", BROWSER.program))
}

/// There is nothing to stop.
pub(super) fn stop(_folder: &Path) -> Result<(), String> {
    Ok(())
}

/// Fetches axe-core. Returns its script.
fn fetch_axe(folder: &Path) -> Result<PathBuf, String> {
    let home = folder.join(format!("{AXE}-{AXE_VERSION}"));
    let script = home.join("node_modules").join(AXE).join("axe.min.js");
    if script.is_file() {
        return Ok(script);
    }
    ensure(&[NPM])?;
    eprintln!("fetching {AXE} {AXE_VERSION}");
    let output = Command::new(NPM.program)
        .args(["install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefix"])
        .arg(&home)
        .arg(format!("{AXE}@{AXE_VERSION}"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("failed to start npm: {error}"))?;
    if !output.status.success() {
        return Err(format!("failed to fetch {AXE}:\n{}", last_lines(&output.stderr)));
    }
    match script.is_file() {
        true => Ok(script),
        false => Err(format!("{AXE} {AXE_VERSION} has no {}", script.display())),
    }
}
