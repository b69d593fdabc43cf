//! The librdkafka client: callbacks, assignments, batches of records, topic metadata and ids, and
//! producer settings.

pub(crate) mod assignment;
pub(crate) mod batch;
pub(crate) mod callbacks;
pub(crate) mod metadata;
pub(crate) mod producer;
pub(crate) mod topic_ids;
