//! Lazaret's daemon: from a checked configuration to consumers that run.
//!
//! - [`program`] is what `lazaret run`, `lazaret check` and `lazaret doctor` do: files, signals, logs, exit codes.
//! - [`Service`] runs every consumer of a configuration and the API beside them, until it is told to stop or, with
//!   [`Options::until_idle`], until nothing is left to do. A [`Handle`] changes it while it runs.
//! - [`capabilities`] says what this build has. A configuration that asks for more is refused before anything starts.
//!
//! ```
//! use lazaret_config::{NoEnv, load};
//! use lazaret_daemon::{Options, Service, capabilities};
//! use tokio_util::sync::CancellationToken;
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! let text = "
//! listen: 127.0.0.1:0
//! store: 'memory:'
//! flight-recorder: off
//! consumers: {}
//! ";
//! let config = load("lazaret.yaml", text.as_bytes(), &NoEnv, &capabilities()).unwrap().config;
//! let service = Service::open(config, Options { until_idle: true, ..Options::default() }).await.unwrap();
//! let report = service.run(CancellationToken::new()).await.unwrap();
//! assert!(report.open_letters.is_empty());
//! # });
//! ```

mod assemble;
mod build;
mod daemon;
pub mod doctor;
mod error;
pub mod exit;
pub mod program;
mod read;
mod reload;
mod runner;
mod signals;
mod telemetry;

pub use build::capabilities;
pub use daemon::{Handle, Options, Report, Service};
pub use error::Error;
pub use read::{Unreadable, read};
pub use reload::Reloaded;
