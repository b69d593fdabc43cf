//! What the daemon tells of itself: metrics, log lines, traces and alerts, put together from the configuration.

use std::sync::Arc;
use std::time::Duration;

use lazaret_config::{Config, Consumer as Wanted, Webhook as Hook};
use lazaret_core::handler::{BoxHandler, Handler};
use lazaret_core::store::Store;
use lazaret_core::{QueueName, SystemClock};
use lazaret_engine::Builder;
use lazaret_telemetry::alerts::{Alerts, Options, Service, Webhook};
#[cfg(feature = "otlp")]
use lazaret_telemetry::traces::Traces;
use lazaret_telemetry::{AttemptLayer, Journal, Metrics};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::assemble::Stores;
use crate::error::Error;

/// How often the store is asked how many letters there are.
const FRESH: Duration = Duration::from_secs(2);

/// What watches every consumer.
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    alerts: Option<Alerts>,
    /// Whether the words of failures go into the log.
    pub(crate) with_error_messages: bool,
    #[cfg(feature = "otlp")]
    tracing: Option<lazaret_telemetry::traces::Tracing>,
}

/// What runs beside the consumers.
pub(crate) struct Watching {
    metrics: Metrics,
    alerts: Option<Service>,
    #[cfg(feature = "otlp")]
    traces: Option<Traces>,
}

impl Telemetry {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            metrics: Metrics::prometheus(),
            alerts: None,
            with_error_messages: config.telemetry.log_error_messages,
            #[cfg(feature = "otlp")]
            tracing: None,
        }
    }

    /// Gives the metrics as Prometheus reads them.
    pub(crate) fn rendering(&self) -> Arc<dyn Fn() -> String + Send + Sync> {
        let metrics = self.metrics.clone();
        Arc::new(move || metrics.render())
    }

    /// Opens the ways to webhooks and collectors. To be called before consumers run.
    pub(crate) async fn begin(mut self, config: &Config, stores: &Stores) -> Result<(Self, Watching), Error> {
        for wanted in &config.consumers {
            self.metrics.owner(&wanted.name, owner(wanted));
        }
        let alerts = self.alerts(config, stores).await?;
        self.alerts = alerts.as_ref().map(Service::alerts);
        #[cfg(feature = "otlp")]
        let traces = config.telemetry.otlp_endpoint.as_deref().map(traces).transpose()?;
        #[cfg(feature = "otlp")]
        {
            self.tracing = traces.as_ref().map(Traces::tracing);
        }
        let watching = Watching {
            metrics: self.metrics.clone(),
            alerts,
            #[cfg(feature = "otlp")]
            traces,
        };
        Ok((self, watching))
    }

    async fn alerts(&self, config: &Config, stores: &Stores) -> Result<Option<Service>, Error> {
        if config.webhooks.is_empty() {
            return Ok(None);
        }
        let webhooks: Vec<Webhook> = config.webhooks.iter().map(webhook).collect();
        let (store, clock) = (stores.letters.clone(), Arc::new(SystemClock));
        let mut service = Service::new(&webhooks, Options::default(), self.metrics.clone(), store, clock)?;
        service.learn(|name| config.consumer(name).is_some_and(alerts_on_first)).await;
        Ok(Some(service))
    }

    /// Watches the attempts of a consumer.
    pub(crate) fn watch(&self, wanted: &Wanted, handler: BoxHandler) -> BoxHandler {
        let queue = QueueName::of(&wanted.name, &wanted.name);
        let layer = AttemptLayer::new(&self.metrics, &wanted.name, &queue);
        #[cfg(feature = "otlp")]
        if let Some(tracing) = &self.tracing {
            return handler.layer(layer.traced(tracing.clone())).with_state(());
        }
        handler.layer(layer).with_state(())
    }

    /// Adds those who are told what happens to a consumer.
    pub(crate) fn observe(&self, wanted: &Wanted, builder: Builder) -> Builder {
        self.metrics.owner(&wanted.name, owner(wanted));
        let builder = builder
            .observer(Journal::of(&wanted.name).with_error_messages(self.with_error_messages))
            .observer(self.metrics.observer(&wanted.name));
        match &self.alerts {
            Some(alerts) => {
                builder.observer(alerts.observer(&wanted.name, owner(wanted), alerts_on_first(wanted)))
            }
            None => builder,
        }
    }
}

impl Watching {
    /// Begins to watch. Cancel the token when all consumers have ended, and wait for what is still to be told.
    pub(crate) fn start(self, stores: &Stores) -> (CancellationToken, JoinHandle<()>) {
        let stop = CancellationToken::new();
        let task = tokio::spawn(Box::pin(self.watch(stores.letters.clone(), stop.clone())));
        (stop, task)
    }

    async fn watch(self, store: Arc<dyn Store>, stop: CancellationToken) {
        let fresh = self.metrics.keep_fresh(&*store, FRESH, stop.clone());
        let alerts = async {
            if let Some(service) = self.alerts {
                service.run(stop.clone()).await;
            }
        };
        tokio::join!(fresh, alerts);
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            traces.end().await;
        }
    }
}

#[cfg(feature = "otlp")]
fn traces(endpoint: &str) -> Result<Traces, lazaret_telemetry::Error> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Traces::otlp(endpoint, &format!("{host}-{}", std::process::id()))
}

fn owner(wanted: &Wanted) -> Option<&str> {
    wanted.dead_letter.as_ref()?.owner.as_deref()
}

fn alerts_on_first(wanted: &Wanted) -> bool {
    wanted.dead_letter.as_ref().is_some_and(|letters| letters.alert_on_first)
}

fn webhook(hook: &Hook) -> Webhook {
    Webhook {
        url: hook.url.clone(),
        secret: hook.secret.as_ref().map(|secret| secret.reveal().to_owned()),
        events: hook.events.iter().map(|event| (*event).to_owned()).collect(),
        timeout: hook.timeout,
    }
}
