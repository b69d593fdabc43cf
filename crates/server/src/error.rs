//! The error type of this crate.

use std::net::SocketAddr;

use lazaret_api::Code;

/// Why the server cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not a loopback address, and no tokens are configured.
    #[error(
        "{}: {address} is not a loopback address and no tokens are configured: listen on a loopback address, or configure tokens",
        Code::OpenToTheWorld
    )]
    OpenToTheWorld {
        /// The address.
        address: SocketAddr,
    },
    /// Authentication is configured without a token: it would let everybody in.
    #[error(
        "{}: authentication is configured, but there are no tokens: add one with lazaret token, or remove the configuration",
        Code::InvalidToken
    )]
    NoTokens,
    /// A token is misconfigured.
    #[error("{}: token {name:?}: {why}", Code::InvalidToken)]
    InvalidToken {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The server cannot listen on the address.
    #[error("{}: cannot listen: {source}", Code::CannotListen)]
    CannotListen {
        /// The error of the operating system.
        #[from]
        source: std::io::Error,
    },
}

impl Error {
    /// The code of the error.
    pub const fn code(&self) -> Code {
        match self {
            Self::OpenToTheWorld { .. } => Code::OpenToTheWorld,
            Self::NoTokens | Self::InvalidToken { .. } => Code::InvalidToken,
            Self::CannotListen { .. } => Code::CannotListen,
        }
    }
}
