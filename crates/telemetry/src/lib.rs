//! Lazaret's observability: metrics, logs, traces and alerts, without a word of what messages say.
//!
//! - [`Metrics`] counts what observers are told and reads the rest from the handles of consumers when somebody asks.
//!   [`names`] is the table of all metrics.
//! - [`AttemptLayer`] is a layer around a handler: it measures attempts and, with the feature `otlp`, makes each a span.
//! - [`logs`] sets up log lines; [`Journal`] writes what happens to a consumer into them.
//! - [`traces`] sends spans by OTLP; a retry links to the first attempt, a replay to the trace of its letter.
//! - [`alerts`] tells webhooks, signed, when something needs a person.
//!
//! Nothing here can hurt a consumer (I10): observers only count or put a note into a bounded queue.
//!
//! ```
//! use lazaret_core::handler::{Handler, Text};
//! use lazaret_core::QueueName;
//! use lazaret_telemetry::{AttemptLayer, Journal, Metrics};
//!
//! async fn greet(Text(_name): Text) {}
//!
//! let metrics = Metrics::prometheus();
//! let greet = greet.layer(AttemptLayer::new(&metrics, "names", &QueueName::of("names", "names")));
//! let builder = lazaret_engine::Consumer::builder("names")
//!     .handler(greet)
//!     .observer(metrics.observer("names"))
//!     .observer(Journal::of("names"));
//! # let _ = builder;
//! ```

pub mod alerts;
mod attempts;
mod client;
mod error;
mod journal;
pub mod logs;
mod metrics;
pub mod names;
mod pace;
#[cfg(feature = "otlp")]
pub mod traces;

pub use attempts::AttemptLayer;
pub use error::Error;
pub use journal::Journal;
pub use metrics::{BUCKETS, Metrics, OTHER, OWN_REASONS, Overview, QueueOverview};

/// Compiles the Rust code of the page on observability, so that it cannot go out of date.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/observability.md")]
struct Page;
