//! Alerts over real requests: one notice when an alert fires, one when it is resolved.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lazaret_core::handler::{Text, handler};
use lazaret_core::policy::{BreakerPolicy, FusePolicy, RetryPolicy};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Change, Command, Limits, PauseScope, PlanRequest, RolloutPolicy, Selection,
};
use lazaret_core::{Clock, HandlerError};
use lazaret_engine::{Builder, Consumer, DeadLetterOptions, Options as EngineOptions};
use lazaret_memory::MemoryStore;
use lazaret_telemetry::Metrics;
use lazaret_telemetry::alerts::{Options, RULES, Service, Thresholds, Webhook, signature};
use lazaret_testkit::{Profile, Unreliable};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::support::{Bench, Got, NAME, Receiver, Running, TIMEOUT, eventually, options, queue, scripted};

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
    service_with(bench, metrics, webhooks, Thresholds::default())
}

fn service_with(bench: &Bench, metrics: &Metrics, webhooks: &[Webhook], thresholds: Thresholds) -> Service {
    let docs_url = Some("https://docs.example.com/lazaret/".to_owned());
    let options = Options { every: Duration::from_millis(20), thresholds, docs_url };
    Service::new(webhooks, options, metrics.clone(), bench.store.clone(), bench.clock.clone()).unwrap()
}

fn notice(got: &Got) -> Value {
    let signed = got.headers[signature::HEADER].to_str().unwrap();
    assert!(signature::verify(signed, SECRET.as_bytes(), &got.body), "{signed}");
    let body: Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(body["id"], got.headers["lazaret-delivery"].to_str().unwrap());
    assert_eq!(body["event"], got.headers["lazaret-event"].to_str().unwrap());
    for word in ["payload-of", "key-of", "words-of", "secret-of"] {
        assert!(!body.to_string().contains(word), "{word} in {body}");
    }
    body
}

/// An observed consumer, and the alerting service.
struct Observed {
    running: Running,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

async fn start(bench: &Bench, service: Service, metrics: &Metrics, on_first: bool) -> Observed {
    start_with(bench, service, metrics, on_first, options()).await
}

async fn start_with(
    bench: &Bench,
    mut service: Service,
    metrics: &Metrics,
    on_first: bool,
    options: EngineOptions,
) -> Observed {
    service.load_groups(|_| true).await;
    begin(bench, service, metrics, on_first, options)
}

/// Starts without loading the groups from the store.
fn begin(
    bench: &Bench,
    service: Service,
    metrics: &Metrics,
    on_first: bool,
    options: EngineOptions,
) -> Observed {
    let observer = service.alerts().observer(NAME, Some("checkout-team"), on_first);
    let handler = scripted(Arc::new(AtomicBool::new(false)));
    let builder = bench.builder(handler).options(options).observer(observer);
    let running = live(builder, metrics);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(service.run(stop.clone()));
    Observed { running, stop, serving }
}

/// Starts a consumer once.
fn live(builder: Builder, metrics: &Metrics) -> Running {
    let running = Running::start(builder.observer(metrics.observer(NAME)));
    metrics.running(running.handle.clone());
    running
}

impl Observed {
    async fn stop(self) {
        self.running.stop().await;
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

#[tokio::test]
async fn the_first_letter_of_a_group_fires_once_and_is_resolved_with_the_group() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter", "decode-failure"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-bad", "c-bad"]);
    eventually("three letters", || watched.running.handle.stats().handed_off == 3).await;
    let first = notice(&receiver.wait_for(1).await[0]);
    assert_eq!((&first["event"], &first["status"]), (&"first-letter".into(), &"firing".into()));
    assert_eq!((&first["consumer"], &first["owner"]), (&NAME.into(), &"checkout-team".into()));
    assert_eq!((&first["reason"], &first["state"]), (&"CARD_DECLINED".into(), &"dead".into()));
    assert_eq!(first["queue"], queue().as_str());
    assert_eq!(first["runbook"], "https://docs.example.com/lazaret/observability.html#first-letter");
    assert!(first["letter"].is_string() && first["group"].is_string() && first["since"].is_string());
    // Another failure is another group; an undecodable message has its own rule.
    bench.log.push_with(0, |message| {
        let mut message = message.with_payload("payload-of-d");
        message.undecodable = Some("words-of-a-decoder".into());
        message
    });
    let events: Vec<String> =
        receiver.wait_for(3).await[1..].iter().map(|got| notice(got)["event"].to_string()).collect();
    assert!(
        events.contains(&"\"first-letter\"".to_owned()) && events.contains(&"\"decode-failure\"".to_owned())
    );
    let group = bench.store.heads(&queue(), None, 10).await.unwrap().heads;
    for head in group.iter().filter(|head| head.cause.as_ref().unwrap().reason.as_str() == "CARD_DECLINED") {
        bench.store.act(&queue(), head.id, Act::Evict, &Actor::engine("test")).await.unwrap();
    }
    let over = notice(&receiver.wait_for(4).await[3]);
    assert_eq!((&over["status"], &over["key"]), (&"resolved".into(), &first["key"]));
    bench.push(&["e-bad"]);
    let again = notice(&receiver.wait_for(5).await[4]);
    assert_eq!((&again["status"], &again["key"]), (&"firing".into(), &first["key"]), "it fires again");
    watched.stop().await;
    assert_eq!(receiver.all().len(), 5, "no other notice was sent");
}

