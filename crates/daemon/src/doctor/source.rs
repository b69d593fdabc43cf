//! Checks that a source is readable.

use std::io::ErrorKind;
use std::path::Path;

use lazaret_config::{Capability, Consumer as ConsumerConfig, Source, StoreLocation};

use super::finding::Finding;

/// Checks the source of a consumer, without handling messages. Positions are in the store.
pub(super) async fn check(config: &ConsumerConfig, store: &StoreLocation) -> Vec<Finding> {
    #[cfg(not(feature = "mongodb"))]
    let _ = store;
    let subject = format!("{} source", config.name);
    match &config.source {
        Source::File { path, follow } => vec![file(subject, path, *follow)],
        Source::Inbox => vec![Finding::ok(subject, "the inbox is kept in the store")],
        #[cfg(feature = "kafka")]
        Source::Kafka(from) => super::kafka::check(subject, from).await,
        #[cfg(feature = "mongodb")]
        Source::Mongodb(from) => super::mongodb::check_source(&subject, config, from, store).await,
        #[cfg(feature = "postgres")]
        Source::PostgresOutbox(from) => vec![outbox(subject, config, from).await],
        other => {
            let detail = format!("this build does not support the source `{}`", other.kind());
            vec![Finding::fail(subject, detail, Capability::OTHER_BUILD)]
        }
    }
}

/// Checks the server, the table and the rights of an outbox.
#[cfg(feature = "postgres")]
async fn outbox(
    subject: String,
    config: &ConsumerConfig,
    from: &lazaret_config::PostgresOutboxSource,
) -> Finding {
    let options = crate::assemble::outbox_options(config, from);
    let (table, setup) = (options.table.clone(), options.setup);
    match lazaret_source_postgres::OutboxSource::check(&options).await {
        Ok(()) => Finding::ok(subject, format!("the table {table} can be read as an outbox")),
        Err(error) => {
            let advice = match (error.is_temporary(), setup) {
                (true, _) => "start the server, or correct the address in `dsn`",
                (false, true) => "start the daemon once, which creates what is missing with `setup`",
                (false, false) => "correct the table, the columns or the rights; see the guide to the outbox",
            };
            Finding::fail(subject, error.to_string(), advice)
        }
    }
}

fn file(subject: String, path: &Path, follow: bool) -> Finding {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            let detail = format!("{shown} is not a regular file");
            Finding::fail(subject, detail, "use a regular file: only files have stable positions")
        }
        Ok(metadata) => match std::fs::File::open(path) {
            Ok(_) => Finding::ok(subject, format!("{shown} is readable and has {} bytes", metadata.len())),
            Err(error) => {
                let advice = "allow the user of the daemon to read it";
                Finding::fail(subject, format!("{shown} is not readable: {error}"), advice)
            }
        },
        // The consumer waits for it, and its state is `waiting`.
        Err(error) if follow && error.kind() == ErrorKind::NotFound => {
            let detail = format!("{shown} does not exist yet: the consumer waits for it");
            Finding::warn(
                subject,
                detail,
                "no action needed if it is created later; otherwise correct `path`",
            )
        }
        Err(error) => {
            Finding::fail(subject, format!("{shown}: {error}"), "create the file, or correct `path`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[cfg(not(feature = "kafka"))]
    #[tokio::test]
    async fn a_source_that_another_build_has_fails_with_the_common_hint() {
        let text = "consumers: { a: { source: { kafka: { brokers: 'b:1', topics: [t] } }, handler: { http: { url: 'http://a/' } } } }";
        let checked = lazaret_config::check("lazaret.yaml", text.as_bytes(), &lazaret_config::NoEnv);
        let config = checked.config.unwrap();
        let found = check(&config.consumers[0], &config.store).await;
        assert_eq!((found.len(), found[0].health), (1, Health::Fail));
        assert!(found[0].to_string().contains(Capability::OTHER_BUILD), "{}", found[0]);
    }

    #[test]
    fn a_missing_or_irregular_file_fails() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("events.jsonl");
        assert_eq!(file("s".into(), &path, false).health, Health::Fail);
        assert_eq!(file("s".into(), here.path(), true).health, Health::Fail);
        std::fs::write(&path, "{}\n").unwrap();
        assert_eq!(file("s".into(), &path, false).health, Health::Ok);
    }

    #[test]
    fn a_followed_file_that_does_not_exist_yet_is_a_warning() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("events.jsonl");
        let found = file("s".into(), &path, true);
        assert_eq!(found.health, Health::Warn);
        assert!(found.detail.ends_with("does not exist yet: the consumer waits for it"), "{found}");
        // Nothing can be created below a file: waiting would not help.
        std::fs::write(&path, "{}\n").unwrap();
        assert_eq!(file("s".into(), &path.join("below"), true).health, Health::Fail);
    }
}
