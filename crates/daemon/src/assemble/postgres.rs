//! Opens the store in PostgreSQL, and the inboxes that are kept in it.

use std::time::Duration;

use lazaret_config::Consumer as ConsumerConfig;
use lazaret_core::store::ErrorKind;
use lazaret_store_postgres::{
    InboxLog, InboxOptions, InboxSource, InboxStatus, PostgresStore, PostgresStoreOptions, describe,
    refuses_writes,
};

use super::consumer::Shared;
use crate::error::Error;
use crate::fleet::instance_name;

/// How long opening the store may take in all, migrations included.
const OPEN_TIMEOUT: Duration = Duration::from_secs(300);

/// What to do if servers respond, and none of them accepts writes.
pub(crate) const NO_PRIMARY: &str = "promote a replica, start the primary, or name it in `store`";

/// Opens the store, with a bounded wait. Its messages contain no credentials.
pub(super) async fn store(dsn: &str) -> Result<PostgresStore, Error> {
    let wrong_dsn = |error: lazaret_core::store::StoreError| Error::OpenStore {
        store: "postgres".to_owned(),
        why: error.context().to_owned(),
        advice: "correct the URL in `store`",
    };
    let store = format!("postgres at {}", describe(dsn).map_err(wrong_dsn)?);
    let opening = PostgresStore::connect(dsn, PostgresStoreOptions::default());
    match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(error)) => {
            let advice = match error.kind() {
                ErrorKind::Unavailable if refuses_writes(&error) => NO_PRIMARY,
                ErrorKind::Unavailable => "start the server, or correct the address in `store`",
                ErrorKind::Denied => {
                    "correct the credentials in `store`, and run `lazaret doctor` to see the missing grants"
                }
                _ => "correct the cause, or use another database or schema in `store`",
            };
            Err(Error::OpenStore { store, why: error.context().to_owned(), advice })
        }
        Err(_) => {
            let why = format!("no answer within {OPEN_TIMEOUT:?}");
            Err(Error::OpenStore { store, why, advice: "check the server and the network" })
        }
    }
}

/// The inbox of a consumer. Its lease is that of the consumer's letters.
pub(super) fn inbox(store: &PostgresStore, config: &ConsumerConfig) -> InboxLog {
    let options =
        InboxOptions { lease: config.advanced.lease, instance: instance_name(), ..InboxOptions::default() };
    store.inbox_log(config.name.as_str(), options)
}

/// The source of an inbox. What it does is part of the consumer's status.
pub(super) fn inbox_source(store: &PostgresStore, config: &ConsumerConfig, shared: &Shared) -> InboxSource {
    let source = inbox(store, config).source();
    let status = source.status();
    shared.registry.source_notice(&config.name, {
        let status = status.clone();
        move || notice(&status.borrow())
    });
    shared.registry.source_readiness(&config.name, move || is_ready(&status.borrow()));
    source
}

/// Returns whether this instance reads the inbox, or stands by for another one. One that is closed says nothing about its consumer.
fn is_ready(status: &InboxStatus) -> bool {
    !matches!(status, InboxStatus::Starting | InboxStatus::Failed { .. })
}

/// Says why an inbox is not read; `None` while it is.
fn notice(status: &InboxStatus) -> Option<String> {
    match status {
        InboxStatus::Standby { reader } => {
            Some(format!("standing by: the instance {reader} reads the inbox"))
        }
        InboxStatus::Starting => Some("connecting: the inbox is not read yet".to_owned()),
        InboxStatus::Failed { error } => Some(format!("the inbox is not readable, retrying: {error}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_stands_by_names_the_one_that_reads() {
        assert_eq!(notice(&InboxStatus::Reading), None);
        let standby = InboxStatus::Standby { reader: "host-7".into() };
        assert_eq!(notice(&standby).unwrap(), "standing by: the instance host-7 reads the inbox");
    }

    #[test]
    fn an_instance_is_ready_while_it_reads_or_stands_by() {
        let standby = InboxStatus::Standby { reader: "host-7".into() };
        for (status, is_expected) in [
            (InboxStatus::Starting, false),
            (InboxStatus::Failed { error: "no".to_owned() }, false),
            (InboxStatus::Reading, true),
            (standby, true),
            (InboxStatus::Closed, true),
        ] {
            assert_eq!(is_ready(&status), is_expected, "{status:?}");
            let why = notice(&status).unwrap_or_default();
            assert!(is_expected || !why.is_empty(), "{status:?} does not say why");
        }
    }

    #[tokio::test]
    async fn no_message_shows_a_password() {
        let dsn = "postgres://lazaret:hunter2@127.0.0.1:1/shop?sslmode=disable";
        let error = store(dsn).await.unwrap_err().to_string();
        assert!(error.contains("postgres at 127.0.0.1:1, database shop, schema lazaret"), "{error}");
        assert!(error.contains("start the server") && !error.contains("hunter2"), "{error}");
        let dsn = "postgres://lazaret:hunt@er2@127.0.0.1:1/shop?sslmode=disable";
        let error = store(dsn).await.unwrap_err().to_string();
        assert!(
            error.contains("`@` as `%40`") && !error.contains("hunt") && !error.contains("er2"),
            "{error}"
        );
    }
}
