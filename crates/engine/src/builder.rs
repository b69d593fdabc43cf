//! The setters of a consumer's options, one setter per option.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{
    BreakerPolicy, BudgetPolicy, Classifier, EnqueuePolicy, FusePolicy, PoisonPolicy, RetryOverride,
    RetryPolicy,
};
use lazaret_core::recorder::FlightRecorder;
use lazaret_core::redaction::TextRules;
use lazaret_core::relay::Relay;
use lazaret_core::{Grouping, HandlerError, Message, Sequencing};

use crate::consumer::Builder;
use crate::options::{DeadLetterOptions, DedupeOptions, ReplayOptions};

impl Builder {
    /// Sets when and how often a failed message is retried. A route of a router may have its own policy;
    /// see [`Router::retry`](lazaret_core::handler::Router::retry).
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// Adds a retry policy for some events or failures. It takes precedence over [`retry`](Self::retry)
    /// and over the policies of routes. If several overrides apply, the first one wins.
    #[must_use]
    pub fn retry_override(mut self, over: RetryOverride) -> Self {
        self.options.retry_overrides.push(over);
        self
    }

    /// Sets the `hold` of the retry policy: how long a lane may wait in memory for a retry before it
    /// moves to the store. Call it after [`retry`](Self::retry).
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.options.retry.hold = hold;
        self
    }

    /// Sets the maximum number of concurrent attempts.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.options.concurrency = concurrency;
        self
    }

    /// Sets which messages must be handled in order. Default: messages with the same key.
    #[must_use]
    pub fn order(mut self, sequencing: Sequencing) -> Self {
        self.options.sequencing = sequencing;
        self
    }

    /// Sets the limits and the retention of letters. `None` disables dead letters: a message that fails
    /// for good then stops the consumer.
    #[must_use]
    pub fn dead_letter(mut self, options: impl Into<Option<DeadLetterOptions>>) -> Self {
        self.options.dead_letter = options.into();
        self
    }

    /// Sets when the consumer pauses instead of dead-lettering. `None` means never.
    #[must_use]
    pub fn fuse(mut self, fuse: impl Into<Option<FusePolicy>>) -> Self {
        self.options.fuse = fuse.into();
        self
    }

    /// Sets when handler calls are suspended because a dependency fails. `None` means never.
    #[must_use]
    pub fn breaker(mut self, breaker: impl Into<Option<BreakerPolicy>>) -> Self {
        self.options.breaker = breaker.into();
        self
    }

    /// Sets the rules that map a failure to a verdict.
    #[must_use]
    pub fn classifier(mut self, classifier: Classifier) -> Self {
        self.options.classifier = classifier;
        self
    }

    /// Sets the rules that group failures. Stored letters keep their groups until they fail again.
    ///
    /// ```
    /// use lazaret_core::fingerprint::{GroupPart, Grouping};
    /// let tenants = "tenant ([a-z]+)".parse()?;
    /// let rules = Grouping::default().with(GroupPart::EventType).replace(tenants);
    /// let builder = lazaret_engine::Consumer::builder("orders").grouping(rules);
    /// # Ok::<(), lazaret_core::fingerprint::InvalidGroupPattern>(())
    /// ```
    #[must_use]
    pub fn grouping(mut self, rules: Grouping) -> Self {
        self.options.grouping = rules;
        self
    }

    /// Sets the rules that redact the texts of errors and diagnostics before they are stored.
    ///
    /// ```
    /// use lazaret_core::redaction::{TextRules, TextSet};
    /// let rules = TextRules::new([TextSet::CardNumbers, TextSet::Tokens], []);
    /// let builder = lazaret_engine::Consumer::builder("orders").redact(rules);
    /// ```
    #[must_use]
    pub fn redact(mut self, rules: TextRules) -> Self {
        self.options.redact = rules;
        self
    }

    /// Sets the limits on retries.
    #[must_use]
    pub fn budget(mut self, budget: BudgetPolicy) -> Self {
        self.options.budget = budget;
        self
    }

    /// Sets when a message counts as poison.
    #[must_use]
    pub fn poison(mut self, poison: PoisonPolicy) -> Self {
        self.options.poison = poison;
        self
    }

    /// Sets the hook that decides at each failure whether to keep a letter.
    #[must_use]
    pub fn enqueue(mut self, policy: impl EnqueuePolicy + 'static) -> Self {
        self.options.enqueue = Arc::new(policy);
        self
    }

    /// Sets the limits of replays.
    #[must_use]
    pub fn replay(mut self, options: ReplayOptions) -> Self {
        self.options.replay = options;
        self
    }

    /// Sets the idempotent receiver. `None` disables it.
    #[must_use]
    pub fn dedupe(mut self, options: impl Into<Option<DedupeOptions>>) -> Self {
        self.options.dedupe = options.into();
        self
    }

    /// Sets which messages are handled. The others are settled without a handler call. If the filter
    /// returns an error or panics, the message fails in phase `filter`.
    #[must_use]
    pub fn filter(
        mut self,
        filter: impl Fn(&Message) -> Result<bool, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        self.options.filter = Some(Arc::new(filter));
        self
    }

    /// Sets the time limit of one attempt. `None` means no limit.
    #[must_use]
    pub fn attempt_timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.options.attempt_timeout = limit.into();
        self
    }

    /// Sets the size in bytes of the largest payload that is passed to a handler. A message with a
    /// larger payload is dead-lettered. `None` means no limit.
    #[must_use]
    pub fn max_payload(mut self, bytes: impl Into<Option<usize>>) -> Self {
        self.options.max_payload = bytes.into();
        self
    }

    /// Sets the maximum number of messages in flight, that is, read and not yet settled.
    #[must_use]
    pub fn window(mut self, messages: usize) -> Self {
        self.options.window = messages;
        self
    }

    /// Sets how many messages, and how many bytes of them, failing, throttled and paused sequences may
    /// hold back in memory. These messages do not count towards the [window](Self::window).
    #[must_use]
    pub fn hold_limit(mut self, messages: usize, bytes: usize) -> Self {
        self.options.hold_limit = messages;
        self.options.hold_limit_bytes = bytes;
        self
    }

    /// Sets the number of tasks that share the lanes. 0 means one per core.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = shards;
        self
    }

    /// Sets the recorder of running attempts, which finds messages that crash the process.
    #[must_use]
    pub fn flight_recorder(mut self, recorder: impl FlightRecorder + 'static) -> Self {
        self.options.flight_recorder = Some(Arc::new(recorder));
        self
    }

    /// Sets the broker that holds failed messages, for the strategy `topics`.
    #[must_use]
    pub fn relay(mut self, relay: impl Relay + 'static) -> Self {
        self.options.relay = Some(Arc::new(relay));
        self
    }

    /// Sets the minimum time between two commits of positions.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.options.commit_interval = interval;
        self
    }

    /// Sets how long a drain may take. Attempts that still run after it are cancelled.
    #[must_use]
    pub fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.options.drain_deadline = deadline;
        self
    }

    /// Sets how long the lease of a stored sequence lasts unless it is renewed.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets how often the store is polled for changes by other processes.
    #[must_use]
    pub fn refresh(mut self, interval: Duration) -> Self {
        self.options.refresh = interval;
        self
    }

    /// Sets how many open sequences the consumer tracks exactly in memory.
    #[must_use]
    pub fn blocked_limit(mut self, sequences: usize) -> Self {
        self.options.blocked_limit = sequences;
        self
    }

    /// Sets the name under which this instance holds leases. Default: a generated name.
    #[must_use]
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.options.instance = name.into();
        self
    }

    /// Sets how many relayed messages, and how many bytes of them, may wait in memory until they are
    /// due.
    #[must_use]
    pub fn delay_queue(mut self, messages: usize, bytes: usize) -> Self {
        self.options.delay_queue = messages;
        self.options.delay_queue_bytes = bytes;
        self
    }

    /// Sets the seed for jitter and hashes. 0 means a random seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// Ends the run once a finite source is read to its end and nothing is in flight or waiting for a
    /// retry or an operation.
    #[must_use]
    pub fn until_idle(mut self) -> Self {
        self.options.until_idle = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::policy::{AlwaysEnqueue, Strategy};

    use super::*;
    use crate::{BuildError, Consumer};

    #[test]
    fn every_option_has_a_setter() {
        let secs = Duration::from_secs;
        let retry = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
        let fuse = FusePolicy { consecutive: 3, ..FusePolicy::default() };
        let breaker = BreakerPolicy { failures: 3, ..BreakerPolicy::default() };
        let budget = BudgetPolicy { backlog: Some(5), ..BudgetPolicy::default() };
        let options = Consumer::builder("c")
            .retry(retry)
            .hold(secs(2))
            .concurrency(3)
            .order(Sequencing::Partition)
            .dead_letter(DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() })
            .fuse(fuse)
            .breaker(breaker)
            .classifier(Classifier::default().no_retry_on::<std::fmt::Error>())
            .budget(budget)
            .poison(PoisonPolicy { same_failure: Some(2) })
            .enqueue(AlwaysEnqueue)
            .replay(ReplayOptions { max_replays: Some(2), rate: None })
            .dedupe(None)
            .filter(|_| Ok(true))
            .attempt_timeout(secs(4))
            .max_payload(1024)
            .window(7)
            .hold_limit(8, 9)
            .shards(2)
            .commit_interval(secs(5))
            .drain_deadline(secs(6))
            .lease(secs(7))
            .refresh(secs(8))
            .blocked_limit(11)
            .instance("i-1")
            .delay_queue(12, 13)
            .seed(14)
            .until_idle()
            .options;
        assert_eq!((options.retry.max_attempts, options.retry.hold), (9, secs(2)));
        assert_eq!((options.concurrency, options.window, options.shards), (3, 7, 2));
        assert!(matches!(options.sequencing, Sequencing::Partition));
        assert!(!options.dead_letter.as_ref().expect("given").include_payload);
        assert_eq!(options.fuse.as_ref().expect("given").consecutive, 3);
        assert_eq!(options.breaker.as_ref().expect("given").failures, 3);
        assert!(format!("{:?}", options.classifier).contains("Error"));
        assert_eq!((options.budget.backlog, options.poison.same_failure), (Some(5), Some(2)));
        assert_eq!(options.replay, ReplayOptions { max_replays: Some(2), rate: None });
        assert!(options.dedupe.is_none() && options.filter.is_some());
        assert_eq!((options.attempt_timeout, options.max_payload), (Some(secs(4)), Some(1024)));
        assert_eq!((options.commit_interval, options.drain_deadline), (secs(5), secs(6)));
        assert_eq!((options.lease, options.refresh), (secs(7), secs(8)));
        assert_eq!((options.blocked_limit, &*options.instance), (11, "i-1"));
        assert_eq!((options.hold_limit, options.hold_limit_bytes), (8, 9));
        assert_eq!((options.delay_queue, options.delay_queue_bytes), (12, 13));
        assert_eq!((options.seed, options.until_idle), (14, true));
    }

    #[test]
    fn what_may_be_absent_can_be_switched_off() {
        let options = Consumer::builder("c")
            .dead_letter(None)
            .fuse(None)
            .breaker(None)
            .attempt_timeout(None)
            .max_payload(None)
            .options;
        assert!(options.dead_letter.is_none() && options.fuse.is_none() && options.breaker.is_none());
        assert!(options.attempt_timeout.is_none() && options.max_payload.is_none());
    }

    #[test]
    fn the_retry_policy_of_a_route_is_validated_when_the_consumer_is_built() {
        use lazaret_core::handler::Router;
        let build = |policy| {
            Consumer::builder("c").handler(Router::new().on("A", || async {}).retry(policy)).build().err()
        };
        let invalid = build(RetryPolicy { max_attempts: 0, ..RetryPolicy::default() });
        assert!(matches!(invalid, Some(BuildError::Policy(_))), "{invalid:?}");
        let other = build(RetryPolicy { strategy: Strategy::Unordered, ..RetryPolicy::default() });
        assert!(matches!(other, Some(BuildError::RouteStrategy { .. })), "{other:?}");
        assert!(matches!(build(RetryPolicy::default()), Some(BuildError::NoSource)));
    }
}
