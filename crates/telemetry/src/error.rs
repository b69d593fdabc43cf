//! Why telemetry cannot begin.

/// Why telemetry cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No HTTP client can be made.
    #[error("no HTTP client can be made: {0}")]
    Client(String),
    /// The exporter of traces cannot be made.
    #[error("traces cannot be sent: {0}")]
    Traces(String),
    /// A webhook asks for something that does not exist.
    #[error("webhook {number}: {why}")]
    Webhook {
        /// Which one, from 1.
        number: usize,
        /// What is wrong.
        why: String,
    },
}
