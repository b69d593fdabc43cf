//! Plans and operations: [`selecting`] selects the letters of a plan on readers, and [`freezing`] decides about them. The others write:
//! [`drafting`] writes plans in pages, [`commanding`] starts operations and applies
//! commands, [`polling`] returns their letters, [`settling`] records the outcomes, and [`table`] maps all of it to the
//! tables.

pub(crate) mod commanding;
mod drafting;
pub(crate) mod freezing;
mod polling;
mod selecting;
mod settling;
pub(crate) mod table;

pub(crate) use selecting::{CandidateRow, Candidates};
pub(crate) use settling::{Behind, NextHead};
