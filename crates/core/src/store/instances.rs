//! The instances of a fleet. Each reports at intervals that it lives; all reports are one [value](super::KeyValue).

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{KeyValue, Reading, update};
use super::rules::later;
use crate::message::{ConsumerName, Partition};

/// Maximum number of instances that are listed. Of more, those that reported last stay (I7).
const MAX_INSTANCES: usize = 1_000;

/// A process that uses the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its name, unlike that of any other process.
    pub name: String,
    /// The version of Lazaret that it runs.
    pub version: String,
    /// When it started, by its own clock.
    pub started_at: Timestamp,
    /// The consumers that it runs, with the partitions that it reads.
    pub consumers: BTreeMap<ConsumerName, Vec<Partition>>,
}

/// An instance with its last report, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenInstance {
    /// What it reported.
    pub instance: Instance,
    /// When it last reported.
    pub last_seen: Timestamp,
    /// When it is no longer listed, unless it reports again.
    expires_at: Timestamp,
}

/// Reports of the processes that share a store. The store's clock determines when one is forgotten.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Reports that an instance lives. Without another report it is forgotten after `ttl`.
    async fn report(&self, instance: &Instance, ttl: Duration) -> Result<()>;

    /// Removes an instance that ends.
    async fn leave(&self, name: &str) -> Result<()>;

    /// The instances that live, by name.
    async fn instances(&self) -> Result<Vec<SeenInstance>>;
}

const SPACE: &str = "instances";
const NAME: &str = "all";

/// The instances that live, by name.
fn decode(reading: &Reading) -> Result<BTreeMap<String, SeenInstance>> {
    let Some(found) = &reading.found else { return Ok(BTreeMap::new()) };
    let seen: Vec<SeenInstance> = serde_json::from_slice(&found.value).map_err(|error| {
        StoreError::not_done(ErrorKind::Corrupt, "instances", "failed to decode the instances")
            .with_source(error)
    })?;
    let live = seen.into_iter().filter(|seen| seen.expires_at > reading.now);
    Ok(live.map(|seen| (seen.instance.name.clone(), seen)).collect())
}

fn encode(instances: BTreeMap<String, SeenInstance>) -> Result<Bytes> {
    let mut seen: Vec<SeenInstance> = instances.into_values().collect();
    if seen.len() > MAX_INSTANCES {
        seen.sort_by_key(|seen| std::cmp::Reverse(seen.last_seen));
        seen.truncate(MAX_INSTANCES);
    }
    serde_json::to_vec(&seen).map(Bytes::from).map_err(|error| {
        StoreError::not_done(ErrorKind::Invalid, "instances", "failed to encode the instances")
            .with_source(error)
    })
}

#[async_trait]
impl<K: KeyValue + ?Sized> Instances for K {
    async fn report(&self, instance: &Instance, ttl: Duration) -> Result<()> {
        update(self, (SPACE, NAME), |reading| {
            let mut instances = decode(reading)?;
            let seen = SeenInstance {
                instance: instance.clone(),
                last_seen: reading.now,
                expires_at: later(reading.now, ttl),
            };
            instances.insert(instance.name.clone(), seen);
            Ok(((), Some(encode(instances)?)))
        })
        .await
    }

    async fn leave(&self, name: &str) -> Result<()> {
        update(self, (SPACE, NAME), |reading| {
            let mut instances = decode(reading)?;
            let value = instances.remove(name).map(|_| encode(instances)).transpose()?;
            Ok(((), value))
        })
        .await
    }

    async fn instances(&self) -> Result<Vec<SeenInstance>> {
        Ok(decode(&self.read(SPACE, NAME).await?)?.into_values().collect())
    }
}
