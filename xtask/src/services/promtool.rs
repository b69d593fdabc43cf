//! promtool, which checks the alert rules and runs their unit tests: from the distribution's package of Prometheus.
//!
//! The package is unpacked, not installed: it would start a server. Nothing runs between tests.

use std::path::Path;

use super::Variable;
use super::install::{Tool, find, unpack};

const PROMTOOL: Tool = Tool { program: "promtool", package: "prometheus" };

/// Finds the program, or fetches it once.
pub(super) fn start(folder: &Path) -> Result<Vec<Variable>, String> {
    let program = match find(PROMTOOL.program) {
        Some(installed) => installed,
        None => unpack(PROMTOOL, folder)?,
    };
    Ok(vec![("LAZARET_TEST_PROMTOOL".to_owned(), program.display().to_string())])
}

/// There is nothing to stop.
pub(super) fn stop(_folder: &Path) -> Result<(), String> {
    Ok(())
}
