//! The line of a failure that says most, for places that have room for one.

use lazaret_core::Traceback;
use lazaret_core::traceback::last_line;

/// Type and message of an error in one line: of a stack trace of Python, wherever it stands in the message, its exception;
/// of what a command said, which may have logged before, the last line; of everything else, all of it.
pub(crate) fn gist(error_type: &str, message: &str) -> String {
    let said = match Traceback::last(message) {
        Some(trace) => trace.headline(),
        None if is_of_command(error_type) => last_line(message),
        None => message,
    };
    format!("{error_type}: {said}")
}

/// Whether the message is what a command said on its standard error.
fn is_of_command(error_type: &str) -> bool {
    ["exit code ", "killed by signal "].iter().any(|begin| error_type.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str =
        "Traceback (most recent call last):\n  File \"handler.py\", line 9\nKeyError: 'USD'\n\n";

    #[test]
    fn a_stack_trace_of_python_is_told_by_its_exception() {
        assert_eq!(gist("exit code 1", TRACE), "exit code 1: KeyError: 'USD'");
        assert_eq!(gist("HTTP 500", TRACE), "HTTP 500: KeyError: 'USD'");
    }

    #[test]
    fn what_was_logged_around_a_stack_trace_does_not_hide_it() {
        let logged = format!("INFO:shop:handling e-7\nINFO:shop:asking\n{TRACE}INFO:shop:bye\n");
        assert_eq!(gist("exit code 1", &logged), "exit code 1: KeyError: 'USD'");
    }

    #[test]
    fn a_command_without_a_stack_trace_is_told_by_its_last_line() {
        assert_eq!(gist("exit code 2", "loading\ncannot pay\n\n"), "exit code 2: cannot pay");
        assert_eq!(gist("killed by signal 9", "loading\ncannot pay"), "killed by signal 9: cannot pay");
    }

    #[test]
    fn everything_else_is_told_whole() {
        assert_eq!(gist("DbError", "no answer\nfrom db-3"), "DbError: no answer\nfrom db-3");
        assert_eq!(gist("exit code 1", ""), "exit code 1: ");
    }
}
