//! The errors of building a handler.

/// An error of building a handler. It never contains the value of a header or a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error("invalid URL: {0}")]
    Url(String),
    /// A header is invalid.
    #[error("invalid header {name:?}: {why}")]
    Header {
        /// The name of the header.
        name: String,
        /// The cause.
        why: &'static str,
    },
    /// The certificates of a certificate authority are invalid.
    #[error("failed to load certificates from {place}: {why}")]
    Ca {
        /// The path of the file, or `the given PEM`.
        place: String,
        /// The cause.
        why: String,
    },
    /// The TLS setup failed.
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The setup of the HTTP client failed.
    #[error("failed to set up the HTTP client: {0}")]
    Client(String),
    /// A limit is zero.
    #[error("{name} must not be zero")]
    Zero {
        /// The name of the limit.
        name: &'static str,
    },
    /// The command is invalid.
    #[error("invalid command: {0}")]
    Command(String),
}
