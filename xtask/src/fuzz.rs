//! Runs the fuzz targets longer than `cargo test` does.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::Cargo;
use crate::services;

/// The seconds of each target.
const SECONDS: u64 = 10;

/// The fuzz targets: name, package, and the test that runs it.
const TARGETS: &[(&str, &str, &str)] = &[
    ("query", "lazaret-core --test fuzz", "query"),
    ("json-lines", "lazaret-core --test fuzz", "json_lines"),
    ("import", "lazaret-api --test fuzz", "import"),
    ("config", "lazaret-config --test fuzz", "config"),
    ("worker-protocol", "lazaret-handlers --lib", "command::fuzz::worker_protocol"),
    ("redo-record", "lazaret-store-sqlite --lib", "redo::fuzz::redo_record"),
    ("redo-log", "lazaret-store-sqlite --lib", "redo::fuzz::redo_log"),
    ("recorder-file", "lazaret-flight-recorder --lib", "fuzz::recorder_file"),
    ("kafka-headers", "lazaret-source-kafka --lib", "fuzz::kafka_headers"),
    ("commit-metadata", "lazaret-source-kafka --lib", "fuzz::commit_metadata"),
];

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fuzzing {
    targets: Vec<(&'static str, Cargo)>,
}

impl Fuzzing {
    /// Parses the arguments.
    ///
    /// # Errors
    /// When one is invalid.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut target, mut seed, mut seconds, mut count) = (None, None, None, None);
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{word} needs a number, not {value:?}"));
            match word.as_str() {
                "--target" => target = Some(value.as_str()),
                "--seed" => seed = Some(number()?),
                "--seconds" => seconds = Some(number()?),
                "--count" => count = Some(number()?),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        let seed = seed.unwrap_or_else(another_seed);
        let bound = match (count, seconds) {
            (Some(count), _) => ("LAZARET_FUZZ_COUNT", count),
            (None, seconds) => ("LAZARET_FUZZ_SECONDS", seconds.unwrap_or(SECONDS)),
        };
        let wanted = TARGETS.iter().filter(|(name, ..)| target.is_none_or(|target| target == *name));
        let targets: Vec<_> = wanted
            .map(|(name, package, test)| {
                let call = Cargo::new(&format!("test -p {package} -- --exact {test} --nocapture"));
                let call = call.with_variable("LAZARET_FUZZ_SEED", &seed.to_string());
                (*name, call.with_variable(bound.0, &bound.1.to_string()))
            })
            .collect();
        if targets.is_empty() {
            let names: Vec<&str> = TARGETS.iter().map(|(name, ..)| *name).collect();
            return Err(format!(
                "unknown target {:?}: expected {}",
                target.unwrap_or_default(),
                names.join(", ")
            ));
        }
        Ok(Self { targets })
    }

    /// Runs all targets, and reports those that failed at the end.
    ///
    /// # Errors
    /// When a target failed.
    pub(crate) fn run(&self) -> Result<(), String> {
        let progress = services::target()?.join("fuzz-seed");
        let mut failed = Vec::new();
        for (name, call) in &self.targets {
            let call = call.clone().with_variable("LAZARET_FUZZ_PROGRESS", &progress.display().to_string());
            // Written by the target; one that was killed leaves its seed.
            let _ = fs::remove_file(&progress);
            match call.run() {
                Ok(0) => failed.push(format!("{name}: the test was not found")),
                Ok(_) => {}
                Err(_) => failed.push(format!("{name}: failed at seed {}", last_seed(&progress))),
            }
        }
        let _ = fs::remove_file(&progress);
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("fuzz targets failed:\n{}", failed.join("\n"))),
        }
    }
}

/// A seed that differs from run to run.
fn another_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Seeds are consecutive: leave room between runs.
    (now.as_millis() as u64) << 20 >> 1
}

fn last_seed(progress: &Path) -> String {
    let seed = fs::read_to_string(progress).ok().and_then(|text| text.trim().parse::<u64>().ok());
    seed.map_or_else(|| "?".to_owned(), |seed| seed.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Fuzzing, String> {
        Fuzzing::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_failure_can_be_repeated_by_its_seed() {
        let fuzzing = parse(&["--target", "query", "--seed", "7", "--count", "1"]).unwrap();
        let [(name, call)] = &fuzzing.targets[..] else { panic!("{fuzzing:?}") };
        assert_eq!(*name, "query");
        let expected = r#"LAZARET_FUZZ_SEED="7" LAZARET_FUZZ_COUNT="1" cargo test -p lazaret-core --test fuzz -- --exact query --nocapture"#;
        assert_eq!(call.to_string(), expected);
        assert_eq!(parse(&["--seconds", "1"]).unwrap().targets.len(), TARGETS.len());
    }

    #[test]
    fn invalid_arguments_are_errors() {
        for words in [&["--target", "nothing"][..], &["--seed", "x"], &["--seed"], &["--fast", "1"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
