//! Reports what this process runs to the others that share the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::store::{Instance, Instances, KeyValue};
use lazaret_core::{ConsumerName, Partition};
use lazaret_engine::{Event, Observer};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The time between two reports.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time between a change and its report, so that an assignment of many partitions is one report.
const SETTLE: Duration = Duration::from_millis(200);
/// An instance that has not reported for this time is no longer listed.
const TTL: Duration = Duration::from_secs(30);

/// The consumers of this process with their partitions.
type Consumers = BTreeMap<ConsumerName, BTreeSet<Partition>>;

/// What this process reports.
pub(crate) struct Fleet {
    name: String,
    started_at: Timestamp,
    store: Arc<dyn KeyValue>,
    consumers: Mutex<Consumers>,
    changed: Notify,
}

impl Fleet {
    pub(crate) fn new(store: Arc<dyn KeyValue>) -> Self {
        let (name, started_at) = (instance_name(), Timestamp::now());
        Self { name, started_at, store, consumers: Mutex::default(), changed: Notify::new() }
    }

    /// The reports of all processes.
    pub(crate) fn store(&self) -> Arc<dyn KeyValue> {
        self.store.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Consumers> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the partitions of a consumer that starts.
    pub(crate) fn observer(self: &Arc<Self>, consumer: &str) -> impl Observer + use<> {
        let (fleet, consumer) = (self.clone(), ConsumerName::from(consumer));
        fleet.lock().insert(consumer.clone(), BTreeSet::new());
        fleet.changed.notify_one();
        move |event: &Event<'_>| {
            let mut consumers = fleet.lock();
            let partitions = consumers.entry(consumer.clone()).or_default();
            let changed = match event {
                Event::Assigned { partition } => partitions.insert((*partition).clone()),
                Event::Revoked { partition, .. } => partitions.remove(*partition),
                _ => false,
            };
            if changed {
                fleet.changed.notify_one();
            }
        }
    }

    fn report(&self) -> Instance {
        let read = |(consumer, partitions): (&ConsumerName, &BTreeSet<Partition>)| {
            (consumer.clone(), partitions.iter().cloned().collect())
        };
        let consumers = self.lock().iter().map(read).collect();
        Instance {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            consumers,
        }
    }

    /// Reports at intervals and after changes, until `stop`; then this process is no longer listed.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let reporting = async {
            loop {
                if let Err(error) = self.store.report(&self.report(), TTL).await {
                    tracing::debug!(%error, "instance not reported");
                }
                tokio::select! {
                    () = tokio::time::sleep(INTERVAL) => {}
                    () = self.changed.notified() => tokio::time::sleep(SETTLE).await,
                }
            }
        };
        let _: Option<()> = stop.run_until_cancelled(reporting).await;
        // Best effort: it is forgotten anyway.
        if let Err(error) = self.store.leave(&self.name).await {
            tracing::debug!(%error, "instance not removed");
        }
    }
}

/// Returns a name that people recognize, and no other process of a fleet has: the host and the process.
pub(crate) fn instance_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use lazaret_memory::MemoryStore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_is_listed_with_its_partitions_until_it_ends() {
        let store = Arc::new(MemoryStore::default());
        let fleet = Arc::new(Fleet::new(store.clone()));
        let observer = fleet.observer("shop");
        let (stop, running) = (CancellationToken::new(), fleet.clone());
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { running.run(&stop).await }
        });
        let partition = Partition::new("orders", 3);
        observer.on(&Event::Assigned { partition: &partition });
        tokio::time::sleep(INTERVAL).await;
        let seen = store.instances().await.unwrap();
        assert_eq!((seen.len(), seen[0].instance.name.clone()), (1, instance_name()));
        let expected = BTreeMap::from([(ConsumerName::from("shop"), vec![partition.clone()])]);
        assert_eq!(seen[0].instance.consumers, expected);
        observer.on(&Event::Revoked { partition: &partition, lost: true });
        tokio::time::sleep(INTERVAL).await;
        assert!(store.instances().await.unwrap()[0].instance.consumers.values().all(Vec::is_empty));
        stop.cancel();
        task.await.unwrap();
        assert_eq!(store.instances().await.unwrap(), []);
    }
}
