//! Reads from the store what other processes changed: pauses, opened sequences, the retry backlog, the
//! free space.

use std::sync::Arc;

use std::time::Duration;

use lazaret_core::policy::{CapacityPolicy, Shortage};
use lazaret_core::store::{Occupancy, PauseScope, Result};
use tokio::time::Instant;

use crate::component::Component;
use crate::events::Event;
use crate::flow::Shards;
use crate::gate::change_or;
use crate::sequence_sync;

/// The interval at which the consumer checks the space that its letters take, unless it writes much. The
/// bounds are generous, so frequent checks are unnecessary.
const CAPACITY_INTERVAL: Duration = Duration::from_secs(10);
/// The delay after a count of letters, as a multiple of the count's duration. A store may read an index
/// entry for each letter, so it spends a tenth of the time on counts.
const COUNT_REST: u32 = 9;
/// The maximum delay after a count.
const MOST_REST: Duration = Duration::from_secs(300);

/// The number of open letters in the fullest queue, as last counted.
#[derive(Debug)]
struct LetterCount {
    open: u64,
    /// The time at which the letters may be counted again.
    next: Instant,
}

impl LetterCount {
    fn new() -> Self {
        Self { open: 0, next: Instant::now() }
    }

    /// Returns the number of open letters. Counts them if the last count, successful or not, is long
    /// enough ago.
    async fn read(&mut self, count: impl Future<Output = Result<u64>>) -> Result<u64> {
        let began = Instant::now();
        if began < self.next {
            return Ok(self.open);
        }
        let counted = count.await;
        self.next = Instant::now() + began.elapsed().saturating_mul(COUNT_REST).min(MOST_REST);
        self.open = counted?;
        Ok(self.open)
    }
}

/// Refreshes at a regular interval and whenever the gate changes, for example because a pause has to be
/// written. It works for as long as it is polled.
pub(crate) async fn run(components: Vec<Arc<Component>>, shards: Shards) {
    let Some(Component { options, guards, lifecycle, flight, .. }) = components.first().map(|first| &**first)
    else {
        return;
    };
    let mut changed = guards.gate.watch();
    let mut look_at_capacity = Instant::now();
    let mut letters = LetterCount::new();
    loop {
        tokio::select! {
            biased;
            () = change_or(&mut changed, Some(options.refresh)) => {}
            () = guards.handed_off.reached() => {
                look_at_capacity = Instant::now() + CAPACITY_INTERVAL;
                measure(&components, &mut letters).await;
                continue;
            }
        }
        flight.expire_suspects();
        // The source's lag may grow while no message is read; the intake publishes it.
        lifecycle.activity.notify_one();
        let refreshed = refresh(&components, &shards).await;
        if refreshed.is_ok() && Instant::now() >= look_at_capacity {
            look_at_capacity = Instant::now() + CAPACITY_INTERVAL;
            measure(&components, &mut letters).await;
        }
        if let Err(error) = refreshed {
            tracing::debug!(%error, "store not refreshed");
            tokio::time::sleep(options.refresh).await;
        }
    }
}

async fn refresh(components: &[Arc<Component>], shards: &Shards) -> Result<()> {
    let Some(first) = components.first() else { return Ok(()) };
    let Component { identity, store, guards, .. } = &**first;
    for pause in guards.gate.unstored() {
        store.pause(&identity.consumer, pause.scope.clone(), &pause.by).await?;
        guards.gate.stored(&pause.scope);
    }
    catch_up(first).await?;
    for component in components {
        sequence_sync::sync(component, shards).await?;
    }
    guards.backlog.read(&**store).await
}

/// Checks the free space of the store.
async fn measure(components: &[Arc<Component>], letters: &mut LetterCount) {
    let Some(first) = components.first() else { return };
    let before = first.guards.handed_off.begin();
    if let Err(error) = update_capacity(components, letters, before).await {
        tracing::warn!(%error, "room of the store unknown, its bounds are not checked");
    }
}

