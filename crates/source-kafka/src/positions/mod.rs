//! Offsets of a partition: what is settled, how it is stored in the metadata of a commit, and commits themselves.

pub(crate) mod commit;
pub(crate) mod metadata;
pub(crate) mod settled;
