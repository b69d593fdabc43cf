//! Throughput and CPU time of one contender.

use std::time::Duration;

use super::topic::Topic;
use crate::core::rate;

/// The results of one contender, by round.
#[derive(Default)]
pub(super) struct Runs {
    /// Messages per second.
    pub(super) rates: Vec<f64>,
    /// Nanoseconds of CPU time per message, which depends less on other load.
    pub(super) costs: Vec<f64>,
}

impl Runs {
    /// Adds a run that reads the whole topic.
    pub(super) async fn add(&mut self, topic: &Topic, run: impl Future<Output = Duration>) {
        let before = processor_time();
        self.rates.push(rate(topic.messages, run.await));
        self.costs.push((processor_time() - before).as_nanos() as f64 / topic.messages as f64);
    }
}

/// Returns the CPU time of this process, with a resolution of 10 ms.
fn processor_time() -> Duration {
    const STEPS_A_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program name in parentheses. Of the fields after it, the twelfth and thirteenth are utime and stime.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let steps: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(steps * 1000 / STEPS_A_SECOND)
}
