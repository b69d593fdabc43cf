//! Java programs from Maven: fetched once per version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::install::{Tool, ensure};
use super::{remove, write};

/// A Java program: its name, its version and its artifacts.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Group, artifact and version of each dependency.
    pub(super) artifacts: &'static [(&'static str, &'static str, &'static str)],
    /// The Java tool that starts it.
    pub(super) java: Tool,
}

impl Program {
    /// Fetches the program and its dependencies once per version, and installs Java. Returns the folder of the classes.
    pub(super) fn fetch(&self, folder: &Path) -> Result<PathBuf, String> {
        let classes = folder.join(format!("classes-{}", self.version));
        let complete = classes.join("complete");
        if complete.exists() {
            ensure(&[self.java])?;
            return Ok(classes);
        }
        ensure(&[self.java, Tool { program: "mvn", package: "maven" }])?;
        remove(&classes)?;
        fs::create_dir_all(&classes)
            .map_err(|error| format!("failed to create {}: {error}", classes.display()))?;
        let project = folder.join("pom.xml");
        write(&project, &self.pom())?;
        eprintln!("fetching {} {}", self.name, self.version);
        let output = Command::new("mvn")
            .args(["--batch-mode", "--quiet", "--file"])
            .arg(&project)
            .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", classes.display()))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("failed to start mvn: {error}"))?;
        if !output.status.success() {
            return Err(format!("failed to fetch {}:\n{}", self.name, last_lines(&output.stdout)));
        }
        // Written last: a folder without it is incomplete.
        write(&complete, "")?;
        Ok(classes)
    }

    fn pom(&self) -> String {
        let dependencies: String = self
            .artifacts
            .iter()
            .map(|(group, artifact, version)| {
                format!(
                    "    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
                     <version>{version}</version></dependency>\n"
                )
            })
            .collect();
        [
            "<project>\n  <modelVersion>4.0.0</modelVersion>\n",
            "  <groupId>lazaret</groupId><artifactId>services-for-tests</artifactId><version>1</version>\n",
            "  <dependencies>\n",
            &dependencies,
            "  </dependencies>\n</project>\n",
        ]
        .concat()
    }
}

/// Returns a `java` command with these classes.
pub(super) fn java_with(classes: &Path) -> Command {
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.join("*"));
    java
}

/// Returns the last lines of an output, for an error message.
pub(super) fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