#[tokio::test]
async fn a_group_with_letters_does_not_fire_after_a_restart_but_is_resolved() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    bench.push(&["a-bad"]);
    let earlier = Running::start(bench.builder(scripted(Arc::default())));
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
    assert_eq!((only.len(), &notice(&only[0])["status"]), (1, &"resolved".into()));
    watched.stop().await;
}

#[tokio::test]
async fn without_alert_on_first_letters_do_not_fire() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter", "paused"])]);
    let watched = start(&bench, service, &metrics, false).await;
    bench.push(&["a-bad"]);
    eventually("a letter", || watched.running.handle.stats().handed_off == 1).await;
    let by = Actor::engine("test");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    assert_eq!(notice(&receiver.wait_for(1).await[0])["event"], "paused", "the earlier letter did not fire");
    watched.stop().await;
}

#[tokio::test]
async fn an_unavailable_webhook_is_retried_with_the_same_notice() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[503, 200]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["first-letter"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad"]);
    let got = receiver.wait_for(2).await;
    assert_eq!(notice(&got[0]), notice(&got[1]));
    watched.stop().await;
    assert!(!metrics.render().contains("lazaret_alerts_dropped_total{webhook=\"1\"} 1"));
}

#[tokio::test]
async fn a_rejected_notice_is_dropped_and_other_webhooks_receive_it() {
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
async fn an_unresponsive_webhook_delays_neither_the_consumer_nor_shutdown() {
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
    tokio::time::timeout(Duration::from_secs(240), watched.serving).await.unwrap().unwrap();
}

/// The notices, as `event status`.
fn summaries(got: &[Got]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    got.iter().map(notice).map(|n| format!("{} {}", word(&n["event"]), word(&n["status"]))).collect()
}

#[tokio::test]
async fn a_blown_fuse_fires_and_is_resolved() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["fuse-blown", "paused", "resumed"])]);
    let fuse = FusePolicy { consecutive: 2, ..FusePolicy::default() };
    let options = EngineOptions { fuse: Some(fuse), ..options() };
    let watched = start_with(&bench, service, &metrics, true, options).await;
    bench.push(&["a-bad", "b-bad"]);
    assert_eq!(summaries(&receiver.wait_for(1).await)[0], "fuse-blown firing");
    eventually("it shows in a scrape", || {
        metrics.render().contains("lazaret_fuse_blown{consumer=\"orders\"} 1")
    })
    .await;
    watched.running.handle.resume(&PauseScope::Consumer, &Actor::engine("fixed")).await.unwrap();
    assert_eq!(summaries(&receiver.wait_for(2).await), ["fuse-blown firing", "fuse-blown resolved"]);
    let by = Actor::engine("by hand");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    watched.running.handle.resume(&PauseScope::Consumer, &by).await.unwrap();
    let rest = summaries(&receiver.wait_for(5).await).split_off(2);
    assert_eq!(
        rest,
        ["paused firing", "resumed firing", "paused resolved"],
        "a manual pause has its own events"
    );
    watched.stop().await;
}

