//! Cases for plans and operations, and the words they are written in. They are part of
//! [`store_test_suite!`](crate::store_test_suite).

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod acting;
mod bed;
pub mod commanding;
pub mod freezing;
pub mod taking;

pub use acting::*;
pub use commanding::*;
pub use freezing::*;
pub use taking::*;
