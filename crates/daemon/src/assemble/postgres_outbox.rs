//! Builds the source for an outbox in PostgreSQL.

use lazaret_config::{Consumer as ConsumerConfig, PostgresOutboxSource as From};
use lazaret_core::source::SourceError;
use lazaret_source_postgres::{OutboxOptions, OutboxSource, OutboxState, OutboxStatus};

use super::consumer::Shared;

/// Returns the options of the source. Its stream has the name of the consumer.
pub(crate) fn options(config: &ConsumerConfig, from: &From) -> OutboxOptions {
    OutboxOptions::from_config(config.name.as_str(), from)
}

/// Opens the source. Its status is part of the consumer's.
pub(super) fn open(
    config: &ConsumerConfig,
    from: &From,
    shared: &Shared,
) -> Result<OutboxSource, SourceError> {
    let source = OutboxSource::open(options(config, from), shared.stores.values.clone())?;
    let status = source.status();
    shared.registry.source_notice(&config.name, move || notice(&status.borrow()));
    Ok(source)
}

/// Says why an outbox is not read; `None` while it is.
fn notice(status: &OutboxStatus) -> Option<String> {
    match &status.state {
        OutboxState::Starting => Some("connecting: the outbox is not read yet".to_owned()),
        OutboxState::Standby { leader: Some(leader) } => {
            Some(format!("standing by: another instance reads the outbox, in session {leader}"))
        }
        OutboxState::Standby { leader: None } => {
            Some("standing by: another instance reads the outbox".to_owned())
        }
        OutboxState::Restarting { error } => Some(format!("the outbox is not readable, retrying: {error}")),
        OutboxState::Failed { error } => Some(format!("the outbox failed: {error}")),
        OutboxState::Reading if !status.waits_for.is_empty() => {
            Some(format!("rows wait for open transactions of sessions {:?}", status.waits_for))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_why_nothing_is_read() {
        let status = |state| OutboxStatus { state, ..OutboxStatus::default() };
        assert_eq!(notice(&status(OutboxState::Reading)), None);
        let standby = notice(&status(OutboxState::Standby { leader: Some(7) })).unwrap();
        assert!(standby.ends_with("in session 7"), "{standby}");
        let waiting = OutboxStatus { waits_for: vec![8, 0], ..status(OutboxState::Reading) };
        assert_eq!(notice(&waiting).unwrap(), "rows wait for open transactions of sessions [8, 0]");
    }
}
