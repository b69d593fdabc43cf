//! Calls a handler over HTTP: one `POST` per attempt.

mod body;
mod cause;
mod handler;
mod options;
mod probe;
mod request;
mod response;
mod tls;

pub use handler::HttpHandler;
pub use options::{HttpOptions, HttpVersion};
pub use probe::{CertificateProblem, ProbeError, probe};
