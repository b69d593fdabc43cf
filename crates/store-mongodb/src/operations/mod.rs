//! Plans and operations: a document for each plan with the state of its operation, and one for each of its letters.
//!
//! The document of the plan decides, as that of a sequence does. Outcomes are written to the letters of the plan afterwards.

mod freezing;
mod outcomes;
mod plans;
mod polling;
mod taking;

pub(crate) use self::outcomes::WriteOutcomes;
pub(crate) use self::taking::OperationLetters;

#[cfg(test)]
pub(crate) use freezing::WRITTEN_WITHIN;
