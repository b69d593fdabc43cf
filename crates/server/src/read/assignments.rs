//! Who assigned the letters of a group to whom.

use std::collections::HashSet;

use lazaret_api::GroupAssignment;
use lazaret_core::LetterId;
use lazaret_core::store::{AuditEntry, Change};

use crate::api_error::Result;
use crate::app::App;
use crate::change::reason::ASSIGNMENT;

/// The entries of the audit that are examined for all of the letters.
const ENTRIES_EXAMINED: usize = 500;
/// The changes of a response.
const ASSIGNMENTS: usize = 10;

/// The latest changes of the assignee of these letters, latest first.
pub(super) async fn assignments(app: &App, letters: &HashSet<LetterId>) -> Result<Vec<GroupAssignment>> {
    let subjects: Vec<String> = letters.iter().map(ToString::to_string).collect();
    let entries = app.store.audit_about(&subjects, ENTRIES_EXAMINED).await?;
    Ok(fold(&entries))
}

/// One change for all letters that one call assigned: it leaves an entry for each of them, one after the other.
fn fold(entries: &[AuditEntry]) -> Vec<GroupAssignment> {
    let action = Change::Assignee(None).as_str();
    let mut folded: Vec<GroupAssignment> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.action == action && entry.before != entry.after) {
        let why = if entry.by.why == ASSIGNMENT { String::new() } else { entry.by.why.clone() };
        let (at, by) = (entry.at, entry.by.who.clone());
        let one = GroupAssignment { at, by, name: entry.after.clone(), why, letters: 1 };
        match folded.last_mut() {
            Some(last) if (&last.by, &last.name, &last.why) == (&one.by, &one.name, &one.why) => {
                last.letters += 1;
            }
            _ => folded.push(one),
        }
    }
    folded.truncate(ASSIGNMENTS);
    folded
}

#[cfg(test)]
mod tests {
    use lazaret_core::Timestamp;
    use lazaret_core::store::Actor;

    use super::*;

    fn entry(who: &str, action: &str, before: Option<&str>, after: Option<&str>) -> AuditEntry {
        AuditEntry {
            number: 1,
            at: Timestamp::UNIX_EPOCH,
            by: Actor::new(who, "console", ""),
            action: action.to_owned(),
            subject: "a letter".to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        }
    }

    #[test]
    fn letters_that_were_assigned_together_are_one_change() {
        let entries = [
            entry("ada", "assign", None, Some("bob")),
            entry("ada", "comment", None, None),
            entry("ada", "assign", Some("eve"), Some("bob")),
            // It changed nothing.
            entry("ada", "assign", Some("bob"), Some("bob")),
            entry("eve", "assign", None, Some("bob")),
            entry("eve", "assign", Some("bob"), None),
        ];
        let folded = fold(&entries);
        let shown: Vec<_> =
            folded.iter().map(|of| (of.by.as_str(), of.name.as_deref(), of.letters)).collect();
        assert_eq!(shown, [("ada", Some("bob"), 2), ("eve", Some("bob"), 1), ("eve", None, 1)]);
    }

    #[test]
    fn the_changes_of_a_response_are_bounded() {
        // I7
        let names: Vec<String> = (0..2 * ASSIGNMENTS).map(|n| n.to_string()).collect();
        let entries: Vec<AuditEntry> =
            names.iter().map(|name| entry("ada", "assign", None, Some(name.as_str()))).collect();
        let folded = fold(&entries);
        assert_eq!((folded.len(), folded[0].name.as_deref()), (ASSIGNMENTS, Some("0")));
    }
}
