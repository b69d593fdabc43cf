//! Where the server listens: TCP, TLS over TCP, or a Unix socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

/// Where a request comes from. The server adds it to the extensions of each request; a server that embeds the
/// [router](crate::Server::router) may do so. Without it, a request comes from nobody who is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the other end; `None` for a Unix socket.
    pub address: Option<IpAddr>,
    /// The connection.
    pub transport: Transport,
}

impl Peer {
    /// A peer of whom nothing is known.
    pub(crate) const UNKNOWN: Self = Self { address: None, transport: Transport::Tcp };
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// A Unix socket.
    Unix,
}

/// A bound address, or several.
pub struct Listener {
    first: Kind,
    /// A further one.
    second: Option<Kind>,
}

enum Kind {
    Tcp(TcpListener),
    Tls(TcpListener, TlsAcceptor),
    #[cfg(unix)]
    Unix(UnixListener),
}

/// An accepted connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// The handshake is still to come.
    Tls(TcpStream, TlsAcceptor),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Tcp(_) => Transport::Tcp,
            Self::Tls(..) => Transport::Tls,
            #[cfg(unix)]
            Self::Unix(_) => Transport::Unix,
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { first: Kind::Tcp(listener), second: None }
    }
}

/// Access to the socket is that to its file: without tokens, every user who may write to it has all scopes.
#[cfg(unix)]
impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self { first: Kind::Unix(listener), second: None }
    }
}

impl Listener {
    /// Serves TLS.
    pub fn tls(listener: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self { first: Kind::Tls(listener, TlsAcceptor::from(config)), second: None }
    }

    /// Serves a Unix socket, too.
    #[cfg(unix)]
    #[must_use]
    pub fn and_unix(mut self, listener: UnixListener) -> Self {
        self.second = Some(Kind::Unix(listener));
        self
    }

    /// The TCP address; `None` for a Unix socket.
    ///
    /// # Errors
    /// When the system does not know the address.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        match &self.first {
            Kind::Tcp(listener) | Kind::Tls(listener, _) => listener.local_addr().map(Some),
            #[cfg(unix)]
            Kind::Unix(_) => Ok(None),
        }
    }

    /// Accepts a connection. Cancellation safe.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match &self.second {
            None => self.first.accept().await,
            Some(second) => tokio::select! {
                accepted = self.first.accept() => accepted,
                accepted = second.accept() => accepted,
            },
        }
    }
}

impl Kind {
    async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Some(peer.ip())))
            }
            Self::Tls(listener, acceptor) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::Tls(stream, acceptor.clone()), Some(peer.ip())))
            }
            #[cfg(unix)]
            Self::Unix(listener) => Ok((Stream::Unix(listener.accept().await?.0), None)),
        }
    }
}
