//! Summarizes a failure on one line.

use lazaret_api::text::headline;

/// Formats the type and message of an error: the exception of a Python traceback anywhere in the message, the last line of a
/// command's standard error, or otherwise the whole message.
pub(crate) fn error_summary(error_type: &str, message: &str) -> String {
    with_type(error_type, headline(error_type, message))
}

/// Puts the type of an error before its text, unless the text begins with it.
pub(crate) fn with_type(error_type: &str, text: &str) -> String {
    let rest = text.strip_prefix(error_type).filter(|_| !error_type.is_empty());
    let repeats = rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    if repeats { text.to_owned() } else { format!("{error_type}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str =
        "Traceback (most recent call last):\n  File \"handler.py\", line 9\nKeyError: 'USD'\n\n";

    #[test]
    fn a_python_traceback_is_summarized_by_its_exception() {
        assert_eq!(error_summary("exit code 1", TRACE), "exit code 1: KeyError: 'USD'");
        assert_eq!(error_summary("HTTP 500", TRACE), "HTTP 500: KeyError: 'USD'");
    }

    #[test]
    fn log_lines_around_a_traceback_do_not_hide_it() {
        let logged = format!("INFO:shop:handling e-7\nINFO:shop:asking\n{TRACE}INFO:shop:bye\n");
        assert_eq!(error_summary("exit code 1", &logged), "exit code 1: KeyError: 'USD'");
    }

    #[test]
    fn a_command_without_a_traceback_is_summarized_by_its_last_line() {
        assert_eq!(error_summary("exit code 2", "loading\ncannot pay\n\n"), "exit code 2: cannot pay");
        assert_eq!(
            error_summary("killed by signal 9", "loading\ncannot pay"),
            "killed by signal 9: cannot pay"
        );
    }

    #[test]
    fn a_type_that_the_message_begins_with_is_not_repeated() {
        assert_eq!(error_summary("HTTP 404", "HTTP 404 Not Found"), "HTTP 404 Not Found");
        assert_eq!(error_summary("DbError", "DbError: no answer"), "DbError: no answer");
        assert_eq!(error_summary("Db", "Dbase is gone"), "Db: Dbase is gone");
        // A text without a type cannot pass for a line of Lazaret's own.
        assert_eq!(error_summary("", "--- payload"), ": --- payload");
    }

    #[test]
    fn any_other_message_is_kept_whole() {
        assert_eq!(error_summary("DbError", "no answer\nfrom db-3"), "DbError: no answer\nfrom db-3");
        assert_eq!(error_summary("exit code 1", ""), "exit code 1: ");
    }
}
