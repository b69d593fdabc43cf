//! Whether a source can be read.

use std::path::Path;

use lazaret_config::{Consumer as Wanted, Source};

use super::Finding;

/// Looks at the source of a consumer. Reads nothing from it.
pub(super) async fn examine(wanted: &Wanted) -> Vec<Finding> {
    let subject = format!("{} source", wanted.name);
    match &wanted.source {
        Source::File { path, .. } => vec![file(subject, path)],
        Source::Inbox => vec![Finding::ok(subject, "the inbox is kept in the store")],
        #[cfg(feature = "kafka")]
        Source::Kafka(from) => super::kafka::examine(subject, from).await,
        other => {
            let seen = format!("this build does not have the source `{}`", other.kind());
            vec![Finding::fail(subject, seen, "use a build that has it")]
        }
    }
}

fn file(subject: String, path: &Path) -> Finding {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(facts) if !facts.is_file() => {
            let seen = format!("{shown} is not a regular file");
            Finding::fail(subject, seen, "name a file: no position in anything else would last")
        }
        Ok(facts) => match std::fs::File::open(path) {
            Ok(_) => Finding::ok(subject, format!("{shown} can be read and has {} bytes", facts.len())),
            Err(error) => {
                let advice = "let the user who runs Lazaret read it";
                Finding::fail(subject, format!("{shown} cannot be read: {error}"), advice)
            }
        },
        Err(error) => Finding::fail(subject, format!("{shown}: {error}"), "make the file, or correct `path`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[test]
    fn a_file_that_is_missing_or_no_file_is_found() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("events.jsonl");
        assert_eq!(file("s".into(), &path).health, Health::Fail);
        assert_eq!(file("s".into(), here.path()).health, Health::Fail);
        std::fs::write(&path, "{}\n").unwrap();
        assert_eq!(file("s".into(), &path).health, Health::Ok);
    }
}
