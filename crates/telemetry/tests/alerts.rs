//! Webhooks that are told, once when it begins and once when it ends, by real requests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lazaret_core::Clock;
use lazaret_core::policy::{BreakerPolicy, FusePolicy};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Command, Limits, PauseScope, PlanRequest, RolloutPolicy, Selection,
};
use lazaret_engine::{Builder, DeadLetterOptions, Options as EngineOptions};
use lazaret_memory::MemoryStore;
use lazaret_telemetry::Metrics;
use lazaret_telemetry::alerts::{Options, RULES, Service, Webhook, signature};
use lazaret_testkit::{Profile, Unreliable};
use serde_json::Value;
use support::{Bench, Got, NAME, PATIENCE, Receiver, Running, eventually, obedient, options, queue};
use tokio_util::sync::CancellationToken;

const SECRET: &str = "secret-of-the-webhook";

fn webhook(receiver: &Receiver, events: &[&str]) -> Webhook {
    Webhook {
        url: receiver.url("/hook"),
        secret: Some(SECRET.to_owned()),
        events: events.iter().map(|event| (*event).to_owned()).collect(),
        timeout: Duration::from_secs(30),
    }
}

fn service(bench: &Bench, metrics: &Metrics, webhooks: &[Webhook]) -> Service {
    let options = Options { every: Duration::from_millis(20), ..Options::default() };
    Service::new(webhooks, options, metrics.clone(), bench.store.clone(), bench.clock.clone()).unwrap()
}

fn told(got: &Got) -> Value {
    let signed = got.headers[signature::HEADER].to_str().unwrap();
    assert!(signature::verify(signed, SECRET.as_bytes(), &got.body), "{signed}");
    let notice: Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(notice["id"], got.headers["lazaret-delivery"].to_str().unwrap());
    assert_eq!(notice["event"], got.headers["lazaret-event"].to_str().unwrap());
    for word in ["payload-of", "key-of", "words-of", "secret-of"] {
        assert!(!notice.to_string().contains(word), "{word} in {notice}");
    }
    notice
}

/// A consumer that is observed, and the service beside it.
struct Watched {
    running: Running,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

async fn start(bench: &Bench, service: Service, metrics: &Metrics, on_first: bool) -> Watched {
    start_with(bench, service, metrics, on_first, options()).await
}

async fn start_with(
    bench: &Bench,
    mut service: Service,
    metrics: &Metrics,
    on_first: bool,
    options: EngineOptions,
) -> Watched {
    service.learn(|_| true).await;
    begin(bench, service, metrics, on_first, options)
}

/// Without learning from the store before.
fn begin(
    bench: &Bench,
    service: Service,
    metrics: &Metrics,
    on_first: bool,
    options: EngineOptions,
) -> Watched {
    let observer = service.alerts().observer(NAME, Some("checkout-team"), on_first);
    let handler = obedient(Arc::new(AtomicBool::new(false)));
    let builder = bench.builder(handler).options(options).observer(observer);
    let running = live(builder, metrics);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(service.run(stop.clone()));
    Watched { running, stop, serving }
}

/// One life of a consumer.
fn live(builder: Builder, metrics: &Metrics) -> Running {
    let running = Running::start(builder.observer(metrics.observer(NAME)));
    metrics.running(running.handle.clone());
    running
}

impl Watched {
    async fn stop(self) {
        self.running.stop().await;
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

#[tokio::test]
async fn the_first_letter_of_a_group_is_told_once_and_again_when_the_group_is_gone() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter", "decode-failure"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-bad", "c-bad"]);
    eventually("three letters", || watched.running.handle.stats().handed_off == 3).await;
    let first = told(&receiver.wait_for(1).await[0]);
    assert_eq!((&first["event"], &first["status"]), (&"first-letter".into(), &"firing".into()));
    assert_eq!((&first["consumer"], &first["owner"]), (&NAME.into(), &"checkout-team".into()));
    assert_eq!((&first["reason"], &first["state"]), (&"CARD_DECLINED".into(), &"dead".into()));
    assert_eq!(first["queue"], queue().as_str());
    assert!(first["letter"].is_string() && first["group"].is_string() && first["since"].is_string());
    // Another kind of failure is another group, and one of its own rule.
    bench.log.push_with(0, |message| {
        let mut message = message.with_payload("payload-of-d");
        message.undecodable = Some("words-of-a-decoder".into());
        message
    });
    let events: Vec<String> =
        receiver.wait_for(3).await[1..].iter().map(|got| told(got)["event"].to_string()).collect();
    assert!(
        events.contains(&"\"first-letter\"".to_owned()) && events.contains(&"\"decode-failure\"".to_owned())
    );
    let group = bench.store.heads(&queue(), None, 10).await.unwrap().heads;
    for head in group.iter().filter(|head| head.cause.as_ref().unwrap().reason.as_str() == "CARD_DECLINED") {
        bench.store.act(&queue(), head.id, Act::Evict, &Actor::engine("test")).await.unwrap();
    }
    let over = told(&receiver.wait_for(4).await[3]);
    assert_eq!((&over["status"], &over["key"]), (&"resolved".into(), &first["key"]));
    bench.push(&["e-bad"]);
    let again = told(&receiver.wait_for(5).await[4]);
    assert_eq!((&again["status"], &again["key"]), (&"firing".into(), &first["key"]), "it is news again");
    watched.stop().await;
    assert_eq!(receiver.all().len(), 5, "nothing else was told");
}

