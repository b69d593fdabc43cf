//! Connects to the hosts of a DSN one after the other.
//!
//! The driver limits the time in which a host accepts a connection, and not that in which it answers: one that is frozen would hold up those
//! behind it for ever. Here every host but the last has its time (`connect_timeout`) for all of it. Whoever connects limits the whole.

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

use crate::tls::Tls;

/// A connection, which makes progress while it is polled.
type Driven = Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>;

/// Connects to the first host that accepts. The error is that of the last one.
pub(crate) async fn connect(config: &Config, tls: &Tls) -> Result<(Client, Driven), Error> {
    let mut hosts = one_by_one(config);
    let last = hosts.pop().unwrap_or_else(|| config.clone());
    for host in hosts {
        let connecting = host.connect(tls.clone());
        let connected = match host.get_connect_timeout() {
            Some(timeout) => tokio::time::timeout(*timeout, connecting).await.ok(),
            None => Some(connecting.await),
        };
        if let Some(Ok(connected)) = connected {
            return Ok(connected);
        }
    }
    last.connect(tls.clone()).await
}

/// Opens the connections of a pool.
pub(crate) struct PoolConnect(pub(crate) Tls);

impl Connect for PoolConnect {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = connect(&config, &self.0).await?;
            let driving = tokio::spawn(async move {
                // The client gets the error of a connection that breaks.
                let _ = connection.await;
            });
            Ok((client, driving))
        })
    }
}

/// A configuration for each host. A single one where the driver chooses the order, and for hosts, addresses and ports that do not fit
/// together, which it refuses.
fn one_by_one(config: &Config) -> Vec<Config> {
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let (count, ports) = (hosts.max(addresses), config.get_ports().len());
    let fits = (hosts.min(addresses) == 0 || hosts == addresses) && (ports <= 1 || ports == count);
    if count < 2 || !fits || config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        return vec![config.clone()];
    }
    (0..count).map(|index| of_host(config, index)).collect()
}

/// The configuration with one of its hosts.
fn of_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(index) {
        Some(Host::Tcp(name)) => {
            one.host(name);
        }
        Some(Host::Unix(path)) => {
            one.host_path(path);
        }
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    let ports = config.get_ports();
    if let Some(port) = ports.get(index).or(ports.first()) {
        one.port(*port);
    }
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(database) = config.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = config.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(dsn: &str) -> Config {
        dsn.parse().unwrap()
    }

    #[test]
    fn a_configuration_of_one_host_has_all_settings() {
        let all = "postgres://u:p@h:1/db?application_name=x&options=-c%20jit%3Doff&sslmode=require&sslnegotiation=direct\
                   &connect_timeout=3&tcp_user_timeout=4&keepalives=0&keepalives_idle=5&keepalives_interval=6\
                   &keepalives_retries=7&target_session_attrs=read-write&channel_binding=require";
        for dsn in [all, "host=/run/postgresql user=u", "host=h hostaddr=127.0.0.1 load_balance_hosts=random"]
        {
            let config = parse(dsn);
            assert!(of_host(&config, 0) == config, "{dsn}");
        }
    }

    #[test]
    fn hosts_are_tried_in_their_order_with_their_ports() {
        let several = one_by_one(&parse("postgres://u@a:1,b:2/db"));
        assert!(several == [parse("postgres://u@a:1/db"), parse("postgres://u@b:2/db")]);
        let one_port = one_by_one(&parse("host=a,b port=7"));
        assert!(one_port == [parse("host=a port=7"), parse("host=b port=7")]);
        for whole in ["host=a,b load_balance_hosts=random", "host=a,b,c port=1,2", "host=a"] {
            assert!(one_by_one(&parse(whole)) == [parse(whole)], "{whole}");
        }
    }
}
