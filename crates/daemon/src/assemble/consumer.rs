//! Builds a consumer and its background task.

use std::sync::Arc;

use lazaret_config::Consumer as ConsumerConfig;
use lazaret_core::FlightRecorder;
use lazaret_engine::{Consumer, Options};
use lazaret_server::Registry;
use tokio_util::sync::CancellationToken;

use super::handler::handler;
#[cfg(feature = "kafka")]
use super::kafka;
use super::store::Stores;
use super::{options, source};
use crate::error::ConsumerError;
use crate::fleet::Fleet;
use crate::telemetry::Telemetry;

/// The state that all consumers share.
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) registry: Registry,
    pub(crate) telemetry: Telemetry,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) until_idle: bool,
}

/// Builds a consumer and opens its source, without running it.
pub(crate) async fn consumer(
    shared: &Shared,
    config: &ConsumerConfig,
    recorder: Option<Arc<dyn FlightRecorder>>,
) -> Result<Consumer, ConsumerError> {
    let handler = shared.telemetry.watch(config, handler(config)?);
    let options = options::options(config, &shared.stores, recorder, shared.until_idle)?;
    let (source, relay) = source::open(config, shared).await?;
    let options = Options { relay, ..options };
    let builder = Consumer::builder(config.name.as_str())
        .source(source)
        .store(shared.stores.letters.clone())
        .handler(handler)
        .options(options)
        .observer(shared.registry.observer(&config.name))
        .observer(shared.fleet.observer(&config.name));
    Ok(shared.telemetry.observe(config, builder).build()?)
}

/// Runs the background task of a consumer until `stop`: the mirror of its dead letters.
///
/// # Errors
/// Fails if it cannot start because of a permanent error.
pub(crate) async fn background(
    shared: &Shared,
    config: &ConsumerConfig,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    #[cfg(feature = "kafka")]
    return Ok(kafka::mirror(config, &shared.stores, stop).await?);
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (shared, config);
        stop.cancelled().await;
        Ok(())
    }
}

/// Waits until the background task of a consumer has caught up.
pub(crate) async fn background_done(shared: &Shared, config: &ConsumerConfig) {
    #[cfg(feature = "kafka")]
    kafka::mirrored(config, &shared.stores).await;
    #[cfg(not(feature = "kafka"))]
    let _ = (shared, config);
}
