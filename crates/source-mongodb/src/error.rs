//! Errors of a change stream, with their classes and remedies.

use std::fmt;

use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;
use mongodb::error::{Error as DriverError, ErrorKind};

/// The class of an error of the server or the driver. It determines what the source does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The oplog no longer holds the events after the position.
    HistoryLost,
    /// The server does not accept the resume token, or does not find its event. The token belongs to
    /// another stream, or the event was rolled back.
    TokenRefused,
    /// The last operation of the server is slightly before the position. The server may catch up.
    ServerBehind,
    /// The last operation of the server is far before the position, or stays before it. The server was
    /// restored from an earlier state, or set up again, so its history is a different one.
    HistoryReplaced,
    /// The credentials are wrong, or rights are missing. The history is not lost.
    Unauthorized,
    /// The server is standalone, and has no oplog.
    NotAReplicaSet,
    /// The server refuses the pipeline or an option.
    InvalidPipeline,
    /// The server's version does not support pre- and post-images.
    ServerTooOld,
    /// The server cannot continue the stream from any position (`ChangeStreamFatalError`).
    StreamBroken,
    /// An event is larger than 16 MB.
    EventTooLarge,
    /// A document or pre-image is `required`, and the server has none.
    ImageMissing,
    /// The cursor or its server is gone, or another server became primary. The stream resumes.
    Resumable,
    /// There is no connection to the server.
    Network,
    /// A server error that this version does not know. The stream resumes with a growing delay.
    Unknown,
    /// The stream cannot continue.
    Fatal,
}

impl ErrorClass {
    /// Returns the class of an error of the driver.
    pub fn of(error: &DriverError) -> Self {
        classify(&symptom(error))
    }

    /// Returns `true` if another attempt may help.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Resumable | Self::Network | Self::Unknown | Self::ServerBehind)
    }

    /// Returns `true` if the position is no longer usable.
    pub const fn is_position_refused(self) -> bool {
        matches!(self, Self::HistoryLost | Self::TokenRefused | Self::HistoryReplaced)
    }

    /// Returns `true` if the server will never let its oplog be read: the user may not, there is none,
    /// or the server has no such collection.
    pub(crate) const fn is_oplog_unreadable(self) -> bool {
        matches!(self, Self::Unauthorized | Self::NotAReplicaSet | Self::InvalidPipeline)
    }

    /// Returns the remedy, for an operator.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::HistoryLost => {
                "the oplog no longer holds the events behind the checkpoint, so some of them cannot be read; enlarge the \
                 oplog, then set `on-history-lost: from-oplog-start` to read what is left, or `from-now` to skip it"
            }
            Self::TokenRefused => {
                "the server does not accept the stored resume token, or does not find its event: the collection, the pipeline or the \
                 cluster differs from what made it, or the event was rolled back; restore them, or choose where to go on with \
                 `on-history-lost`"
            }
            Self::ServerBehind => {
                "the last operation of the server is before the checkpoint, so its changes would be skipped; looking again, with a \
                 growing delay"
            }
            Self::HistoryReplaced => {
                "the checkpoint is later than all that the server has: it was restored from an earlier state, or set up anew, and its \
                 changes would be skipped; set `on-history-lost: from-oplog-start` to handle all that its oplog has as new messages, \
                 or `from-now` to skip it"
            }
            Self::Unauthorized => {
                "the user may not read the change stream; check the credentials, and grant `find` and `changeStream` on \
                 what is watched; nothing is lost, the checkpoint stays"
            }
            Self::NotAReplicaSet => {
                "the server has no oplog, because it is not a member of a replica set; start it with `--replSet`, and run \
                 `rs.initiate()`; a single member is enough"
            }
            Self::InvalidPipeline => "the server refuses the pipeline or an option of the stream; correct it",
            Self::ServerTooOld => {
                "pre- and post-images need MongoDB 6.0; upgrade the server, or set `full-document: update-lookup` or `default` and \
                 `full-document-before-change: off`"
            }
            Self::StreamBroken => {
                "the server cannot continue the stream, for a reason that no other position mends; see the cause, and correct the \
                 pipeline or the documents that it names; nothing is lost, the checkpoint stays"
            }
            Self::EventTooLarge => {
                "an event is larger than 16 MB; remove fields with a `$project` or `$unset` stage in the pipeline, or do \
                 not request full documents"
            }
            Self::ImageMissing => {
                "a document image is `required`, and the server does not have it; enable `changeStreamPreAndPostImages` \
                 on the collection, or use `when-available`"
            }
            Self::Resumable => "the server ended the cursor, as after an election or a migration; resuming",
            Self::Network => {
                "no connection to the server; check the address, the network and the server; retrying"
            }
            Self::Unknown => "the server reported an error; resuming, with a growing delay",
            Self::Fatal => "the stream cannot continue",
        }
    }
}

