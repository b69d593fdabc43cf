//! Access to the console over HTTP: sessions, forms, proxies, providers and rights.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod forms;
mod oidc;
mod provider;
mod proxy;
mod rights;
mod sessions;
mod support;
