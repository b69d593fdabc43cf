//! Errors as problem+json (RFC 9457), with a code for each kind of error.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:tt, $status:literal, $title:literal, $page:literal;)+) => {
        /// An error code. Codes never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $code)] $name),+
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the code, such as `LZ0203`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),+ }
            }

            /// Returns the HTTP status, or 0 for start-up errors, which are never sent.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status),+ }
            }

            /// Returns a short description.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }

            /// Returns the meaning and the remedy, for the documentation.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$name => $page),+ }
            }
        }
    };
}

codes! {
    /// A parameter or a body is invalid.
    InvalidRequest = "LZ0200", 400, "invalid request",
        "A parameter or a field of the body is missing, unknown or of the wrong type. `pointer` names it, and \
         `detail` says what is expected. The document at `/v1/openapi.json` describes every request.";
    /// A query cannot be parsed.
    InvalidQuery = "LZ0201", 400, "invalid query",
        "`detail` shows the query with the position of the error, and often a suggestion. See the query language.";
    /// The route does not exist.
    NoRoute = "LZ0202", 404, "no such route",
        "The path is misspelled, or belongs to another version. `/v1/openapi.json` lists all routes.";
    /// The letter, group, plan, operation or consumer does not exist.
    NotFound = "LZ0203", 404, "not found",
        "No letter, group, plan, operation or consumer has this name here. A purged letter is gone for good; a \
         consumer that runs elsewhere is known only by its letters.";
    /// The route does not support the method.
    MethodNotAllowed = "LZ0204", 405, "method not allowed",
        "The route exists, but not with this method. The header `Allow` lists the supported ones.";
    /// The token is missing or unknown.
    Unauthenticated = "LZ0205", 401, "authentication required",
        "Send `Authorization: Bearer TOKEN`; the command line reads the variable `LAZARET_TOKEN` or `--token-file`. \
         A token that was removed from the configuration is rejected after a restart.";
    /// The token has expired.
    TokenExpired = "LZ0206", 401, "token expired",
        "Create another one with `lazaret token` and add its lines to the configuration.";
    /// The token lacks a scope.
    Forbidden = "LZ0207", 403, "missing scope",
        "`detail` names the missing scope. The daemon's configuration assigns scopes to tokens.";
    /// The Host header names an unknown host.
    HostNotAllowed = "LZ0208", 421, "host not allowed",
        "The `Host` header names neither this machine nor one of `hosts`. This check keeps other web pages from \
         calling the API. Add the name under `hosts` if it is yours.";
    /// A page of another site sent the request.
    CrossSite = "LZ0209", 403, "cross-site request refused",
        "The browser reports that a page of another site sent this request. Changes are accepted from the command \
         line, from scripts, and from the daemon's own pages.";
    /// A change needs a reason.
    ReasonMissing = "LZ0210", 400, "reason required",
        "Every change needs a reason, which is recorded in the audit. Give `reason` in the body, or `--reason` on \
         the command line.";
    /// The body is too large.
    TooLarge = "LZ0211", 413, "body too large",
        "The limits are 1 MiB for messages, 16 MiB for batches and 64 MiB for imports. `limits` in the \
         configuration changes the first two. Split large batches.";
    /// The media type of the body is not supported.
    UnsupportedMediaType = "LZ0212", 415, "unsupported media type",
        "Send `Content-Type: application/json`, or `application/x-ndjson` for batches and imports.";
    /// The request took too long.
    TimedOut = "LZ0213", 408, "request timed out",
        "The body arrived too slowly, or the store took too long to respond. A read can be repeated; so can a \
         change with an `Idempotency-Key`.";
    /// Too many concurrent requests.
    Busy = "LZ0214", 429, "too many requests",
        "The server has reached a limit: of concurrent requests, waiting searches, open streams, connections, or bytes \
         of bodies in memory, in all or with this token; or of requests without a valid token or session. `detail` \
         names it. Wait as long as `Retry-After` says.";
    /// The inbox has reached its limit.
    InboxFull = "LZ0215", 429, "inbox full",
        "The consumer does not keep up, and the inbox has reached its limit. Nothing was dropped: post again after \
         `Retry-After`. For a batch, `accepted` is the number of durable messages. Check with `lazaret status` \
         whether the consumer is paused or its handler fails.";
    /// The idempotency key belongs to another request.
    IdempotencyMismatch = "LZ0216", 422, "idempotency key reused",
        "The key was used with another method, path or body. Use a new key for each request.";
    /// The first request with this idempotency key is in progress.
    IdempotencyBusy = "LZ0217", 409, "idempotent request in progress",
        "The same request is still in progress. Repeat it in a moment to get its response.";
    /// The state does not allow the change, or a lease is held.
    Conflict = "LZ0218", 409, "conflict with the current state",
        "The letter, plan or operation is in a state that does not allow this, or the letter is leased at this \
         moment. Read it again; in the second case, retry. For a post to an inbox: a message with this id and \
         another payload was accepted before. Give each message an id of its own.";
    /// The plan has expired, or was used already.
    PlanStale = "LZ0219", 409, "plan expired or already used",
        "A plan is valid for 15 minutes by default, and for one operation. Freeze another one.";
    /// A policy requires a second person.
    Denied = "LZ0220", 403, "denied by policy",
        "The consumer requires a second person for replays. Start an operation, and have another person approve it \
         with `lazaret op approve`. Operations cannot be approved by the person who started them.";
    /// The store is unavailable; nothing was changed.
    StoreUnavailable = "LZ0221", 503, "store unavailable",
        "Nothing was changed. Consumers hold their sources until the store is back; nothing is lost. Retry later, \
         and check the disk or the database.";
    /// The store did not respond; the change may have been applied.
    StoreUncertain = "LZ0222", 503, "store did not respond: the change may have been applied",
        "The store did not respond in time, and the change may have been applied. Check before you repeat the \
         request, or repeat it with the same `Idempotency-Key`.";
    /// The store is full.
    StoreFull = "LZ0223", 507, "store full",
        "The disk is full, or a limit of the store is reached. Consumers hold their sources and continue \
         automatically once there is room.";
    /// Stored data cannot be read.
    StoreCorrupt = "LZ0224", 500, "store corrupt",
        "Stored data could not be read. Copy the files before you do anything else, and check the log of the \
         daemon.";
    /// A bug in Lazaret.
    Internal = "LZ0225", 500, "internal error",
        "This is a bug in Lazaret, not in the request. The log of the daemon has details.";
    /// An empty query selects everything and was not confirmed.
    Everything = "LZ0226", 400, "empty query without all",
        "An empty query selects every open letter. Set `\"all\": true`, or `--all`, to confirm.";
    /// The cursor is invalid.
    InvalidCursor = "LZ0227", 400, "invalid cursor",
        "`after` accepts only the `next` value of the previous page. Start again without it.";
    /// The store of this server does not support the request.
    Unsupported = "LZ0228", 501, "not supported",
        "The store of this server lacks this function: the audit of an in-memory store cannot be verified, for \
         example.";
    /// The consumer has no inbox here.
    NoInbox = "LZ0229", 404, "no inbox",
        "The consumer reads from another source, or runs in another process. Only a consumer with `source: { inbox: \
         {} }` accepts messages.";
    /// The server is shutting down.
    Stopping = "LZ0230", 503, "server is stopping",
        "The server is shutting down. Send the request to its replacement.";
    /// The address is reachable by others, and no tokens are configured.
    OpenToTheWorld = "LZ0240", 0, "non-loopback address without tokens",
        "`listen` names an address that other machines can reach, where anyone could replay or evict letters. \
         Configure `auth`, or listen on 127.0.0.1.";
    /// A token is misconfigured.
    InvalidToken = "LZ0241", 0, "invalid token configuration",
        "A token needs a unique name, `sha256:` with 64 hexadecimal digits, scopes, and optionally an expiry in RFC \
         3339. `lazaret token` prints such lines.";
    /// The server cannot listen on the address.
    CannotListen = "LZ0242", 0, "cannot listen on the address",
        "Another process uses the port, or the address does not belong to this machine. `lazaret doctor` says \
         which.";
}

impl Code {
    /// Returns the `type` URI of a problem with this code.
    pub fn uri(self) -> String {
        format!("urn:lazaret:error:{}", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An error response, as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Problem {
    /// The type URI.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// A short description.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The error code.
    pub code: Code,
    /// Details of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The invalid parameter, or a JSON pointer into the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The byte range in the query: start, and end (exclusive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<[u64; 2]>,
    /// A suggestion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The number of durable lines of a batch that failed partway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<u64>,
}

impl Problem {
    /// The media type.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// Creates a problem from a code.
    ///
    /// ```
    /// use lazaret_api::{Code, Problem};
    /// let problem = Problem::new(Code::NotFound).with_detail("no plan p_7");
    /// assert_eq!((problem.status, problem.to_string().as_str()), (404, "LZ0203: not found: no plan p_7"));
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

    /// Adds details.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a pointer.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }

    /// Adds a hint.
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
    fn codes_are_unique() {
        let codes: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!(code.as_str().starts_with("LZ02"), "{code}");
            assert!(code.title().chars().next().is_some_and(char::is_lowercase), "{code}");
            assert!(code.page().ends_with('.'), "{code}");
        }
    }
}
