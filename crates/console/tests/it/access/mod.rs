//! Access to the console over HTTP: sessions, forms, proxies, providers and rights.

mod forms;
mod oidc;
mod provider;
mod proxy;
mod rights;
mod sessions;
mod support;
