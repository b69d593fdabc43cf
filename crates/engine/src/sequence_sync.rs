//! Sends the store's list of open sequences of a queue to the shards.

use std::sync::atomic::Ordering;

use lazaret_core::store::Result;

use crate::component::Component;
use crate::flow::{Shards, ToShard};

/// The number of sequences in one page.
const PAGE: usize = 10_000;

/// Sends the shards the sequences that were opened since the last call. A shard receives the list before
/// all messages that are sent after this returns. Two concurrent calls may list some sequences twice,
/// which is harmless.
pub(crate) async fn sync(component: &Component, shards: &Shards) -> Result<()> {
    let mut revision = component.signals.revision.load(Ordering::Acquire);
    loop {
        let page = component.store.opened_since(&component.queue, revision, PAGE).await?;
        revision = page.revision;
        let mut lists = vec![Vec::new(); shards.len()];
        for sequence in &page.sequences {
            let hash = component.hash(sequence);
            lists[hash.shard(shards.len())].push(hash);
        }
        for (shard, sequences) in shards.iter().zip(lists) {
            shard.push(ToShard::Open { component: component.index, sequences, revision });
        }
        component.signals.revision.fetch_max(revision, Ordering::AcqRel);
        if !page.more {
            return Ok(());
        }
    }
}
