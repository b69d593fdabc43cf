//! What a running consumer knows of itself at this moment, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Stands for a lag that nobody knows.
const UNKNOWN: u64 = u64::MAX;

/// Numbers that go up and down. Written by the intake, read by handles.
#[derive(Debug)]
pub(crate) struct Gauges {
    in_flight: AtomicU64,
    lag: AtomicU64,
}

impl Default for Gauges {
    fn default() -> Self {
        Self { in_flight: AtomicU64::new(0), lag: AtomicU64::new(UNKNOWN) }
    }
}

impl Gauges {
    pub(crate) fn publish_in_flight(&self, in_flight: usize) {
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
    }

    pub(crate) fn publish_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        Some(self.lag.load(Ordering::Relaxed)).filter(|lag| *lag != UNKNOWN)
    }
}
