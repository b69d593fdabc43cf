//! The paths of pages.

use crate::api::{escape, with_query};

/// Returns the path of a letter search.
pub(crate) fn letters(query: &str) -> String {
    with_query("/console/letters", &[("q", Some(query).filter(|query| !query.is_empty()))])
}

/// Returns the path of a group search.
pub(crate) fn groups(query: &str) -> String {
    with_query("/console/groups", &[("q", Some(query).filter(|query| !query.is_empty()))])
}

/// Returns the path of a group.
pub(crate) fn group(id: &str) -> String {
    format!("/console/groups/{}", escape(id))
}

/// Returns the path of a letter.
pub(crate) fn letter(id: &str) -> String {
    format!("/console/letters/{}", escape(id))
}

/// Returns the path of a sequence.
pub(crate) fn sequence(queue: &str, sequence: &str) -> String {
    with_query("/console/sequences", &[("queue", Some(queue)), ("sequence", Some(sequence))])
}

/// Returns the path of an operation.
pub(crate) fn operation(id: &str) -> String {
    format!("/console/operations/{}", escape(id))
}

/// Returns the path of a plan.
pub(crate) fn plan(id: &str) -> String {
    format!("/console/plans/{}", escape(id))
}
