//! What goes wrong, over the wire: problem+json (RFC 9457) with a code for each kind of trouble.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:tt, $status:literal, $title:literal;)+) => {
        /// A kind of trouble. Codes never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $code)] $name),+
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The code, such as `LZ0203`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),+ }
            }

            /// The HTTP status that goes with it; 0 for what is told at the start and never answered.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status),+ }
            }

            /// What it means, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }
        }
    };
}

codes! {
    /// A parameter or a body makes no sense.
    InvalidRequest = "LZ0200", 400, "the request makes no sense";
    /// A query cannot be read.
    InvalidQuery = "LZ0201", 400, "the query cannot be read";
    /// There is no such route.
    NoRoute = "LZ0202", 404, "there is no such route";
    /// There is no such letter, group, plan, operation or consumer.
    NotFound = "LZ0203", 404, "not found";
    /// The route does not do that.
    MethodNotAllowed = "LZ0204", 405, "the route does not do that";
    /// A token is needed, and there is none, or it is not known.
    Unauthenticated = "LZ0205", 401, "a valid token is needed";
    /// The token has ended.
    TokenExpired = "LZ0206", 401, "the token has ended";
    /// The token lacks a scope.
    Forbidden = "LZ0207", 403, "the token may not do that";
    /// The Host header names somebody else.
    HostNotAllowed = "LZ0208", 421, "this host name is not served";
    /// A page of another site sent it.
    CrossSite = "LZ0209", 403, "requests from other sites are refused";
    /// A change needs a reason.
    ReasonMissing = "LZ0210", 400, "a reason is needed";
    /// The body is too large.
    TooLarge = "LZ0211", 413, "the body is too large";
    /// The body is of the wrong type.
    UnsupportedMediaType = "LZ0212", 415, "the body is of the wrong type";
    /// The request took too long.
    TimedOut = "LZ0213", 408, "the request took too long";
    /// Too many requests at once.
    Busy = "LZ0214", 429, "too many requests at once";
    /// The inbox has no room now.
    InboxFull = "LZ0215", 429, "the inbox has no room now";
    /// The idempotency key belongs to another request.
    IdempotencyMismatch = "LZ0216", 422, "the idempotency key belongs to another request";
    /// The first request with this idempotency key is not over.
    IdempotencyBusy = "LZ0217", 409, "the first request with this idempotency key is not over";
    /// The thing is in a state that does not allow it, or somebody works on it.
    Conflict = "LZ0218", 409, "its state does not allow that";
    /// The plan has expired, or was carried out already.
    PlanStale = "LZ0219", 409, "the plan cannot be carried out any more";
    /// A rule denies it: a second person is needed.
    Denied = "LZ0220", 403, "a rule denies that";
    /// The store does not answer; nothing was done.
    StoreUnavailable = "LZ0221", 503, "the store does not answer";
    /// The store does not answer; it may have happened.
    StoreUncertain = "LZ0222", 503, "the store did not answer, and it may have happened";
    /// The store has no room.
    StoreFull = "LZ0223", 507, "the store has no room";
    /// What is stored cannot be read.
    StoreCorrupt = "LZ0224", 500, "what is stored cannot be read";
    /// A mistake in Lazaret.
    Internal = "LZ0225", 500, "something is wrong in Lazaret";
    /// An empty query selects everything, and nobody said that this is meant.
    Everything = "LZ0226", 400, "an empty query needs all";
    /// The cursor is none of ours.
    InvalidCursor = "LZ0227", 400, "the cursor makes no sense";
    /// The store of this server cannot do that.
    Unsupported = "LZ0228", 501, "this server cannot do that";
    /// The consumer has no inbox here.
    NoInbox = "LZ0229", 404, "the consumer has no inbox here";
    /// The server is stopping.
    Stopping = "LZ0230", 503, "the server is stopping";
    /// The address can be reached from elsewhere, and no tokens are configured.
    OpenToTheWorld = "LZ0240", 0, "an address that others can reach needs tokens";
    /// A token is configured wrongly.
    InvalidToken = "LZ0241", 0, "a token is configured wrongly";
    /// The address cannot be listened on.
    CannotListen = "LZ0242", 0, "the address cannot be listened on";
}

impl Code {
    /// Names the page about it: the `type` of a problem.
    pub fn uri(self) -> String {
        format!("urn:lazaret:error:{}", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a request failed, as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Problem {
    /// Names the page about it.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// What it means, in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The code, for programs.
    pub code: Code,
    /// What is wrong here, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Where it is wrong: a parameter, or a JSON pointer into the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The place in the query, in bytes: from, and up to but not including.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<[u64; 2]>,
    /// What may have been meant, or what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// How many lines of a batch are durable although the rest is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<u64>,
}

impl Problem {
    /// The media type.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// A problem with nothing but its code.
    ///
    /// ```
    /// use lazaret_api::{Code, Problem};
    /// let problem = Problem::new(Code::NotFound).with_detail("there is no plan p_7");
    /// assert_eq!((problem.status, problem.to_string().as_str()), (404, "LZ0203: not found: there is no plan p_7"));
    /// ```
    pub fn new(code: Code) -> Self {
        Self {
            type_uri: code.uri(),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: None,
            pointer: None,
            position: None,
            hint: None,
            accepted: None,
        }
    }

    /// The same problem with details.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same problem with its place.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }

    /// The same problem with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.title)?;
        self.detail.iter().try_for_each(|detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_is_its_own() {
        let codes: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!(code.as_str().starts_with("LZ02"), "{code}");
            assert!(code.title().chars().next().is_some_and(char::is_lowercase), "{code}");
        }
    }
}
