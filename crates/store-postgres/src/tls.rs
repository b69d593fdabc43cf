//! TLS of the connections, by rustls: the server's certificate and its name are always verified.

use std::path::PathBuf;
use std::sync::Arc;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The parameters of a DSN that name the certificates to trust, which the driver does not know.
const ROOTS: &str = "sslrootcert";
const MODE: &str = "sslmode";

/// Takes what the driver does not know out of a DSN, and returns the file of the certificates to trust, if it names one.
///
/// `verify-full` and `verify-ca` become `require`: a certificate is verified in every mode with TLS.
pub(crate) fn split(dsn: &str) -> (String, Option<PathBuf>) {
    if !dsn.contains(ROOTS) && !dsn.contains("verify-") {
        return (dsn.to_owned(), None);
    }
    let is_url = dsn.starts_with("postgres://") || dsn.starts_with("postgresql://");
    let (before, parameters, between) = match dsn.split_once('?') {
        Some((before, parameters)) if is_url => (before, parameters.split('&').collect::<Vec<_>>(), "&"),
        _ if is_url => return (dsn.to_owned(), None),
        _ => ("", dsn.split_whitespace().collect(), " "),
    };
    let (mut roots, mut kept) = (None, Vec::new());
    for parameter in parameters {
        match parameter.split_once('=') {
            // libpq's name for the certificates of the system.
            Some((ROOTS, "system")) => {}
            Some((ROOTS, path)) => roots = Some(PathBuf::from(path)),
            Some((MODE, "verify-full" | "verify-ca")) => kept.push("sslmode=require"),
            _ => kept.push(parameter),
        }
    }
    let kept = kept.join(between);
    let dsn = if is_url && !kept.is_empty() { format!("{before}?{kept}") } else { format!("{before}{kept}") };
    (dsn, roots)
}

/// A connector that trusts the certificates of this file, or those of the system. Those are not read for connections without TLS.
pub(crate) fn connector(roots: Option<&PathBuf>, mode: SslMode) -> Result<MakeRustlsConnect> {
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
    Ok(MakeRustlsConnect::new(builder.with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_libpq_are_understood() {
        let (dsn, roots) =
            split("postgres://u:p@h/db?sslmode=verify-full&sslrootcert=/ca.pem&application_name=x");
        assert_eq!(dsn, "postgres://u:p@h/db?sslmode=require&application_name=x");
        assert_eq!(roots, Some(PathBuf::from("/ca.pem")));
        assert_eq!(split("postgres://h/db"), ("postgres://h/db".to_owned(), None));
        assert_eq!(split("postgres://h/db?sslrootcert=system"), ("postgres://h/db".to_owned(), None));
        let (dsn, roots) = split("host=h sslmode=verify-ca sslrootcert=/ca.pem user=u");
        assert_eq!((dsn.as_str(), roots), ("host=h sslmode=require user=u", Some(PathBuf::from("/ca.pem"))));
    }

    #[test]
    fn a_missing_file_of_certificates_is_named() {
        let error = connector(Some(&PathBuf::from("/no/such/ca.pem")), SslMode::Require).err().unwrap();
        assert!(error.context().contains("/no/such/ca.pem"), "{error}");
        assert!(connector(None, SslMode::Prefer).is_ok() && connector(None, SslMode::Disable).is_ok());
    }
}
