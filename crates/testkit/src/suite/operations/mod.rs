//! Cases for plans and operations, with their fixture. They are part of
//! [`store_test_suite!`](crate::store_test_suite).

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod acts;
pub mod commands;
pub mod continued;
mod fixture;
pub mod interference;
pub mod plans;
pub mod replays;

pub use acts::*;
pub use commands::*;
pub use continued::*;
pub use interference::*;
pub use plans::*;
pub use replays::*;
