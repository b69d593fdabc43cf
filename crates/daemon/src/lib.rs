//! Lazaret's daemon: runs the consumers of a configuration.
//!
//! - [`program`] implements `lazaret run`, `lazaret check` and `lazaret doctor`: files, signals, logs, exit codes.
//! - [`Service`] runs all consumers of a configuration and the API, until it is drained or, with [`Options::until_idle`],
//!   until all work is done. A [`Handle`] reloads it while it runs.
//! - [`capabilities`] lists the capabilities of this build. A configuration that requires more is rejected before the start.
//!
//! # Modules
//!
//! - `program`, `signals`, `exit`, `read`: the commands `run`, `check` and `doctor`: file, signals, logs, exit codes.
//! - `daemon`, `runner`, `reload`: the service, the restarts of one consumer, and the changes of a new configuration.
//! - `fleet`: reports of this process to the others that share the store.
//! - `assemble/`: builds a consumer from its configuration, one file per part.
//! - `doctor/`: preflight checks, one file per subject.
//! - `adopt` (features `kafka`, `mongodb` and `postgres`): dead letters and positions of other tools.
//! - `encryption`: the commands `keys`. `store_file`: backups of the embedded store. `store_wait`: a store whose disk is full at the start.
//! - `build`, `telemetry`: the capabilities of this build; metrics, logs, traces and alerts from the configuration.
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

#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
pub mod adopt;
mod assemble;
mod build;
mod daemon;
pub mod doctor;
pub mod encryption;
mod error;
pub mod exit;
mod fleet;
pub mod program;
mod read;
mod reload;
mod runner;
mod signals;
#[cfg(feature = "sqlite")]
pub mod store_file;
mod store_wait;
mod telemetry;

pub use build::capabilities;
pub use daemon::{Handle, Options, Report, Service};
pub use error::Error;
pub use read::{ReadError, read};
pub use reload::Reloaded;
