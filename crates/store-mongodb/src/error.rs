//! Errors of the driver as errors of the store: their kind, and whether the write may have happened.

use lazaret_core::store::{Certainty, ErrorKind, StoreError};
use mongodb::error::{Error, ErrorKind as Driver, WriteFailure};

/// The code of a duplicate key: another write was faster. The store expects it, and handles it where it occurs.
pub(crate) const DUPLICATE_KEY: i32 = 11_000;

/// The server is not the primary, and has refused the command.
const NOT_PRIMARY: [i32; 2] = [10_107, 13_435];
/// The user may not do it.
const DENIED: [i32; 3] = [8_000, 13, 18];
/// The server does not understand the command, the document is too large, or a router misses the shard key: the collection is sharded by
/// another one than the store's.
const REFUSED: [i32; 8] = [2, 9, 14, 17, 59, 61, 10_334, 17_419];

/// An error while reading: nothing was changed.
pub(crate) fn reading(error: Error) -> StoreError {
    let (kind, _) = classify(&error);
    StoreError::not_done(kind, "read", text(&error)).with_source(error)
}

/// An error of a write.
pub(crate) fn writing(error: Error) -> StoreError {
    match classify(&error) {
        (kind, Certainty::NotDone) => StoreError::not_done(kind, "write", text(&error)),
        (kind, Certainty::MaybeDone) => StoreError::maybe(kind, "write", text(&error)),
    }
    .with_source(error)
}

/// The words of the driver, without its labels and without the dump of the topology behind them.
fn text(error: &Error) -> String {
    let text = error.kind.to_string();
    let (words, topology) = text.split_once(" Topology: ").unwrap_or((&text, ""));
    match topology.split_once("Error: Kind: ") {
        Some((_, cause)) => {
            let cause = cause.split_once(", labels:").map_or(cause, |(cause, _)| cause);
            format!("{words} {cause}")
        }
        None => words.to_owned(),
    }
}

/// The error of a call that was interrupted after its decision was written.
pub(crate) fn maybe_done(error: StoreError) -> StoreError {
    let context = format!("interrupted after the decision: {}", error.context());
    StoreError::maybe(error.kind(), "commit", context).with_source(error)
}

/// Stored data that the store cannot read.
pub(crate) fn corrupt(context: impl Into<String>) -> StoreError {
    StoreError::not_done(ErrorKind::Corrupt, "read", context)
}

/// A value that cannot be stored.
pub(crate) fn invalid(context: impl Into<String>) -> StoreError {
    StoreError::not_done(ErrorKind::Invalid, "encode", context)
}

/// A server error with this code.
pub(crate) fn of_code(code: i32, context: String) -> StoreError {
    match classify_code(code) {
        (kind, Certainty::NotDone) => StoreError::not_done(kind, "write", context),
        (kind, Certainty::MaybeDone) => StoreError::maybe(kind, "write", context),
    }
}

fn classify(error: &Error) -> (ErrorKind, Certainty) {
    match &*error.kind {
        // Never sent.
        Driver::ServerSelection { .. } | Driver::DnsResolve { .. } | Driver::Shutdown => {
            (ErrorKind::Unavailable, Certainty::NotDone)
        }
        Driver::Authentication { .. } => (ErrorKind::Denied, Certainty::NotDone),
        Driver::InvalidArgument { .. } | Driver::IncompatibleServer { .. } => {
            (ErrorKind::Invalid, Certainty::NotDone)
        }
        Driver::BsonSerialization(_) => (ErrorKind::Invalid, Certainty::NotDone),
        Driver::BsonDeserialization(_) | Driver::Bson(_) => (ErrorKind::Corrupt, Certainty::MaybeDone),
        Driver::Command(command) => classify_code(command.code),
        Driver::Write(WriteFailure::WriteError(write)) => classify_code(write.code),
        // A write concern that was not met, a lost connection, and whatever else there is: it may have been applied.
        _ => (ErrorKind::Unavailable, Certainty::MaybeDone),
    }
}

fn classify_code(code: i32) -> (ErrorKind, Certainty) {
    match code {
        code if NOT_PRIMARY.contains(&code) => (ErrorKind::Unavailable, Certainty::NotDone),
        code if DENIED.contains(&code) => (ErrorKind::Denied, Certainty::NotDone),
        code if REFUSED.contains(&code) => (ErrorKind::Invalid, Certainty::NotDone),
        DUPLICATE_KEY => (ErrorKind::Conflict, Certainty::NotDone),
        _ => (ErrorKind::Unavailable, Certainty::MaybeDone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_certain_and_an_unknown_code_is_not() {
        for (code, kind, certainty) in [
            (10_107, ErrorKind::Unavailable, Certainty::NotDone),
            (13, ErrorKind::Denied, Certainty::NotDone),
            (10_334, ErrorKind::Invalid, Certainty::NotDone),
            (61, ErrorKind::Invalid, Certainty::NotDone),
            (11_000, ErrorKind::Conflict, Certainty::NotDone),
            (11_602, ErrorKind::Unavailable, Certainty::MaybeDone),
            (91, ErrorKind::Unavailable, Certainty::MaybeDone),
            (50, ErrorKind::Unavailable, Certainty::MaybeDone),
            (1_234_567, ErrorKind::Unavailable, Certainty::MaybeDone),
        ] {
            assert_eq!(classify_code(code), (kind, certainty), "{code}");
        }
    }

    #[test]
    fn a_connection_that_is_lost_while_writing_leaves_the_outcome_unknown() {
        let lost = || Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(writing(lost()).certainty(), Certainty::MaybeDone);
        assert_eq!(writing(lost()).kind(), ErrorKind::Unavailable);
        assert_eq!(reading(lost()).certainty(), Certainty::NotDone, "a read changes nothing");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_told_in_few_words() {
        let uri = "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=1000";
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let error = client.database("shop").run_command(bson::doc! { "ping": 1 }).await.unwrap_err();
        let said = reading(error);
        assert!(said.context().contains("Connection refused"), "{said}");
        assert!(!said.context().contains('{') && !said.context().contains("Kind"), "{said}");
    }

    #[test]
    fn an_error_after_the_decision_is_never_certain() {
        let refused = StoreError::not_done(ErrorKind::Unavailable, "write", "cut");
        assert_eq!(maybe_done(refused).certainty(), Certainty::MaybeDone);
    }
}
