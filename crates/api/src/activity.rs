//! The throughput of consumers over the last hour.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the consumers of this process handled, in buckets of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Activity {
    /// The width of a bucket, in seconds.
    pub bucket_seconds: u64,
    /// The time of the response, within the last bucket.
    pub at: Timestamp,
    /// The consumers that run in this process, by name.
    pub consumers: Vec<ConsumerActivity>,
}

/// The throughput of one consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ConsumerActivity {
    /// The name.
    pub name: String,
    /// The number of messages handled per bucket, the current one last.
    pub handled: Vec<u64>,
    /// The number of failed attempts per bucket, the current one last.
    pub failed: Vec<u64>,
}
