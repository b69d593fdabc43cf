//! Brings the open sequences of a queue from the store to the shards.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazaret_core::store::Result;

use crate::mailbox::Mailbox;
use crate::shard::ToShard;
use crate::shared::Component;

/// How many sequences are asked for at once.
const PAGE: usize = 10_000;

/// The mailboxes of all shards.
pub(crate) type Shards = Arc<[Arc<Mailbox<ToShard>>]>;

/// Lists to the shards what was opened since the last call. What the shards get before a message of a partition is
/// what they know when they see it. Two calls at once list some sequences twice, which does no harm.
pub(crate) async fn refresh(component: &Component, shards: &Shards) -> Result<()> {
    let mut revision = component.revision.load(Ordering::Acquire);
    loop {
        let page = component.shared.store.opened_since(&component.queue, revision, PAGE).await?;
        revision = page.revision;
        let mut lists = vec![Vec::new(); shards.len()];
        for sequence in &page.sequences {
            let hash = component.shared.hasher.hash(sequence.as_str());
            lists[hash.shard(shards.len())].push(hash);
        }
        for (shard, sequences) in shards.iter().zip(lists) {
            shard.push(ToShard::Open { component: component.index, sequences, revision });
        }
        component.revision.fetch_max(revision, Ordering::AcqRel);
        if !page.more {
            return Ok(());
        }
    }
}
