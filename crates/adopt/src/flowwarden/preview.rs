//! What an adoption would do.

use serde::Serialize;

use crate::progress::Tally;

/// What an adoption would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The counts: `adopted` would become letters.
    pub counts: Tally,
    /// The documents of each stream and status, those of other streams included; the first 100.
    pub streams: Vec<StreamCount>,
    /// The addresses of unknown documents, the first 100.
    pub unknown_at: Vec<String>,
}

/// The number of documents of a stream with one status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StreamCount {
    /// The name of the stream in FlowWarden; `None` for documents that have none.
    pub stream: Option<String>,
    /// The status; `None` for documents that have none.
    pub status: Option<String>,
    /// The number of documents.
    pub documents: u64,
}