/// Compares the letters and the space that the store takes with their bounds, and holds the source if
/// one is reached (I9). `before` is the total of bytes handed off before the measurement.
async fn update_capacity(
    components: &[Arc<Component>],
    letters: &mut LetterCount,
    before: u64,
) -> Result<()> {
    let Some(Component { identity, store, guards, options, .. }) = components.first().map(|first| &**first)
    else {
        return Ok(());
    };
    let capacity = options.dead_letter.as_ref().map_or(CapacityPolicy::NONE, |letters| letters.capacity);
    if capacity == CapacityPolicy::NONE {
        guards.handed_off.measured(None);
        guards.handed_off.disk_measured(before, None);
        return Ok(());
    }
    let room = store.occupancy().await?;
    guards.handed_off.measured(capacity.room(&room));
    guards.handed_off.disk_measured(before, beside_reserve(&capacity, &room));
    let open = match capacity.max_letters {
        Some(_) => letters.read(most_open(components)).await?,
        None => 0,
    };
    let shortage = capacity.shortage(open, &room);
    if matches!(shortage, Some(Shortage::Disk(_))) {
        guards.ask_place(&**store).await;
    }
    if guards.update_shortage(shortage) {
        let consumer = identity.consumer.as_str();
        match shortage {
            Some(shortage) => {
                let why = shortage.describe(guards.place());
                tracing::warn!(consumer, remedy = shortage.remedy(), "{why}: reading paused");
            }
            None => tracing::info!(consumer, "the store has room again, reading resumed"),
        }
        guards.gate.notify_watchers();
    }
    Ok(())
}

/// Returns the number of open letters in the fullest queue.
async fn most_open(components: &[Arc<Component>]) -> Result<u64> {
    let mut most = 0;
    for component in components {
        most = most.max(component.store.counts(&component.queue).await?.open());
    }
    Ok(most)
}

/// Returns the free space of the store's disk without its reserve, or `None` if there is no reserve or
/// the store does not know.
pub(crate) fn beside_reserve(capacity: &CapacityPolicy, room: &Occupancy) -> Option<u64> {
    CapacityPolicy { min_free: capacity.min_free, ..CapacityPolicy::NONE }.room(room)
}

/// Reads the store's time and the pauses. Nothing may run before this call.
pub(crate) async fn catch_up(component: &Component) -> Result<()> {
    component.clock.ask(&*component.store).await?;
    reload_pauses(component).await
}

/// Loads the consumer's pauses from the store and reports the changes.
pub(crate) async fn reload_pauses(component: &Component) -> Result<()> {
    let Component { identity, store, guards, telemetry, .. } = component;
    let (new, ended) = loop {
        let asked = guards.gate.ask_pauses();
        let pauses = store.pauses(&identity.consumer).await?;
        if let Some(changes) = guards.gate.set_pauses(asked, pauses) {
            break changes;
        }
    };
    for pause in &new {
        telemetry.emit(&Event::Paused { scope: &pause.scope, why: &pause.by.why });
    }
    for pause in &ended {
        if pause.scope == PauseScope::Consumer {
            guards.reset_fuse();
        }
        telemetry.emit(&Event::Resumed { scope: &pause.scope });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{ErrorKind, StoreError};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn counting_letters_takes_a_tenth_of_the_time() {
        let mut letters = LetterCount::new();
        let slow = |open: u64| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(open)
        };
        let uncounted = || async { Ok(1_000) };
        assert_eq!(letters.read(slow(5)).await.unwrap(), 5);
        for _ in 0..89 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(letters.read(uncounted()).await.unwrap(), 5);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(letters.read(slow(7)).await.unwrap(), 7);
        // A slow count that fails is also followed by a delay.
        tokio::time::advance(Duration::from_secs(90)).await;
        let failing = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Err(StoreError::not_done(ErrorKind::Unavailable, "counts", "no answer"))
        };
        assert!(letters.read(failing).await.is_err());
        assert_eq!(letters.read(uncounted()).await.unwrap(), 7);
        // A count that takes no time may be repeated at once.
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(letters.read(async { Ok(8) }).await.unwrap(), 8);
        assert_eq!(letters.read(async { Ok(9) }).await.unwrap(), 9);
    }
}
