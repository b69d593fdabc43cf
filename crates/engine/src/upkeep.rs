//! Lets letters go whose time is over: open ones expire, closed ones are purged.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Timestamp;
use lazaret_core::store::Result;

use crate::events::Event;
use crate::shared::Component;

/// How often to look.
const EVERY: Duration = Duration::from_secs(60);
/// How many letters go in one step.
const STEP: usize = 500;

/// Looks after one queue until the consumer drains.
pub(crate) async fn keep_up(component: Arc<Component>) {
    let shared = &component.shared;
    loop {
        if let Err(error) = round(&component).await {
            tracing::debug!(%error, queue = %component.queue, "letters could not be looked through");
        }
        tokio::select! {
            biased;
            () = shared.drain.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn round(component: &Component) -> Result<()> {
    let shared = &component.shared;
    let keep_closed = shared.options.dead_letter.as_ref().and_then(|options| options.keep_closed);
    loop {
        let closed_before =
            keep_closed.map(|keep| shared.now().checked_sub(keep).unwrap_or(Timestamp::UNIX_EPOCH));
        let done = shared.store.expire(&component.queue, closed_before, STEP).await?;
        if done.expired > 0 {
            shared.tell(&Event::Expired { queue: &component.queue, letters: done.expired });
            component.due.notify_one();
        }
        if !done.more || shared.drain.is_cancelled() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}
