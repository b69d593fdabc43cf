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
    shared.registry.source_notice(&config.name, {
        let status = status.clone();
        move || notice(&status.borrow())
    });
    shared.registry.source_readiness(&config.name, move || is_ready(&status.borrow().state));
    Ok(source)
}

/// Returns whether this instance reads the outbox, or stands by for another one. One that is closed says nothing about its consumer.
fn is_ready(state: &OutboxState) -> bool {
    !matches!(state, OutboxState::Starting | OutboxState::Restarting { .. } | OutboxState::Failed { .. })
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
    fn an_instance_is_ready_while_it_reads_or_stands_by() {
        let error = || "no".to_owned();
        for (state, is_expected) in [
            (OutboxState::Starting, false),
            (OutboxState::Restarting { error: error() }, false),
            (OutboxState::Failed { error: error() }, false),
            (OutboxState::Reading, true),
            (OutboxState::Standby { leader: None }, true),
            (OutboxState::Closed, true),
        ] {
            assert_eq!(is_ready(&state), is_expected, "{state:?}");
            let why = notice(&OutboxStatus { state, ..OutboxStatus::default() });
            assert!(is_expected || why.is_some());
        }
    }

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