/// The known facts about an error, without the driver's types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symptom {
    /// The server's error code.
    pub(crate) code: Option<i32>,
    /// Whether the server labels the error as resumable.
    pub(crate) resumable: bool,
    /// Whether the server says that it does not find the event of the resume token. The code alone does
    /// not show this.
    pub(crate) token_not_found: bool,
    /// The origin of the error.
    pub(crate) origin: Origin,
}

/// The origin of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    #[default]
    Server,
    Authentication,
    Network,
    /// The URI or an option is invalid.
    Argument,
    /// An event had no resume token.
    Token,
    Other,
}

/// Determines the class of an error.
pub(crate) fn classify(symptom: &Symptom) -> ErrorClass {
    match symptom.origin {
        Origin::Authentication => return ErrorClass::Unauthorized,
        Origin::Argument | Origin::Token => return ErrorClass::Fatal,
        Origin::Network => return ErrorClass::Network,
        Origin::Server | Origin::Other => {}
    }
    match symptom.code {
        // ChangeStreamHistoryLost, CappedPositionLost, and the codes before MongoDB 4.4.
        Some(286 | 136 | 40576 | 40585 | 40615 | 50811) => ErrorClass::HistoryLost,
        // ChangeStreamFatalError: the event of the token is not found, a stage modified `_id`, or two
        // documents have the same key.
        Some(280) if symptom.token_not_found => ErrorClass::TokenRefused,
        Some(280) => ErrorClass::StreamBroken,
        // InvalidResumeToken, and tokens in another format.
        Some(260 | 40647 | 40648 | 40649 | 50795) => ErrorClass::TokenRefused,
        // Unauthorized, UserNotFound, AuthenticationFailed, and Atlas.
        Some(13 | 11 | 18 | 8000) => ErrorClass::Unauthorized,
        Some(40573 | 76) => ErrorClass::NotAReplicaSet,
        Some(10334) => ErrorClass::EventTooLarge,
        // An unknown value of `fullDocument`: post-images before MongoDB 6.0.
        Some(40575) => ErrorClass::ServerTooOld,
        // NoMatchingDocument, ChangeStreams with required images.
        Some(47 | 51770 | 6908901) => ErrorClass::ImageMissing,
        _ if symptom.resumable => ErrorClass::Resumable,
        // CursorNotFound, CursorKilled, elections, shutdowns, stale routing, time limits, a database
        // that does not exist yet.
        Some(
            43 | 237 | 10107 | 13435 | 11600 | 11601 | 11602 | 91 | 189 | 10058 | 216 | 133 | 262 | 50 | 112
            | 63 | 150 | 13388 | 234 | 117 | 26 | 175,
        ) => ErrorClass::Resumable,
        // HostUnreachable, HostNotFound, NetworkTimeout, SocketException.
        Some(6 | 7 | 89 | 9001) => ErrorClass::Network,
        // BadValue, FailedToParse, TypeMismatch, IllegalOperation, InvalidOptions, InvalidNamespace,
        // CommandNotSupported, and stages or fields that the server does not know.
        Some(2 | 9 | 14 | 20 | 72 | 73 | 115 | 40324 | 40415 | 40602 | 15983 | 16436 | 16020) => {
            ErrorClass::InvalidPipeline
        }
        _ => ErrorClass::Unknown,
    }
}

