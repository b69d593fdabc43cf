//! The errors of the command line, with their hints and exit codes.

use std::io;

use lazaret_api::{Code, Problem};

use crate::exit::Exit;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Usage error.
    #[error("{what}")]
    Usage {
        /// What is wrong.
        what: String,
        /// How to fix it.
        hint: Option<String>,
    },
    /// The connection was refused.
    #[error("connection refused: no daemon listens at {url}")]
    ConnectionRefused {
        /// The address.
        url: String,
    },
    /// The connection failed for another reason.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// Why.
        why: String,
    },
    /// A change was sent and no response received.
    #[error("no response: the change may have been applied: {why}")]
    NoResponse {
        /// Why.
        why: String,
    },
    /// The server refused the request.
    #[error("{problem}")]
    Refused {
        /// The problem that it reported.
        problem: Box<Problem>,
        /// The query that was sent.
        query: Option<String>,
    },
    /// Another server responded.
    #[error("unexpected response from {url}: status {status} is not from a Lazaret daemon")]
    NotLazaret {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The response cannot be decoded.
    #[error("invalid response from {path}: {why}")]
    InvalidResponse {
        /// The route.
        path: String,
        /// Why.
        why: String,
    },
    /// Not found, as determined by the client.
    #[error("{what}")]
    NotFound {
        /// What is missing.
        what: String,
        /// Where to look for it.
        hint: Option<String>,
    },
    /// The user declined the confirmation.
    #[error("aborted: nothing was changed")]
    Declined {
        /// A command to run instead.
        next: String,
    },
    /// An I/O error.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The reader closed the output, such as `head`.
    #[error("the output was closed")]
    OutputClosed,
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates a usage error.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: None }
    }

    /// Creates a usage error with a hint.
    pub fn usage_hint(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: Some(hint.into()) }
    }

    /// Creates a not-found error.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), hint: None }
    }

    /// Creates a not-found error with a hint.
    pub fn not_found_hint(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), hint: Some(hint.into()) }
    }

    /// Creates an I/O error.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Attaches the query that was sent.
    #[must_use]
    pub fn with_query(self, text: &str) -> Self {
        match self {
            Self::Refused { problem, .. } => Self::Refused { problem, query: Some(text.to_owned()) },
            other => other,
        }
    }

    /// Returns the error code, if the server reported one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { problem, .. } => Some(problem.code),
            _ => None,
        }
    }

    /// Returns the exit code of the command.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage { .. } => Exit::Usage,
            Self::NotFound { .. } => Exit::NotFound,
            Self::Refused { problem, .. } => exit_of(problem.code),
            // A reader such as `head` that stops early is no failure.
            Self::OutputClosed => Exit::Ok,
            _ => Exit::Error,
        }
    }

    /// Describes the error on one line. [`query_marker`](Self::query_marker) shows the position in an invalid query, so the
    /// server's own rendering is left out.
    pub fn headline(&self) -> String {
        let Self::Refused { problem, .. } = self else { return self.to_string() };
        let detail = problem.detail.as_deref().unwrap_or_default();
        match detail.lines().rfind(|line| !line.trim().is_empty()) {
            Some(last) if problem.position.is_some() => {
                format!("{}: {}: {last}", problem.code, problem.title)
            }
            _ => self.to_string(),
        }
    }

    /// Returns a hint on how to fix it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::NotFound { hint, .. } => hint.clone(),
            Self::ConnectionRefused { .. } => Some(
                "start the daemon with `lazaret run -c lazaret.yaml`, or set its address with --url or LAZARET_URL".to_owned(),
            ),
            Self::NotLazaret { .. } => Some("check the address: set it with --url or LAZARET_URL".to_owned()),
            Self::NoResponse { .. } => Some("check with `lazaret status` before you retry".to_owned()),
            Self::Refused { problem, .. } => {
                let hint = problem.hint.clone().or_else(|| hint_of(problem.code).map(str::to_owned));
                // Do not repeat a hint that the message contains.
                hint.filter(|hint| !problem.detail.as_ref().is_some_and(|detail| detail.contains(hint)))
            }
            _ => None,
        }
    }

    /// Returns the query, and a line that marks the invalid position below it.
    pub fn query_marker(&self) -> Option<(String, String)> {
        let Self::Refused { problem, query: Some(query) } = self else { return None };
        let [from, to] = problem.position?;
        let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
        let (before, inside) = (query.get(..from)?, query.get(from..to.max(from).min(query.len()))?);
        let width =
            |text: &str| unicode_width::UnicodeWidthStr::width(crate::sanitize::sanitize(text).as_str());
        Some((query.clone(), format!("{}{}", " ".repeat(width(before)), "^".repeat(width(inside).max(1)))))
    }
}

