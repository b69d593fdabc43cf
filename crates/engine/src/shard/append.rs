//! Appends messages in batches behind their open sequence in the store.

use std::time::Duration;

use tokio::time::Instant;

use super::lane::{LaneItem, LaneKey};
use super::task::Shard;
use super::work::{Done, Work};
use crate::flow::{Fate, Notice};
use crate::held::Usage;
use crate::live::{LiveMessage, append_all};

/// The time for which messages of an open sequence linger before they are appended.
const APPEND_LINGER: Duration = Duration::from_millis(5);
/// The maximum number of messages of a lane that are appended in one call.
const APPEND_LIMIT: usize = 512;

impl Shard {
    /// Lets a message of an open sequence linger for others. Nothing waits for it, and one call for many
    /// messages costs other sequences less (I3).
    pub(super) fn linger(&mut self, lane: LaneKey, item: LaneItem) {
        self.change_lane(lane, |lane| {
            lane.push_front(item);
            lane.hold_by_open_sequence();
        });
        self.lingering.push(lane);
        self.append_at.get_or_insert_with(|| Instant::now() + APPEND_LINGER);
    }

    /// Appends the lingering messages to their sequences, one call per lane.
    pub(super) fn append_lingering(&mut self) {
        self.append_at = None;
        for lane in std::mem::take(&mut self.lingering) {
            if !self.lanes.contains_key(&lane) {
                continue;
            }
            let items = self.change_lane(lane, |lane| {
                let (mut items, mut usage) = (Vec::new(), Usage::default());
                while items.len() < APPEND_LIMIT
                    && let Some(item) = lane.pop_front_if(|item| !item.unsequenced)
                {
                    usage += item.usage();
                    items.push(item);
                }
                lane.processes(usage);
                items
            });
            match items.is_empty() {
                true => self.next_in_lane(lane),
                false => self.append(lane, items),
            }
        }
    }

    /// Appends these messages of a lane to their open sequence in one call.
    pub(super) fn append(&mut self, lane: LaneKey, items: Vec<LaneItem>) {
        let mut messages = Vec::with_capacity(items.len());
        for item in items {
            let ticket = item.ticket;
            match self.live_message(item) {
                Some(live) => messages.push((ticket, live)),
                None => self.pending.push(Notice { ticket, fate: Fate::Abandoned }),
            }
        }
        let future = Box::pin(async move {
            let ended = append_all(messages).await.into_iter();
            let items = ended.map(|(ticket, live, fate)| {
                let component = lane.0;
                let LiveMessage { delivery, hash, .. } = live;
                (LaneItem { delivery, ticket, hash, component, unsequenced: false }, fate)
            });
            Done::Appended(lane, items.collect())
        });
        self.work.push(Work::Other(future));
    }
}
