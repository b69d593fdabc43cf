//! Parses printed Java stack traces: the exceptions in them, from the outermost to the root cause.
//!
//! `Throwable.printStackTrace` writes the exception, then its frames on lines that begin with a tab.
//! Each cause has a line that begins with `Caused by: `. Suppressed exceptions are indented, and skipped
//! here. An exception is written as `Throwable.toString` does: the name of its class, then a colon, a
//! space and the message, if it has one.

use lazaret_core::failure::{BACKTRACE_LIMIT, CHAIN_LIMIT, CauseLink, MESSAGE_LIMIT};
use lazaret_core::{Failure, Fingerprint, Phase, Reason};

/// The type of an unnamed exception.
const UNKNOWN: &str = "unknown";

/// An exception, as headers or fields describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) class: Option<String>,
    pub(crate) message: Option<String>,
    /// The class of the root cause, if only the class is given.
    pub(crate) root: Option<String>,
    pub(crate) trace: Option<String>,
}

impl Exception {
    #[cfg(feature = "kafka")]
    pub(crate) fn is_empty(&self) -> bool {
        self.class.is_none() && self.message.is_none() && self.trace.is_none()
    }

    /// Converts to a failure. The given class and message take precedence, and the rest comes from the
    /// trace. Classes that `is_wrapper` accepts only carry the thrown exception, and are unwrapped.
    pub(crate) fn failure(
        &self,
        reason: Option<Reason>,
        phase: Phase,
        is_wrapper: impl Fn(&str) -> bool,
    ) -> Failure {
        let mut links = self.links();
        while links.len() > 1 && links[0].error_type.as_deref().is_some_and(&is_wrapper) {
            links.remove(0);
        }
        let head = links.remove(0);
        let error_type = head.error_type.unwrap_or_else(|| UNKNOWN.to_owned());
        let reason = reason.unwrap_or_else(|| reason_of(&error_type, phase));
        let mut failure = Failure::new(reason, error_type, head.message).in_phase(phase);
        links.truncate(CHAIN_LIMIT);
        failure.chain = links;
        failure.backtrace = self.trace.as_deref().map(|trace| truncate(trace, BACKTRACE_LIMIT).to_owned());
        failure.fingerprint = Fingerprint::of(&failure);
        failure
    }

    /// Returns the exceptions, outermost first. There is at least one.
    fn links(&self) -> Vec<CauseLink> {
        let mut links = self.trace.as_deref().map(chain).unwrap_or_default();
        if links.is_empty() {
            links.push(CauseLink { error_type: None, message: String::new() });
        }
        let first = &mut links[0];
        first.error_type = self.class.clone().or(first.error_type.take());
        if let Some(message) = &self.message {
            first.message.clone_from(message);
        }
        let root =
            self.root.as_ref().filter(|root| links.iter().all(|link| link.error_type.as_ref() != Some(root)));
        if let Some(root) = root {
            // Without a trace, the message also applies to the root cause.
            let message = links.last().map(|last| last.message.clone()).unwrap_or_default();
            links.push(CauseLink { error_type: Some(root.clone()), message });
        }
        links
    }
}

/// Returns the exceptions of a stack trace, outermost first. It returns at most one more than a failure
/// keeps.
fn chain(trace: &str) -> Vec<CauseLink> {
    let mut lines = trace.lines();
    let first = lines.next().filter(|line| !line.trim().is_empty());
    let causes = lines.filter_map(|line| line.strip_prefix("Caused by: "));
    first.into_iter().chain(causes).take(CHAIN_LIMIT + 1).map(parse_exception).collect()
}

/// Parses an exception as `Throwable.toString` writes it.
pub(crate) fn parse_exception(text: &str) -> CauseLink {
    let (class, message) = text.split_once(": ").unwrap_or((text, ""));
    let class = class.trim();
    let is_class = !class.is_empty() && class.chars().all(|c| c.is_alphanumeric() || "._$/".contains(c));
    let message = if is_class { message } else { text };
    CauseLink {
        error_type: is_class.then(|| class.to_owned()),
        message: truncate(message, MESSAGE_LIMIT).to_owned(),
    }
}

