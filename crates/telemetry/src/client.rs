//! The HTTP client for webhooks and trace export.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, redirect};
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::Error;

/// Creates a client for one URL: no redirects, no proxy from the environment.
pub(crate) fn client(url: &str, timeout: Duration) -> Result<Client, Error> {
    // An explicit crypto provider: works whatever default the program has installed.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Client(error.to_string()))?;
    let builder = if url.starts_with("https:") {
        builder.with_platform_verifier().map_err(|error| Error::Client(error.to_string()))?
    } else {
        // No TLS, no trust anchors: works on machines without certificates.
        builder.with_root_certificates(RootCertStore::empty())
    };
    let mut tls = builder.with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .referer(false)
        .no_proxy()
        .connect_timeout(timeout)
        .timeout(timeout)
        .build()
        .map_err(|error| Error::Client(error_text(error)))
}

/// The innermost error text, without the URL: it may contain a secret.
pub(crate) fn error_text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn StdError = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
