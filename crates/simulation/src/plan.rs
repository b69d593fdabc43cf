//! The scenario of a run, drawn from its seed before the run starts.

use std::time::Duration;

use lazaret_core::policy::{BreakerPolicy, BudgetPolicy, FusePolicy, OnDead, RetryPolicy, Strategy};
use lazaret_core::store::Limits;
use lazaret_core::{HandlerError, Phase, Reason, Verdict};
use lazaret_engine::{DeadLetterOptions, Options};

use crate::operators;
use crate::random::Random;
use crate::recreate::{self, Recreations};

/// The scenario of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) partitions: u32,
    pub(crate) keys: u64,
    pub(crate) messages: u64,
    pub(crate) members: usize,
    pub(crate) components: usize,
    pub(crate) options: Options,
    /// How long the phase with faults takes, in virtual time.
    pub(crate) chaos: Duration,
    /// Faults per mille of store calls.
    pub(crate) faults: Faults,
    /// Crashes per mille of crash points.
    pub(crate) crash_points: u64,
    /// Members leave and join, are expelled, and are killed.
    pub(crate) rebalances: bool,
    /// Operators act during the phase with faults.
    pub(crate) operators: bool,
    /// Messages whose handler does not succeed at once, per mille.
    pub(crate) failing: u64,
    /// The engines that still run when the faults end finish the work; otherwise a new one does.
    pub(crate) stays: bool,
    /// The store's clock minus that of the engines, in milliseconds.
    pub(crate) skew_millis: i64,
    /// The engines have a duplicate filter.
    pub(crate) dedupe: bool,
    /// Messages of which a copy with another key is published, per mille.
    pub(crate) copies: u64,
    /// The engines have flight recorders.
    pub(crate) recorder: bool,
    /// The clock of engines and store is set back now and then.
    pub(crate) clock_steps: bool,
    /// A broker holds what failed (strategy `topics`).
    pub(crate) topics: bool,
    /// Processes are stopped for longer than their session and their leases, and go on.
    pub(crate) suspends: bool,
    /// Processes are cut off from the store now and then, each for itself.
    pub(crate) cuts: bool,
    /// Each process has a clock of its own, which is up to an hour off and goes too fast or too slowly.
    pub(crate) drift: bool,
    /// The stream is deleted and created again.
    pub(crate) recreations: Recreations,
    /// Operators command operations during the phase with faults.
    pub(crate) commands: bool,
}

