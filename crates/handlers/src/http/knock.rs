//! Connects to a handler and goes away again, to see whether it could be called.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use reqwest::Url;
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::options::HttpOptions;
use super::tls;
use crate::error::Error;

/// Why a handler could not be called, as far as can be seen without calling it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] Error),
    /// Nobody takes the connection.
    #[error("{0}")]
    Connection(io::Error),
    /// Its certificate is refused.
    #[error("its certificate is refused: {why}")]
    Certificate {
        /// What is wrong with it.
        fault: CertificateFault,
        /// The same in the words of the library.
        why: String,
    },
    /// The two do not agree on TLS.
    #[error("no TLS: {0}")]
    Tls(String),
}

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateFault {
    /// Nobody who is trusted vouches for it.
    UnknownIssuer,
    /// It is for another name.
    OtherName,
    /// Its time is over.
    Expired,
    /// Its time is still to come.
    NotYet,
    /// It is that of an authority, not that of a server.
    IsAuthority,
    /// Something else.
    Other,
}

/// Opens a connection as the handler would, and over https agrees on TLS with the same settings. No request is sent.
///
/// ```
/// use lazaret_handlers::{HttpOptions, Unreachable, knock};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let nobody = HttpOptions::new("http://127.0.0.1:1/events");
/// assert!(matches!(knock(&nobody).await, Err(Unreachable::Connection(_))));
/// # });
/// ```
///
/// # Errors
/// When nobody takes the connection, or its certificate is refused. It waits as long as the system does: set a time limit.
pub async fn knock(options: &HttpOptions) -> Result<(), Unreachable> {
    let url = Url::parse(&options.url).map_err(|error| Error::Url(error.to_string()))?;
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(Error::Url("it has no host".to_owned()).into());
    };
    // An IPv6 address stands in brackets in a URL, and nowhere else.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await.map_err(Unreachable::Connection)?;
    if url.scheme() != "https" {
        return Ok(());
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| Error::Url(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(tls::config(options, true)?));
    // Verified by now, or an error; dropping it closes the connection.
    connector.connect(name, stream).await.map(drop).map_err(|error| refused(&error))
}

/// What the handshake says.
fn refused(error: &io::Error) -> Unreachable {
    let inner = error.get_ref().and_then(|inner| (inner as &(dyn StdError + 'static)).downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            Unreachable::Certificate { fault: fault(why), why: why.to_string() }
        }
        Some(other) => Unreachable::Tls(other.to_string()),
        None => Unreachable::Tls(error.to_string()),
    }
}

fn fault(error: &CertificateError) -> CertificateFault {
    match error {
        // An authority of the same name with another key, as after a self-signed one was made anew, vouches for nothing either.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => CertificateFault::UnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            CertificateFault::OtherName
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => CertificateFault::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            CertificateFault::NotYet
        }
        // The library has no name of its own for it.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            CertificateFault::IsAuthority
        }
        _ => CertificateFault::Other,
    }
}
