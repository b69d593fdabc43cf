//! Builds a consumer and its background task.

use std::sync::Arc;

use lazaret_config::Consumer as ConsumerConfig;
#[cfg(feature = "mongodb")]
use lazaret_config::StoreLocation;
use lazaret_core::FlightRecorder;
use lazaret_engine::{Consumer, Options};
use lazaret_server::Registry;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "mongodb")]
use super::copies;
use super::handler::handler;
use super::store::Stores;
#[cfg(feature = "kafka")]
use super::{adoption, kafka};
use super::{options, source};
use crate::error::ConsumerError;
use crate::fleet::Fleet;
use crate::telemetry::Telemetry;

/// The state that all consumers share.
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    /// Where the store is: a change stream must not read it.
    #[cfg(feature = "mongodb")]
    pub(crate) store: StoreLocation,
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

/// Adopts the dead letters of other frameworks that exist now, or until `stop`. For a run until idle: live messages then wait behind
/// those of their key.
///
/// # Errors
/// Fails if a topic cannot be read, the store fails, or the queue is full.
pub(crate) async fn adopt_to_end(
    shared: &Shared,
    config: &ConsumerConfig,
    stop: &CancellationToken,
) -> Result<(), ConsumerError> {
    #[cfg(feature = "kafka")]
    return adoption::run_to_end(shared, config, stop).await;
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (shared, config, stop);
        Ok(())
    }
}

/// Runs the background tasks of a consumer until `stop`: the copies of its dead letters, and the adoption of others'.
///
/// # Errors
/// Fails if it cannot start because of a permanent error.
pub(crate) async fn background(
    shared: &Shared,
    config: &ConsumerConfig,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    #[cfg(feature = "mongodb")]
    let copies = copies::run(config, &shared.stores, stop.clone());
    #[cfg(not(feature = "mongodb"))]
    let copies = stop.clone().cancelled_owned();
    #[cfg(feature = "kafka")]
    {
        // Dropped, and so ended, when the mirror has ended.
        let _adoptions = adoption::spawn(shared, config, &stop);
        let mirror = async { Ok::<(), ConsumerError>(kafka::mirror(config, &shared.stores, stop).await?) };
        let copies = async {
            copies.await;
            Ok::<(), ConsumerError>(())
        };
        tokio::try_join!(mirror, copies).map(|((), ())| ())
    }
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (shared, config, stop);
        copies.await;
        Ok(())
    }
}

/// Waits until the background task of a consumer has caught up.
pub(crate) async fn background_done(shared: &Shared, config: &ConsumerConfig) {
    #[cfg(feature = "kafka")]
    kafka::mirrored(config, &shared.stores).await;
    #[cfg(feature = "mongodb")]
    copies::copied(config, &shared.stores).await;
    #[cfg(not(any(feature = "kafka", feature = "mongodb")))]
    let _ = (shared, config);
}
