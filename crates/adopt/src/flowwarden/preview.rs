//! The result of a preview of an adoption.

use serde::Serialize;

use crate::progress::Tally;

/// The result of a preview of an adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The counts. `adopted` is the number of documents that would become letters.
    pub counts: Tally,
    /// The number of documents per stream and status, for at most 100 combinations. Includes other streams.
    pub streams: Vec<StreamCount>,
    /// The addresses of unknown documents, at most 100.
    pub unknown_at: Vec<String>,
}

/// The number of documents of a stream with the same status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StreamCount {
    /// The name of the stream in FlowWarden, or `None` for documents without one.
    pub stream: Option<String>,
    /// The status, or `None` for documents without one.
    pub status: Option<String>,
    /// The number of documents.
    pub documents: u64,
}
