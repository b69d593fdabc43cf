//! Summarizes an operation: its counts as text and its exit code.

use lazaret_api::{Operation, OperationState};

use crate::exit::Exit;
use crate::output::count;

/// Returns the exit code of a command whose operation is in this state.
pub(crate) fn exit_of(operation: &Operation) -> Exit {
    match operation.state {
        OperationState::AwaitingApproval => Exit::AwaitingApproval,
        OperationState::Rejected => Exit::Denied,
        OperationState::Cancelled | OperationState::Paused => Exit::Partly,
        _ if operation.failed_again > 0 => Exit::Partly,
        _ => Exit::Ok,
    }
}

/// Formats the counts of an operation: `1,240 sent, 1,233 ok, 7 failed again, 0 skipped`.
pub(crate) fn progress_counts(operation: &Operation) -> String {
    let stages = operation.ramp.len() + 1;
    let stage = if stages > 1 && !operation.state.is_over() {
        format!(", stage {} of {stages}", operation.stage + 1)
    } else {
        String::new()
    };
    format!(
        "{} sent, {} ok, {} failed again, {} skipped{stage}",
        count(operation.sent),
        count(operation.ok),
        count(operation.failed_again),
        count(operation.skipped)
    )
}
