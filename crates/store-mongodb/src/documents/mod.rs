//! The documents of the store: what they hold, as BSON has it.

pub(crate) mod batch;
pub(crate) mod chunks;
pub(crate) mod details;
pub(crate) mod end;
pub(crate) mod flowwarden;
pub(crate) mod group;
pub(crate) mod left;
pub(crate) mod letter;
pub(crate) mod plan;
pub(crate) mod readable;
pub(crate) mod sequence;
mod shown;
