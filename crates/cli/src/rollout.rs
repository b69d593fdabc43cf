//! The rollout options of an operation: rate, ramp, stop rule and start time.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::BeginRequest;
use lazaret_api::values::{Ramp, ramp, rate, share, time};

/// Controls how fast and in which stages an operation proceeds.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Rollout")]
pub(crate) struct RolloutPolicy {
    /// Limit the rate, such as 50/s, 100/m or unlimited; default: 50/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<f64>,

    /// Set the letters per stage, or none; a stage starts when the one before is done; default: 1,5,25,100, then the rest
    #[arg(long, value_name = "STAGES", value_parser = ramp)]
    pub ramp: Option<Ramp>,

    /// Pause when more than this share fails again, such as 5%, 0.05 or never; default: 5%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub stop_at: Option<f64>,

    /// Start at a time, such as 2026-01-31T22:00:00Z, or after a delay, such as +90m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Timestamp>,
}

impl RolloutPolicy {
    /// Writes the options into a request.
    pub(crate) fn apply(&self, request: &mut BeginRequest) {
        request.rate = self.rate;
        request.ramp = self.ramp.clone().map(|Ramp(stages)| stages);
        request.stop_at = self.stop_at;
        request.at = self.at;
    }
}
