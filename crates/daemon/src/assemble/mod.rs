//! From a consumer in the configuration to one that can run: one file per part.

mod access;
mod handler;
#[cfg(feature = "kafka")]
mod kafka;
mod options;
mod recorder;
mod source;
mod store;

use std::sync::Arc;

use lazaret_config::Consumer as Wanted;
use lazaret_core::FlightRecorder;
use lazaret_engine::{Consumer, Options};
use lazaret_server::Registry;
use tokio_util::sync::CancellationToken;

pub(crate) use access::{limits, tokens};
pub(crate) use handler::{handler, http_options};
#[cfg(feature = "kafka")]
pub(crate) use kafka::check_property as check_kafka_property;
pub(crate) use recorder::open as open_recorder;
pub(crate) use store::Stores;

use crate::error::Trouble;
use crate::telemetry::Telemetry;

/// What all consumers of a process share.
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) registry: Registry,
    pub(crate) telemetry: Telemetry,
    pub(crate) until_idle: bool,
}

/// Puts a consumer together. Its source is opened; nothing runs yet.
pub(crate) async fn consumer(
    shared: &Shared,
    wanted: &Wanted,
    recorder: Option<Arc<dyn FlightRecorder>>,
) -> Result<Consumer, Trouble> {
    let handler = shared.telemetry.watch(wanted, handler(wanted)?);
    let options = options::options(wanted, &shared.stores, recorder, shared.until_idle)?;
    let (source, relay) = source::open(wanted, &shared.stores, shared.until_idle).await?;
    let options = Options { relay, ..options };
    let builder = Consumer::builder(wanted.name.as_str())
        .source(source)
        .store(shared.stores.letters.clone())
        .handler(handler)
        .options(options)
        .observer(shared.registry.observer(&wanted.name));
    Ok(shared.telemetry.observe(wanted, builder).build()?)
}

/// What runs beside a consumer until `stop`: the copies of its dead letters.
///
/// # Errors
/// When it cannot begin, and waiting does not mend that.
pub(crate) async fn beside(shared: &Shared, wanted: &Wanted, stop: CancellationToken) -> Result<(), Trouble> {
    #[cfg(feature = "kafka")]
    return Ok(kafka::mirror(wanted, &shared.stores, stop).await?);
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (shared, wanted);
        stop.cancelled().await;
        Ok(())
    }
}

/// Waits until what runs beside a consumer has nothing left to do.
pub(crate) async fn beside_is_done(shared: &Shared, wanted: &Wanted) {
    #[cfg(feature = "kafka")]
    kafka::mirrored(wanted, &shared.stores).await;
    #[cfg(not(feature = "kafka"))]
    let _ = (shared, wanted);
}
