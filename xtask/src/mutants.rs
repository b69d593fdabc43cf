//! Runs a sample of generated mutants, and prints the share that the tests catch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::{Cargo, workspace_root};
use crate::services;

/// The version of cargo-mutants.
const CARGO_MUTANTS: &str = "27.1.0";
/// The time of all tests of one mutant.
const TIMEOUT_SECONDS: &str = "600";
/// The number of mutants of a sample.
const COUNT: usize = 40;

/// Mutants that no compiler takes: cargo-mutants does not know that `Work` is a `Result`. They would use up the sample.
const IMPOSSIBLE: &str = "with Work::";

/// A mutated package, and the tests that should catch its mutants.
struct Mutated {
    name: &'static str,
    package: &'static str,
    /// The packages whose tests run.
    tested: &'static [&'static str],
    /// The test targets.
    targets: &'static [&'static str],
    /// The features without which some code of the package is not built: its mutants would survive all tests.
    features: &'static str,
}

/// The rules of `core` are tested by the suite and the model on the memory store.
const MUTATED: [Mutated; 3] = [
    Mutated {
        name: "core",
        package: "lazaret-core",
        tested: &["lazaret-core", "lazaret-testkit"],
        targets: &["--lib", "--test", "it"],
        features: "lazaret-core/anyhow",
    },
    Mutated {
        name: "engine",
        package: "lazaret-engine",
        tested: &["lazaret-engine"],
        targets: &["--lib", "--tests"],
        features: "lazaret-engine/config,lazaret-engine/signal",
    },
    Mutated {
        name: "store-sqlite",
        package: "lazaret-store-sqlite",
        tested: &["lazaret-store-sqlite"],
        targets: &["--lib", "--tests"],
        features: "",
    },
];

/// A sample of mutants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    package: Option<String>,
    file: Option<String>,
    seed: usize,
    count: usize,
}

impl Sample {
    /// Parses the arguments.
    ///
    /// # Errors
    /// When one is invalid.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut sample = Self { package: None, file: None, seed: 1, count: COUNT };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{word} needs a number, not {value:?}"));
            match word.as_str() {
                "--package" if MUTATED.iter().any(|mutated| mutated.name == value) => {
                    sample.package = Some(value.clone());
                }
                "--package" => {
                    return Err(format!("unknown package {value:?}: expected core, engine or store-sqlite"));
                }
                "--file" => sample.file = Some(value.clone()),
                "--seed" => sample.seed = number()?,
                "--count" => sample.count = number()?.max(1),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(sample)
    }

    /// Runs the sample of each package, and prints the survivors.
    ///
    /// # Errors
    /// When a tool fails. Survivors are no error.
    pub(crate) fn run(&self) -> Result<(), String> {
        let root = workspace_root()?;
        let target = services::target()?;
        let program = cargo_mutants(&target)?;
        let wanted: Vec<&Mutated> = MUTATED
            .iter()
            .filter(|mutated| self.package.as_deref().is_none_or(|name| name == mutated.name))
            .collect();
        let share = self.count.div_ceil(wanted.len());
        let mut lines = Vec::new();
        for mutated in wanted {
            let run = Run { root: &root, target: &target, program: &program, sample: self, mutated };
            lines.push(run.outcome(share)?);
        }
        println!("\n{}", lines.join("\n"));
        Ok(())
    }
}

/// The run of one package.
struct Run<'a> {
    root: &'a Path,
    target: &'a Path,
    program: &'a Path,
    sample: &'a Sample,
    mutated: &'a Mutated,
}

