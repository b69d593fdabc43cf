//! What goes wrong, over the wire: problem+json (RFC 9457) with a code for each kind of trouble.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:tt, $status:literal, $title:literal, $page:literal;)+) => {
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

            /// What it means and what to do, for the documentation.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$name => $page),+ }
            }
        }
    };
}

codes! {
    /// A parameter or a body makes no sense.
    InvalidRequest = "LZ0200", 400, "the request makes no sense",
        "A parameter or a field of the body is missing, unknown or of another type. `pointer` names it, and `detail` \
         says what is expected. The document at `/v1/openapi.json` describes every request.";
    /// A query cannot be read.
    InvalidQuery = "LZ0201", 400, "the query cannot be read",
        "`detail` shows the query with the place, and often what was meant. Queries are described in the query \
         language.";
    /// There is no such route.
    NoRoute = "LZ0202", 404, "there is no such route",
        "The path is misspelled, or belongs to another version. All routes stand in `/v1/openapi.json`.";
    /// There is no such letter, group, plan, operation or consumer.
    NotFound = "LZ0203", 404, "not found",
        "There is no letter, group, plan, operation or consumer of this name here. A letter that was purged is gone \
         for good; a consumer that runs elsewhere is known only by its letters.";
    /// The route does not do that.
    MethodNotAllowed = "LZ0204", 405, "the route does not do that",
        "The route is there, but not with this method. The header `Allow` names those that it has.";
    /// A token is needed, and there is none, or it is not known.
    Unauthenticated = "LZ0205", 401, "a valid token is needed",
        "Send `Authorization: Bearer TOKEN`; the command line reads the variable `LAZARET_TOKEN` or `--token-file`. A \
         token that was taken out of the configuration is not known any more after a restart.";
    /// The token has ended.
    TokenExpired = "LZ0206", 401, "the token has ended",
        "Make another one with `lazaret token` and put its lines into the configuration.";
    /// The token lacks a scope.
    Forbidden = "LZ0207", 403, "the token may not do that",
        "`detail` names the scope that is missing. Whoever configures the daemon gives scopes to tokens.";
    /// The Host header names somebody else.
    HostNotAllowed = "LZ0208", 421, "this host name is not served",
        "The `Host` header names neither this machine nor one of `hosts`. That keeps web pages of others from calling \
         the API. Add the name under `hosts` if it is yours.";
    /// A page of another site sent it.
    CrossSite = "LZ0209", 403, "requests from other sites are refused",
        "A browser says that a page of another site sent this. Changes are made from the command line, from scripts, \
         or from pages of the daemon itself.";
    /// A change needs a reason.
    ReasonMissing = "LZ0210", 400, "a reason is needed",
        "Every change says why; it stands in the audit. Give `reason` in the body, or `--reason` on the command line.";
    /// The body is too large.
    TooLarge = "LZ0211", 413, "the body is too large",
        "Messages may have 1 MiB, batches 16 MiB and imports 64 MiB. `limits` in the configuration changes the first \
         two. Send a batch in parts.";
    /// The body is of the wrong type.
    UnsupportedMediaType = "LZ0212", 415, "the body is of the wrong type",
        "Send `Content-Type: application/json`, or `application/x-ndjson` for batches and imports.";
    /// The request took too long.
    TimedOut = "LZ0213", 408, "the request took too long",
        "The body came too slowly, or the store took too long to answer. A read can be repeated; a change with an \
         `Idempotency-Key` as well.";
    /// Too many requests at once.
    Busy = "LZ0214", 429, "too many requests at once",
        "More requests are being answered than the server takes at once. Wait as long as `Retry-After` says.";
    /// The inbox has no room now.
    InboxFull = "LZ0215", 429, "the inbox has no room now",
        "The consumer does not keep up, and the inbox has reached its limit. Nothing was dropped: post again after \
         `Retry-After`. Of a batch, `accepted` says how many messages are durable. Look with `lazaret status` whether \
         the consumer is paused or its handler fails.";
    /// The idempotency key belongs to another request.
    IdempotencyMismatch = "LZ0216", 422, "the idempotency key belongs to another request",
        "The key was used with another method, path or body. Use another key for another request.";
    /// The first request with this idempotency key is not over.
    IdempotencyBusy = "LZ0217", 409, "the first request with this idempotency key is not over",
        "The same request is still being worked on. Ask again in a moment and get its answer.";
    /// The thing is in a state that does not allow it, or somebody works on it.
    Conflict = "LZ0218", 409, "its state does not allow that",
        "The letter, plan or operation is in a state that does not allow this, or somebody works on the letter at \
         this moment. Look at it again; in the second case simply try again.";
    /// The plan has expired, or was carried out already.
    PlanStale = "LZ0219", 409, "the plan cannot be carried out any more",
        "A plan is good for 15 minutes unless said otherwise, and for one operation. Freeze another one.";
    /// A rule denies it: a second person is needed.
    Denied = "LZ0220", 403, "a rule denies that",
        "The consumer demands a second person for replays. Begin an operation, and let somebody else approve it with \
         `lazaret op approve`. Nobody approves what they began themselves.";
    /// The store does not answer; nothing was done.
    StoreUnavailable = "LZ0221", 503, "the store does not answer",
        "Nothing was done. Consumers hold their sources until the store is back; nothing is lost. Try again later, \
         and look at the disk or the database.";
    /// The store does not answer; it may have happened.
    StoreUncertain = "LZ0222", 503, "the store did not answer, and it may have happened",
        "The store did not answer in time, and what was asked may have happened. Look before you ask again, or ask \
         again with the same `Idempotency-Key`.";
    /// The store has no room.
    StoreFull = "LZ0223", 507, "the store has no room",
        "The disk is full, or a limit of the store is reached. Consumers hold their sources. Make room; everything \
         goes on by itself.";
    /// What is stored cannot be read.
    StoreCorrupt = "LZ0224", 500, "what is stored cannot be read",
        "What is stored could not be read. Keep a copy of the files as they are before you do anything else, and look \
         at the log of the daemon.";
    /// A mistake in Lazaret.
    Internal = "LZ0225", 500, "something is wrong in Lazaret",
        "This is a mistake in Lazaret, not in the request. The log of the daemon says more.";
    /// An empty query selects everything, and nobody said that this is meant.
    Everything = "LZ0226", 400, "an empty query needs all",
        "An empty query means every open letter. Say `\"all\": true`, or `--all`, if that is meant.";
    /// The cursor is none of ours.
    InvalidCursor = "LZ0227", 400, "the cursor makes no sense",
        "`after` takes what `next` of the page before said, and nothing else. Begin again without it.";
    /// The store of this server cannot do that.
    Unsupported = "LZ0228", 501, "this server cannot do that",
        "The store of this server has no such function: the audit of a store in memory cannot be verified, for \
         example.";
    /// The consumer has no inbox here.
    NoInbox = "LZ0229", 404, "the consumer has no inbox here",
        "The consumer reads from another source, or runs in another process. Only a consumer with `source: { inbox: \
         {} }` can be posted to.";
    /// The server is stopping.
    Stopping = "LZ0230", 503, "the server is stopping",
        "The server is ending. Ask the one that takes its place.";
    /// The address can be reached from elsewhere, and no tokens are configured.
    OpenToTheWorld = "LZ0240", 0, "an address that others can reach needs tokens",
        "`listen` names an address that other machines can reach, and anybody could replay or evict letters. \
         Configure `auth`, or listen on 127.0.0.1.";
    /// A token is configured wrongly.
    InvalidToken = "LZ0241", 0, "a token is configured wrongly",
        "A token needs a name of its own, `sha256:` with 64 hexadecimal digits, scopes, and if any an expiry in RFC \
         3339. `lazaret token` prints such lines.";
    /// The address cannot be listened on.
    CannotListen = "LZ0242", 0, "the address cannot be listened on",
        "Another process has the port, or the address is none of this machine's. `lazaret doctor` says which.";
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
            assert!(code.page().ends_with('.'), "{code}");
        }
    }
}
