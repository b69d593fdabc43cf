//! Plans and operations inside a transaction: [`freezing`] makes plans, [`commanding`] begins operations and does what people
//! say, [`polling`] hands out their letters, [`settling`] writes down what became of them, and [`table`] knows how all of it
//! stands in the file.

pub(crate) mod commanding;
pub(crate) mod freezing;
mod polling;
mod settling;
pub(crate) mod table;
