//! Plans and operations: [`freezing`] selects the letters of a plan, [`commanding`] starts operations and applies commands, [`polling`]
//! returns their letters, many of which are loaded [`ahead`], [`settling`] records the outcomes, and [`table`] maps all of it to the tables.

mod ahead;
mod commanding;
mod freezing;
mod polling;
mod settling;
mod table;

pub(crate) use settling::{Behind, ItemOutcome, NextHead};
