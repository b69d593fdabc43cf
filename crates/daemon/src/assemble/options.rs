//! Completes the engine options of a configured consumer with the parts of this process.

use std::sync::Arc;

use lazaret_config::Consumer as ConsumerConfig;
use lazaret_core::FlightRecorder;
use lazaret_engine::{DedupeOptions, InvalidSchedule, Options};

use super::store::Stores;

/// Returns the engine options of a consumer.
pub(super) fn options(
    config: &ConsumerConfig,
    stores: &Stores,
    flight_recorder: Option<Arc<dyn FlightRecorder>>,
    until_idle: bool,
) -> Result<Options, InvalidSchedule> {
    Ok(Options {
        dedupe: config.inbox_dedupe.map(|window| DedupeOptions { filter: stores.dedupe.clone(), window }),
        flight_recorder,
        until_idle,
        ..Options::from_config(config)?
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_config::{NoEnv, check};
    use lazaret_core::Sequencing;
    use lazaret_core::policy::{CapacityPolicy, OnDead, Strategy};
    use lazaret_engine::Reprocess;

    use super::*;

    fn read(keys: &str) -> Options {
        let text = format!(
            "consumers:\n  orders:\n    source: {{ file: {{ path: f }} }}\n    handler: {{ command: {{ program: [x] }} }}\n{keys}"
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let stores = runtime.block_on(Stores::open(&lazaret_config::StoreLocation::Memory, None)).unwrap();
        options(&config.consumers[0], &stores, None, false).unwrap()
    }

    #[test]
    fn every_key_reaches_the_engine() {
        let options = read(
            "    order: key
    sequence: 'header:tenant'
    concurrency: 7
    max-payload: 1KiB
    retry:
      { strategy: unordered, hold: 1s, max-attempts: 9, max-elapsed: 2h, initial-delay: 3s, multiplier: 4, max-delay: 5m,
        jitter: 0, max-retry-after: 6m, max-crashes: 2, budget: { rate: 8/s, backlog: 10, per-key: 11, per-type: 12 } }
    breaker: { failures: 13, window: 14s, open-for: 15s, probes: 16 }
    fuse: { ratio: 0.25, window: 17, consecutive: 18 }
    poison: { same-failure: 19 }
    dead-letter:
      { owner: team, ttl: 20d, keep-closed: 0s, include-payload: false, include-backtrace: false, overrides: [{ when: { reason: TIMEOUT }, on-dead: continue }], max-sequences: 21, max-letters: 210, max-bytes: 211KiB, min-free: off,
        max-sequence-size: 22, reprocess: { strategy: cron, cron: '0 0 3 * * *', batch-size: 23 } }
    inbox-dedupe: { window: 24h }
    replay: { rate: 30/m, max-replays: 25 }
    advanced:
      { window: 26, shards: 2, commit-interval: 27ms, drain-deadline: 28s, lease: 29s, refresh: 30s, blocked-limit: 31 }
",
        );
        assert!(matches!(&options.sequencing, Sequencing::Header(name) if &**name == "tenant"));
        assert_eq!((options.concurrency, options.max_payload), (7, Some(1024)));
        let retry = &options.retry;
        assert_eq!((retry.strategy, retry.max_attempts, retry.max_crashes), (Strategy::Unordered, 9, 2));
        assert_eq!((retry.hold, retry.initial_delay), (Duration::from_secs(1), Duration::from_secs(3)));
        assert_eq!((retry.multiplier, retry.jitter), (4.0, 0.0));
        assert_eq!(retry.max_elapsed, Some(Duration::from_secs(7200)));
        assert_eq!(retry.max_delay, Duration::from_secs(300));
        assert_eq!(retry.max_retry_after, Duration::from_secs(360));
        assert_eq!(options.budget.rate.map(|rate| rate.per_second()), Some(8.0));
        let budget = &options.budget;
        assert_eq!((budget.backlog, budget.per_key, budget.per_type), (Some(10), Some(11), Some(12)));
        let breaker = options.breaker.as_ref().unwrap();
        assert_eq!((breaker.failures, breaker.probes), (13, 16));
        assert_eq!((breaker.window, breaker.open_for), (Duration::from_secs(14), Duration::from_secs(15)));
        let fuse = options.fuse.as_ref().unwrap();
        assert_eq!((fuse.ratio, fuse.window, fuse.consecutive), (0.25, 17, 18));
        assert_eq!(options.poison.same_failure, Some(19));
        let letters = options.dead_letter.as_ref().unwrap();
        assert_eq!((letters.owner.as_deref(), letters.keep_closed), (Some("team"), None));
        assert_eq!(letters.ttl, Some(Duration::from_secs(20 * 24 * 3600)));
        assert_eq!((letters.include_payload, letters.include_backtrace), (false, false));
        assert_eq!((letters.on_dead.on_dead, letters.on_dead.overrides.len()), (OnDead::Hold, 1));
        assert_eq!((letters.limits.max_sequences, letters.limits.max_sequence_size), (Some(21), Some(22)));
        let capacity = CapacityPolicy { max_letters: Some(210), max_bytes: Some(211 << 10), min_free: None };
        assert_eq!(letters.capacity, capacity);
        assert!(matches!(&letters.reprocess, Reprocess::Cron { batch_size: 23, .. }));
        assert_eq!(options.dedupe.as_ref().unwrap().window, Duration::from_secs(24 * 3600));
        assert_eq!((options.replay.rate, options.replay.max_replays), (Some(0.5), Some(25)));
        assert_eq!((options.window, options.shards, options.blocked_limit), (26, 2, 31));
        assert_eq!(options.commit_interval, Duration::from_millis(27));
        let times = [options.drain_deadline, options.lease, options.refresh];
        assert_eq!(times, [28, 29, 30].map(Duration::from_secs));
    }

    #[test]
    fn what_is_off_is_off_in_the_engine() {
        let options =
            read("    breaker: off\n    fuse: off\n    poison: off\n    dead-letter: { enabled: false }\n");
        assert!(options.breaker.is_none() && options.fuse.is_none() && options.dedupe.is_none());
        assert!(options.dead_letter.is_some_and(|letters| letters.discard));
        assert!(options.poison.same_failure.is_none());
    }

    #[test]
    fn letters_that_are_kept_without_dead_letters_have_an_owner() {
        let options = read("    dead-letter: { enabled: false, owner: team }\n");
        let letters = options.dead_letter.unwrap();
        assert_eq!((letters.discard, letters.owner.as_deref()), (true, Some("team")));
    }

    #[test]
    fn order_says_which_messages_wait_for_each_other() {
        assert!(matches!(read("    order: none\n").sequencing, Sequencing::Alone));
        assert!(matches!(read("    order: partition\n").sequencing, Sequencing::Partition));
        let by_json = read("    sequence: 'json:/a/b'\n").sequencing;
        assert!(matches!(by_json, Sequencing::Json(pointer) if &*pointer == "/a/b"));
    }
}
