//! Why a daemon cannot start, or why a consumer of it ended.

use std::io;
use std::path::PathBuf;

use lazaret_api::Code;
use lazaret_core::source::SourceError;
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_engine::{BuildError, InvalidSchedule};
use lazaret_flight_recorder::OpenError;

/// Why the daemon cannot start, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be opened, or does not answer at the end.
    #[error("the store: {0}")]
    Store(#[from] StoreError),
    /// This build does not have the store.
    #[error("this build does not have the store `{0}`")]
    NoSuchStore(&'static str),
    /// The address cannot be listened on.
    #[error(
        "{}: cannot listen on {address}: {source}; is another Lazaret running? choose another `listen` otherwise",
        Code::CannotListen
    )]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The API cannot be served.
    #[error(transparent)]
    Server(#[from] lazaret_server::Error),
    /// A token in the configuration cannot be used.
    #[error("the token {name:?}: {why}")]
    Token {
        /// Whose.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file of tokens cannot be used.
    #[error("the file of tokens {}: {why}", path.display())]
    TokensFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Webhooks or traces cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] lazaret_telemetry::Error),
    /// A part of the daemon panicked: a bug in Lazaret.
    #[error("a part of the daemon panicked: {0}")]
    Panicked(String),
}

/// Why a consumer could not be put together, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the handler: {0}")]
    Handler(#[from] lazaret_handlers::Error),
    #[error(transparent)]
    Schedule(#[from] InvalidSchedule),
    #[error("the flight recorder: the folder {} cannot be made: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error(transparent)]
    Recorder(#[from] OpenError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Run(#[from] lazaret_engine::Error),
    #[error("this build does not have {0}")]
    NotInThisBuild(&'static str),
}

impl Trouble {
    /// The same for a log: the words of a failure only where somebody asks for them.
    pub(crate) fn for_log(&self, with_words: bool) -> String {
        match self {
            Self::Run(error) if !with_words => error.without_words(),
            other => other.to_string(),
        }
    }

    /// Whether the same may go well later without anybody changing the configuration or the message.
    pub(crate) fn may_pass(&self) -> bool {
        use lazaret_engine::Error as Ended;
        match self {
            Self::Source(error) | Self::Run(Ended::Source(error)) => error.is_temporary(),
            Self::Run(Ended::Store(error)) => {
                // Who was fenced may take the work up again under a new grant.
                error.kind().is_temporary() || error.kind() == ErrorKind::Fenced
            }
            Self::Run(Ended::Panicked(_)) | Self::Folder { .. } => true,
            Self::Recorder(error) => matches!(error, OpenError::InUse { .. } | OpenError::Io { .. }),
            Self::Run(_)
            | Self::Handler(_)
            | Self::Schedule(_)
            | Self::Build(_)
            | Self::NotInThisBuild(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_has_to_mend_does_not_pass() {
        let stopped = lazaret_engine::Error::Stopped {
            message: "m".into(),
            why: lazaret_engine::StopReason::Classified,
            failure: None,
        };
        assert!(!Trouble::from(stopped).may_pass());
        assert!(!Trouble::from(SourceError::permanent("the file is gone")).may_pass());
        assert!(!Trouble::from(BuildError::NoHandler).may_pass());
    }

    #[test]
    fn what_others_may_mend_passes() {
        assert!(Trouble::from(SourceError::temporary("no broker")).may_pass());
        let busy = StoreError::not_done(ErrorKind::Unavailable, "claim", "busy");
        assert!(Trouble::from(lazaret_engine::Error::Store(busy)).may_pass());
        let fenced = StoreError::not_done(ErrorKind::Fenced, "hand_off", "an old grant");
        assert!(Trouble::from(lazaret_engine::Error::Store(fenced)).may_pass());
        let in_use = OpenError::InUse { path: "orders.flight".into() };
        assert!(Trouble::from(in_use).may_pass());
    }
}
