//! The TLS configuration of the client.

use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_platform_verifier::BuilderVerifierExt;

use super::options::{Ca, HttpOptions, HttpVersion};
use crate::error::Error;

/// Builds the TLS configuration. It uses its own crypto provider, independent of the process default.
pub(super) fn config(options: &HttpOptions, is_https: bool) -> Result<ClientConfig, Error> {
    let builder: ConfigBuilder<ClientConfig, WantsVerifier> =
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
    let builder = match &options.ca {
        Some(ca) => builder.with_root_certificates(authorities(ca)?),
        None if is_https => builder.with_platform_verifier()?,
        // Plain HTTP needs no roots, so a machine without certificates can still call a local handler.
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = match options.version {
        HttpVersion::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        HttpVersion::Http1 => vec![b"http/1.1".to_vec()],
        HttpVersion::Http2 => vec![b"h2".to_vec()],
    };
    Ok(config)
}

fn authorities(ca: &Ca) -> Result<RootCertStore, Error> {
    let (place, pem) = match ca {
        Ca::File(path) => {
            let place = path.display().to_string();
            let pem = std::fs::read(path);
            let pem = pem.map_err(|error| Error::Ca { place: place.clone(), why: error.to_string() })?;
            (place, pem)
        }
        Ca::Pem(pem) => ("the given PEM".to_owned(), pem.clone()),
    };
    let wrong = |why: String| Error::Ca { place: place.clone(), why };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it contains no certificate".to_owned()));
    }
    Ok(roots)
}
