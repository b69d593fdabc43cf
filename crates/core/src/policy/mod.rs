//! The decisions, as pure functions of values.
//!
//! Nothing here reads a clock, draws a random number or does I/O: time, seeds and failures come in, a decision goes
//! out. The engine calls them in this order: [`Classifier`] (what is this failure?), [`RetryPolicy`] and [`Budget`] (may it
//! be tried again, and when?), [`Breaker`] and [`Fuse`] (is it the message or the world?), [`PoisonPolicy`] (is it
//! always the same failure?), [`EnqueuePolicy`] (is a letter kept?), and last [`OnDeadPolicy`] (does it hold its sequence?).
//! [`CapacityPolicy`] decides beside them whether the
//! source may deliver more.

mod breaker;
mod budget;
mod capacity;
mod classify;
mod enqueue;
mod fuse;
mod on_dead;
mod pattern;
mod poison;
mod retry;
mod taxonomy;

pub use breaker::{Admit, Breaker, BreakerPolicy, BreakerState};
pub use budget::{Budget, BudgetPolicy, Charge, Dimension, Rate};
pub use capacity::{CapacityPolicy, DiskSpace, Shortage};
pub use classify::{Classification, Classifier, Rule, Subject, When};
pub use enqueue::{AlwaysEnqueue, Decision, EnqueuePolicy, Stage};
pub use fuse::{Blown, Fuse, FusePolicy};
pub use on_dead::{OnDead, OnDeadOverride, OnDeadPolicy};
pub use pattern::{Comparison, ErrorTypePattern, Glob, Operator, StatusPattern};
pub use poison::{PoisonPolicy, run_length};
pub use retry::{Limit, Next, RetryOverride, RetryPolicy, Strategy, seed_of};
pub use taxonomy::taxonomy;

/// A policy setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A field holds a value outside its range, or text that is not in its form.
    #[error("{field} {why}")]
    Invalid {
        /// The field, spelled as in the configuration file.
        field: &'static str,
        /// The requirement, e.g. "must be at least 1".
        why: &'static str,
    },
}