fn symptom(error: &DriverError) -> Symptom {
    let resumable = error.contains_label("ResumableChangeStreamError");
    let (code, origin) = match error.kind.as_ref() {
        ErrorKind::Command(command) => (Some(command.code), Origin::Server),
        ErrorKind::Authentication { .. } => (None, Origin::Authentication),
        ErrorKind::Io(_)
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::DnsResolve { .. } => (None, Origin::Network),
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. } => (None, Origin::Argument),
        ErrorKind::MissingResumeToken => (None, Origin::Token),
        _ => (None, Origin::Other),
    };
    let token_not_found = match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.contains("resume token was not found"),
        _ => false,
    };
    Symptom { code, resumable, token_not_found, origin }
}

/// An error of the stream, with its class.
#[derive(Debug)]
pub(crate) struct StreamError {
    pub(crate) class: ErrorClass,
    /// The failure, in the words of the server or the driver.
    pub(crate) detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The number of restarts without progress before the error, if no further restart is allowed.
    gave_up_after: Option<u32>,
    /// Whether the stream is opened again, although an error of this class would otherwise end it.
    retried: bool,
}

impl StreamError {
    pub(crate) fn new(class: ErrorClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into(), source: None, gave_up_after: None, retried: false }
    }

    /// Marks the error as one that another attempt may fix.
    pub(crate) fn retried(self) -> Self {
        Self { retried: true, ..self }
    }

    /// Returns `true` if another attempt may help.
    pub(crate) const fn is_temporary(&self) -> bool {
        self.retried || self.class.is_temporary()
    }

    /// Makes the last error of a stream permanent. An error that another attempt might fix ends the
    /// stream only after the last restart.
    pub(crate) fn after_last_restart(self, max_attempts: u32) -> Self {
        Self { gave_up_after: self.is_temporary().then_some(max_attempts), ..self }
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(restarts) = self.gave_up_after {
            return write!(
                f,
                "gave up after {restarts} restarts without progress; correct the cause and start the consumer again, or raise \
                 `restart.max-attempts`; nothing is lost, the checkpoint stays: {}",
                self.detail
            );
        }
        write!(f, "{}: {}", self.class.advice(), self.detail)
    }
}

impl From<DriverError> for StreamError {
    fn from(error: DriverError) -> Self {
        let detail = crate::describe(&error);
        let class = ErrorClass::of(&error);
        Self { class, detail, source: Some(Box::new(error)), gave_up_after: None, retried: false }
    }
}

impl StreamError {
    /// Creates an error for a failed store operation. `what` names the operation that was not done.
    pub(crate) fn of_store(what: &str, error: &StoreError) -> Self {
        let class = match error.kind().is_temporary() {
            true => ErrorClass::Unknown,
            false => ErrorClass::Fatal,
        };
        Self::new(class, format!("{what}: {error}"))
    }

    /// Converts to an error for the engine, with the name of the stream.
    pub(crate) fn into_source_error(self, stream: &str) -> SourceError {
        let text = format!("change stream {stream}: {self}");
        let error = match self.is_temporary() && self.gave_up_after.is_none() {
            true => SourceError::temporary(text),
            false => SourceError::permanent(text),
        };
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: i32) -> ErrorClass {
        classify(&Symptom { code: Some(code), ..Symptom::default() })
    }

    #[test]
    fn lost_history_is_told_from_missing_rights() {
        for lost in [286, 136, 40615] {
            assert_eq!(code(lost), ErrorClass::HistoryLost);
        }
        for denied in [13, 18] {
            assert_eq!(code(denied), ErrorClass::Unauthorized);
            assert!(!code(denied).is_position_refused(), "the checkpoint is still good");
        }
        assert_eq!(code(260), ErrorClass::TokenRefused);
        assert!(code(260).is_position_refused() && code(286).is_position_refused());
    }

    #[test]
    fn a_label_does_not_make_lost_history_resumable() {
        let labelled = Symptom { code: Some(286), resumable: true, ..Symptom::default() };
        assert_eq!(classify(&labelled), ErrorClass::HistoryLost);
        let unknown = Symptom { code: Some(999_999), resumable: true, ..Symptom::default() };
        assert_eq!(classify(&unknown), ErrorClass::Resumable);
    }