#[tokio::test]
async fn a_full_queue_fires_until_there_is_room() {
    // I9
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["queue-full", "store-unavailable"])]);
    let limits = Limits { max_sequences: Some(1), ..Limits::NONE };
    let dead_letter = Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() });
    let watched =
        start_with(&bench, service, &metrics, true, EngineOptions { dead_letter, ..options() }).await;
    bench.push(&["a-bad", "b-bad"]);
    assert_eq!(summaries(&receiver.wait_for(1).await), ["queue-full firing"]);
    let first = bench.store.heads(&queue(), None, 1).await.unwrap().heads.remove(0);
    bench.store.act(&queue(), first.id, Act::Evict, &Actor::engine("test")).await.unwrap();
    assert_eq!(summaries(&receiver.wait_for(2).await), ["queue-full firing", "queue-full resolved"]);
    assert!(!metrics.render().contains("lazaret_handoff_failures_total{consumer=\"orders\"} 0"));
    watched.stop().await;
}

#[tokio::test]
async fn an_unresponsive_store_delays_neither_alerts_nor_shutdown() {
    // I9
    let (clock, metrics) = (Bench::new().clock, Metrics::prometheus());
    let (failing, silent) = (unreliable(&clock), unreliable(&clock));
    silent.set_profile(Profile { latency: Duration::from_secs(1_000_000), ..Profile::default() });
    let receiver = Receiver::start(&[]).await;
    let mut bench = Bench { store: silent, ..Bench::new() };
    let service = service(&bench, &metrics, &[webhook(&receiver, &["store-unavailable"])]);
    bench.store = failing.clone();
    let watched = begin(&bench, service, &metrics, true, options());
    // The service has started its store poll.
    tokio::task::yield_now().await;
    bench.push(&["a-fine"]);
    eventually("the consumer runs", || watched.running.handle.stats().handled == 1).await;
    failing.outage(true);
    bench.push(&["a-bad"]);
    assert_eq!(summaries(&receiver.wait_for(1).await), ["store-unavailable firing"]);
    failing.outage(false);
    assert_eq!(summaries(&receiver.wait_for(2).await)[1], "store-unavailable resolved");
    watched.running.stop().await;
    watched.stop.cancel();
    tokio::time::timeout(TIMEOUT, watched.serving).await.unwrap().unwrap();
}

fn unreliable(clock: &Arc<dyn Clock>) -> Arc<Unreliable<MemoryStore>> {
    Arc::new(Unreliable::new(MemoryStore::new(clock.clone()), 7))
}

#[tokio::test]
async fn an_open_breaker_is_resolved_after_a_restart() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["breaker-opened", "breaker-closed"])]);
    let alerts = service.alerts();
    let open_for = Duration::from_secs(3600);
    let breaker = Some(BreakerPolicy { failures: 1, open_for, ..BreakerPolicy::default() });
    let options = EngineOptions { breaker, ..options() };
    let watched = start_with(&bench, service, &metrics, true, options.clone()).await;
    bench.push(&["a-hopeless"]);
    assert_eq!(summaries(&receiver.wait_for(1).await), ["breaker-opened firing"]);
    let scraped = metrics.render();
    let opened = format!("lazaret_breaker_opened_total{{consumer=\"{NAME}\",reason=\"TIMEOUT\"}} 1");
    assert!(scraped.contains(&opened), "{scraped}");
    let probe = scraped.lines().find(|line| line.starts_with("lazaret_breaker_probe_seconds{")).unwrap();
    let seconds: f64 = probe.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(seconds > 0.0 && seconds <= 3600.0, "{probe}");
    watched.running.stop().await;
    let handler = scripted(Arc::new(AtomicBool::new(false)));
    let next = Bench::new().builder(handler).options(options).observer(alerts.observer(NAME, None, true));
    let next = live(next, &metrics);
    let rest = summaries(&receiver.wait_for(3).await).split_off(1);
    assert_eq!(rest, ["breaker-closed firing", "breaker-opened resolved"]);
    next.stop().await;
    watched.stop.cancel();
    watched.serving.await.unwrap();
}