/// Faults of store calls, per mille.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) lost_request: u64,
    pub(crate) lost_answer: u64,
    pub(crate) late_effect: u64,
    /// The longest latency of a healthy call.
    pub(crate) latency_millis: u64,
    /// Requests and answers that take several times as long as others.
    pub(crate) slow: u64,
    /// The store has outages.
    pub(crate) outages: bool,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed).fork(1);
        let strategies =
            [Strategy::Ordered, Strategy::Ordered, Strategy::Ordered, Strategy::InPlace, Strategy::Unordered];
        let strategy = *random.pick(&strategies);
        let retry = RetryPolicy {
            strategy,
            hold: random.millis(0, 2_000),
            max_attempts: random.between(1, 4) as u32,
            max_elapsed: random.chance(200).then(|| random.millis(2_000, 20_000)),
            initial_delay: random.millis(5, 400),
            multiplier: 1.0 + random.below(20) as f64 / 10.0,
            max_delay: Duration::from_secs(3),
            jitter: 0.2,
            ..RetryPolicy::default()
        };
        let limits = Limits {
            max_sequences: random.chance(150).then(|| random.between(1, 6)),
            max_sequence_size: random.chance(150).then(|| random.between(2, 12)),
        };
        let breaker = BreakerPolicy {
            failures: random.between(2, 12) as u32,
            window: Duration::from_secs(2),
            open_for: random.millis(200, 3_000),
            probes: random.between(1, 3) as u32,
        };
        let fuse = FusePolicy { ratio: 0.5, window: 20, consecutive: random.between(3, 10) as u32 };
        let budget = BudgetPolicy {
            rate: random.chance(150).then(|| "20/s".parse().expect("a rate")),
            backlog: random.chance(100).then(|| random.between(2, 20)),
            ..BudgetPolicy::default()
        };
        let mut options = Options {
            concurrency: random.between(1, 12) as usize,
            shards: random.between(1, 3) as usize,
            window: random.between(2, 64) as usize,
            attempt_timeout: Some(random.millis(1_000, 4_000)),
            retry,
            budget,
            breaker: random.chance(400).then_some(breaker),
            fuse: random.chance(200).then_some(fuse),
            dead_letter: Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() }),
            commit_interval: random.millis(1, 300),
            drain_deadline: random.millis(50, 6_000),
            lease: Duration::from_secs(10),
            refresh: random.millis(50, 1_000),
            blocked_limit: if random.chance(200) { 4 } else { 1 << 12 },
            seed: seed | 1,
            ..Options::default()
        };
        let calm = random.chance(150);
        // Drawn apart from the rest: what a seed means otherwise does not change with it.
        let mut other = Random::new(seed).fork(3);
        let faults = Faults {
            lost_request: if calm { 0 } else { random.below(80) },
            lost_answer: if calm { 0 } else { random.below(80) },
            late_effect: if calm { 0 } else { random.below(40) },
            latency_millis: random.between(0, 30),
            slow: if other.chance(500) { other.between(10, 150) } else { 0 },
            outages: !calm && random.chance(400),
        };
        // Drawn apart, too.
        let mut extra = Random::new(seed).fork(4);
        let ttl = extra.chance(200).then(|| extra.millis(1_000, 20_000));
        let keep_closed = extra.chance(200).then(|| extra.millis(1_000, 20_000));
        if let Some(dead_letter) = &mut options.dead_letter {
            (dead_letter.ttl, dead_letter.keep_closed) =
                (ttl.or(dead_letter.ttl), keep_closed.or(dead_letter.keep_closed));
        }
        // Drawn apart from these.
        let continues = Random::new(seed).fork(6).chance(300);
        if let Some(dead_letter) = options.dead_letter.as_mut().filter(|_| continues) {
            dead_letter.on_dead.on_dead = OnDead::Continue;
        }
        let dedupe = extra.chance(250);
        let topics = extra.chance(150);
        if topics {
            options.retry.strategy = Strategy::Topics;
        }
        let mut plan = Self {
            seed,
            partitions: random.between(1, 4) as u32,
            keys: random.between(1, 8),
            messages: random.between(20, 100),
            members: random.between(1, 3) as usize,
            components: if random.chance(250) { 2 } else { 1 },
            options,
            chaos: Duration::from_secs(random.between(5, 40)),
            faults,
            crash_points: if random.chance(700) { random.below(12) } else { 0 },
            rebalances: random.chance(600),
            operators: random.chance(600),
            failing: *random.pick(&[0, 50, 200, 400, 800]),
            stays: other.chance(600),
            skew_millis: if other.chance(400) { other.between(0, 800) as i64 - 400 } else { 0 },
            dedupe,
            copies: if dedupe && extra.chance(700) { extra.between(50, 400) } else { 0 },
            recorder: extra.chance(250),
            clock_steps: extra.chance(150),
            topics,
            // Drawn apart from all of it. What a late process sends to a broker, nobody refuses.
            suspends: !topics && Random::new(seed).fork(8).chance(300),
            cuts: false,
            drift: false,
            recreations: Recreations::default(),
            commands: operators::draw(seed),
        };
        recreate::draw(&mut plan);
        plan
    }

    /// Draws a fleet: many processes on one store, each with its own clock and its own network.
    pub(crate) fn draw_fleet(seed: u64) -> Self {
        let mut random = Random::new(seed).fork(5);
        let mut plan = Self::draw(seed);
        plan.members = match random.below(10) {
            0 => random.between(20, 50),
            1..=3 => random.between(6, 12),
            _ => random.between(2, 5),
        } as usize;
        plan.partitions = random.between(1, 12) as u32;
        plan.keys = random.between(2, 24);
        plan.rebalances = random.chance(800);
        plan.cuts = random.chance(800);
        // The broker's records carry times from process to process: their clocks must agree.
        plan.drift = !plan.topics && random.chance(800);
        plan
    }

    /// Returns whether calls of the store can fail.
    pub(crate) fn has_store_faults(&self) -> bool {
        let Faults { lost_request, lost_answer, late_effect, outages, .. } = self.faults;
        self.cuts || outages || lost_request + lost_answer + late_effect > 0
    }
}

/// The behaviour of a handler for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Fine,
    /// Fails this many attempts, then succeeds.
    FailsFirst(u32),
    /// Never succeeds, with a retryable error.
    FailsAlways,
    /// Never succeeds, with this verdict by its reason.
    Refuses(Verdict),
    Panics,
    /// Never returns.
    Hangs,
    /// Sends the message to the dead letters by itself.
    SendsToDlq,
}

impl Script {
    pub(crate) fn draw(plan: &Plan, message: u64, component: usize) -> Self {
        let purpose = 1_000 + message * 8 + component as u64;
        let mut random = Random::new(plan.seed).fork(purpose);
        if !random.chance(plan.failing) {
            return Self::Fine;
        }
        match random.below(20) {
            0..=8 => Self::FailsFirst(random.between(1, 5) as u32),
            9..=11 => Self::FailsAlways,
            12..=13 => Self::Refuses(Verdict::DeadLetter),
            14 => Self::Refuses(Verdict::Park),
            15 => Self::Refuses(Verdict::Skip),
            16 => Self::Refuses(Verdict::Duplicate),
            17 => Self::Panics,
            18 => Self::Hangs,
            _ => Self::SendsToDlq,
        }
    }

    /// Returns `true` when the handler succeeds at the first attempt.
    pub(crate) fn is_healthy(self) -> bool {
        self == Self::Fine
    }
}

/// An error with this verdict.
pub(crate) fn refusal(verdict: Verdict) -> HandlerError {
    HandlerError::msg("refused").verdict(verdict).reason(Reason::DOMAIN_INVALID).phase(Phase::Validate)
}
