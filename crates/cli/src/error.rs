//! Everything that can go wrong on the command line, what to say about it, and how the command ends then.

use std::io;

use lazaret_api::{Code, Problem};

use crate::exit::Exit;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line makes no sense.
    #[error("{what}")]
    Usage {
        /// What is wrong with it.
        what: String,
        /// What to do.
        hint: Option<String>,
    },
    /// Nobody answers at the address.
    #[error("nothing listens at {url}")]
    NothingListens {
        /// The address.
        url: String,
    },
    /// The connection failed in another way.
    #[error("{url} cannot be reached: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// Why.
        why: String,
    },
    /// A change was sent, and no answer came.
    #[error("no answer came to the change that was sent, and it may have happened: {why}")]
    Uncertain {
        /// Why.
        why: String,
    },
    /// The server says that something is wrong.
    #[error("{problem}")]
    Refused {
        /// What it says.
        problem: Box<Problem>,
        /// The query that it is about.
        query: Option<String>,
    },
    /// Whatever answered does not speak Lazaret's language.
    #[error("{url} answered {status}, and not as Lazaret does")]
    Foreign {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// An answer cannot be read.
    #[error("the answer of {path} cannot be read: {why}")]
    Unreadable {
        /// The route.
        path: String,
        /// Why.
        why: String,
    },
    /// There is no such thing, found out here.
    #[error("{what}")]
    NotFound {
        /// What is not there.
        what: String,
        /// Where to look for it.
        hint: Option<String>,
    },
    /// Somebody said no when asked.
    #[error("nothing was done")]
    Declined {
        /// What can be done instead.
        next: String,
    },
    /// A file, or another thing outside of Lazaret.
    #[error("{what}: {source}")]
    Io {
        /// What was done with it.
        what: String,
        /// What went wrong.
        source: io::Error,
    },
    /// Whoever read the output has enough.
    #[error("the output was closed")]
    Closed,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// What commands answer.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A command line that makes no sense.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: None }
    }

    /// A command line that makes no sense, and what to do.
    pub fn usage_hint(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: Some(hint.into()) }
    }

    /// There is no such thing.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), hint: None }
    }

    /// There is no such thing, and where to look for it.
    pub fn not_found_hint(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), hint: Some(hint.into()) }
    }

    /// Something went wrong with a file.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// The same, about this query.
    #[must_use]
    pub fn about(self, text: &str) -> Self {
        match self {
            Self::Refused { problem, .. } => Self::Refused { problem, query: Some(text.to_owned()) },
            other => other,
        }
    }

    /// The code of the problem, where the server told one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { problem, .. } => Some(problem.code),
            _ => None,
        }
    }

    /// How the command ends.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage { .. } => Exit::Usage,
            Self::NotFound { .. } => Exit::NotFound,
            Self::Refused { problem, .. } => exit_of(problem.code),
            // Who has read enough is no trouble.
            Self::Closed => Exit::Ok,
            _ => Exit::Error,
        }
    }

    /// What it is, on one line. A query that cannot be read is drawn by [`place`](Self::place), so the server's own drawing
    /// of it is left out.
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

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::NotFound { hint, .. } => hint.clone(),
            Self::NothingListens { .. } => Some(
                "start the daemon with `lazaret run -c lazaret.yaml`, or name another one with --url or LAZARET_URL".to_owned(),
            ),
            Self::Foreign { .. } => Some("is it the address of a Lazaret daemon? see --url and LAZARET_URL".to_owned()),
            Self::Uncertain { .. } => Some("look with `lazaret status` before you try again".to_owned()),
            Self::Refused { problem, .. } => {
                let hint = problem.hint.clone().or_else(|| hint_of(problem.code).map(str::to_owned));
                // What is part of the message already is not said twice.
                hint.filter(|hint| !problem.detail.as_ref().is_some_and(|detail| detail.contains(hint)))
            }
            _ => None,
        }
    }

    /// The query with a mark under the place that is wrong, on two lines.
    pub fn place(&self) -> Option<(String, String)> {
        let Self::Refused { problem, query: Some(query) } = self else { return None };
        let [from, to] = problem.position?;
        let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
        let (before, inside) = (query.get(..from)?, query.get(from..to.max(from).min(query.len()))?);
        let width =
            |text: &str| unicode_width::UnicodeWidthStr::width(crate::neutral::neutral(text).as_str());
        Some((query.clone(), format!("{}{}", " ".repeat(width(before)), "^".repeat(width(inside).max(1)))))
    }
}

/// How a command ends that the server refused for this.
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
        Code::Unauthenticated => Some("give a token with LAZARET_TOKEN or --token-file"),
        Code::TokenExpired => {
            Some("make a new one with `lazaret token new`, and put its hash into the configuration")
        }
        Code::Forbidden => {
            Some("somebody with that scope can do it; scopes stand with the tokens in the configuration")
        }
        Code::PlanStale => Some("make a new plan with `lazaret plan`"),
        Code::Everything => Some("say --all if every open letter is meant"),
        Code::NoRoute => Some("the daemon may be older than this command line"),
        _ => None,
    }
}

impl From<io::Error> for Error {
    /// For writing to standard output, which is what most I/O here is.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::io("the output cannot be written", error),
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
    fn each_kind_of_trouble_ends_as_the_contract_says() {
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
    fn the_place_in_a_query_is_marked_below_what_is_shown() {
        let mut problem = Problem::new(Code::InvalidQuery);
        problem.position = Some([3, 8]);
        let marked = |query: &str| {
            Error::Refused { problem: Box::new(problem.clone()), query: None }.about(query).place()
        };
        assert_eq!(marked("ü staet:dead").unwrap().1, "  ^^^^^");
        // A control character before the place is shown as six, so the mark moves.
        assert_eq!(marked("\u{1b}a staet").unwrap().1, "        ^^^^^");
        assert_eq!(marked("ab"), None);
    }
}
