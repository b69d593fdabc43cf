//! The line of a failure that says most, for places that have room for one.

/// What Python writes before a stack trace. What went wrong stands at the end of it, not at the beginning.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Type and message of an error in one line: of a stack trace of Python, its last line; of everything else, all of it.
pub(crate) fn gist(error_type: &str, message: &str) -> String {
    let last = message.lines().rev().find(|line| !line.trim().is_empty());
    let said = if message.trim_start().starts_with(TRACEBACK) { last.unwrap_or(message) } else { message };
    format!("{error_type}: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_trace_of_python_is_told_by_its_last_line() {
        let trace = "Traceback (most recent call last):\n  File \"handler.py\", line 9\nKeyError: 'USD'\n\n";
        assert_eq!(gist("exit code 1", trace), "exit code 1: KeyError: 'USD'");
    }

    #[test]
    fn everything_else_is_told_whole() {
        assert_eq!(gist("DbError", "no answer\nfrom db-3"), "DbError: no answer\nfrom db-3");
        assert_eq!(gist("exit code 1", ""), "exit code 1: ");
    }
}
