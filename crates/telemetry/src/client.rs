//! The HTTP client of webhooks and traces.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, redirect};
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::Error;

/// A client that talks to this URL and goes nowhere else: no redirects, no proxy of the environment.
pub(crate) fn client(url: &str, timeout: Duration) -> Result<Client, Error> {
    // It brings its own provider, so it works whatever the program has installed.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Client(error.to_string()))?;
    let builder = if url.starts_with("https:") {
        builder.with_platform_verifier().map_err(|error| Error::Client(error.to_string()))?
    } else {
        // Nobody is asked, so nobody is trusted. A machine without certificates can still call its neighbour.
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
        .map_err(|error| Error::Client(why(error)))
}

/// What is wrong, without the URL: it may hold a secret.
pub(crate) fn why(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut bottom: &dyn StdError = &error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}
