//! A scrape after a scripted run: every metric, exact values, no message contents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::LetterState;
use lazaret_core::handler::{Handler, handler};
use lazaret_core::store::{Act, Actor, PauseScope};
use lazaret_engine::{Options, Stats};
use lazaret_telemetry::names::{self, FAMILIES, Kind};
use lazaret_telemetry::{AttemptLayer, ChangeStreamStats, Metrics};

use crate::support::{Bench, NAME, Running, eventually, options, queue, scripted};

/// A strictly parsed scrape: invalid exposition format fails the test.
struct Scrape {
    /// `# TYPE`, by name.
    types: BTreeMap<String, String>,
    helped: Vec<String>,
    /// By name and sorted labels.
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Scrape {
    fn read(text: &str) -> Self {
        let mut scrape = Self { types: BTreeMap::new(), helped: Vec::new(), samples: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                assert!(!help.is_empty(), "{line}");
                scrape.helped.push(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                assert!(scrape.types.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
            } else {
                assert!(!line.starts_with('#'), "{line}");
                let (series, value) = line.rsplit_once(' ').expect(line);
                let (name, labels) = series
                    .split_once('{')
                    .map_or((series, ""), |(name, rest)| (name, rest.strip_suffix('}').expect(line)));
                assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
                let value: f64 = value.parse().expect(line);
                let sample = (name.to_owned(), labels_of(labels));
                assert!(scrape.samples.insert(sample, value).is_none(), "twice: {line}");
            }
        }
        scrape
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: BTreeMap<_, _> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let key = (name.to_owned(), labels);
        *self.samples.get(&key).unwrap_or_else(|| panic!("no {key:?} in {:#?}", self.samples))
    }
}

/// Parses `a="b",c="d"` with escapes.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, behind) = rest.split_once("=\"").expect(text);
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            let (at, c) = chars.next().expect(text);
            match c {
                '"' => break at,
                '\\' => value.push(chars.next().expect(text).1),
                c => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{text}");
        rest = behind[end + 1..].trim_start_matches(',');
    }
    labels
}

#[tokio::test(start_paused = true)]
async fn a_scrape_contains_every_metric_with_exact_values_and_no_message_contents() {
    let bench = Bench::new();
    let metrics = Metrics::prometheus();
    metrics.owner(NAME, Some("checkout-team"));
    metrics.change_stream(NAME, ChangeStreamStats::default);
    metrics.file(NAME, || Some(7));
    metrics.topics(NAME, || Some((2, 3)));
    metrics.oldest_in_topics(NAME, || Some(Duration::from_secs(50)));
    metrics.process();
    metrics.adopted(NAME, "orders-dlt", &[("adopted", 2)], 5);
    metrics.adoption_failed(NAME, "orders-dlt", false);
    bench.push(&["a-fine", "b-flaky", "c-bad", "d-hopeless", "e-fine"]);
    bench.log.push_with(0, |message| {
        let mut message = message.with_key("key-of-f").with_payload("payload-of-f");
        message.undecodable = Some("not JSON".into());
        message
    });
    let fixed = Arc::new(AtomicBool::new(false));
    let layer = AttemptLayer::new(&metrics, NAME, &queue());
    let watched = handler(scripted(fixed.clone()).layer(layer));
    let options = Options {
        poison: lazaret_core::policy::PoisonPolicy { same_failure: Some(3) },
        retry: lazaret_core::policy::RetryPolicy { max_attempts: 4, ..options().retry },
        ..options()
    };
    let builder = bench.builder(watched).options(options).observer(metrics.observer(NAME));
    let running = Running::start(builder);
    metrics.running(running.handle.clone());
    let done = |stats: Stats| stats.handled == 3 && stats.handed_off == 3;
    eventually("all is settled", || done(running.handle.stats())).await;
    let replayer = running.handle.replayer(NAME).unwrap();
    replayer.process_sequence(&"key-of-c".into(), "op_1").await.unwrap();
    fixed.store(true, Ordering::SeqCst);
    replayer.process_sequence(&"key-of-c".into(), "op_2").await.unwrap();
    running.handle.pause(PauseScope::Consumer, &Actor::engine("test")).await.unwrap();
    tokio::time::advance(Duration::from_secs(100)).await;
    metrics.refresh(&*bench.store, bench.clock.now()).await.unwrap();
    let text = metrics.render();
    let scrape = Scrape::read(&text);

    for family in FAMILIES {
        // No webhooks are configured, and the breaker stays closed.
        if [&names::ALERTS_DROPPED, &names::BREAKER_OPENED].contains(&family) {
            continue;
        }
        // Other systems have no /proc.
        if cfg!(not(target_os = "linux")) && family.name.starts_with("process_") {
            continue;
        }
        assert_eq!(
            scrape.types.get(family.name).map(String::as_str),
            Some(family.kind.as_str()),
            "{}",
            family.name
        );
        assert!(scrape.helped.contains(&family.name.to_owned()), "{}", family.name);
        let of_family = scrape.samples.keys().filter(|(name, _)| names::family(name) == Some(family));
        for (name, labels) in of_family {
            let known = |label: &String| {
                family.labels.contains(&label.as_str()) || (label == "le" && family.kind == Kind::Histogram)
            };
            assert!(labels.keys().all(known), "{name} {labels:?}");
        }
    }
    for (name, _) in scrape.samples.keys() {
        assert!(names::family(name).is_some(), "{name} is in no table");
    }

    let consumer = ("consumer", NAME);
    let queue = queue();
    let queued = ("queue", queue.as_str());
    assert_eq!(scrape.value("lazaret_source_lag_bytes", &[consumer]), 7.0);
    for (state, records) in [("retrying", 2.0), ("dead", 3.0)] {
        assert_eq!(scrape.value("lazaret_broker_letters", &[consumer, ("state", state)]), records);
    }
    assert_eq!(scrape.value("lazaret_broker_oldest_letter_age_seconds", &[consumer]), 50.0);
    if cfg!(target_os = "linux") {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let started = scrape.value("process_start_time_seconds", &[]);
        assert!(started > now - 86_400.0 && started <= now + 1.0, "{started} of {now}");
        assert!(scrape.value("process_resident_memory_bytes", &[]) > 1e6);
        let (open, most) = (scrape.value("process_open_fds", &[]), scrape.value("process_max_fds", &[]));
        assert!(open >= 3.0 && open <= most, "{open} of {most}");
    }
    // a, b, e, and the second replay of c.
    assert_eq!(scrape.value("lazaret_handled_total", &[consumer]), 4.0);
    assert_eq!(scrape.value("lazaret_read_total", &[consumer]), 6.0);
    let failures = |reason, phase| {
        scrape.value("lazaret_failures_total", &[consumer, queued, ("reason", reason), ("phase", phase)])
    };
    // b twice, d three times, then it is poison.
    assert_eq!(failures("TIMEOUT", "handle"), 5.0);
    assert_eq!(failures("CARD_DECLINED", "handle"), 2.0);
    assert_eq!(failures("INVALID_SCHEMA", "decode"), 1.0);
    let timeouts = [consumer, queued, ("reason", "TIMEOUT")];
    assert_eq!(scrape.value("lazaret_retry_scheduled_total", &timeouts), 4.0);
    assert_eq!(scrape.value("lazaret_retry_exhausted_total", &timeouts), 1.0);
    let retries =
        |attempt| scrape.value("lazaret_retry_attempts_total", &[consumer, queued, ("attempt", attempt)]);
    assert_eq!((retries("2"), retries("3")), (2.0, 2.0));
    assert_eq!(scrape.value("lazaret_poison_total", &[consumer, queued]), 1.0);
    let letters = |state, reason| {
        scrape.value("lazaret_letters_total", &[consumer, queued, ("state", state), ("reason", reason)])
    };
    assert_eq!(letters("dead", "CARD_DECLINED"), 1.0, "a replay that fails is no new letter");
    assert_eq!((letters("dead", "TIMEOUT"), letters("dead", "INVALID_SCHEMA")), (1.0, 1.0));
    assert_eq!(letters("resolved", "NONE"), 1.0);
    let replayed = |outcome| scrape.value("lazaret_replay_total", &[consumer, queued, ("outcome", outcome)]);
    assert_eq!((replayed("failed-again"), replayed("ok")), (1.0, 1.0));
    let now = |name, state| scrape.value(name, &[consumer, queued, ("state", state)]);
    assert_eq!((now("lazaret_letters", "dead"), now("lazaret_letters", "retrying")), (2.0, 0.0));
    assert!(now("lazaret_oldest_letter_age_seconds", "dead") >= 100.0);
    assert_eq!(now("lazaret_oldest_letter_age_seconds", "parked"), 0.0);
    // Attempts: a, b three times, c three times, d three times, e; f is undecodable.
    assert_eq!(scrape.value("lazaret_attempt_seconds_count", &[consumer, queued]), 11.0);
    assert_eq!(scrape.value("lazaret_retry_lateness_seconds_count", &[consumer, queued]), 4.0);
    assert_eq!(scrape.value("lazaret_retry_lateness_seconds_sum", &[consumer, queued]), 0.0, "I12");
    for (name, value) in [
        ("lazaret_paused", 1.0),
        ("lazaret_breaker_state", 0.0),
        ("lazaret_breaker_probe_seconds", 0.0),
        ("lazaret_fuse_blown", 0.0),
        ("lazaret_inflight", 0.0),
        ("lazaret_store_trouble", 0.0),
        ("lazaret_handoff_failures_total", 0.0),
        ("lazaret_duplicates_total", 0.0),
        ("lazaret_id_conflicts_total", 0.0),
        ("lazaret_skipped_total", 0.0),
    ] {
        assert_eq!(scrape.value(name, &[consumer]), value, "{name}");
    }
    assert_eq!(scrape.value("lazaret_pauses", &[consumer, ("scope", "consumer")]), 1.0);
    assert_eq!(scrape.value("lazaret_consumer_info", &[consumer, ("owner", "checkout-team")]), 1.0);
    for word in ["payload-of", "key-of", "words-of", "TestError", "events/0"] {
        assert!(!text.contains(word), "{word} in:\n{text}");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn counters_continue_after_a_consumer_restart() {
    let metrics = Metrics::prometheus();
    let bench = Bench::new();
    for life in 1..=3 {
        bench.push(&["a-fine", "b-fine"]);
        let handler = scripted(Arc::default());
        let running = Running::start(bench.builder(handler).observer(metrics.observer(NAME)));
        metrics.running(running.handle.clone());
        eventually("both are handled", || running.handle.stats().handled == 2).await;
        let handled =
            || Scrape::read(&metrics.render()).value("lazaret_handled_total", &[("consumer", NAME)]);
        assert_eq!((handled(), handled()), (2.0 * f64::from(life), 2.0 * f64::from(life)));
        running.stop().await;
    }
}

#[test]
fn restarts_of_a_change_stream_continue_after_a_consumer_restart() {
    let metrics = Metrics::prometheus();
    let restarts = || {
        let scraped = Scrape::read(&metrics.render());
        scraped
            .samples
            .iter()
            .find(|((name, _), _)| name == names::MONGODB_RESTARTS.name)
            .map(|(_, value)| *value)
    };
    let count = Arc::new(AtomicU64::new(0));
    let stream = |count: &Arc<AtomicU64>| {
        let count = count.clone();
        move || ChangeStreamStats { restarts: count.load(Ordering::SeqCst), ..ChangeStreamStats::default() }
    };
    metrics.change_stream(NAME, stream(&count));
    assert_eq!(restarts(), Some(0.0), "a counter that appears with 1 has not increased");
    count.store(2, Ordering::SeqCst);
    assert_eq!((restarts(), restarts()), (Some(2.0), Some(2.0)));
    // The last restart of the old stream happened after the last scrape.
    count.store(3, Ordering::SeqCst);
    let new = Arc::new(AtomicU64::new(1));
    metrics.change_stream(NAME, stream(&new));
    assert_eq!(restarts(), Some(4.0));
}

#[tokio::test(start_paused = true)]
async fn a_recreated_stream_is_counted_from_zero() {
    let (metrics, bench) = (Metrics::prometheus(), Bench::new());
    bench.push(&["a-fine"]);
    let running = Running::start(bench.builder(scripted(Arc::default())).observer(metrics.observer(NAME)));
    let labels = [("consumer", NAME), ("stream", "events")];
    eventually("it is handled", || running.handle.stats().handled == 1).await;
    let counted = || Scrape::read(&metrics.render()).value("lazaret_incarnations_total", &labels);
    assert_eq!(counted(), 0.0);
    bench.log.recreate(1);
    bench.push(&["b-fine"]);
    eventually("that of the new stream is handled", || running.handle.stats().handled == 2).await;
    assert_eq!(counted(), 1.0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_letter_is_reported_by_state() {
    let (metrics, bench) = (Metrics::prometheus(), Bench::new());
    bench.push(&["a-bad"]);
    let running = Running::start(bench.builder(scripted(Arc::default())));
    eventually("a letter", || running.handle.stats().handed_off == 1).await;
    tokio::time::advance(Duration::from_secs(50)).await;
    bench.push(&["b-bad", "a-waits"]);
    eventually("the others", || {
        running.handle.stats().handed_off == 2 && running.handle.stats().appended == 1
    })
    .await;
    tokio::time::advance(Duration::from_secs(10)).await;
    let second = bench.store.heads(&queue(), None, 10).await.unwrap().heads.pop().unwrap();
    bench.store.act(&queue(), second.id, Act::Park, &Actor::engine("test")).await.unwrap();
    let seen = metrics.refresh(&*bench.store, bench.clock.now()).await.unwrap();
    let ages = &seen[&queue()].oldest;
    let age = |state: LetterState| bench.clock.now().duration_since(ages[&state]).as_secs();
    assert_eq!((age(LetterState::Dead), age(LetterState::Parked), age(LetterState::Waiting)), (60, 10, 10));
    assert_eq!(ages.len(), 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn letters_are_scanned_at_an_interval_and_when_a_state_is_new() {
    let (metrics, bench) = (Metrics::prometheus(), Bench::new());
    let running = Running::start(bench.builder(scripted(Arc::default())));
    for (letters, word) in [(1, "a-bad"), (2, "b-bad"), (3, "c-bad")] {
        bench.push(&[word]);
        eventually("a letter", || running.handle.stats().handed_off == letters).await;
        tokio::time::advance(Duration::from_secs(100)).await;
    }
    let heads = bench.store.heads(&queue(), None, 10).await.unwrap().heads;
    let by = Actor::engine("test");
    let act = async |letter: usize, act| bench.store.act(&queue(), heads[letter].id, act, &by).await.unwrap();
    let dead_since = async || {
        let seen = metrics.refresh(&*bench.store, bench.clock.now()).await.unwrap();
        seen[&queue()].oldest[&LetterState::Dead]
    };
    act(2, Act::Park).await;
    let first = dead_since().await;
    act(0, Act::Evict).await;
    assert_eq!(dead_since().await, first, "the scan is cached");
    tokio::time::advance(Duration::from_secs(30)).await;
    let second = dead_since().await;
    assert_eq!(second.duration_since(first).as_secs(), 100);
    act(1, Act::Quarantine).await;
    let seen = metrics.refresh(&*bench.store, bench.clock.now()).await.unwrap();
    let states: Vec<_> = seen[&queue()].oldest.keys().copied().collect();
    assert_eq!(states, [LetterState::Parked, LetterState::Quarantined], "the dead letter is gone");
    running.stop().await;
}
