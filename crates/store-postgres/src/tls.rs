//! TLS of the connections, by rustls: the server's certificate and its name are always verified.

use std::path::PathBuf;
use std::sync::Arc;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The parameter of a DSN that names the certificates to trust.
const ROOTS: &str = "sslrootcert";

/// Stands for the name of a server with a Unix socket, which is never verified: the driver refuses TLS there.
const OF_SOCKET: &str = "localhost";

/// Makes connections with TLS.
#[derive(Clone)]
pub(crate) struct Tls(MakeRustlsConnect);

impl MakeTlsConnect<Socket> for Tls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    /// The driver calls this before it knows whether there will be TLS. The name is empty for a Unix socket.
    fn make_tls_connect(&mut self, name: &str) -> std::result::Result<Self::TlsConnect, Self::Error> {
        let name = if name.is_empty() { OF_SOCKET } else { name };
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, name)
    }
}

/// A connector that trusts the certificates of this file, or those of the system. Those are not read for connections without TLS.
pub(crate) fn connector(roots: Option<&PathBuf>, mode: SslMode) -> Result<Tls> {
    let invalid = |context: String| StoreError::not_done(ErrorKind::Invalid, "open", context);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?;
    let builder = match roots {
        _ if mode == SslMode::Disable => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.with_platform_verifier().map_err(|error| invalid(error.to_string()))?,
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| {
                invalid(format!("failed to read the certificates of {ROOTS} {}: {error}", path.display()))
            };
            let mut store = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                store.add(certificate).map_err(|error| failed(&error))?;
            }
            if store.is_empty() {
                return Err(failed(&"it holds none"));
            }
            builder.with_root_certificates(store)
        }
    };
    Ok(Tls(MakeRustlsConnect::new(builder.with_no_client_auth())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_needs_no_name() {
        let mut tls = connector(None, SslMode::Disable).unwrap();
        assert!(tls.make_tls_connect("").is_ok() && tls.make_tls_connect("db.example").is_ok());
        assert!(tls.make_tls_connect("no name").is_err());
    }

    #[test]
    fn a_missing_file_of_certificates_is_named() {
        let error = connector(Some(&PathBuf::from("/no/such/ca.pem")), SslMode::Require).err().unwrap();
        assert!(error.context().contains("/no/such/ca.pem"), "{error}");
        assert!(connector(None, SslMode::Prefer).is_ok() && connector(None, SslMode::Disable).is_ok());
    }
}
