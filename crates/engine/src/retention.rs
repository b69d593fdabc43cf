//! Retention: expires open letters and purges closed letters.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Timestamp;
use lazaret_core::store::Result;

use crate::component::Component;
use crate::events::Event;

/// The interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(60);
/// The number of letters in one call.
const BATCH: usize = 500;

/// Applies the retention of one queue until the consumer drains.
pub(crate) async fn run(component: Arc<Component>) {
    loop {
        if let Err(error) = round(&component).await {
            tracing::debug!(%error, queue = %component.queue, "expired letters not closed");
        }
        tokio::select! {
            biased;
            () = component.lifecycle.drain.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

async fn round(component: &Component) -> Result<()> {
    let Component { queue, options, store, telemetry, lifecycle, .. } = component;
    let keep_closed = options.dead_letter.as_ref().and_then(|options| options.keep_closed);
    loop {
        let closed_before =
            keep_closed.map(|keep| component.now().checked_sub(keep).unwrap_or(Timestamp::UNIX_EPOCH));
        let done = store.expire(queue, closed_before, BATCH).await?;
        if done.expired > 0 {
            telemetry.emit(&Event::Expired { queue, letters: done.expired });
            component.signals.retry.notify_one();
        }
        if !done.more || lifecycle.drain.is_cancelled() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}
