//! Golden messages of invalid and suspicious files.
//!
//! `broken/` contains files with errors, `suspicious/` contains files with warnings. Next to each file
//! is a `.txt` file with its message. `LAZARET_BLESS=1` rewrites the messages. Review the difference
//! before you commit it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lazaret_config::{
    Capabilities, Capability, Code, Diagnostic, Diagnostics, PropertyError, check, keys_markdown, load,
};

/// Secrets that must never be shown, wherever they came from.
const SECRETS: [&str; 2] = ["hunter2", "do-not-show"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(name)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

fn env() -> BTreeMap<String, String> {
    [("SECRET_WORD", "do-not-show"), ("URL", "http://127.0.0.1:8080/")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
}

/// Returns a build with all capabilities except the inbox of a store in MongoDB. For files named
/// `build-without-…`, it also lacks databases on servers.
fn build(file: &str) -> Capabilities {
    let servers = [Capability::StorePostgres, Capability::StoreMongodb, Capability::SourceMongodb];
    let is_missing = |part: &Capability| {
        *part == Capability::InboxInMongodb || (file.starts_with("build-without-") && servers.contains(part))
    };
    let parts = Capability::ALL.into_iter().filter(|part| !is_missing(part));
    Capabilities::of(parts)
        .with_kafka_property_check(property)
        .with_pipeline_check(pipeline)
        .with_pipeline_review(hidden_invalidation)
        .with_watch_check(watched_store)
}

/// A driver that recognizes one stage that removes the operation type.
fn hidden_invalidation(stages: &[serde_json::Value]) -> Option<String> {
    let removes = stages.iter().position(|stage| stage.get("$project").is_some())?;
    let filters = stages.iter().skip(removes).any(|stage| stage.get("$match").is_some());
    filters.then(|| "stage 2 of the pipeline (`$match`) drops `invalidate` events".to_owned())
}

/// A driver that knows the database of one store.
fn watched_store(_source: &str, database: &str, collection: &str, _store: &str) -> Result<(), String> {
    match database {
        "lazaret" => Err(format!("{database}.{collection} belongs to the store")),
        _ => Ok(()),
    }
}

/// A driver that knows one rule about pipelines.
fn pipeline(stages: &[serde_json::Value]) -> Result<(), String> {
    match stages.iter().position(|stage| stage.get("$unset").is_some()) {
        Some(at) => Err(format!("stage {} of the pipeline (`$unset`) removes or changes `_id`", at + 1)),
        None => Ok(()),
    }
}

/// A Kafka client that knows few properties.
fn property(name: &str, value: &str) -> Result<(), PropertyError> {
    match (name, value) {
        ("max.poll.records", _) => Err(PropertyError::Unknown),
        ("security.protocol", "pigeon") => Err(PropertyError::Value),
        _ => Ok(()),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Compares the message with the file next to the configuration. The error describes the difference.
fn compare(path: &Path, found: &Diagnostics) -> Result<(), String> {
    let message = found.plain();
    let golden = path.with_extension("txt");
    for secret in SECRETS {
        assert!(!message.contains(secret), "{} shows a secret:\n{message}", path.display());
        assert!(
            !format!("{found:?}").contains(secret),
            "{} shows a secret in its debug form",
            path.display()
        );
    }
    if std::env::var_os("LAZARET_BLESS").is_some() {
        fs::write(&golden, &message).unwrap();
        return Ok(());
    }
    match fs::read_to_string(&golden) {
        Ok(expected) if expected == message => Ok(()),
        Ok(expected) => Err(format!("{}\n--- expected\n{expected}--- got\n{message}", path.display())),
        Err(_) => Err(format!("{} has no message beside it; got\n{message}", path.display())),
    }
}

#[test]
fn every_broken_file_gets_the_message_that_stands_beside_it() {
    let files = files("broken");
    assert!(files.len() >= 60, "{} files", files.len());
    let mut wrong = Vec::new();
    for path in &files {
        let found = load(&name_of(path), &fs::read(path).unwrap(), &env(), &build(&name_of(path)));
        let found = found.err().unwrap_or_else(|| panic!("{} is not broken", path.display()));
        assert!(found.errors() > 0);
        wrong.extend(compare(path, &found).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_suspicious_file_gets_its_warnings_and_can_be_used() {
    let mut wrong = Vec::new();
    for path in files("suspicious") {
        let loaded = load(&name_of(&path), &fs::read(&path).unwrap(), &env(), &build(&name_of(&path)));
        let warnings = match loaded {
            Ok(loaded) => loaded.warnings,
            Err(found) => panic!("{}: {}", path.display(), found.plain()),
        };
        assert!(warnings.warnings() > 0, "{}", path.display());
        wrong.extend(compare(&path, &warnings).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_message_has_a_file_and_every_code_a_message() {
    // The last code is for programs that declare consumers.
    let mut seen: Vec<Code> = vec![Code::TooLarge, Code::NotDeclared];
    for folder in ["broken", "suspicious"] {
        for path in files(folder) {
            let bytes = fs::read(&path).unwrap();
            let checked = check(&name_of(&path), &bytes, &env());
            let missing = checked.config.map(|config| config.missing(&build(&name_of(&path))));
            let found = missing.iter().flat_map(Diagnostics::list).chain(checked.diagnostics.list());
            seen.extend(found.map(Diagnostic::code));
        }
        for entry in fs::read_dir(self::folder(folder)).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.with_extension("yaml").exists(), "{} belongs to no file", path.display());
        }
    }
    let never: Vec<_> = Code::ALL.iter().filter(|code| !seen.contains(code)).collect();
    assert!(never.is_empty(), "no file shows {never:?}");
}

/// The contract: file, line, column, the offending line and a hint.
#[test]
fn every_message_has_a_place_its_line_and_a_hint_that_says_what_to_do() {
    // A description of the key does not say what to change.
    let reference = keys_markdown();
    for folder in ["broken", "suspicious"] {
        for path in files(folder) {
            let name = name_of(&path);
            let found = match load(&name, &fs::read(&path).unwrap(), &env(), &build(&name)) {
                Ok(loaded) => loaded.warnings,
                Err(found) => found,
            };
            let blocks: Vec<_> = found.plain().split("\n\n").map(str::to_owned).collect();
            assert_eq!(blocks.len(), found.list().len() + 1, "{name}");
            for (found, block) in found.list().iter().zip(blocks) {
                let (line, column) = found.source().position(found.span().start);
                let at = format!("--> {name}:{line}:{column}\n");
                let number = format!("{line} | ");
                let shows_line = block.lines().any(|line| line.trim_start().starts_with(&number));
                assert!(block.contains(&at) && shows_line, "{block}");
                let last = block.lines().last().unwrap().trim_start();
                let hint = last.strip_prefix("= hint: ").unwrap_or_else(|| panic!("no hint:\n{block}"));
                assert!(hint.len() > 3 && !reference.contains(&format!("| {hint} |")), "{block}");
            }
        }
    }
}

#[test]
fn what_the_build_does_not_have_is_told_with_everything_else() {
    let text = b"store: postgres://127.0.0.1/x\nlisen: 127.0.0.1:80\nconsumers: {}\n";
    let found = load("lazaret.yaml", text, &env(), &build("build-without-postgres.yaml")).unwrap_err();
    let codes: Vec<_> = found.list().iter().map(Diagnostic::code).collect();
    assert_eq!(codes, [Code::NotInThisBuild, Code::UnknownKey, Code::NoConsumers]);
    // A value that cannot be read requires no capability.
    let text = b"store: oracle:x\nconsumers: { a: { source: { inbox: {} }, handler: { command: { program: [x] } } } }\n";
    let found = load("lazaret.yaml", text, &env(), &Capabilities::of([])).unwrap_err();
    let codes: Vec<_> = found.list().iter().map(Diagnostic::code).collect();
    assert_eq!(codes, [Code::InvalidStore, Code::NotInThisBuild]);
}

#[test]
fn findings_come_in_the_order_of_the_lines() {
    for path in files("broken") {
        let found = check(&name_of(&path), &fs::read(&path).unwrap(), &env()).diagnostics;
        let starts: Vec<_> = found.list().iter().map(|found| found.span().start).collect();
        assert!(starts.is_sorted(), "{}: {starts:?}", path.display());
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let large = "# x\n".repeat(300_000);
    let found = check("lazaret.yaml", large.as_bytes(), &env()).diagnostics;
    assert_eq!(found.list()[0].code(), Code::TooLarge);
    let binary = vec![0xff_u8; 2 << 20];
    assert_eq!(check("lazaret.yaml", &binary, &env()).diagnostics.list()[0].code(), Code::TooLarge);
}

#[test]
fn a_thousand_mistakes_are_counted_and_not_all_shown() {
    let many: String = (0..1000).map(|n| format!("unknown-{n}: x\n")).collect();
    let found = check("lazaret.yaml", many.as_bytes(), &env()).diagnostics;
    assert_eq!((found.list().len(), found.omitted()), (200, 801));
    assert!(found.plain().contains("and 801 more"));
}

#[test]
fn a_long_line_is_cut_around_the_mark_and_control_characters_are_not_printed() {
    let text = format!(
        "defaults: {{ dead-letter: {{ owner: \"{}\" }}, colour: \"\\x1b\u{202e}\" }}\nconsumers: {{}}\n",
        "x".repeat(500)
    );
    let plain = check("lazaret.yaml", text.as_bytes(), &env()).diagnostics.plain();
    assert!(
        plain.lines().filter(|line| line.contains(" | ")).all(|line| line.chars().count() < 140),
        "{plain}"
    );
    assert!(!plain.contains('\u{202e}') && plain.contains("colour"), "{plain}");
    let marked: Vec<_> = plain.lines().skip_while(|line| !line.contains("colour: ")).take(2).collect();
    let column = |line: &str, what: &str| line.find(what).map(|at| line[..at].chars().count());
    assert_eq!(column(marked[0], "colour"), column(marked[1], "^^^^^^"), "{plain}");
}

#[test]
fn miette_draws_the_same_places() {
    let text = "store: sqlite:x.db\nlisen: 127.0.0.1:80\nstore: 'memory:'\nconsumers: {}\n";
    let found = check("lazaret.yaml", text.as_bytes(), &env()).diagnostics;
    let mut drawn = String::new();
    miette::NarratableReportHandler::new().render_report(&mut drawn, &found).unwrap();
    for expected in [
        "2 errors and 1 warning in lazaret.yaml",
        "LZ0110",
        "LZ0120",
        "label at line 2, columns 1 to 5",
        "did you mean `listen`?",
    ] {
        assert!(drawn.contains(expected), "{expected} is missing:\n{drawn}");
    }
    assert!(drawn.contains("first defined here"), "{drawn}");
}
