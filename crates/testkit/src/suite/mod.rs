//! The contracts of stores and sources, as named tests.
//!
//! Each case is a function that takes a fresh fixture (a backend with its clock) and panics when the contract is broken.
//! The macros make one `#[tokio::test]` per case: [`store_test_suite!`](crate::store_test_suite),
//! [`checkpoints_test_suite!`](crate::checkpoints_test_suite), [`locks_test_suite!`](crate::locks_test_suite),
//! [`dedupe_test_suite!`](crate::dedupe_test_suite), [`outbox_test_suite!`](crate::outbox_test_suite) and [`source_test_suite!`](crate::source_test_suite).
//!
//! A case whose name begins with a letter and a number comes from the catalogues that Lazaret was built from: `q` and
//! `x` from Axon's sequenced dead-letter queue and the gaps in its suite, `h`, `i` and `k` from its component,
//! integration and cache tests as far as they concern the queue, `fw` from FlowWarden's contracts. Where Lazaret
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

/// A backend with its clock, fresh for one case.
pub struct Backend<S> {
    /// The backend.
    pub store: Arc<S>,
    /// Its clock, which only the case advances.
    pub clock: ManualClock,
}

impl<S> Backend<S> {
    /// The backend that `make` makes with a clock.
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

    /// Advances the clock: time passes.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Sets the clock back. No time passes.
    pub fn set_back(&self, by: Duration) {
        self.clock.set(self.clock.now() - by);
    }

    /// Sets the clock forward. No time passes.
    pub fn set_forward(&self, by: Duration) {
        self.clock.set(self.clock.now() + by);
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

/// The cases that cannot hold for a store whose content is encrypted before it sees it.
pub const WITHOUT_CONTENT: &[Exception] = &[
    Exception {
        case: "every_change_is_audited_and_none_shows_a_payload",
        why: "the digests in the audit are those of encrypted payloads",
    },
    Exception {
        case: "equal_plans_have_equal_hashes",
        why: "the hash covers the digests of encrypted payloads",
    },
    Exception {
        case: "a_plan_holds_the_digests_of_its_payloads",
        why: "a plan shows no digests, because they are those of encrypted payloads",
    },
    Exception {
        case: "plans_and_operations_forget_the_payload_of_an_erased_letter",
        why: "a plan shows no digests, because they are those of encrypted payloads",
    },
    Exception {
        case: "a_group_keeps_only_the_beginning_of_a_long_message",
        why: "encrypted, less of it fits into the limit",
    },
];

/// Runs a case. A case that is named as an exception has to fail. Not for direct use.
#[doc(hidden)]
pub async fn run_case(name: &str, exceptions: &[Exception], case: impl Future<Output = ()>) {
    let Some(exception) = exceptions.iter().find(|exception| exception.case == name) else {
        return case.await;
    };
    let ended = AssertUnwindSafe(case).catch_unwind().await;
    assert!(ended.is_err(), "{name} passes, so it is no exception any more: {}", exception.why);
}

/// The condition of a suite without one. Not for direct use.
#[doc(hidden)]
pub fn always() -> bool {
    true
}

/// Makes the tests of a list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite {
    ($name:ident, $runtime:tt, $make:expr, $fixture:path; $($list:tt)*) => {
        $crate::__suite! { $name, $runtime, $make, $fixture, $crate::suite::always, &[]; $($list)* }
    };
    ($name:ident, $runtime:tt, $make:expr, $fixture:path, $ready:path; $($list:tt)*) => {
        $crate::__suite! { $name, $runtime, $make, $fixture, $ready, &[]; $($list)* }
    };
    (
        $name:ident, $runtime:tt, $make:expr, $fixture:path, $ready:path, $exceptions:expr;
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
                        let fixture = $fixture($make).await;
                        $crate::suite::$module::$case(fixture).await;
                    };
                    $crate::suite::run_case(stringify!($case), $exceptions, case).await;
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
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The texts of all files below this folder.
    fn texts(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| match path.is_dir() {
            true => texts(&path),
            false => vec![fs::read_to_string(path).unwrap()],
        };
        entries.flat_map(read).collect()
    }

    /// Public functions with arguments of their own: no cases, or cases that stores call by name.
    const NOT_LISTED: &[&str] = &[
        "run_case",
        "read",
        "an_end_that_is_listed_late_is_still_read",
        "watching_that_begins_between_hand_offs_misses_none",
    ];

    /// The names of the public async functions of a file.
    fn functions(text: &str) -> impl Iterator<Item = &str> {
        let functions = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        functions.map(|function| function.split(['<', '(']).next().unwrap())
    }

    /// Every case is run: each public async function of the suite's files is in a list.
    #[test]
    fn every_case_is_in_a_list() {
        let files = texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite"));
        let lines: Vec<&str> = files.iter().flat_map(|file| file.lines()).map(str::trim).collect();
        let functions = files.iter().flat_map(|file| functions(file));
        let cases: Vec<&str> = functions.filter(|function| !NOT_LISTED.contains(function)).collect();
        for case in &cases {
            assert!(lines.contains(case), "{case} is written but not listed");
        }
        let found = cases.len();
        assert!(found > 500, "only {found} cases found: are they still written as `pub async fn`?");
    }
}
