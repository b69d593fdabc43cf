//! Offsets of a partition: settled offsets, their storage in commit metadata, and commits.

pub(crate) mod commit;
pub(crate) mod metadata;
pub(crate) mod settled;