#[tokio::test]
async fn a_pause_lifted_between_two_runs_is_resolved_and_others_stay() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["paused", "resumed"])]);
    let alerts = service.alerts();
    let mut watched = start(&bench, service, &metrics, true).await;
    let by = Actor::engine("test");
    watched.running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    watched.running.handle.pause(PauseScope::Replay, &by).await.unwrap();
    assert_eq!(summaries(&receiver.wait_for(2).await), ["paused firing"; 2]);
    let name = watched.running.handle.name().clone();
    for lifted in [None, Some(PauseScope::Consumer)] {
        watched.running.stop().await;
        if let Some(scope) = &lifted {
            assert!(bench.store.resume(&name, scope, &by).await.unwrap());
        }
        let handler = scripted(Arc::new(AtomicBool::new(false)));
        let next = bench.builder(handler).observer(alerts.observer(NAME, None, true));
        watched.running = live(next, &metrics);
        let left = 2 - usize::from(lifted.is_some());
        eventually("it knows its pauses", || watched.running.handle.pauses().len() == left).await;
    }
    let rest = receiver.wait_for(4).await.split_off(2);
    assert_eq!(summaries(&rest), ["resumed firing", "paused resolved"]);
    assert!(rest.iter().all(|got| notice(got)["scope"] == "consumer"));
    watched.stop().await;
}

#[tokio::test]
async fn a_stream_pause_is_not_resolved_while_another_stream_is_paused() {
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
    // Notices are sent in the order of events.
    handle.pause(PauseScope::Replay, &by).await.unwrap();
    receiver.wait_for(2).await;
    handle.resume(&PauseScope::Replay, &by).await.unwrap();
    receiver.wait_for(4).await;
    handle.resume(&second, &by).await.unwrap();
    let got: Vec<String> = receiver.wait_for(6).await.iter().map(notice).map(scope_and_status).collect();
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
async fn operations_that_need_a_decision_fire_until_it_is_made() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["approval-needed", "operation-stopped"])]);
    metrics.owner(NAME, Some("checkout-team"));
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad", "b-bad"]);
    eventually("both letters", || watched.running.handle.stats().handed_off == 2).await;
    let by = |who: &str| Actor { who: who.to_owned(), ..Actor::engine("test") };
    let is_addressed = |got: &Got| {
        let notice = notice(got);
        assert_eq!((&notice["consumer"], &notice["owner"]), (&NAME.into(), &"checkout-team".into()));
    };
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse("").unwrap()),
        valid_for: Duration::from_secs(60),
        max_letters: 100,
    };
    let plan = bench.store.freeze(&request, &by("ada")).await.unwrap();
    let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::default() };
    let operation = bench.store.begin(plan.id, &rollout, &by("ada")).await.unwrap();
    let first = notice(&receiver.wait_for(1).await[0]);
    assert_eq!(first["operation"], operation.id.to_string());
    bench.store.command(operation.id, Command::Reject, &by("grace")).await.unwrap();
    assert_eq!(
        summaries(&receiver.wait_for(2).await),
        ["approval-needed firing", "approval-needed resolved"]
    );
    // The first stage is one letter; its failure exceeds 5 %.
    let plan = bench.store.freeze(&request, &by("ada")).await.unwrap();
    bench.store.begin(plan.id, &RolloutPolicy::default(), &by("ada")).await.unwrap();
    watched.running.handle.wake();
    let all = receiver.wait_for(3).await;
    assert_eq!(summaries(&all)[2], "operation-stopped firing");
    all.iter().for_each(is_addressed);
    watched.stop().await;
}

