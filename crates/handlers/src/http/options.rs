//! What one can choose about a handler over HTTP.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_core::{ConsumerName, Sequencing};

use crate::facts::Caller;

/// How long a handler may take, unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle, unless told otherwise. Node and uvicorn close theirs after 5 s: who lets go first
/// never writes into a connection that the other side is just closing.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(4);

/// Which version of HTTP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1 to `http://`; to `https://` whatever the other side prefers (ALPN).
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only: to `http://` without asking first (prior knowledge), to `https://` by ALPN.
    Http2,
}

/// Which certificates of authorities are trusted.
#[derive(Clone, Debug)]
pub(crate) enum Ca {
    File(PathBuf),
    Pem(Vec<u8>),
}

/// Where the handler is, and how it is called. Redirects and proxies are never followed.
///
/// ```
/// use std::time::Duration;
/// use lazaret_handlers::{HttpOptions, HttpVersion};
///
/// let options = HttpOptions::new("https://handlers.internal/events")
///     .for_consumer("notification-service")
///     .with_timeout(Duration::from_secs(5))
///     .with_version(HttpVersion::Http2)
///     .with_ca_file("/etc/ssl/internal.pem")
///     .with_bearer("s3cret");
/// assert!(!format!("{options:?}").contains("s3cret"));
/// ```
#[derive(Clone)]
pub struct HttpOptions {
    pub(crate) url: String,
    pub(crate) caller: Caller,
    pub(crate) timeout: Duration,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) version: HttpVersion,
    pub(crate) max_connections: Option<usize>,
    pub(crate) keep_alive: Duration,
    pub(crate) ca: Option<Ca>,
}

impl HttpOptions {
    /// Calls this URL. A user and a password in it are sent as basic authentication.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            caller: Caller::default(),
            timeout: DEFAULT_TIMEOUT,
            headers: Vec::new(),
            version: HttpVersion::default(),
            max_connections: None,
            keep_alive: DEFAULT_KEEP_ALIVE,
            ca: None,
        }
    }

    /// The consumer whose name the handler is told.
    #[must_use]
    pub fn for_consumer(mut self, consumer: impl Into<ConsumerName>) -> Self {
        self.caller.consumer = consumer.into();
        self
    }

    /// How the consumer finds the sequence of a message, so that the handler is told the same. By key unless told
    /// otherwise.
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.caller.sequencing = sequencing;
        self
    }

    /// How long an attempt may take, from the connection to the end of the answer: 10 s unless told otherwise. Waiting for
    /// one of [`max_connections`](Self::with_max_connections) does not count.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends this header with every request; in place of those given before under the same name. A `Content-Type` is sent
    /// for messages that do not say their own. The value is never shown.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.headers.push((name, value.into()));
        self
    }

    /// Authenticates with a token.
    #[must_use]
    pub fn with_bearer(self, token: impl AsRef<str>) -> Self {
        let value = format!("Bearer {}", token.as_ref());
        self.with_header("authorization", value)
    }

    /// Authenticates with a user and a password.
    #[must_use]
    pub fn with_basic(self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        let value = basic(user.as_ref(), password.as_ref());
        self.with_header("authorization", value)
    }

    /// Which version of HTTP is spoken.
    #[must_use]
    pub fn with_version(mut self, version: HttpVersion) -> Self {
        self.version = version;
        self
    }

    /// At most so many requests at a time, which with HTTP/1.1 is so many connections. No limit but the consumer's
    /// concurrency unless told otherwise. Further attempts wait for their turn.
    #[must_use]
    pub fn with_max_connections(mut self, limit: usize) -> Self {
        self.max_connections = Some(limit);
        self
    }

    /// How long a connection that is not used is kept: 4 s unless told otherwise. Keep it below that of the handler's
    /// server.
    #[must_use]
    pub fn with_keep_alive(mut self, idle: Duration) -> Self {
        self.keep_alive = idle;
        self
    }

    /// Trusts the authorities in this PEM file, in place of those of the operating system.
    #[must_use]
    pub fn with_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Ca::File(path.into()));
        self
    }

    /// As [`with_ca_file`](Self::with_ca_file), with the content of such a file.
    #[must_use]
    pub fn with_ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(Ca::Pem(pem.into()));
        self
    }
}

/// The value of a header that authenticates with a user and a password.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No values: they may be secret. The URL may hold a password or a token.
        let url = reqwest::Url::parse(&self.url).ok();
        let place = url.as_ref().map_or_else(|| "invalid".to_owned(), place);
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpOptions")
            .field("place", &place)
            .field("caller", &self.caller)
            .field("timeout", &self.timeout)
            .field("headers", &headers)
            .field("version", &self.version)
            .field("max_connections", &self.max_connections)
            .field("keep_alive", &self.keep_alive)
            .finish_non_exhaustive()
    }
}

/// The host and the port: as much of a URL as may be shown.
pub(crate) fn place(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
