//! Connections to a server: its DSN, TLS, and the time after which one that does not respond is given up.

use std::future::poll_fn;
use std::time::Duration;

use lazaret_core::store::{Certainty, Result, StoreError};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Notification};

use crate::dsn::Dsn;
use crate::error::of_driver;
use crate::hosts;
use crate::tls::{self, Tls};

/// A connection without traffic is checked after this time, so that a server that has vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The time beyond the statement timeout after which a connection that acknowledges nothing is given up.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(15);

/// Opens connections to one server, for the store and for other parts of Lazaret that use PostgreSQL.
pub struct Connector {
    config: Config,
    tls: Tls,
}

impl Connector {
    /// Reads a DSN: a URL or a list of `key=value` pairs, as libpq has them. What it does not say is set: the time after which the next
    /// host is tried (`connect_timeout`, of which several hosts get a share each), the time after which a server that acknowledges
    /// nothing is given up (longer than `statement_timeout`), and the name `application`.
    ///
    /// # Errors
    /// `Invalid` if the DSN or a file that it names cannot be read.
    pub fn new(
        dsn: &str,
        application: &str,
        connect_timeout: Duration,
        statement_timeout: Duration,
    ) -> Result<Self> {
        Self::of(Dsn::load(dsn)?, application, connect_timeout, statement_timeout)
    }

    /// As [`new`](Self::new).
    pub(crate) fn of(
        dsn: Dsn,
        application: &str,
        connect_timeout: Duration,
        statement_timeout: Duration,
    ) -> Result<Self> {
        let timeout_of_host = dsn.timeout_of_host(connect_timeout);
        let Dsn { mut config, roots, .. } = dsn;
        config.keepalives_idle(KEEPALIVE);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(timeout_of_host);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(statement_timeout.saturating_add(NETWORK_TIMEOUT));
        }
        if config.get_application_name().is_none() {
            config.application_name(application);
        }
        let tls = tls::connector(roots.as_ref(), config.get_ssl_mode())?;
        Ok(Self { config, tls })
    }

    /// The settings and the TLS of the connections, for a pool.
    pub(crate) fn into_parts(self) -> (Config, Tls) {
        (self.config, self.tls)
    }

    /// Opens a connection, and calls `notified` for each notification that it receives. A task drives it until the client is dropped.
    ///
    /// # Errors
    /// The [error of the driver](driver_error).
    pub async fn connect(&self, mut notified: impl FnMut(Notification) + Send + 'static) -> Result<Client> {
        let connected = hosts::connect(&self.config, &self.tls).await;
        let (client, mut connection) = connected.map_err(|error| driver_error(error, "connect"))?;
        tokio::spawn(async move {
            // The client gets the error of a connection that breaks.
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(notification) = message {
                    notified(notification);
                }
            }
        });
        Ok(client)
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("hosts", &self.config.get_hosts()).finish_non_exhaustive()
    }
}

/// An error of the driver or the server as one of a store: its kind says whether another attempt may help, its text what to do.
/// Nothing was done.
pub fn driver_error(error: Error, operation: &'static str) -> StoreError {
    of_driver(error, operation, Certainty::NotDone)
}
