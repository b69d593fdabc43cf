//! Cases for the operators' side of letters.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod find;
