//! The error type of this crate.

/// Why telemetry cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The HTTP client cannot be created.
    #[error("cannot create the HTTP client: {0}")]
    Client(String),
    /// The trace exporter cannot be created.
    #[error("cannot create the trace exporter: {0}")]
    Traces(String),
    /// A webhook is misconfigured.
    #[error("webhook {number}: {error}")]
    Webhook {
        /// Its 1-based position in the configuration.
        number: usize,
        /// What is wrong.
        error: String,
    },
}
