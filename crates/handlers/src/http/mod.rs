//! A handler that is called over HTTP: one `POST` per attempt.

mod answer;
mod body;
mod handler;
mod knock;
mod options;
mod request;
mod tls;

pub use handler::HttpHandler;
pub use knock::{CertificateFault, Unreachable, knock};
pub use options::{HttpOptions, HttpVersion};
