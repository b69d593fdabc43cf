//! The clock of one process of a fleet.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use lazaret_core::{Clock, Timestamp};
use lazaret_testkit::TokioClock;
use lazaret_testkit::clock::test_epoch;

use crate::random::Random;
use crate::world::World;

/// How far off a clock is at most, in seconds.
const OFF_SECONDS: u64 = 3_600;
/// How much too fast or too slow it is at most, in millionths.
const RATE_MILLIONTHS: u64 = 1_000;

/// A clock that was set wrong, and goes wrong.
#[derive(Debug)]
struct DriftingClock {
    right: TokioClock,
    off: SignedDuration,
    rate_millionths: i64,
}

impl Clock for DriftingClock {
    fn now(&self) -> Timestamp {
        let now = self.right.now();
        let passed = now.duration_since(test_epoch()).as_micros();
        let gained = passed * i128::from(self.rate_millionths) / 1_000_000;
        now + self.off + SignedDuration::from_micros(gained as i64)
    }

    fn steady(&self) -> Duration {
        self.right.steady()
    }
}

/// Returns the clock of a process.
pub(crate) fn clock_of(world: &World, process: u64) -> Arc<dyn Clock> {
    let right = world.clock.clone();
    if !world.plan.drift {
        return Arc::new(right);
    }
    let mut random = Random::new(world.plan.seed).fork(80_000 + process);
    let mut signed = |limit: u64| random.below(2 * limit + 1) as i64 - limit as i64;
    let off = SignedDuration::from_secs(signed(OFF_SECONDS));
    let rate_millionths = signed(RATE_MILLIONTHS);
    world.trace(|| {
        format!("the clock of process {process} is off by {off:#}, and by {rate_millionths} millionths")
    });
    Arc::new(DriftingClock { right, off, rate_millionths })
}
