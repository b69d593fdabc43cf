//! Ends work: sends notices to the intake and starts the next message of the lane.

use tokio::time::Instant;

use super::lane::{LaneItem, LaneKey, Ready};
use super::task::Shard;
use super::work::Done;
use crate::attempt::Outcome;
use crate::flow::{Fate, Notice, Ticket};
use crate::live::Begin;
use crate::mutation::mutated;

impl Shard {
    pub(super) fn finished(&mut self, done: Done) {
        match done {
            Done::Attempted(item, outcome, started, permit) => {
                self.attempts -= 1;
                self.reuse(permit);
                self.attempted(item, outcome, started);
            }
            Done::Dropped(lane, ticket) => {
                self.attempts -= 1;
                self.ended(ticket, Fate::Abandoned);
                self.next_in_lane(lane);
            }
            Done::Live(lane, ticket, fate) => {
                self.ended(ticket, fate);
                self.next_in_lane(lane);
            }
            Done::Appended(lane, items) => {
                let mut ended = Vec::with_capacity(items.len());
                self.change_lane(lane, |lane| {
                    lane.release();
                    for (item, fate) in items.into_iter().rev() {
                        match fate {
                            Some(fate) => ended.push((item.ticket, fate)),
                            None => {
                                lane.push_front(item);
                                lane.singly += 1;
                            }
                        }
                    }
                });
                ended.into_iter().for_each(|(ticket, fate)| self.ended(ticket, fate));
                self.next_in_lane(lane);
            }
            Done::Run => {}
        }
    }

    fn attempted(&mut self, item: LaneItem, outcome: Outcome, started: Instant) {
        let lane = item.lane();
        if !matches!(outcome, Outcome::Handled) {
            return self.process(item, lane, Begin::Ended(outcome, started.elapsed()));
        }
        self.count_handled();
        self.finish_now(lane, true, item.ticket, Fate::Settled);
    }

    /// Ends the processing of a message. A message that was not settled closes the whole assignment:
    /// nothing may overtake it (I2).
    pub(super) fn ended(&mut self, ticket: Ticket, fate: Fate) {
        self.pending.push(Notice { ticket, fate });
        let ownership = self.ownerships.get(ticket.slot as usize).and_then(Option::as_ref);
        if let Some(ownership) = ownership.filter(|ownership| ownership.generation == ticket.generation)
            && fate != Fate::Settled
        {
            ownership.close();
        }
    }

    /// Ends a message that needs no further processing.
    pub(super) fn finish_now(&mut self, lane: LaneKey, holds_lane: bool, ticket: Ticket, fate: Fate) {
        self.pending.push(Notice { ticket, fate });
        if holds_lane {
            self.next_in_lane(lane);
        }
    }

    /// Starts the next message of a lane. If the sequence is open in the store, it lets the messages
    /// linger to be appended instead.
    pub(super) fn next_in_lane(&mut self, lane: LaneKey) {
        let Some(queued) = self.lanes.get_mut(&lane) else { return };
        self.held -= queued.held();
        queued.release();
        let Some(item) = queued.pop_front() else {
            self.lanes.remove(&lane);
            return;
        };
        let singly = queued.singly > 0 || item.unsequenced;
        queued.singly = queued.singly.saturating_sub(1);
        if singly || !self.is_blocked(item.component as usize, item.hash) {
            self.ready.push_back(Ready { item, holds_lane: true });
            return;
        }
        self.linger(lane, item);
    }

    /// Abandons the messages of a revoked partition that were not started. A lane continues if its next
    /// message was one of them.
    pub(super) fn abandon_partition(&mut self, slot: u32, generation: u32) {
        let belongs = |item: &LaneItem| item.ticket.slot == slot && item.ticket.generation == generation;
        let pending = &mut self.pending;
        let mut freed = Vec::new();
        self.ready.retain(|ready| {
            let abandoned = belongs(&ready.item);
            if abandoned {
                pending.push(Notice { ticket: ready.item.ticket, fate: Fate::Abandoned });
                if ready.holds_lane {
                    freed.push(ready.item.lane());
                }
            }
            !abandoned
        });
        for lane in self.lanes.values_mut() {
            lane.retain(|item| {
                let abandoned = belongs(item);
                if abandoned {
                    pending.push(Notice { ticket: item.ticket, fate: Fate::Abandoned });
                }
                !abandoned
            });
        }
        self.recount_held();
        if mutated!(self.options, StallFreedLanes) {
            return;
        }
        for lane in freed {
            self.next_in_lane(lane);
        }
    }
}
