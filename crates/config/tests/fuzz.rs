//! Fuzz target: configuration files.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::collections::BTreeSet;

use lazaret_config::{Checked, Config, NoEnv, StoreLocation, check};
use lazaret_fuzz::{Fuzz, Shape};

/// Returns all files of a folder, in order.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Returns the inputs to mutate, half of them valid files. One change makes almost every file invalid,
/// and only valid files are written again.
fn corpus() -> Vec<Vec<u8>> {
    let good = files("good");
    let broken = [files("broken"), files("suspicious")].concat();
    let times = broken.len() / good.len();
    [vec![good; times].concat(), broken].concat()
}

fn target() -> Fuzz {
    let words = [
        "consumers:",
        "defaults:",
        "source:",
        "inbox: {}",
        "handler:",
        "retry:",
        "max-attempts: 0",
        "${A:-x}",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "<<: *a",
        "!!str ",
        "|",
        ">-",
        "\"",
        "'",
        "? ",
        "---\n",
        "...\n",
        "# ",
        "\t",
        "1h 30m",
        "64KiB",
        "50/s",
        "sqlite:x.db",
        "'memory:'",
        "true",
        "null",
        "~",
        "!",
        "%YAML 1.2\n",
        "0o17",
        ".inf",
        ".nan",
        "2026-01-01",
    ];
    Fuzz::target("config").corpus(corpus()).words(words).shape(Shape::Lines).count(1500)
}

/// Returns the lines of an effective configuration without their comments, which name the origin of each
/// value.
fn values(text: &str) -> Vec<String> {
    let value = |line: &str| line.split_once(" #").map_or(line, |(value, _)| value).trim_end().to_owned();
    text.lines().map(value).collect()
}

/// Returns a check of configurations whose effective values are rendered by `effective`.
fn check_with(effective: impl Fn(&Config, &str) -> Option<String>) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        let Checked { config, diagnostics } = check("lazaret.yaml", input, &NoEnv);
        if config.is_some() != (diagnostics.errors() == 0) {
            return Err("a configuration with errors, or none without one".into());
        }
        for found in diagnostics.list() {
            let (text, span) = (found.source().text(), found.span());
            let (line, column) = found.source().position(span.start);
            if span.start > span.end || line == 0 || column == 0 || found.message().is_empty() {
                return Err(format!("a diagnostic without a place: {found:?}"));
            }
            // A file that is not UTF-8 or is too large is shown only in part.
            let is_whole = text.len() >= input.len();
            if is_whole && (span.end > text.len() || !text.is_char_boundary(span.start)) {
                return Err(format!("a place outside of the file: {found:?}"));
            }
        }
        // Exercises all forms of output.
        let _ = diagnostics.plain();
        let Some(config) = config else { return Ok(()) };
        let _ = config.effective_top();
        // A collection for dead letters may belong to the store.
        let store = match config.store {
            StoreLocation::Mongodb(_) => "store: 'mongodb://h/d'\n",
            _ => "",
        };
        for consumer in &config.consumers {
            let shown = effective(&config, &consumer.name).ok_or("a consumer without effective values")?;
            // The output is valid YAML, with all values written out.
            let indented: String = shown.lines().map(|line| format!("  {line}\n")).collect();
            let again = check("effective.yaml", format!("{store}consumers:\n{indented}").as_bytes(), &NoEnv);
            let Some(again) = again.config else {
                // Redacted secrets and variables cannot be read back.
                if shown.contains("redacted")
                    || shown.contains("${")
                    || String::from_utf8_lossy(input).contains("${")
                {
                    continue;
                }
                return Err(format!(
                    "the effective configuration is invalid: {}\n{shown}",
                    again.diagnostics.plain()
                ));
            };
            let twice = effective(&again, &consumer.name).unwrap_or_default();
            if values(&twice) != values(&shown) {
                return Err(format!("the effective configuration changes:\n{shown}\n{twice}"));
            }
        }
        Ok(())
    }
}

#[test]
fn config() {
    target().run(check_with(|config, consumer| config.effective(consumer)));
}

#[test]
fn a_planted_bug_of_configurations_is_found() {
    // Only values from the corpus are rendered.
    let configs = corpus().into_iter().filter_map(|file| check("lazaret.yaml", &file, &NoEnv).config);
    let known: BTreeSet<Vec<String>> = configs
        .flat_map(|config| {
            let shown = |name: &str| config.effective(name).map(|text| values(&text));
            config.consumers.iter().filter_map(|consumer| shown(&consumer.name)).collect::<Vec<_>>()
        })
        .collect();
    target().finds(check_with(|config, consumer| {
        config.effective(consumer).filter(|shown| known.contains(&values(shown)))
    }));
}