#[tokio::test]
async fn an_operation_over_several_consumers_is_told_to_each_owner() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["approval-needed"])]);
    metrics.owner(NAME, Some("checkout-team"));
    metrics.owner("mails", Some("mail-team"));
    let watched = start(&bench, service, &metrics, true).await;
    let other = Bench::new();
    let mails = Consumer::builder("mails").source(other.log.join()).store(bench.store.clone());
    let handler = scripted(Arc::new(AtomicBool::new(false)));
    let mails = mails.clock(bench.clock.clone()).options(options()).handler(handler);
    let mails = Running::start(mails);
    bench.push(&["a-bad"]);
    other.push(&["a-bad"]);
    for handle in [&watched.running.handle, &mails.handle] {
        eventually("a letter of each", || handle.stats().handed_off == 1).await;
    }
    let request = PlanRequest {
        action: Action::Evict,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(60),
        max_letters: 100,
    };
    let ada = Actor { who: "ada".to_owned(), ..Actor::engine("test") };
    let plan = bench.store.freeze(&request, &ada).await.unwrap();
    let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() };
    bench.store.begin(plan.id, &rollout, &ada).await.unwrap();
    let owners = |got: Vec<Got>| {
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let mut told: Vec<_> = got
            .iter()
            .map(notice)
            .map(|notice| (word(&notice["consumer"]), word(&notice["owner"])))
            .collect();
        told.sort();
        told
    };
    let both = [("mails", "mail-team"), (NAME, "checkout-team")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(owners(receiver.wait_for(2).await), both);
    mails.stop().await;
    watched.stop().await;
}

#[tokio::test]
async fn a_consumer_that_fails_permanently_is_told_at_once_until_it_runs() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["consumer-failed"])]);
    metrics.owner(NAME, Some("checkout-team"));
    let watched = start(&bench, service, &metrics, true).await;
    metrics.failed("mails", true);
    metrics.failed_permanently(NAME);
    let fired = notice(&receiver.wait_for(1).await[0]);
    assert_eq!((&fired["event"], &fired["status"]), (&"consumer-failed".into(), &"firing".into()));
    assert_eq!((&fired["consumer"], &fired["owner"]), (&NAME.into(), &"checkout-team".into()));
    assert!(metrics.render().contains("lazaret_consumer_failed{consumer=\"orders\"} 1"));
    metrics.running(watched.running.handle.clone());
    let all = summaries(&receiver.wait_for(2).await);
    assert_eq!(all, ["consumer-failed firing", "consumer-failed resolved"], "mails may be back in a second");
    metrics.failed_permanently(NAME);
    watched.stop().await;
    let last = summaries(&receiver.all());
    assert_eq!(last[2], "consumer-failed firing", "also when the process ends");
}

#[tokio::test]
async fn a_schema_that_a_handler_refuses_is_told_and_a_large_message_is_not() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["decode-failure", "paused"])]);
    let options = EngineOptions { max_payload: Some(64), ..options() };
    let watched = start_with(&bench, service, &metrics, true, options).await;
    let large = format!("a-{}", "x".repeat(64));
    bench.push(&[large.as_str()]);
    eventually("it is refused", || watched.running.handle.stats().handed_off == 1).await;
    watched.running.handle.pause(PauseScope::Replay, &Actor::engine("test")).await.unwrap();
    assert_eq!(summaries(&receiver.wait_for(1).await), ["paused firing"], "the schema is fine");
    bench.push(&["b-invalid"]);
    let told = notice(&receiver.wait_for(2).await[1]);
    assert_eq!((&told["event"], &told["reason"]), (&"decode-failure".into(), &"INVALID_SCHEMA".into()));
    watched.stop().await;
}