#[tokio::test]
async fn a_group_that_has_letters_already_is_no_news_after_a_restart_but_its_end_is() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    bench.push(&["a-bad"]);
    let earlier = Running::start(bench.builder(obedient(Arc::default())));
    eventually("a letter", || earlier.handle.stats().handed_off == 1).await;
    earlier.stop().await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["b-bad"]);
    eventually("another one", || watched.running.handle.stats().handed_off == 1).await;
    for head in bench.store.heads(&queue(), None, 10).await.unwrap().heads {
        bench.store.act(&queue(), head.id, Act::Evict, &Actor::engine("test")).await.unwrap();
    }
    let only = receiver.wait_for(1).await;
    assert_eq!((only.len(), &told(&only[0])["status"]), (1, &"resolved".into()));
    watched.stop().await;
}

#[tokio::test]
async fn without_alert_on_first_nobody_is_told_of_a_letter() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter", "paused"])]);
    let watched = start(&bench, service, &metrics, false).await;
    bench.push(&["a-bad"]);
    eventually("a letter", || watched.running.handle.stats().handed_off == 1).await;
    let by = Actor::engine("test");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    assert_eq!(
        told(&receiver.wait_for(1).await[0])["event"],
        "paused",
        "the letter came before and was not told"
    );
    watched.stop().await;
}

#[tokio::test]
async fn a_webhook_that_is_away_is_asked_again_with_the_same_notice() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[503, 200]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad"]);
    let got = receiver.wait_for(2).await;
    assert_eq!(told(&got[0]), told(&got[1]));
    watched.stop().await;
    assert!(!metrics.render().contains("lazaret_alerts_dropped_total{webhook=\"1\"} 1"));
}

#[tokio::test]
async fn a_webhook_that_refuses_is_left_alone_and_the_others_are_told() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let (refusing, well) = (Receiver::start(&[404]).await, Receiver::start(&[]).await);
    let hooks = [webhook(&refusing, &["first-letter"]), webhook(&well, &["first-letter"])];
    let service = service(&bench, &metrics, &hooks);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad"]);
    well.wait_for(1).await;
    refusing.wait_for(1).await;
    eventually("it is counted", || {
        metrics.render().contains("lazaret_alerts_dropped_total{webhook=\"1\"} 1")
    })
    .await;
    watched.stop().await;
    assert_eq!((refusing.all().len(), well.all().len()), (1, 1));
}

