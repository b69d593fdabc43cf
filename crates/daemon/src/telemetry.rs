//! Sets up metrics, log lines, traces and alerts from the configuration.

use std::sync::Arc;
use std::time::Duration;

use lazaret_config::{AlertThresholds, Config, Consumer as ConsumerConfig, Webhook as Hook};
use lazaret_core::handler::{BoxHandler, Handler};
use lazaret_core::store::Store;
use lazaret_core::{QueueName, SystemClock};
use lazaret_engine::Builder;
use lazaret_telemetry::alerts::{Alerts, AuditAnchor, Options, Service, Thresholds, Webhook};
#[cfg(feature = "otlp")]
use lazaret_telemetry::traces::TraceExporter;
use lazaret_telemetry::{AttemptLayer, LogObserver, Metrics};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::assemble::{Stores, handler_address};
use crate::error::Error;

/// The interval of counting letters in the store.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// The interval of logging the last entry of the audit.
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);

/// The telemetry of all consumers.
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    alerts: Option<Alerts>,
    /// Whether the messages of failures are logged.
    pub(crate) with_error_messages: bool,
    #[cfg(feature = "otlp")]
    tracing: Option<lazaret_telemetry::traces::AttemptTracer>,
}

/// The background tasks of telemetry.
pub(crate) struct TelemetryTasks {
    metrics: Metrics,
    alerts: Option<Service>,
    #[cfg(feature = "otlp")]
    traces: Option<TraceExporter>,
}

impl Telemetry {
    pub(crate) fn new(config: &Config) -> Self {
        let metrics = Metrics::prometheus();
        metrics.process();
        Self {
            metrics,
            alerts: None,
            with_error_messages: config.telemetry.log_error_messages,
            #[cfg(feature = "otlp")]
            tracing: None,
        }
    }

    /// Returns a function that renders the metrics for Prometheus.
    pub(crate) fn rendering(&self) -> Arc<dyn Fn() -> String + Send + Sync> {
        let metrics = self.metrics.clone();
        Arc::new(move || metrics.render())
    }

    /// Opens connections to webhooks and collectors. Call it before consumers run.
    pub(crate) async fn begin(
        mut self,
        config: &Config,
        stores: &Stores,
    ) -> Result<(Self, TelemetryTasks), Error> {
        for consumer in &config.consumers {
            self.metrics.owner(&consumer.name, owner(consumer));
        }
        let alerts = self.alerts(config, stores).await?;
        self.alerts = alerts.as_ref().map(Service::alerts);
        #[cfg(feature = "otlp")]
        let traces = config.telemetry.otlp_endpoint.as_deref().map(traces).transpose()?;
        #[cfg(feature = "otlp")]
        {
            self.tracing = traces.as_ref().map(TraceExporter::tracer);
        }
        let telemetry_tasks = TelemetryTasks {
            metrics: self.metrics.clone(),
            alerts,
            #[cfg(feature = "otlp")]
            traces,
        };
        Ok((self, telemetry_tasks))
    }

    async fn alerts(&self, config: &Config, stores: &Stores) -> Result<Option<Service>, Error> {
        if config.webhooks.is_empty() {
            return Ok(None);
        }
        let webhooks: Vec<Webhook> = config.webhooks.iter().map(webhook).collect();
        let (store, clock) = (stores.letters.clone(), Arc::new(SystemClock));
        let thresholds = thresholds(&config.alert_thresholds);
        let options = Options { thresholds, docs_url: config.docs_url.clone(), ..Options::default() };
        let mut service = Service::new(&webhooks, options, self.metrics.clone(), store, clock)?;
        service.load_groups(|name| config.consumer(name).is_some_and(alerts_on_first)).await;
        Ok(Some(service))
    }

    /// Wraps a handler to record its attempts.
    pub(crate) fn watch(&self, consumer: &ConsumerConfig, handler: BoxHandler) -> BoxHandler {
        let queue = QueueName::of(&consumer.name, &consumer.name);
        let layer = AttemptLayer::new(&self.metrics, &consumer.name, &queue);
        #[cfg(feature = "otlp")]
        if let Some(tracing) = &self.tracing {
            return handler.layer(layer.with_tracer(tracing.clone())).with_state(());
        }
        handler.layer(layer).with_state(())
    }

    /// Adds observers to a consumer.
    pub(crate) fn observe(&self, consumer: &ConsumerConfig, builder: Builder) -> Builder {
        self.metrics.owner(&consumer.name, owner(consumer));
        let builder = builder
            .observer(
                LogObserver::new(&consumer.name)
                    .with_handler(handler_address(consumer))
                    .with_error_messages(self.with_error_messages)
                    .with_redaction(consumer.redact.texts().clone()),
            )
            .observer(self.metrics.observer(&consumer.name));
        match &self.alerts {
            Some(alerts) => {
                builder.observer(alerts.observer(&consumer.name, owner(consumer), alerts_on_first(consumer)))
            }
            None => builder,
        }
    }
}