/// Returns the exit code for an error code of the server.
pub(crate) fn exit_of(code: Code) -> Exit {
    match code {
        Code::NotFound | Code::NoInbox | Code::PlanStale => Exit::NotFound,
        Code::Unauthenticated | Code::TokenExpired | Code::Forbidden | Code::CrossSite | Code::Denied => {
            Exit::Denied
        }
        Code::InvalidRequest
        | Code::InvalidQuery
        | Code::ReasonMissing
        | Code::Everything
        | Code::InvalidCursor => Exit::Usage,
        _ => Exit::Error,
    }
}

fn hint_of(code: Code) -> Option<&'static str> {
    match code {
        Code::Unauthenticated => Some("pass a token with LAZARET_TOKEN or --token-file"),
        Code::TokenExpired => {
            Some("create a token with `lazaret token new`, and add its hash to the configuration")
        }
        Code::Forbidden => {
            Some("use a token with that scope; the configuration lists the scopes of each token")
        }
        Code::PlanStale => Some("create a new plan with `lazaret plan`"),
        Code::Everything => Some("pass --all to select every open letter"),
        Code::StoreFull => Some(
            "free some of the disk of the store, or raise the limit that the error names; consumers continue when there is room",
        ),
        Code::NoRoute => Some("the daemon may be older than this client"),
        _ => None,
    }
}

impl From<io::Error> for Error {
    /// Converts an error from writing to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::io("cannot write to standard output", error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code) -> Error {
        Error::Refused { problem: Box::new(Problem::new(code)), query: None }
    }

    #[test]
    fn each_error_code_maps_to_its_exit_code() {
        for (code, exit) in [
            (Code::NotFound, Exit::NotFound),
            (Code::PlanStale, Exit::NotFound),
            (Code::Unauthenticated, Exit::Denied),
            (Code::TokenExpired, Exit::Denied),
            (Code::Forbidden, Exit::Denied),
            (Code::Denied, Exit::Denied),
            (Code::InvalidQuery, Exit::Usage),
            (Code::Everything, Exit::Usage),
            (Code::Conflict, Exit::Error),
            (Code::StoreUnavailable, Exit::Error),
            (Code::Internal, Exit::Error),
        ] {
            assert_eq!(refused(code).exit(), exit, "{code}");
        }
        assert_eq!(Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit(), Exit::Ok);
        assert_eq!(Error::from(io::Error::from(io::ErrorKind::StorageFull)).exit(), Exit::Error);
    }

    #[test]
    fn a_full_store_is_shown_with_its_disk_and_what_to_do() {
        let detail =
            "the store is not open: the disk is full: 0 bytes are free on the disk of /data/lazaret.db";
        let problem = Box::new(Problem::new(Code::StoreFull).with_detail(detail));
        let error = Error::Refused { problem, query: None };
        assert_eq!(error.headline(), format!("LZ0223: store full: {detail}"));
        assert!(error.hint().unwrap().starts_with("free some of the disk of the store"));
    }

    #[test]
    fn the_invalid_position_is_marked_below_the_sanitized_query() {
        let mut problem = Problem::new(Code::InvalidQuery);
        problem.position = Some([3, 8]);
        let marked = |query: &str| {
            Error::Refused { problem: Box::new(problem.clone()), query: None }
                .with_query(query)
                .query_marker()
        };
        assert_eq!(marked("ü staet:dead").unwrap().1, "  ^^^^^");
        // A control character before the position is shown as six characters, so the mark moves.
        assert_eq!(marked("\u{1b}a staet").unwrap().1, "        ^^^^^");
        assert_eq!(marked("ab"), None);
    }
}
