//! A handler that is called over HTTP: one `POST` per attempt.

mod answer;
mod body;
mod handler;
mod options;
mod request;
mod tls;

pub use handler::HttpHandler;
pub use options::{HttpOptions, HttpVersion};