#[tokio::test]
async fn letters_are_told_before_they_expire_and_when_they_have() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let thresholds = Thresholds {
        expires_within: Duration::from_secs(7200),
        quiet: Duration::from_millis(1),
        ..Thresholds::default()
    };
    let webhooks = [webhook(&receiver, &["letters-expiring", "letters-expired"])];
    let service = service_with(&bench, &metrics, &webhooks, thresholds);
    let alerts = service.alerts();
    metrics.owner(NAME, Some("checkout-team"));
    let mut watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad"]);
    eventually("a letter", || watched.running.handle.stats().handed_off == 1).await;
    let letter = bench.store.heads(&queue(), None, 1).await.unwrap().heads.remove(0).id;
    let set = async |expires| {
        let by = Actor::engine("test");
        bench.store.change(&queue(), letter, &Change::ExpiresAt(expires), &by).await.unwrap();
    };
    // By default it has 30 days.
    let (hour, now) = (Duration::from_secs(3600), || bench.clock.now());
    for left in [None, Some(3 * hour), Some(hour)] {
        if let Some(left) = left {
            set(Some(now() + left)).await;
        }
        metrics.refresh(&*bench.store, now()).await.unwrap();
    }
    let told = notice(&receiver.wait_for(1).await[0]);
    assert_eq!((&told["event"], &told["status"]), (&"letters-expiring".into(), &"firing".into()));
    assert_eq!((&told["consumer"], &told["owner"]), (&NAME.into(), &"checkout-team".into()));
    assert_eq!((&told["queue"], &told["limit"]), (&queue().as_str().into(), &7200.0.into()));
    let left = told["value"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 3600.0, "{told}");
    set(None).await;
    metrics.refresh(&*bench.store, now()).await.unwrap();
    let all = summaries(&receiver.wait_for(2).await);
    assert_eq!(all, ["letters-expiring firing", "letters-expiring resolved"]);
    watched.running.stop().await;
    set(Some(now())).await;
    let next = bench.builder(scripted(Arc::default())).observer(alerts.observer(NAME, None, true));
    watched.running = live(next, &metrics);
    let expired = receiver.wait_for(4).await.split_off(2);
    assert_eq!(summaries(&expired), ["letters-expired firing", "letters-expired resolved"]);
    let told = notice(&expired[0]);
    assert_eq!((&told["queue"], &told["count"]), (&queue().as_str().into(), &1.into()));
    watched.stop().await;
}

#[tokio::test]
async fn a_retry_in_place_has_an_age() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let thresholds = Thresholds {
        window: Duration::from_millis(1),
        retry_age: Duration::from_millis(1),
        ..Thresholds::default()
    };
    let webhooks = [webhook(&receiver, &["retry-age", "blocked"])];
    let service = service_with(&bench, &metrics, &webhooks, thresholds);
    let half_an_hour = Duration::from_secs(1800);
    let retry = RetryPolicy {
        initial_delay: half_an_hour,
        max_delay: half_an_hour,
        max_elapsed: None,
        ..options().retry
    };
    let watched = start_with(&bench, service, &metrics, true, EngineOptions { retry, ..options() }).await;
    bench.push(&["a-flaky"]);
    let mut told = summaries(&receiver.wait_for(2).await);
    told.sort();
    assert_eq!(told, ["blocked firing", "retry-age firing"]);
    metrics.refresh(&*bench.store, bench.clock.now() + Duration::from_secs(60)).await.unwrap();
    let queue = queue();
    let shown = metrics.render();
    let age = format!(
        "lazaret_oldest_letter_age_seconds{{consumer=\"{NAME}\",queue=\"{queue}\",state=\"retrying\"}} 6"
    );
    assert!(shown.contains(&age), "{shown}");
    assert!(shown.contains("lazaret_oldest_attempt_age_seconds{consumer=\"orders\"} 0"), "{shown}");
    watched.stop().await;
}

