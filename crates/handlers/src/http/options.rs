//! The options of a handler over HTTP.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_core::{ConsumerName, Sequencing};

use crate::attempt_info::Caller;

/// The default timeout of an attempt.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default idle timeout of a connection. Node and uvicorn close theirs after 5 s. Closing earlier
/// avoids requests on a connection that the server is closing.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(4);

/// The HTTP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1 for `http://`; negotiated by ALPN for `https://`.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only: prior knowledge for `http://`, ALPN for `https://`.
    Http2,
}

/// The trusted certificate authorities.
#[derive(Clone, Debug)]
pub(crate) enum Ca {
    File(PathBuf),
    Pem(Vec<u8>),
}

/// The URL of the handler, and how to call it. Redirects are not followed, and proxies are not used.
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
    /// Creates options for a URL. A user and a password in the URL are sent as basic authentication.
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

    /// Sets the name of the consumer, which is sent to the handler.
    #[must_use]
    pub fn for_consumer(mut self, consumer: impl Into<ConsumerName>) -> Self {
        self.caller.consumer = consumer.into();
        self
    }

    /// Sets the sequencing of the consumer, which determines the sequence that is sent to the handler.
    /// Default: by key.
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.caller.sequencing = sequencing;
        self
    }

    /// Sets the timeout of an attempt, from the connection to the end of the response. Default: 10 s.
    /// The wait for one of [`max_connections`](Self::with_max_connections) is not included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds a header to every request. It replaces an earlier header with the same name. A
    /// `Content-Type` applies to messages without one. The value is never shown.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.headers.push((name, value.into()));
        self
    }

    /// Uses a bearer token for authentication.
    #[must_use]
    pub fn with_bearer(self, token: impl AsRef<str>) -> Self {
        let value = format!("Bearer {}", token.as_ref());
        self.with_header("authorization", value)
    }

    /// Uses basic authentication with a user and a password.
    #[must_use]
    pub fn with_basic(self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        let value = basic(user.as_ref(), password.as_ref());
        self.with_header("authorization", value)
    }

    /// Sets the HTTP version.
    #[must_use]
    pub fn with_version(mut self, version: HttpVersion) -> Self {
        self.version = version;
        self
    }

    /// Sets the maximum number of concurrent requests, and so of HTTP/1.1 connections. Further attempts
    /// wait. Default: the concurrency of the consumer.
    #[must_use]
    pub fn with_max_connections(mut self, limit: usize) -> Self {
        self.max_connections = Some(limit);
        self
    }

    /// Sets the idle timeout of a connection. Default: 4 s. Keep it below the idle timeout of the
    /// handler's server.
    #[must_use]
    pub fn with_keep_alive(mut self, idle: Duration) -> Self {
        self.keep_alive = idle;
        self
    }

    /// Trusts the certificate authorities in a PEM file instead of the operating system's.
    #[must_use]
    pub fn with_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Ca::File(path.into()));
        self
    }

    /// Trusts the certificate authorities in a PEM text, like [`with_ca_file`](Self::with_ca_file).
    #[must_use]
    pub fn with_ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(Ca::Pem(pem.into()));
        self
    }
}

/// Returns the header value of basic authentication.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values may be secret, and the URL may contain a password or a token.
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

/// Returns the host and the port, the parts of a URL that are not secret.
pub(crate) fn place(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
