//! Holds the source: window, pauses, store outages, backlog, capacity.

use super::state::Stage;
use super::task::Intake;
use crate::mutation::mutated;

impl Intake {
    pub(super) fn update_window(&mut self) {
        let (window, in_flight) = (self.options.window * self.components.len(), self.in_window());
        let full = if self.full { in_flight > window / 4 * 3 } else { in_flight >= window };
        if full != self.full {
            self.full = full;
            self.update_holds();
        }
    }

    /// Returns the number of messages that count towards the window. Messages that failing sequences
    /// hold back, and messages in the delay queue, have their own limits, so that they do not stop other
    /// messages (I3).
    pub(super) fn in_window(&self) -> usize {
        self.in_flight.saturating_sub(self.delayed.deliveries() + self.held_beside_window())
    }

    fn held_beside_window(&self) -> usize {
        match mutated!(self.options, CountHeldInWindow) {
            true => 0,
            false => self.guards.held.beside_window(),
        }
    }

    /// Pauses and resumes the partitions of the source.
    pub(super) fn update_holds(&mut self) {
        let gate = &self.guards.gate;
        let all = self.full
            || self.draining
            || gate.has_store_outage()
            || self.guards.backlog.is_full()
            || self.guards.shortage().is_some();
        let (mut hold, mut deliver) = (Vec::new(), Vec::new());
        let share = self.delay_share();
        for slot in &mut self.slots {
            let held = match slot.stage {
                Stage::Live(_) => {
                    all || slot.delayed.reaches(share) || !gate.admits_partition(&slot.partition)
                }
                Stage::Preparing { .. } | Stage::Revoking { .. } => true,
                Stage::Free => continue,
            };
            if held != slot.held {
                slot.held = held;
                if held { &mut hold } else { &mut deliver }.push(slot.partition.clone());
            }
        }
        if !hold.is_empty() {
            self.source.pause(&hold);
        }
        if !deliver.is_empty() {
            self.source.resume(&deliver);
        }
    }
}