#[tokio::test]
async fn a_webhook_that_never_answers_holds_up_neither_the_consumer_nor_the_end() {
    // I10
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", deaf.local_addr().unwrap());
    let hook = Webhook {
        url,
        secret: None,
        events: vec!["first-letter".to_owned()],
        timeout: Duration::from_secs(60),
    };
    let service = service(&bench, &metrics, &[hook]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-fine", "c-fine"]);
    eventually("all are settled", || watched.running.handle.stats().handled == 2).await;
    watched.running.stop().await;
    watched.stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), watched.serving).await.unwrap().unwrap();
}

/// What was told, as `event status`.
fn words(got: &[Got]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    got.iter().map(told).map(|n| format!("{} {}", word(&n["event"]), word(&n["status"]))).collect()
}

#[tokio::test]
async fn a_fuse_that_blows_is_told_and_so_is_its_end() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["fuse-blown", "paused", "resumed"])]);
    let fuse = FusePolicy { consecutive: 2, ..FusePolicy::default() };
    let options = EngineOptions { fuse: Some(fuse), ..options() };
    let watched = start_with(&bench, service, &metrics, true, options).await;
    bench.push(&["a-bad", "b-bad"]);
    assert_eq!(words(&receiver.wait_for(1).await)[0], "fuse-blown firing");
    eventually("it shows in a scrape", || {
        metrics.render().contains("lazaret_fuse_blown{consumer=\"orders\"} 1")
    })
    .await;
    watched.running.handle.resume(&PauseScope::Consumer, &Actor::engine("mended")).await.unwrap();
    assert_eq!(words(&receiver.wait_for(2).await), ["fuse-blown firing", "fuse-blown resolved"]);
    let by = Actor::engine("by hand");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    watched.running.handle.resume(&PauseScope::Consumer, &by).await.unwrap();
    let rest = words(&receiver.wait_for(5).await).split_off(2);
    assert_eq!(
        rest,
        ["paused firing", "resumed firing", "paused resolved"],
        "what a person does has its own words"
    );
    watched.stop().await;
}

#[tokio::test]
async fn a_queue_without_room_is_told_until_there_is_room() {
    // I9
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["queue-full", "store-unavailable"])]);
    let limits = Limits { max_sequences: Some(1), ..Limits::NONE };
    let dead_letter = Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() });
    let watched =
        start_with(&bench, service, &metrics, true, EngineOptions { dead_letter, ..options() }).await;
    bench.push(&["a-bad", "b-bad"]);
    assert_eq!(words(&receiver.wait_for(1).await), ["queue-full firing"]);
    let first = bench.store.heads(&queue(), None, 1).await.unwrap().heads.remove(0);
    bench.store.act(&queue(), first.id, Act::Evict, &Actor::engine("test")).await.unwrap();
    assert_eq!(words(&receiver.wait_for(2).await), ["queue-full firing", "queue-full resolved"]);
    assert!(!metrics.render().contains("lazaret_handoff_failures_total{consumer=\"orders\"} 0"));
    watched.stop().await;
}

#[tokio::test]
async fn a_store_that_does_not_answer_holds_up_neither_the_news_nor_the_end() {
    // I9
    let (clock, metrics) = (Bench::new().clock, Metrics::prometheus());
    let (failing, silent) = (unreliable(&clock), unreliable(&clock));
    silent.set_profile(Profile { latency: Duration::from_secs(1_000_000), ..Profile::default() });
    let receiver = Receiver::start(&[]).await;
    let mut bench = Bench { store: silent, ..Bench::new() };
    let service = service(&bench, &metrics, &[webhook(&receiver, &["store-unavailable"])]);
    bench.store = failing.clone();
    let watched = begin(&bench, service, &metrics, true, options());
    // The service has begun to ask its store.
    tokio::task::yield_now().await;
    bench.push(&["a-fine"]);
    eventually("the consumer runs", || watched.running.handle.stats().handled == 1).await;
    failing.outage(true);
    bench.push(&["a-bad"]);
    assert_eq!(words(&receiver.wait_for(1).await), ["store-unavailable firing"]);
    failing.outage(false);
    assert_eq!(words(&receiver.wait_for(2).await)[1], "store-unavailable resolved");
    watched.running.stop().await;
    watched.stop.cancel();
    tokio::time::timeout(PATIENCE, watched.serving).await.unwrap().unwrap();
}

