//! Why a server cannot start, or ended.

use std::net::SocketAddr;

use lazaret_api::Code;

/// Why a server cannot start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Others can reach the address, and no tokens are configured.
    #[error(
        "{}: {address} can be reached by others and no tokens are configured: listen on a loopback address, or configure tokens",
        Code::OpenToTheWorld
    )]
    OpenToTheWorld {
        /// The address.
        address: SocketAddr,
    },
    /// A token is configured wrongly.
    #[error("{}: token {name:?}: {why}", Code::InvalidToken)]
    InvalidToken {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The address cannot be listened on.
    #[error("{}: cannot listen: {source}", Code::CannotListen)]
    CannotListen {
        /// What the system says.
        #[from]
        source: std::io::Error,
    },
}

impl Error {
    /// The code of the error.
    pub const fn code(&self) -> Code {
        match self {
            Self::OpenToTheWorld { .. } => Code::OpenToTheWorld,
            Self::InvalidToken { .. } => Code::InvalidToken,
            Self::CannotListen { .. } => Code::CannotListen,
        }
    }
}
