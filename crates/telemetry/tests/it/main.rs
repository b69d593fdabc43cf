//! Metrics, alerts, traces, and the files in `deploy/` that use them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod alerts;
mod deploy;
mod metrics;
mod support;
#[cfg(feature = "otlp")]
mod traces;