fn unreliable(clock: &Arc<dyn Clock>) -> Arc<Unreliable<MemoryStore>> {
    Arc::new(Unreliable::new(MemoryStore::new(clock.clone()), 7))
}

#[tokio::test]
async fn a_breaker_that_was_open_when_its_consumer_ended_is_over_in_the_next_life() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["breaker-opened", "breaker-closed"])]);
    let alerts = service.alerts();
    let open_for = Duration::from_secs(3600);
    let breaker = Some(BreakerPolicy { failures: 1, open_for, ..BreakerPolicy::default() });
    let options = EngineOptions { breaker, ..options() };
    let watched = start_with(&bench, service, &metrics, true, options.clone()).await;
    bench.push(&["a-hopeless"]);
    assert_eq!(words(&receiver.wait_for(1).await), ["breaker-opened firing"]);
    watched.running.stop().await;
    let handler = obedient(Arc::new(AtomicBool::new(false)));
    let next = Bench::new().builder(handler).options(options).observer(alerts.observer(NAME, None, true));
    let next = live(next, &metrics);
    let rest = words(&receiver.wait_for(3).await).split_off(1);
    assert_eq!(rest, ["breaker-closed firing", "breaker-opened resolved"]);
    next.stop().await;
    watched.stop.cancel();
    watched.serving.await.unwrap();
}

#[tokio::test]
async fn a_pause_that_was_lifted_between_two_lives_is_over_and_one_that_was_not_goes_on() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["paused", "resumed"])]);
    let alerts = service.alerts();
    let mut watched = start(&bench, service, &metrics, true).await;
    let by = Actor::engine("test");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    watched.running.handle.pause(PauseScope::Replay, &by).await.unwrap();
    assert_eq!(words(&receiver.wait_for(2).await), ["paused firing"; 2]);
    let name = watched.running.handle.name().clone();
    for lifted in [None, Some(PauseScope::Consumer)] {
        watched.running.stop().await;
        if let Some(scope) = &lifted {
            assert!(bench.store.resume(&name, scope, &by).await.unwrap());
        }
        let handler = obedient(Arc::new(AtomicBool::new(false)));
        let next = bench.builder(handler).observer(alerts.observer(NAME, None, true));
        watched.running = live(next, &metrics);
        let left = 2 - usize::from(lifted.is_some());
        eventually("it knows its pauses", || watched.running.handle.pauses().len() == left).await;
    }
    let rest = receiver.wait_for(4).await.split_off(2);
    assert_eq!(words(&rest), ["resumed firing", "paused resolved"]);
    assert!(rest.iter().all(|got| told(got)["scope"] == "consumer"));
    watched.stop().await;
}

#[tokio::test]
async fn a_pause_of_one_stream_is_not_over_while_another_stream_is_paused() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["paused", "resumed"])]);
    let watched = start(&bench, service, &metrics, true).await;
    let (handle, by) = (watched.running.handle.clone(), Actor::engine("test"));
    let [first, second] = ["a", "b"].map(|name| PauseScope::Stream(name.into()));
    handle.pause(first.clone(), &by).await.unwrap();
    handle.pause(second.clone(), &by).await.unwrap();
    receiver.wait_for(1).await;
    handle.resume(&first, &by).await.unwrap();
    // What comes of something later is told later.
    handle.pause(PauseScope::Replay, &by).await.unwrap();
    receiver.wait_for(2).await;
    handle.resume(&PauseScope::Replay, &by).await.unwrap();
    receiver.wait_for(4).await;
    handle.resume(&second, &by).await.unwrap();
    let got: Vec<String> = receiver.wait_for(6).await.iter().map(told).map(scope_and_status).collect();
    assert_eq!(
        got,
        [
            "stream paused firing",
            "replay paused firing",
            "replay resumed firing",
            "replay paused resolved",
            "stream resumed firing",
            "stream paused resolved",
        ]
    );
    watched.stop().await;
}