    #[test]
    fn a_stream_that_no_position_mends_is_told_from_a_token_that_is_not_found() {
        let missing = Symptom { code: Some(280), token_not_found: true, ..Symptom::default() };
        assert_eq!(classify(&missing), ErrorClass::TokenRefused);
        assert_eq!(code(280), ErrorClass::StreamBroken);
        assert!(!code(280).is_position_refused() && !code(280).is_temporary());
        assert!(!code(280).advice().contains("on-history-lost"));
        assert!(classify(&missing).advice().contains("on-history-lost"));
        assert!(!classify(&missing).advice().contains("oplog"));
    }

    #[test]
    fn an_error_that_is_retried_is_temporary_until_the_last_restart() {
        let refused = || StreamError::new(ErrorClass::HistoryLost, "gone").retried();
        assert!(refused().into_source_error("orders").is_temporary());
        let last = refused().after_last_restart(3).into_source_error("orders");
        assert!(!last.is_temporary() && last.to_string().contains("3 restarts"), "{last}");
    }

    #[test]
    fn elections_killed_cursors_and_resharding_resume() {
        for resumable in [10107, 13435, 11600, 91, 189, 43, 237, 234, 13388] {
            assert_eq!(code(resumable), ErrorClass::Resumable);
            assert!(code(resumable).is_temporary());
        }
    }

    #[test]
    fn what_no_retry_can_mend_is_permanent() {
        let permanent = [
            (40573, ErrorClass::NotAReplicaSet),
            (40324, ErrorClass::InvalidPipeline),
            (10334, ErrorClass::EventTooLarge),
            (47, ErrorClass::ImageMissing),
            (40575, ErrorClass::ServerTooOld),
        ];
        for (number, class) in permanent {
            assert_eq!(code(number), class);
            assert!(!class.is_temporary());
        }
    }

    #[test]
    fn an_unknown_error_is_retried_and_never_taken_for_lost_history() {
        // I1
        assert_eq!(code(123_456), ErrorClass::Unknown);
        assert!(ErrorClass::Unknown.is_temporary() && !ErrorClass::Unknown.is_position_refused());
        let other = Symptom { origin: Origin::Other, ..Symptom::default() };
        assert_eq!(classify(&other), ErrorClass::Unknown);
    }

    #[test]
    fn a_server_that_is_behind_is_waited_for_before_its_history_is_another_one() {
        // I1: in neither class does the stream continue by itself at a position that skips changes.
        assert!(ErrorClass::ServerBehind.is_temporary() && !ErrorClass::ServerBehind.is_position_refused());
        assert!(ErrorClass::HistoryReplaced.is_position_refused());
        let error = StreamError::new(ErrorClass::HistoryReplaced, "").into_source_error("orders");
        assert!(!error.is_temporary() && error.to_string().contains("on-history-lost"), "{error}");
    }

    #[test]
    fn errors_without_a_code_are_classified_by_their_origin() {
        let of = |origin| classify(&Symptom { origin, ..Symptom::default() });
        assert_eq!(of(Origin::Network), ErrorClass::Network);
        assert_eq!(of(Origin::Authentication), ErrorClass::Unauthorized);
        assert_eq!(of(Origin::Argument), ErrorClass::Fatal);
        assert_eq!(of(Origin::Token), ErrorClass::Fatal);
    }

    #[test]
    fn an_error_names_the_stream_the_remedy_and_the_cause() {
        let error = StreamError::new(ErrorClass::HistoryLost, "resume point gone (code 286)");
        let error = error.into_source_error("orders");
        let text = error.to_string();
        assert!(
            text.contains("orders") && text.contains("on-history-lost") && text.contains("code 286"),
            "{text}"
        );
        assert!(!error.is_temporary());
    }

    #[test]
    fn the_error_after_the_last_restart_is_permanent() {
        let lost = || StreamError::new(ErrorClass::Network, "connection refused");
        assert!(lost().into_source_error("orders").is_temporary());
        let last = lost().after_last_restart(3).into_source_error("orders");
        let text = last.to_string();
        assert!(!last.is_temporary() && text.contains("3 restarts") && text.contains("refused"), "{text}");
        // An error that no restart can fix has its own advice.
        let denied = StreamError::new(ErrorClass::Unauthorized, "not authorized").after_last_restart(3);
        assert!(denied.into_source_error("orders").to_string().contains("grant `find`"));
    }
}