#[tokio::test]
async fn a_handler_that_hangs_has_an_age_and_fires_while_others_are_handled() {
    let (bench, metrics) = (Bench::new(), Metrics::prometheus());
    let receiver = Receiver::start(&[]).await;
    let limit = Duration::from_millis(200);
    let thresholds = Thresholds {
        window: Duration::from_millis(1),
        attempt_age: limit,
        blocked_windows: u32::MAX,
        ..Thresholds::default()
    };
    let webhooks = [webhook(&receiver, &["retry-age", "blocked"])];
    let mut service = service_with(&bench, &metrics, &webhooks, thresholds);
    service.load_groups(|_| true).await;
    metrics.owner(NAME, Some("checkout-team"));
    let released = Arc::new(Notify::new());
    let released_by_test = released.clone();
    let hanging = handler(move |Text(word): Text| {
        let released = released.clone();
        async move {
            if word.contains("hangs") {
                released.notified().await;
            }
            Ok::<(), HandlerError>(())
        }
    });
    let options = EngineOptions { attempt_timeout: None, ..options() };
    let observer = service.alerts().observer(NAME, None, true);
    let running = live(bench.builder(hanging).options(options).observer(observer), &metrics);
    let stop = CancellationToken::new();
    let watched = Observed { running, serving: tokio::spawn(service.run(stop.clone())), stop };
    bench.push(&["a-hangs", "b-fine", "c-fine"]);
    eventually("others are handled", || watched.running.handle.stats().handled == 2).await;
    let told = notice(&receiver.wait_for(1).await[0]);
    assert_eq!((&told["event"], &told["status"]), (&"blocked".into(), &"firing".into()));
    assert_eq!((&told["limit"], &told["owner"]), (&limit.as_secs_f64().into(), &"checkout-team".into()));
    assert!(told["value"].as_f64() >= Some(limit.as_secs_f64()), "{told}");
    metrics.refresh(&*bench.store, bench.clock.now()).await.unwrap();
    let shown = metrics.render();
    let age = shown
        .lines()
        .find_map(|line| line.strip_prefix("lazaret_oldest_attempt_age_seconds{consumer=\"orders\"} "));
    assert!(age.is_some_and(|age| age.parse::<f64>().unwrap() >= limit.as_secs_f64()), "{shown}");
    released_by_test.notify_one();
    let all = summaries(&receiver.wait_for(2).await);
    assert_eq!(all, ["blocked firing", "blocked resolved"], "no message is retried");
    watched.stop().await;
}

#[tokio::test]
async fn a_waiting_operation_stays_firing_however_many_follow() {
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
    assert_eq!(summaries(&notices)[2..], ["approval-needed resolved", "approval-needed resolved"]);
    let about: Vec<Value> = notices.iter().map(|got| notice(got)["operation"].clone()).collect();
    let [first, second] = [first, second].map(|id| Value::from(id.to_string()));
    assert_eq!(about, [first.clone(), second.clone(), second, first]);
    watched.stop().await;
}

#[tokio::test]
async fn webhooks_accept_every_rule_and_reject_unknown_events() {
    let bench = Bench::new();
    let all: Vec<String> = RULES.iter().map(|rule| rule.event.to_string()).collect();
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
        "webhook 1: unknown event \"nonsense\""
    );
    assert!(!format!("{:?}", hook(vec![])).contains("127.0.0.1"), "the URL may hold a secret");
}

#[tokio::test]
async fn a_notice_holds_the_last_entry_of_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    let store = lazaret_store_sqlite::SqliteStore::open(folder.path().join("lazaret.db"), Default::default());
    let bench = Bench { store: Arc::new(store.unwrap()), ..Bench::new() };
    let metrics = Metrics::prometheus();
    let receiver = Receiver::start(&[]).await;
    let service = service(&bench, &metrics, &[webhook(&receiver, &["approval-needed"])]);
    let watched = start(&bench, service, &metrics, true).await;
    bench.push(&["a-bad"]);
    eventually("a letter", || watched.running.handle.stats().handed_off == 1).await;
    let request = PlanRequest {
        action: Action::Evict,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(60),
        max_letters: 10,
    };
    let by = Actor::new("ada", "cli", "cleaning up");
    let plan = bench.store.freeze(&request, &by).await.unwrap();
    let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() };
    bench.store.begin(plan.id, &rollout, &by).await.unwrap();
    let head = bench.store.audit_head(None).await.unwrap().unwrap();
    let sent = notice(&receiver.wait_for(1).await[0]);
    let hash = bench.store.digest_key().await.unwrap().seal_audit_hash(&head.hash);
    assert_eq!(
        (&sent["audit-head"]["number"], &sent["audit-head"]["hash"]),
        (&head.number.into(), &hash.into()),
        "sealed: the receiver cannot compare a guess of an entry with it"
    );
    watched.stop().await;
}
