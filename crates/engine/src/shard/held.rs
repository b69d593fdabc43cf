//! Counts the messages of held lanes, and moves lanes to the store when there are too many.

use super::lane::{Lane, LaneItem, LaneKey};
use super::task::Shard;
use crate::held::{NewHold, Usage};

impl Shard {
    /// Changes a lane and keeps the count of held messages up to date. Creates the lane if there is
    /// none.
    pub(super) fn change_lane<T>(&mut self, key: LaneKey, change: impl FnOnce(&mut Lane) -> T) -> T {
        let lane = self.lanes.entry(key).or_default();
        let before = lane.held();
        let changed = change(lane);
        self.held += lane.held();
        self.held -= before;
        changed
    }

    /// Queues a message in a busy lane. Returns the message if there is no such lane.
    pub(super) fn queue_behind(&mut self, key: LaneKey, item: LaneItem) -> Option<LaneItem> {
        let Some(lane) = self.lanes.get_mut(&key) else { return Some(item) };
        let before = lane.held();
        lane.push_back(item);
        let held = lane.held();
        if held != before {
            self.held += held;
            self.held -= before;
            // Keys with the most messages are the most likely to receive another.
            if self.guards.held.is_pressed() {
                lane.move_to_store();
            }
        }
        None
    }

    /// Marks the lanes whose message failed or began to wait.
    pub(super) fn receive_holds(&mut self) {
        let mut batch = Vec::new();
        while self.holds.take(&mut batch) {
            for NewHold { component, hash, hold } in batch.drain(..) {
                let key = (component, hash);
                if !hold.has_ended() && self.lanes.contains_key(&key) {
                    self.change_lane(key, |lane| lane.hold_by_message(hold));
                }
            }
        }
    }

    /// Publishes the number of held messages. The intake computes its window from it.
    pub(super) fn publish_held(&mut self) {
        if self.held != self.held_published {
            self.guards.held.publish(self.held_published, self.held);
            self.held_published = self.held;
            self.notices.wake();
        }
    }

    /// Recounts after messages were removed from many lanes.
    pub(super) fn recount_held(&mut self) {
        self.held = self.lanes.values().fold(Usage::default(), |mut held, lane| {
            held += lane.held();
            held
        });
    }
}
