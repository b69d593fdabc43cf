//! What every backend must do, as named tests.
//!
//! Each case is a function that takes a fresh bed (a backend, a clock, helpers) and panics when a promise is broken.
//! The macros make one `#[tokio::test]` per case: [`store_test_suite!`](crate::store_test_suite),
//! [`checkpoints_test_suite!`](crate::checkpoints_test_suite), [`locks_test_suite!`](crate::locks_test_suite),
//! [`dedupe_test_suite!`](crate::dedupe_test_suite), [`outbox_test_suite!`](crate::outbox_test_suite) and [`source_test_suite!`](crate::source_test_suite).
//!
//! A case whose name begins with a letter and a number comes from the catalogues that Lazaret was built from: `q` and
//! `x` from Axon's sequenced dead-letter queue and the holes in its suite, `h`, `i` and `k` from its component,
//! integration and cache tests as far as they speak of the queue, `fw` from FlowWarden's contracts. Where Lazaret
//! differs on purpose, the case says how and why.

#![allow(clippy::unwrap_used, reason = "a case that fails panics; that is its answer")]

pub mod checkpoints;
pub mod dedupe;
pub mod letters;
pub mod locks;
pub mod operations;
pub mod outbox;
pub mod source;
pub mod triage;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lazaret_core::{Clock, Timestamp};

use crate::clock::ManualClock;

/// A backend and the clock it goes by, fresh for one case.
pub struct Bed<S> {
    /// The backend.
    pub store: Arc<S>,
    /// Its clock. It stands still until the case moves it.
    pub clock: ManualClock,
}

impl<S> Bed<S> {
    /// A bed for what `make` makes of a clock.
    pub async fn new<F, M>(make: M) -> Self
    where
        M: FnOnce(Arc<dyn Clock>) -> F,
        F: Future<Output = S>,
    {
        let clock = ManualClock::new();
        let store = Arc::new(make(Arc::new(clock.clone())).await);
        Self { store, clock }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

/// Seconds, for short cases.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A case that cannot hold where a suite is run, by design.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// The name of the case.
    pub case: &'static str,
    /// Why it cannot hold, in a sentence.
    pub why: &'static str,
}

/// Runs a case. One that is named as an exception has to fail: what holds is no exception. Not for direct use.
#[doc(hidden)]
pub async fn hold(name: &str, exceptions: &[Exception], case: impl Future<Output = ()>) {
    let Some(exception) = exceptions.iter().find(|exception| exception.case == name) else {
        return case.await;
    };
    let ended = AssertUnwindSafe(case).catch_unwind().await;
    assert!(ended.is_err(), "{name} holds, so it is no exception any more: {}", exception.why);
}

/// What a suite needs is there: nothing. Not for direct use.
#[doc(hidden)]
pub fn always() -> bool {
    true
}

/// Makes the tests of a list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite {
    ($name:ident, $runtime:tt, $make:expr, $bed:path; $($list:tt)*) => {
        $crate::__suite! { $name, $runtime, $make, $bed, $crate::suite::always, &[]; $($list)* }
    };
    ($name:ident, $runtime:tt, $make:expr, $bed:path, $ready:path; $($list:tt)*) => {
        $crate::__suite! { $name, $runtime, $make, $bed, $ready, &[]; $($list)* }
    };
    (
        $name:ident, $runtime:tt, $make:expr, $bed:path, $ready:path, $exceptions:expr;
        $($module:ident { $($case:ident)* })*
    ) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            /// The names of all cases.
            #[allow(dead_code)]
            pub(super) const CASES: &[&str] = &[$($(stringify!($case)),*),*];

            $($(
                $crate::__case! { $runtime $case {
                    if !$ready() {
                        return;
                    }
                    let case = async {
                        let bed = $bed($make).await;
                        $crate::suite::$module::$case(bed).await;
                    };
                    $crate::suite::hold(stringify!($case), $exceptions, case).await;
                } }
            )*)*
        }
    };
}

/// Makes one test. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __case {
    ([$($runtime:tt)*] $case:ident $body:block) => {
        #[::tokio::test($($runtime)*)]
        async fn $case() $body
    };
}

#[cfg(test)]
mod tests {
    /// Every case that is written is also run: each public async function of a suite file stands in a list.
    #[test]
    fn every_case_stands_in_a_list() {
        let lists =
            [include_str!("letters/mod.rs"), include_str!("checkpoints.rs"), include_str!("locks.rs")];
        let lists = [
            &lists.concat(),
            include_str!("dedupe.rs"),
            include_str!("source.rs"),
            include_str!("triage/find.rs"),
        ]
        .concat();
        let files = [
            include_str!("letters/queue.rs"),
            include_str!("letters/holes.rs"),
            include_str!("letters/consumer.rs"),
            include_str!("letters/opened.rs"),
            include_str!("letters/flowwarden.rs"),
            include_str!("letters/intake.rs"),
            include_str!("letters/leases.rs"),
            include_str!("letters/crowds.rs"),
            include_str!("letters/acts.rs"),
            include_str!("letters/listing.rs"),
            include_str!("triage/groups.rs"),
            include_str!("triage/queues.rs"),
            include_str!("triage/changes.rs"),
            include_str!("triage/purge.rs"),
            include_str!("triage/expiry.rs"),
            include_str!("triage/payloads.rs"),
            include_str!("operations/freezing.rs"),
            include_str!("operations/commanding.rs"),
            include_str!("operations/taking.rs"),
            include_str!("operations/acting.rs"),
            include_str!("checkpoints.rs"),
            include_str!("locks.rs"),
            include_str!("dedupe.rs"),
            include_str!("source.rs"),
            include_str!("triage/find.rs"),
        ];
        let mut cases = 0;
        for file in files {
            for line in file.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
                let case = line.split(['<', '(']).next().unwrap();
                let listed = lists.lines().any(|line| line.trim() == case);
                assert!(listed, "{case} is written but not listed");
                cases += 1;
            }
        }
        assert!(cases > 150, "only {cases} cases found: are they still written as `pub async fn`?");
    }
}