impl TelemetryTasks {
    /// Starts the tasks. Cancel the token when all consumers have ended, and wait for the task to flush.
    pub(crate) fn start(self, stores: &Stores) -> (CancellationToken, JoinHandle<()>) {
        let stop = CancellationToken::new();
        let task = tokio::spawn(Box::pin(self.watch(stores.letters.clone(), stop.clone())));
        (stop, task)
    }

    async fn watch(self, store: Arc<dyn Store>, stop: CancellationToken) {
        let fresh = self.metrics.keep_fresh(&*store, REFRESH_INTERVAL, stop.clone());
        let alerts = async {
            if let Some(service) = self.alerts {
                service.run(stop.clone()).await;
            }
        };
        tokio::join!(fresh, alerts, log_audit_head(&*store, &stop));
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            traces.shutdown().await;
        }
    }
}

/// Logs the last entry of the audit whenever there are new ones, and at the end. The log is usually shipped elsewhere, so that an
/// audit whose end was cut off does not match it. Its hash is sealed: readers of the log may see less of the audit than it covers.
async fn log_audit_head(store: &dyn Store, stop: &CancellationToken) {
    let mut logged = None;
    loop {
        let stopped = stop.run_until_cancelled(tokio::time::sleep(AUDIT_INTERVAL)).await.is_none();
        // An outage of the store is reported by others.
        let head = AuditAnchor::last(store).await.ok().flatten();
        if let Some(AuditAnchor { number, hash, .. }) = head.filter(|head| logged != Some(head.number)) {
            logged = Some(number);
            tracing::info!(number, hash, "audit head");
        }
        if stopped {
            return;
        }
    }
}

#[cfg(feature = "otlp")]
fn traces(endpoint: &str) -> Result<TraceExporter, lazaret_telemetry::Error> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    TraceExporter::otlp(endpoint, &format!("{host}-{}", std::process::id()))
}

fn owner(consumer: &ConsumerConfig) -> Option<&str> {
    consumer.owner.as_deref()
}

fn alerts_on_first(consumer: &ConsumerConfig) -> bool {
    consumer.alert_on_first
}

fn thresholds(configured: &AlertThresholds) -> Thresholds {
    let AlertThresholds {
        window,
        retry_rate,
        storm_share,
        storm_failures,
        retry_age,
        attempt_age,
        blocked_windows,
        paused_for,
        expires_within,
        quiet,
    } = *configured;
    Thresholds {
        window,
        retry_rate,
        storm_share,
        storm_failures,
        retry_age,
        attempt_age,
        blocked_windows,
        paused_for,
        expires_within,
        quiet,
    }
}

fn webhook(hook: &Hook) -> Webhook {
    Webhook {
        url: hook.url.clone(),
        secret: hook.secret.as_ref().map(|secret| secret.reveal().to_owned()),
        events: hook.events.iter().map(|event| (*event).to_owned()).collect(),
        timeout: hook.timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(alerts: &str) -> Thresholds {
        let text = format!(
            "alerts: {{ {alerts} }}\nconsumers:\n  shop:\n    source: {{ inbox: {{}} }}\n    handler: {{ http: {{ url: 'http://127.0.0.1:8080/' }} }}\n"
        );
        let checked = lazaret_config::check("lazaret.yaml", text.as_bytes(), &lazaret_config::NoEnv);
        thresholds(&checked.config.expect("a valid configuration").alert_thresholds)
    }

    #[test]
    fn the_thresholds_of_webhooks_are_those_of_the_configuration() {
        assert_eq!(read(""), Thresholds::default());
        assert_eq!(read("thresholds: { window: 1m }"), Thresholds::default());
        let all = "window: 2m, retry-rate: 30/m, storm-share: 0.25, storm-failures: 10, retry-age: 1h, \
                   attempt-age: 10m, blocked-windows: 3, paused-for: 30m, expires-within: 2d, quiet: 5m";
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let configured = Thresholds {
            window: minutes(2),
            retry_rate: 0.5,
            storm_share: 0.25,
            storm_failures: 10,
            retry_age: minutes(60),
            attempt_age: minutes(10),
            blocked_windows: 3,
            paused_for: minutes(30),
            expires_within: minutes(2 * 24 * 60),
            quiet: minutes(5),
        };
        assert_eq!(read(&format!("thresholds: {{ {all} }}")), configured);
    }
}
