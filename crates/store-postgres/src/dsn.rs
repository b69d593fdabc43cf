//! Reads a DSN: what the driver knows, what it does not, and what only concerns this store.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::options::PostgresStoreOptions;
use crate::password;

/// Names the certificates to trust. Parameters of libpq that the driver does not know.
const ROOTS: &str = "sslrootcert";
const MODE: &str = "sslmode";
/// The password file.
const PASSFILE: &str = "passfile";
/// Parameters of this store.
const SCHEMA: &str = "schema";
const MAX_CONNECTIONS: &str = "max_connections";

/// The port of a host without one.
pub(crate) const PORT: u16 = 5432;

/// A DSN and what it says.
pub(crate) struct Dsn {
    pub(crate) config: Config,
    /// The file of the certificates to trust instead of those of the system.
    pub(crate) roots: Option<PathBuf>,
    passfile: Option<PathBuf>,
    schema: Option<String>,
    max_connections: Option<usize>,
}

fn invalid(context: String) -> StoreError {
    StoreError::not_done(ErrorKind::Invalid, "open", context)
}

const UNREADABLE: &str = "the DSN cannot be read: a parameter or its value is unknown, or special characters of the user or the password are \
    not percent-encoded";

/// Refuses a URL in which nobody knows where the credentials end: a driver would take the rest of a password for the host, and
/// messages would show it.
fn check_credentials(dsn: &str) -> Result<()> {
    let Some(rest) = dsn.strip_prefix("postgres://").or_else(|| dsn.strip_prefix("postgresql://")) else {
        return Ok(());
    };
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let at_signs = rest.matches('@').count();
    let is_clear = at_signs <= 1 && authority.matches('@').count() == at_signs;
    if is_clear && !authority.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    let context = "special characters of the user and the password in a URL must be percent-encoded, such as `@` as `%40` and `/` as `%2F`";
    Err(invalid(context.to_owned()))
}

impl Dsn {
    /// Parses a URL or a list of `key=value` pairs.
    pub(crate) fn parse(dsn: &str) -> Result<Self> {
        check_credentials(dsn)?;
        let (mut roots, mut passfile, mut schema, mut max_connections) = (None, None, None, None);
        let rest = filter(dsn, |name, value| {
            match (name, value) {
                // libpq's name for the certificates of the system.
                (ROOTS, "system") => {}
                (ROOTS, path) => roots = Some(PathBuf::from(path)),
                (PASSFILE, path) => passfile = Some(PathBuf::from(path)),
                (SCHEMA, name) => schema = Some(name.to_owned()),
                (MAX_CONNECTIONS, number) => max_connections = Some(number.to_owned()),
                // A certificate is verified in every mode with TLS.
                (MODE, "verify-full" | "verify-ca") => return Kept::As("sslmode=require"),
                _ => return Kept::Whole,
            }
            Kept::Not
        });
        // The message of the driver may repeat a part of what it cannot read, which may be a part of the password.
        let config = rest.parse().map_err(|_: tokio_postgres::Error| invalid(UNREADABLE.to_owned()))?;
        let max_connections = max_connections.map(|number: String| {
            number.parse().map_err(|_| invalid(format!("{MAX_CONNECTIONS} in the DSN is not a number")))
        });
        Ok(Self { config, roots, passfile, schema, max_connections: max_connections.transpose()? })
    }

    /// Parses as [`parse`](Self::parse), and finds the password if the DSN holds none, or an empty one.
    pub(crate) fn load(dsn: &str) -> Result<Self> {
        let mut dsn = Self::parse(dsn)?;
        if dsn.config.get_password().is_none_or(<[u8]>::is_empty)
            && let Some(found) =
                password::find(&dsn.config, dsn.passfile.as_deref(), |name| std::env::var_os(name))?
        {
            dsn.config.password(found);
        }
        Ok(dsn)
    }

    /// The options, with what the DSN says about them.
    pub(crate) fn apply(&self, mut options: PostgresStoreOptions) -> PostgresStoreOptions {
        if let Some(schema) = &self.schema {
            options.schema.clone_from(schema);
        }
        options.max_connections = self.max_connections.unwrap_or(options.max_connections);
        options
    }

    /// The time for one host out of that for a connection. Hosts are tried one after the other (see [`hosts`](crate::hosts)), so each gets
    /// a share, and one is left over: behind one that is gone or frozen the others have their turn.
    pub(crate) fn timeout_of_host(&self, timeout: Duration) -> Duration {
        let hosts = self.config.get_hosts().len().max(self.config.get_hostaddrs().len());
        if hosts > 1 { timeout / u32::try_from(hosts + 1).unwrap_or(u32::MAX) } else { timeout }
    }

    /// The servers, the database and the schema, without credentials.
    pub(crate) fn place(&self, options: &PostgresStoreOptions) -> String {
        let mut place = String::new();
        for (number, host) in self.config.get_hosts().iter().enumerate() {
            let ports = self.config.get_ports();
            let port = ports.get(number).or(ports.first()).copied().unwrap_or(PORT);
            let separator = if number == 0 { "" } else { ", " };
            let _ = match host {
                Host::Tcp(name) if name.contains(':') => write!(place, "{separator}[{name}]:{port}"),
                Host::Tcp(name) => write!(place, "{separator}{name}:{port}"),
                Host::Unix(path) => write!(place, "{separator}{}", path.display()),
            };
        }
        if let Some(database) = self.config.get_dbname() {
            let _ = write!(place, ", database {database}");
        }
        let _ = write!(place, ", schema {}", options.schema);
        place
    }
}

