//! Builds the options of a source from its configuration.

use lazaret_config::{OutboxAck, PostgresOutboxSource};

use crate::options::{Ack, Columns, OutboxOptions};

impl OutboxOptions {
    /// Returns the options of a configured source. `stream` is the name of its consumer. Positions are
    /// kept per consumer, because two consumers may read the same table.
    ///
    /// ```
    /// use lazaret_config::{NoEnv, Source, check};
    /// use lazaret_source_postgres::{Ack, OutboxOptions};
    /// let text = "
    /// consumers:
    ///   orders:
    ///     source: { postgres-outbox: { dsn: 'postgres://orders@db.example/shop', table: outbox, key: aggregate_id, ack: position } }
    ///     handler: { command: { program: [./handle] } }
    /// ";
    /// let config = check("f", text.as_bytes(), &NoEnv).config.unwrap();
    /// let Source::PostgresOutbox(source) = &config.consumers[0].source else { panic!() };
    /// let options = OutboxOptions::from_config("orders", source);
    /// assert_eq!(options.columns.key.as_deref(), Some("aggregate_id"));
    /// assert_eq!((options.columns.created_at.as_str(), options.ack), ("created_at", Ack::Position));
    /// ```
    pub fn from_config(stream: &str, from: &PostgresOutboxSource) -> Self {
        Self {
            columns: Columns {
                id: from.id.clone(),
                key: Some(from.key.clone()),
                event_type: from.event_type.clone(),
                payload: from.payload.clone(),
                headers: from.headers.clone(),
                created_at: from.created_at.clone(),
            },
            ack: match from.ack {
                OutboxAck::Position => Ack::Position,
                _ => Ack::Delete,
            },
            stream: stream.into(),
            channel: from.channel.clone(),
            poll: from.poll,
            session_timeout: from.session_timeout,
            setup: from.setup,
            start_over: from.start_over,
            ..Self::new(from.dsn.reveal(), &from.table)
        }
    }
}
