//! Probes a handler by opening a connection without sending a request.

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

/// The error of a failed probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The options are invalid.
    #[error(transparent)]
    Options(#[from] Error),
    /// The connection failed.
    #[error("{0}")]
    Connection(io::Error),
    /// The certificate is invalid.
    #[error("invalid certificate: {why}")]
    Certificate {
        /// The kind of the problem.
        problem: CertificateProblem,
        /// The message of the TLS library.
        why: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Tls(String),
}

/// The reason why a certificate is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateProblem {
    /// No trusted authority issued the certificate.
    UnknownIssuer,
    /// The certificate was issued for another name.
    NameMismatch,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The certificate belongs to an authority, not to a server.
    CaAsEndEntity,
    /// The certificate has another problem.
    Other,
}

/// Opens a connection with the settings of the handler, including TLS for https. No request is sent.
///
/// ```
/// use lazaret_handlers::{HttpOptions, ProbeError, probe};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let closed = HttpOptions::new("http://127.0.0.1:1/events");
/// assert!(matches!(probe(&closed).await, Err(ProbeError::Connection(_))));
/// # });
/// ```
///
/// # Errors
/// Fails if the connection is refused or the certificate is invalid. Only the system's connect timeout
/// applies, so wrap the call in a shorter one.
pub async fn probe(options: &HttpOptions) -> Result<(), ProbeError> {
    let url = Url::parse(&options.url).map_err(|error| Error::Url(error.to_string()))?;
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(Error::Url("the host is missing".to_owned()).into());
    };
    // Only URLs put brackets around an IPv6 address.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await.map_err(ProbeError::Connection)?;
    if url.scheme() != "https" {
        return Ok(());
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| Error::Url(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(tls::config(options, true)?));
    // The handshake verifies the certificate; dropping the stream closes the connection.
    connector.connect(name, stream).await.map(drop).map_err(|error| handshake_error(&error))
}

/// Classifies a handshake error.
fn handshake_error(error: &io::Error) -> ProbeError {
    let inner = error.get_ref().and_then(|inner| (inner as &(dyn StdError + 'static)).downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            ProbeError::Certificate { problem: problem(why), why: why.to_string() }
        }
        Some(other) => ProbeError::Tls(other.to_string()),
        None => ProbeError::Tls(error.to_string()),
    }
}

fn problem(error: &CertificateError) -> CertificateProblem {
    match error {
        // A bad signature means an authority with the same name but another key, for example a
        // regenerated one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => CertificateProblem::UnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            CertificateProblem::NameMismatch
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => CertificateProblem::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            CertificateProblem::NotYetValid
        }
        // rustls has no variant for this problem.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            CertificateProblem::CaAsEndEntity
        }
        _ => CertificateProblem::Other,
    }
}
