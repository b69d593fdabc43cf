//! Drains the consumer, and detects when there is no work left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::partitions::GRACE;
use super::state::Stage;
use super::task::Intake;

impl Intake {
    pub(super) fn begin_drain(&mut self) {
        self.draining = true;
        for index in 0..self.slots.len() {
            self.begin_revoke(index, false);
        }
        self.drain_until = Some(Instant::now() + self.options.drain_deadline);
        self.update_holds();
    }

    pub(super) fn is_drained(&self) -> bool {
        let over = || self.drain_until.is_some_and(|until| Instant::now() >= until + GRACE);
        self.slots.iter().all(|slot| matches!(slot.stage, Stage::Free))
            && (!self.lifecycle.has_runs() || over())
    }

    pub(super) fn waits_for_idle(&self) -> bool {
        self.options.until_idle
            && self.ended
            && !self.draining
            && self.in_flight == 0
            && self.idle_check.is_none()
            && !self.lifecycle.has_runs()
    }

    /// Asks the store whether anything will become due.
    pub(super) fn start_idle_check(&mut self) {
        if !self.waits_for_idle() || Instant::now() < self.next_idle_check {
            return;
        }
        let components = self.components.clone();
        self.idle_check = Some(Box::pin(async move {
            if components[0].options.relay().is_some_and(|relay| relay.is_expecting()) {
                return false;
            }
            for component in components {
                if component.signals.operations_active.load(Ordering::Acquire) {
                    return false;
                }
                match component.store.next_due(&component.queue).await {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => return false,
                }
            }
            true
        }));
    }

    pub(super) fn idle_checked(&mut self, idle: bool) {
        self.idle_check = None;
        self.next_idle_check = Instant::now() + self.options.refresh.min(Duration::from_millis(50));
        if idle && self.waits_for_idle() {
            self.lifecycle.drain.cancel();
        }
    }
}
