//! Lazaret's observability: metrics, logs, traces and alerts, without message contents.
//!
//! - [`Metrics`] counts engine events and reads the counters of registered consumers at each scrape. [`names`] lists every
//!   metric.
//! - [`AttemptLayer`] is a layer around a handler: it measures attempts and, with the feature `otlp`, creates a span for each.
//! - [`logs`] sets up logging; [`LogObserver`] logs the events of a consumer.
//! - [`traces`] exports spans by OTLP; a retry links to the first attempt, a replay to the trace of its letter.
//! - [`alerts`] sends signed webhook notifications about conditions that need a person.
//!
//! Telemetry cannot fail a consumer (I10): observers only count, log or write to a bounded buffer.
//!
//! ```
//! use lazaret_core::handler::{Handler, Text};
//! use lazaret_core::QueueName;
//! use lazaret_telemetry::{AttemptLayer, LogObserver, Metrics};
//!
//! async fn greet(Text(_name): Text) {}
//!
//! let metrics = Metrics::prometheus();
//! let greet = greet.layer(AttemptLayer::new(&metrics, "names", &QueueName::of("names", "names")));
//! let builder = lazaret_engine::Consumer::builder("names")
//!     .handler(greet)
//!     .observer(metrics.observer("names"))
//!     .observer(LogObserver::new("names"));
//! # let _ = builder;
//! ```
//!
//! # Modules
//!
//! - `metrics`: counts events (`observer`), reads handles at a scrape (`registry`) and letters from the store (`letters`).
//! - `alerts`: buffers events (`event_buffer`), evaluates `thresholds`, polls the store (`store_poll`), tracks what is `firing`, and
//!   delivers it (`service`, `webhook`, `signature`, `notice`). `alerts/rules` is the table of alerts.
//! - `names`: the table of metrics.

mod age;
pub mod alerts;
mod attempt_layer;
mod client;
mod error;
mod log_observer;
mod log_throttle;
pub mod logs;
mod metrics;
pub mod names;
#[cfg(feature = "otlp")]
pub mod traces;

pub use attempt_layer::AttemptLayer;
pub use error::Error;
pub use log_observer::LogObserver;
pub use metrics::{BUCKETS, CUSTOM_REASONS, ChangeStreamStats, Metrics, OTHER, Overview, QueueOverview};

/// Compiles the Rust code in the observability page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/observability.md")]
struct Page;
