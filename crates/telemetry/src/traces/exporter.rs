//! Exports spans to an OTLP collector.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};

use super::http_client::RuntimeClient;
use super::tracer::AttemptTracer;
use crate::error::Error;

/// The timeout of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of queued spans; further ones are dropped (I7, I10).
const QUEUE_LIMIT: usize = 8192;
/// The interval between two batches.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Exports spans to a collector.
pub struct TraceExporter {
    provider: SdkTracerProvider,
}

impl TraceExporter {
    /// Exports spans to the collector at this address, such as `http://127.0.0.1:4318`. Appends `/v1/traces` unless the
    /// address ends with it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When no client can be created for the address.
    pub fn otlp(endpoint: &str, instance: &str) -> Result<Self, Error> {
        let url = traces_url(endpoint);
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(RuntimeClient::new(crate::client::client(&url, TIMEOUT)?))
            .with_endpoint(url)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| Error::Traces(error.to_string()))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_LIMIT)
            .with_scheduled_delay(BATCH_INTERVAL)
            .build();
        let resource = Resource::builder()
            .with_service_name("lazaret")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    /// Creates a tracer whose spans are exported here.
    pub fn tracer(&self) -> AttemptTracer {
        AttemptTracer { tracer: self.provider.tracer("lazaret") }
    }

    /// Exports queued spans and shuts down, within a timeout.
    pub async fn shutdown(self) {
        // The exporter's thread waits for this runtime, so the runtime must not wait for it.
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(TIMEOUT)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("spans dropped at shutdown");
        }
    }
}

fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traces_path_is_appended_where_it_is_missing() {
        for (given, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(given), expected);
        }
    }
}