/// Returns the servers, the database and the schema that a DSN names, for messages. Credentials are not part of it.
///
/// # Errors
/// `Invalid` if the DSN cannot be read.
///
/// ```
/// let dsn = "postgres://lazaret:hunter2@db.example/shop?schema=letters";
/// let place = lazaret_store_postgres::describe(dsn).unwrap();
/// assert_eq!(place, "db.example:5432, database shop, schema letters");
/// ```
pub fn describe(dsn: &str) -> Result<String> {
    let dsn = Dsn::parse(dsn)?;
    Ok(dsn.place(&dsn.apply(PostgresStoreOptions::default())))
}

/// What remains of a parameter.
enum Kept {
    Whole,
    As(&'static str),
    Not,
}

/// Rewrites the parameters of a DSN.
fn filter(dsn: &str, mut keep: impl FnMut(&str, &str) -> Kept) -> String {
    let is_url = dsn.starts_with("postgres://") || dsn.starts_with("postgresql://");
    let (before, parameters, between) = match dsn.split_once('?') {
        Some((before, parameters)) if is_url => (before, parameters.split('&').collect::<Vec<_>>(), "&"),
        _ if is_url => return dsn.to_owned(),
        // A quoted value may contain spaces; the driver reads those.
        _ if dsn.contains('\'') => return dsn.to_owned(),
        _ => ("", dsn.split_whitespace().collect(), " "),
    };
    let mut kept = Vec::new();
    for parameter in parameters {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match keep(name, value) {
            Kept::Whole => kept.push(parameter),
            Kept::As(other) => kept.push(other),
            Kept::Not => {}
        }
    }
    let kept = kept.join(between);
    if is_url && !kept.is_empty() { format!("{before}?{kept}") } else { format!("{before}{kept}") }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    #[test]
    fn parameters_that_the_driver_does_not_know_are_understood() {
        let dsn = Dsn::parse(
            "postgres://u:p@h/db?sslmode=verify-full&schema=shop&sslrootcert=/ca.pem&max_connections=3&application_name=x",
        );
        let dsn = dsn.unwrap();
        assert_eq!(dsn.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(dsn.config.get_application_name(), Some("x"));
        assert_eq!(dsn.roots, Some(PathBuf::from("/ca.pem")));
        let options = dsn.apply(PostgresStoreOptions::default());
        assert_eq!((options.schema.as_str(), options.max_connections), ("shop", 3));
        let plain = Dsn::parse("postgresql://h/db?sslrootcert=system").unwrap();
        assert_eq!((plain.roots.as_ref(), plain.schema.as_ref()), (None, None));
        let pairs = Dsn::parse("host=h sslmode=verify-ca sslrootcert=/ca.pem schema=x user=u").unwrap();
        assert_eq!(pairs.config.get_ssl_mode(), SslMode::Require);
        assert_eq!((pairs.roots, pairs.schema.as_deref()), (Some(PathBuf::from("/ca.pem")), Some("x")));
    }

    #[test]
    fn the_hosts_of_a_failover_are_understood_and_share_the_time() {
        use tokio_postgres::config::TargetSessionAttrs::ReadWrite;
        let url = "postgres://lazaret@a.example,b.example/shop?target_session_attrs=read-write&schema=x";
        let pairs =
            "host=a.example,b.example user=lazaret dbname=shop target_session_attrs=read-write schema=x";
        for text in [url, pairs] {
            let dsn = Dsn::parse(text).unwrap();
            assert_eq!(dsn.config.get_target_session_attrs(), ReadWrite, "{text}");
            let place = dsn.place(&dsn.apply(PostgresStoreOptions::default()));
            assert_eq!(place, "a.example:5432, b.example:5432, database shop, schema x", "{text}");
            assert_eq!(dsn.timeout_of_host(Duration::from_secs(9)), Duration::from_secs(3), "{text}");
        }
        let one = Dsn::parse("postgres://a.example/shop").unwrap();
        assert_eq!(one.timeout_of_host(Duration::from_secs(9)), Duration::from_secs(9));
    }

    #[test]
    fn no_message_shows_a_password() {
        for wrong in ["postgres://u:hunter2@h/db?max_connections=many", "postgres://u:hunter2@h:x/db"] {
            let error = Dsn::parse(wrong).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        for special in ["@", "/", "?", "#", " ", "?x=", "@127.0.0.1/", "/@"] {
            for dsn in [
                format!("postgres://u:hun{special}ter2@127.0.0.1:5432/db"),
                format!("postgresql://u:hun{special}ter2@a,b:2/db?schema=x"),
                format!("postgres://hun{special}ter2@h/db"),
            ] {
                let why = describe(&dsn).map_err(|error| format!("{error} {error:?}")).unwrap_err();
                assert!(!why.contains("hun") && !why.contains("ter2"), "{dsn}: {why}");
                assert!(why.contains("percent-encoded"), "{dsn}: {why}");
            }
        }
        for dsn in ["postgres://u:hunter2@h/db?hunter2=1", "host=h password=hunter2 hunter2"] {
            let error = describe(dsn).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        assert!(describe("postgres://u:hun%40ter2@h/db").is_ok());
        let place = describe("postgres://u:hunter2@a:1,[::1]:2/db").unwrap();
        assert_eq!(place, "a:1, [::1]:2, database db, schema lazaret");
        let socket = describe("postgres:///shop?user=u&host=/run/postgresql").unwrap();
        assert_eq!(socket, "/run/postgresql, database shop, schema lazaret");
    }
}