impl Run<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.arg("mutants").arg("--dir").arg(self.root).args(["--package", self.mutated.package]);
        command.args(["--exclude-re", IMPOSSIBLE]);
        if let Some(file) = &self.sample.file {
            command.args(["--file", file]);
        }
        command
    }

    /// Tests about this many mutants. Returns the summary.
    fn outcome(&self, count: usize) -> Result<String, String> {
        let listed = self.command().args(["--list", "--json"]).output();
        let listed = listed.map_err(|error| format!("failed to list the mutants: {error}"))?;
        let all: Vec<Value> = serde_json::from_slice(&listed.stdout)
            .map_err(|error| format!("failed to read the list of mutants: {error}"))?;
        let Mutated { name, tested, targets, features, .. } = self.mutated;
        if all.is_empty() {
            return Ok(format!("{name}: no mutants"));
        }
        // Every n-th of all mutants, beginning with one that the seed decides.
        let parts = (all.len() / count).max(1);
        let shard = format!("{}/{parts}", self.sample.seed % parts);
        let out = self.target.join("mutants").join(name);
        fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        // Built in a folder of their own, where the dependencies stay from run to run.
        let build = format!("--target-dir={}", self.target.join("mutants").join("build").display());
        let packages = tested.iter().flat_map(|package| ["-p".to_owned(), (*package).to_owned()]);
        let targets = targets.iter().map(|word| (*word).to_owned()).chain([format!("--features={features}")]);
        // Tests that fail without a mutant would seem to catch every one. cargo-mutants checks only the mutated package.
        let baseline = Cargo::new("test").with_arguments(packages).with_arguments(targets.clone());
        baseline.with_arguments([build.clone()]).run()?;
        let mut command = self.command();
        command.args([
            "--shard",
            &shard,
            "--sharding",
            "round-robin",
            "--jobs",
            "1",
            "--no-shuffle",
            "--colors",
            "never",
        ]);
        // On a busy machine, slow tests must not pass for hanging ones.
        command.args(["--baseline", "skip", "--timeout", TIMEOUT_SECONDS]);
        for argument in targets.chain([build]) {
            command.arg(format!("--cargo-arg={argument}"));
        }
        command.arg("--output").arg(&out);
        for package in *tested {
            command.args(["--test-package", package]);
        }
        let status = command.status().map_err(|error| format!("failed to start cargo-mutants: {error}"))?;
        let outcomes = out.join("mutants.out").join("outcomes.json");
        let text = fs::read_to_string(&outcomes)
            .map_err(|error| format!("cargo-mutants ended with {status}: {}: {error}", outcomes.display()))?;
        let outcomes: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", outcomes.display()))?;
        match outcomes["total_mutants"].as_u64() {
            Some(1..) => Ok(summary(name, all.len(), &outcomes)),
            _ => Err(format!("cargo-mutants tested nothing and ended with {status}")),
        }
    }
}

/// Formats the outcomes of a package: the share caught, and the survivors.
fn summary(name: &str, all: usize, outcomes: &Value) -> String {
    let count = |field: &str| outcomes[field].as_u64().unwrap_or_default();
    // A mutant that hangs is noticed, too.
    let caught = count("caught") + count("timeout");
    let viable = caught + count("missed");
    let share = (caught * 100).checked_div(viable).unwrap_or(100);
    let mut text = format!(
        "{name}: {caught} of {viable} mutants caught, {share} % ({all} in all, {} of the sample do not compile)",
        count("unviable")
    );
    for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
        if outcome["summary"] == "MissedMutant" {
            let survivor = outcome["scenario"]["Mutant"]["name"].as_str().unwrap_or("?");
            text += &format!("\n  survived: {survivor}");
        }
    }
    text
}

/// Returns the path of cargo-mutants, installed below the target folder if it is missing.
fn cargo_mutants(target: &Path) -> Result<PathBuf, String> {
    // Another version has another folder: an installed one is not taken for it.
    let tools = target.join("tools").join(format!("cargo-mutants-{CARGO_MUTANTS}"));
    let program = tools.join("bin").join(format!("cargo-mutants{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        let root = tools.display().to_string();
        let arguments = ["--version", CARGO_MUTANTS, "--root", &root].map(str::to_owned);
        Cargo::new("install cargo-mutants --locked").with_arguments(arguments).run()?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Sample, String> {
        Sample::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_choose_the_sample() {
        let sample = parse(&["--package", "core", "--seed", "3", "--count", "0"]).unwrap();
        assert_eq!((sample.package.as_deref(), sample.seed, sample.count), (Some("core"), 3, 1));
        assert!(parse(&["--package", "memory"]).is_err() && parse(&["--seed"]).is_err());
    }

    #[test]
    fn the_summary_lists_survivors() {
        let outcomes = serde_json::json!({
            "caught": 2, "timeout": 1, "missed": 1, "unviable": 1,
            "outcomes": [
                {"summary": "CaughtMutant", "scenario": {"Mutant": {"name": "caught"}}},
                {"summary": "MissedMutant", "scenario": {"Mutant": {"name": "replace f with ()"}}},
            ],
        });
        let expected = "core: 3 of 4 mutants caught, 75 % (99 in all, 1 of the sample do not compile)\n  \
            survived: replace f with ()";
        assert_eq!(summary("core", 99, &outcomes), expected);
    }
}
