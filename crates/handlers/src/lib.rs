//! Handlers in any language: called over HTTP, or run as a command.
//!
//! Both are a [`Handle`](lazaret_core::handler::Handle), so they stand wherever a function can: in a consumer, as a route
//! of a router.
//!
//! - [`HttpHandler`] makes one `POST` per attempt. The body is the payload, unchanged; the headers say what is known of
//!   the message; the status, or the headers `Lazaret-Verdict` and `Lazaret-Reason`, say how it went.
//! - [`CommandHandler`] runs a program: once per attempt, with the payload on its standard input and the facts in
//!   `LAZARET_*` variables, or as [workers](Mode::Lines) that live long and answer one JSON line with another.
//!   It needs Unix: process groups and signals.
//!
//! ```
//! use std::time::Duration;
//! use lazaret_handlers::{CommandHandler, CommandOptions, HttpHandler, HttpOptions};
//!
//! let http = HttpHandler::new(
//!     HttpOptions::new("http://127.0.0.1:8080/events")
//!         .for_consumer("notification-service")
//!         .with_timeout(Duration::from_secs(10))
//!         .with_bearer("s3cret"),
//! )?;
//! let command = CommandHandler::new(CommandOptions::new(["python3", "handler.py"]))?;
//! # let _ = (http, command);
//! # Ok::<(), lazaret_handlers::Error>(())
//! ```
//!
//! # Whose verdict
//!
//! What the protocol says of a status or an exit code is a [suggestion](lazaret_core::HandlerError::suggest): rules and
//! lists of the consumer's classifier go before it, so that `classify: [{when: {status: 418}, …}]` works. What the handler
//! demands in so many words (`Lazaret-Verdict`, the `verdict` of a line) decides.
//!
//! # What is told
//!
//! Everything that is known of the message, bounded: names and values that do not fit where they go are percent-encoded,
//! never cut. Headers beyond [`HEADERS_LIMIT`] or [`HEADER_BYTES_LIMIT`] are left out, and the handler is told how many.

mod command;
mod demand;
mod encoding;
mod error;
mod facts;
mod http;
mod words;

pub use command::{CommandHandler, CommandOptions, Mode};
pub use error::Error;
pub use facts::{HEADER_BYTES_LIMIT, HEADERS_LIMIT, NAME_BYTES_LIMIT};
pub use http::{CertificateFault, HttpHandler, HttpOptions, HttpVersion, Unreachable, knock};
