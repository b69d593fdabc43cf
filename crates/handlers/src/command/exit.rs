//! Classifies the exit status of a command.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use lazaret_core::{HandlerError, Reason, Verdict};

use crate::report::Report;
use crate::sanitize::with_notes;

/// Returns the verdict and the reason of an exit code, or `None` if it means handled.
fn row(code: i32) -> Option<(Verdict, Reason)> {
    Some(match code {
        0 => return None,
        65 => (Verdict::DeadLetter, Reason::INVALID_SCHEMA),
        69 => (Verdict::Retry, Reason::DEPENDENCY_UNAVAILABLE),
        77 => (Verdict::DeadLetter, Reason::AUTHORIZATION_DENIED),
        100 => (Verdict::Park, Reason::UNSUPPORTED),
        101 => (Verdict::Quarantine, Reason::HANDLER_ERROR),
        102 => (Verdict::Skip, Reason::HANDLER_ERROR),
        103 => (Verdict::Duplicate, Reason::DUPLICATE),
        104 => (Verdict::Stop, Reason::HANDLER_ERROR),
        _ => (Verdict::Retry, Reason::HANDLER_ERROR),
    })
}

/// Returns the outcome of the attempt. `stderr` is the end of the standard error without the report.
pub(super) fn classify(status: ExitStatus, stderr: String, report: Report) -> Result<(), HandlerError> {
    let Some(code) = status.code() else { return Err(crashed(status, stderr)) };
    let Some((verdict, reason)) = row(code) else { return Ok(()) };
    let text = report.message().or_else(|| Some(stderr).filter(|text| !text.is_empty()));
    let text = with_notes(text.unwrap_or_else(|| describe(status)), &report.notes);
    let error_type = report.error_type.clone().unwrap_or_else(|| describe(status));
    let error = report.complete(HandlerError::foreign(error_type, text)).reason(reason).suggest(verdict);
    Err(with_code(error, status))
}

/// Returns the failure of an attempt whose process crashed.
pub(super) fn crashed(status: ExitStatus, stderr: String) -> HandlerError {
    let text = if stderr.is_empty() { describe(status) } else { stderr };
    let error = HandlerError::foreign(describe(status), text).reason(Reason::CRASHED);
    with_code(error.suggest(Verdict::Retry), status)
}

fn with_code(error: HandlerError, status: ExitStatus) -> HandlerError {
    match status.code().and_then(|code| u16::try_from(code).ok()) {
        Some(code) => error.status(code),
        None => error,
    }
}

/// Describes the status: `exit code 65`, or `killed by signal 9`.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn every_exit_code_of_the_contract_is_classified() {
        use Verdict::{DeadLetter, Duplicate, Park, Quarantine, Retry, Skip, Stop};
        let table = [
            (65, DeadLetter, Reason::INVALID_SCHEMA),
            (69, Retry, Reason::DEPENDENCY_UNAVAILABLE),
            (75, Retry, Reason::HANDLER_ERROR),
            (77, DeadLetter, Reason::AUTHORIZATION_DENIED),
            (100, Park, Reason::UNSUPPORTED),
            (101, Quarantine, Reason::HANDLER_ERROR),
            (102, Skip, Reason::HANDLER_ERROR),
            (103, Duplicate, Reason::DUPLICATE),
            (104, Stop, Reason::HANDLER_ERROR),
        ];
        let listed: Vec<i32> = table.iter().map(|(code, ..)| *code).collect();
        let others = (1..=255).filter(|code| !listed.contains(code));
        let others = others.map(|code| (code, Retry, Reason::HANDLER_ERROR));
        for (code, verdict, reason) in table.into_iter().chain(others) {
            let error = classify(exit(code), String::new(), Report::default()).unwrap_err();
            assert_eq!((error.suggested_verdict(), error.asked_verdict()), (Some(verdict), None), "{code}");
            let failure = error.failure();
            assert_eq!((failure.reason, failure.status), (reason, u16::try_from(code).ok()), "{code}");
            assert_eq!(failure.message, format!("exit code {code}"));
        }
        assert!(classify(exit(0), "a warning".into(), Report::default()).is_ok());
    }

    #[test]
    fn a_signal_is_a_crash() {
        for signal in [6, 9, 11, 15] {
            let error = classify(ExitStatus::from_raw(signal), String::new(), Report::default()).unwrap_err();
            assert_eq!(error.suggested_verdict(), Some(Verdict::Retry));
            let failure = error.failure();
            assert_eq!((failure.reason, failure.status), (Reason::CRASHED, None));
            assert_eq!(failure.message, format!("killed by signal {signal}"));
        }
    }

    #[test]
    fn the_standard_error_is_the_message() {
        let failure = classify(exit(75), "busy".into(), Report::default()).unwrap_err().failure();
        assert_eq!((&*failure.message, &*failure.error_type), ("busy", "exit code 75"));
    }

    #[test]
    fn a_report_replaces_the_type_and_the_message() {
        let report = Report::from_line(
            br#"{"detail":"no card","errorType":"shop.Declined","stackTrace":"at x","phase":"?"}"#,
        );
        let failure = classify(exit(75), "INFO begun".into(), report.unwrap()).unwrap_err().failure();
        assert_eq!((&*failure.error_type, failure.backtrace.as_deref()), ("shop.Declined", Some("at x")));
        assert_eq!(failure.message, "no card (unknown phase \"?\" was ignored)");
        assert_eq!((failure.reason, failure.status), (Reason::HANDLER_ERROR, Some(75)));
        let report = Report::from_line(br#"{"errorType":"shop.Declined"}"#).unwrap();
        let failure = classify(exit(65), "INFO begun".into(), report).unwrap_err().failure();
        assert_eq!((&*failure.error_type, &*failure.message), ("shop.Declined", "INFO begun"));
    }
}
