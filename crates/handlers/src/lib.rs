//! Calls handlers in any language, over HTTP or as a command.
//!
//! Both kinds implement [`Handle`](lazaret_core::handler::Handle), so each can be the handler of a
//! consumer or a route of a router.
//!
//! - [`HttpHandler`] makes one `POST` per attempt. The body is the unchanged payload, and the headers
//!   describe the message. The status sets the outcome, or the headers `Lazaret-Verdict` and
//!   `Lazaret-Reason` do.
//! - [`CommandHandler`] runs a program. It runs once per attempt, with the payload on its standard input
//!   and the attempt in `LAZARET_*` variables, or as long-running [workers](Mode::Lines) that read and
//!   write one JSON line per message. It requires Unix, for process groups and signals.
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
//! # Verdicts
//!
//! The verdict of a status or an exit code is a [suggestion](lazaret_core::HandlerError::suggest). The
//! rules and lists of the consumer's classifier take precedence, so that `classify: [{when: {status:
//! 418}, …}]` works. An explicit verdict of the handler (`Lazaret-Verdict`, or the `verdict` of a line)
//! is final.
//!
//! # Metadata
//!
//! Handlers receive all metadata of the message, within limits. Names and values with unsupported
//! characters are percent-encoded, never truncated. Headers beyond [`HEADERS_LIMIT`] or
//! [`HEADER_BYTES_LIMIT`] are omitted, and the number of omitted headers is sent.
//!
//! # Modules
//!
//! - `attempt_info`, `encoding`, `explicit`, `report`, `sanitize`: metadata of an attempt,
//!   percent-encoding, explicit verdicts, reports of failures, sanitized output.
//! - `http/`: `request` and `response`, `body`, `tls`, and `probe`, which connects without sending a
//!   request.
//! - `command/`: `once` runs one process per attempt (`environment`, `exit`), `lines` a pool of workers
//!   (`worker`, `line`, `restart_delay`). Both share `group` and `stderr`.

mod attempt_info;
mod command;
mod encoding;
mod error;
mod explicit;
mod http;
mod report;
mod sanitize;

pub use attempt_info::{HEADER_BYTES_LIMIT, HEADERS_LIMIT, NAME_BYTES_LIMIT};
pub use command::{CommandHandler, CommandOptions, Mode};
pub use error::Error;
pub use http::{CertificateProblem, HttpHandler, HttpOptions, HttpVersion, ProbeError, probe};