/// Truncates a text at a character boundary.
pub(crate) fn truncate(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// Derives a reason where none is given. Decoding errors follow from the phase, timeouts from the class.
fn reason_of(class: &str, phase: Phase) -> Reason {
    let simple = class.rsplit(['.', '$']).next().unwrap_or(class);
    if phase == Phase::Decode {
        Reason::INVALID_SCHEMA
    } else if simple.ends_with("TimeoutException") {
        Reason::TIMEOUT
    } else {
        Reason::HANDLER_ERROR
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "org.example.Outer: it failed\n\tat org.example.A.b(A.java:1)\n\tSuppressed: org.example.S: s\n\
        \tCaused by: org.example.T: t\nCaused by: org.example.Mid$Inner: because\nof two lines\n\tat x.Y.z(Y.java:2)\n\
        \t... 7 more\nCaused by: java.net.SocketTimeoutException\n\tat q.R.s(R.java:3)\n";

    fn types(failure: &Failure) -> Vec<&str> {
        failure.chain.iter().filter_map(|link| link.error_type.as_deref()).collect()
    }

    fn traced() -> Exception {
        Exception { trace: Some(TRACE.to_owned()), ..Exception::default() }
    }

    #[test]
    fn a_trace_lists_the_exceptions_from_the_outermost_to_the_root() {
        let failure = traced().failure(None, Phase::Handle, |_| false);
        assert_eq!(
            (failure.error_type.as_str(), failure.message.as_str()),
            ("org.example.Outer", "it failed")
        );
        assert_eq!(types(&failure), ["org.example.Mid$Inner", "java.net.SocketTimeoutException"]);
        assert_eq!(failure.chain[0].message, "because");
        assert_eq!(failure.reason, Reason::HANDLER_ERROR);
        assert_eq!(failure.backtrace.as_deref(), Some(TRACE));
    }

    #[test]
    fn a_wrapper_is_unwrapped() {
        let failure =
            traced().failure(None, Phase::Handle, |class| class != "java.net.SocketTimeoutException");
        assert_eq!(failure.error_type, "java.net.SocketTimeoutException");
        assert_eq!((failure.reason, failure.chain.len()), (Reason::TIMEOUT, 0));
        // The last exception is kept, even if it is a wrapper.
        let alone = Exception { class: Some("W".into()), message: Some("m".into()), ..Exception::default() };
        assert_eq!(alone.failure(None, Phase::Handle, |_| true).error_type, "W");
    }

    #[test]
    fn without_a_trace_the_class_of_the_root_cause_is_used() {
        let given = Exception {
            class: Some("Wrapper".into()),
            message: Some("outer; inner".into()),
            root: Some("Root".into()),
            trace: None,
        };
        let failure = given.failure(None, Phase::Handle, |class| class == "Wrapper");
        assert_eq!((failure.error_type.as_str(), failure.message.as_str()), ("Root", "outer; inner"));
        let failure = given.failure(None, Phase::Decode, |_| false);
        assert_eq!((failure.error_type.as_str(), types(&failure)), ("Wrapper", vec!["Root"]));
        assert_eq!(failure.reason, Reason::INVALID_SCHEMA);
    }

    #[test]
    fn an_exception_without_details_is_a_failure() {
        let failure = Exception::default().failure(None, Phase::Handle, |_| true);
        assert_eq!((failure.error_type.as_str(), failure.message.as_str()), (UNKNOWN, ""));
    }

    proptest! {
        #[test]
        fn no_text_panics(class in any::<Option<String>>(), message in any::<Option<String>>(), trace in any::<Option<String>>()) {
            // I7, I10
            let failure = Exception { class, message, root: None, trace }.failure(None, Phase::Handle, |_| true);
            prop_assert!(failure.chain.len() <= CHAIN_LIMIT);
        }
    }
}
