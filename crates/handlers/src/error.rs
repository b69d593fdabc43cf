//! Why a handler cannot be built.

/// Why a handler cannot be built. None of these shows a header's value or a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be called.
    #[error("the URL cannot be called: {0}")]
    Url(String),
    /// A header cannot be sent.
    #[error("the header {name:?} cannot be sent: {why}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The certificates of an authority cannot be read.
    #[error("the certificates in {place} cannot be used: {why}")]
    Ca {
        /// Where they should be.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
    /// A limit makes no sense.
    #[error("{name} cannot be zero")]
    Zero {
        /// Which one.
        name: &'static str,
    },
    /// The command cannot be run.
    #[error("the command cannot be run: {0}")]
    Command(String),
}