fn scope_and_status(notice: Value) -> String {
    let word = |name: &str| notice[name].as_str().unwrap().to_owned();
    format!("{} {} {}", word("scope"), word("event"), word("status"))
}

#[tokio::test]
async fn operations_that_need_somebody_are_told_until_somebody_has_decided() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["approval-needed", "operation-stopped"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-bad"]);
    eventually("both letters", || watched.running.handle.stats().handed_off == 2).await;
    let by = |who: &str| Actor { who: who.to_owned(), ..Actor::engine("test") };
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse("").unwrap()),
        valid_for: Duration::from_secs(60),
        max_letters: 100,
    };
    let plan = bench.store.freeze(&request, &by("ada")).await.unwrap();
    let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::default() };
    let operation = bench.store.begin(plan.id, &rollout, &by("ada")).await.unwrap();
    let first = told(&receiver.wait_for(1).await[0]);
    assert_eq!(first["operation"], operation.id.to_string());
    bench.store.command(operation.id, Command::Reject, &by("grace")).await.unwrap();
    assert_eq!(words(&receiver.wait_for(2).await), ["approval-needed firing", "approval-needed resolved"]);
    // One letter first, which fails again: that is more than 5 %.
    let plan = bench.store.freeze(&request, &by("ada")).await.unwrap();
    bench.store.begin(plan.id, &RolloutPolicy::default(), &by("ada")).await.unwrap();
    watched.running.handle.wake();
    assert_eq!(words(&receiver.wait_for(3).await)[2], "operation-stopped firing");
    watched.stop().await;
}

#[tokio::test]
async fn an_operation_that_waits_is_not_taken_for_decided_because_many_came_after() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["approval-needed"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-bad"]);
    eventually("both letters", || watched.running.handle.stats().handed_off == 2).await;
    let by = |who: &str| Actor { who: who.to_owned(), ..Actor::engine("test") };
    let begin = async |query: &str| {
        let request = PlanRequest {
            action: Action::Retry,
            selection: Selection::Query(Query::parse(query).unwrap()),
            valid_for: Duration::from_secs(60),
            max_letters: 100,
        };
        let plan = bench.store.freeze(&request, &by("ada")).await.unwrap();
        let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::default() };
        bench.store.begin(plan.id, &rollout, &by("ada")).await.unwrap().id
    };
    let first = begin("seq:key-of-a").await;
    receiver.wait_for(1).await;
    for _ in 0..60 {
        begin("seq:nobody").await;
    }
    let second = begin("seq:key-of-b").await;
    receiver.wait_for(2).await;
    bench.store.command(second, Command::Reject, &by("grace")).await.unwrap();
    receiver.wait_for(3).await;
    bench.store.command(first, Command::Reject, &by("grace")).await.unwrap();
    let notices = receiver.wait_for(4).await;
    assert_eq!(words(&notices)[2..], ["approval-needed resolved", "approval-needed resolved"]);
    let about: Vec<Value> = notices.iter().map(|notice| told(notice)["operation"].clone()).collect();
    let [first, second] = [first, second].map(|id| Value::from(id.to_string()));
    assert_eq!(about, [first.clone(), second.clone(), second, first]);
    watched.stop().await;
}

#[tokio::test]
async fn every_rule_of_the_table_is_a_word_for_webhooks_and_others_are_refused() {
    let bench = Bench::new();
    let all: Vec<String> = RULES.iter().map(|rule| rule.event.to_owned()).collect();
    let hook = |events| Webhook {
        url: "http://127.0.0.1:1/".into(),
        secret: None,
        events,
        timeout: Duration::from_secs(1),
    };
    let open = |events| {
        let (store, clock) = (bench.store.clone(), bench.clock.clone());
        Service::new(&[hook(events)], Options::default(), Metrics::prometheus(), store, clock).map(|_| ())
    };
    open(all).unwrap();
    assert_eq!(
        open(vec!["nonsense".to_owned()]).unwrap_err().to_string(),
        "webhook 1: there is no event \"nonsense\""
    );
    assert!(!format!("{:?}", hook(vec![])).contains("127.0.0.1"), "the URL may hold a secret");
}
