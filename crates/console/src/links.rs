//! The paths of pages.

use crate::api::{escape, with_query};

/// A search of letters.
pub(crate) fn letters(query: &str) -> String {
    with_query("/console/letters", &[("q", Some(query).filter(|query| !query.is_empty()))])
}

/// A search of groups.
pub(crate) fn groups(query: &str) -> String {
    with_query("/console/groups", &[("q", Some(query).filter(|query| !query.is_empty()))])
}

/// A group.
pub(crate) fn group(id: &str) -> String {
    format!("/console/groups/{}", escape(id))
}

/// A letter.
pub(crate) fn letter(id: &str) -> String {
    format!("/console/letters/{}", escape(id))
}

/// A sequence.
pub(crate) fn sequence(queue: &str, sequence: &str) -> String {
    with_query("/console/sequences", &[("queue", Some(queue)), ("sequence", Some(sequence))])
}

/// An operation.
pub(crate) fn operation(id: &str) -> String {
    format!("/console/operations/{}", escape(id))
}

/// A plan.
pub(crate) fn plan(id: &str) -> String {
    format!("/console/plans/{}", escape(id))
}
