//! Errors of the daemon and of its consumers.

use std::io;
use std::path::PathBuf;

use lazaret_api::Code;
use lazaret_core::source::SourceError;
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_engine::{BuildError, InvalidSchedule};
use lazaret_flight_recorder::OpenError;
use lazaret_sealing::KeyError;

/// The error of starting or running the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be opened, or is unavailable at the end.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The store on a server cannot be opened.
    #[error("{}: failed to open the store `{store}`: {why}; {advice}", Code::StoreUnavailable)]
    OpenStore {
        /// The kind of the store and its servers, without credentials.
        store: String,
        /// The cause.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// This build does not support the store.
    #[error("this build does not support the store `{0}`")]
    NoSuchStore(&'static str),
    /// The API cannot listen on its address.
    #[error(
        "{}: failed to listen on {address}: {source}; stop the other process, or set another `listen` address",
        Code::CannotListen
    )]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or the key of the API is invalid.
    #[error("invalid TLS file {}: {why}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The API cannot be served.
    #[error(transparent)]
    Server(#[from] lazaret_server::Error),
    /// A token in the configuration is invalid.
    #[error("invalid token {name:?}: {why}")]
    Token {
        /// The name of the token.
        name: String,
        /// The cause.
        why: String,
    },
    /// The tokens file is invalid.
    #[error("invalid tokens file {}: {why}", path.display())]
    TokensFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The sign-in to the console cannot be set up.
    #[error("invalid `{key}`: {why}")]
    SignIn {
        /// The key of the configuration.
        key: &'static str,
        /// The cause.
        why: String,
    },
    /// A key for the encryption of the store cannot be read.
    #[error("encryption key from {place}: {why}")]
    EncryptionKey {
        /// Its place.
        place: String,
        /// The cause.
        why: String,
    },
    /// The keys do not fit to the store.
    #[error("encryption: {0}; name the key under `encryption.keys`")]
    Encryption(KeyError),
    /// The setup of webhooks or traces failed.
    #[error(transparent)]
    Telemetry(#[from] lazaret_telemetry::Error),
    /// A task of the daemon panicked: a bug in Lazaret.
    #[error("a task panicked: {0}")]
    Panicked(String),
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Store(error) => Self::Store(error),
            other => Self::Encryption(other),
        }
    }
}

/// The error of building or running a consumer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsumerError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("handler: {0}")]
    Handler(#[from] lazaret_handlers::Error),
    #[error(transparent)]
    Schedule(#[from] InvalidSchedule),
    #[error("flight recorder: failed to create the directory {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error(transparent)]
    Recorder(#[from] OpenError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Run(#[from] lazaret_engine::Error),
    #[error("this build does not support {0}")]
    NotInThisBuild(&'static str),
    /// Only with `until_idle`: otherwise adoptions are retried beside the consumer.
    #[cfg(feature = "kafka")]
    #[error("{topic}: {error}")]
    Adoption { topic: String, error: lazaret_adopt::kafka::AdoptError },
    /// Only with `until_idle`.
    #[cfg_attr(
        not(any(feature = "mongodb", feature = "postgres")),
        expect(dead_code, reason = "all other sources have an end")
    )]
    #[error("the source `{0}` has no end, so a run until idle would never exit; run without `--until-idle`")]
    NoEnd(&'static str),
}

impl ConsumerError {
    /// Returns the text for a log line: with the message of the failure only if requested.
    pub(crate) fn for_log(&self, with_messages: bool) -> String {
        match self {
            Self::Run(error) if !with_messages => error.without_words(),
            other => other.to_string(),
        }
    }

    /// Returns whether the consumer only waits for what its source is to read.
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            Self::Source(error) | Self::Run(lazaret_engine::Error::Source(error)) => error.is_waiting(),
            _ => false,
        }
    }

    /// Returns whether a later restart may succeed without a change of the configuration or the message.
    pub(crate) fn is_temporary(&self) -> bool {
        use lazaret_engine::Error as Ended;
        match self {
            Self::Source(error) | Self::Run(Ended::Source(error)) => error.is_temporary(),
            Self::Run(Ended::Store(error)) => {
                // A fenced consumer continues with a new grant.
                error.kind().is_temporary() || error.kind() == ErrorKind::Fenced
            }
            #[cfg(feature = "kafka")]
            Self::Adoption { error, .. } => match &error.kind {
                lazaret_adopt::AdoptErrorKind::Source(error) => error.is_temporary(),
                lazaret_adopt::AdoptErrorKind::Store(error) => error.kind().is_temporary(),
                _ => false,
            },
            Self::Run(Ended::Panicked(_)) | Self::Folder { .. } => true,
            Self::Recorder(error) => matches!(error, OpenError::InUse { .. } | OpenError::Io { .. }),
            Self::Run(_)
            | Self::Handler(_)
            | Self::Schedule(_)
            | Self::Build(_)
            | Self::NotInThisBuild(_)
            | Self::NoEnd(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_need_an_operator_are_permanent() {
        let stopped = lazaret_engine::Error::Stopped {
            message: "m".into(),
            why: lazaret_engine::StopReason::Classified,
            failure: None,
        };
        assert!(!ConsumerError::from(stopped).is_temporary());
        assert!(!ConsumerError::from(SourceError::permanent("the file is gone")).is_temporary());
        assert!(!ConsumerError::from(BuildError::NoHandler).is_temporary());
    }

    #[test]
    fn errors_of_the_environment_are_temporary() {
        assert!(ConsumerError::from(SourceError::temporary("no broker")).is_temporary());
        let busy = StoreError::not_done(ErrorKind::Unavailable, "claim", "busy");
        assert!(ConsumerError::from(lazaret_engine::Error::Store(busy)).is_temporary());
        let fenced = StoreError::not_done(ErrorKind::Fenced, "hand_off", "an old grant");
        assert!(ConsumerError::from(lazaret_engine::Error::Store(fenced)).is_temporary());
        let in_use = OpenError::InUse { path: "orders.flight".into() };
        assert!(ConsumerError::from(in_use).is_temporary());
    }
}
