//! Default reasons.

/// The reason of an assignment without one.
pub(crate) const ASSIGNMENT: &str = "assignment";

/// Returns the given reason, or the default for changes that need none.
pub(super) fn reason_or<'a>(reason: Option<&'a str>, default: &'a str) -> Option<&'a str> {
    reason.filter(|reason| !reason.trim().is_empty()).or(Some(default))
}
