//! Complete consumers with handlers in other processes: the handler's response decides the fate of the
//! message.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lazaret_core::handler::BoxHandler;
use lazaret_core::policy::{Classifier, RetryPolicy, Rule, When};
use lazaret_core::store::LetterStore;
use lazaret_core::{LetterId, LetterState, Message, QueueName, Reason, Verdict};
use lazaret_engine::{Consumer, Error, Options, Stats};
use lazaret_handlers::{CommandHandler, CommandOptions, HttpHandler, HttpOptions};
use lazaret_memory::{MemoryLog, MemoryStore};
use tokio_util::sync::CancellationToken;

use crate::support::{Server, answer, status};

/// Options with immediate retries, except for delays that the handler requests.
fn options() -> Options {
    let retry = RetryPolicy {
        max_attempts: 3,
        initial_delay: Duration::from_millis(1),
        jitter: 0.0,
        hold: Duration::from_secs(60),
        ..RetryPolicy::default()
    };
    Options { retry, until_idle: true, ..Options::default() }
}

struct Run {
    stats: Stats,
    store: Arc<MemoryStore>,
    committed: Option<u64>,
}

/// Runs a consumer to the end. Each message has its name as id, key and payload.
async fn run(handler: BoxHandler, options: Options, names: &[&str]) -> Result<Run, Error> {
    let log = MemoryLog::new("orders", 1);
    for name in names {
        log.push_with(0, |message| {
            let message = message.with_key(name.to_string()).with_payload(name.to_string());
            Message { id: (*name).into(), ..message }
        });
    }
    log.close();
    let store = Arc::new(MemoryStore::default());
    let consumer = Consumer::builder("shop")
        .source(log.join())
        .store(store.clone())
        .handler(handler)
        .options(options)
        .build()
        .unwrap();
    let stats = consumer.run(CancellationToken::new()).await?;
    Ok(Run { stats, store, committed: log.committed(0) })
}

impl Run {
    /// Returns the state of a message's letter, the reason, and the number of attempts.
    async fn letter(&self, name: &str) -> Option<(LetterState, Reason, u32)> {
        let queue = QueueName::of("shop", "shop");
        let letter = self.store.get(&queue, LetterId::of(&queue, &name.into())).await.unwrap()?;
        Some((letter.state, letter.cause?.reason, letter.attempts))
    }
}

/// A server that responds with the status in the payload, up to the attempt number `failures`.
async fn by_payload(failures: u32) -> Server {
    Server::start(move |seen| {
        let attempt: u32 = seen.header("lazaret-attempt").parse().unwrap();
        let code = std::str::from_utf8(&seen.body).unwrap().parse().unwrap();
        status(if attempt > failures { 200 } else { code })
    })
    .await
}

#[tokio::test]
async fn what_the_handler_answers_becomes_of_the_message() {
    let server = by_payload(u32::MAX).await;
    let names = ["200", "208", "422", "413", "401", "404", "503", "500", "409"];
    let run = run(Arc::new(server.handler()), options(), &names).await.unwrap();
    assert_eq!(run.committed, Some(8), "everything is settled");
    assert_eq!((run.stats.handled, run.stats.duplicates), (1, 1));
    assert_eq!((run.letter("200").await, run.letter("208").await), (None, None));
    let table = [
        ("422", LetterState::Dead, Reason::INVALID_SCHEMA, 1),
        ("413", LetterState::Dead, Reason::TOO_LARGE, 1),
        ("401", LetterState::Dead, Reason::AUTHORIZATION_DENIED, 1),
        ("404", LetterState::Parked, Reason::UNSUPPORTED, 1),
        ("503", LetterState::Dead, Reason::DEPENDENCY_UNAVAILABLE, 3),
        ("500", LetterState::Dead, Reason::HANDLER_ERROR, 3),
        ("409", LetterState::Dead, Reason::CONFLICT, 3),
    ];
    for (name, state, reason, attempts) in table {
        assert_eq!(run.letter(name).await, Some((state, reason, attempts)), "{name}");
    }
}

#[tokio::test]
async fn what_passes_is_tried_again_until_it_is_handled() {
    let server = by_payload(2).await;
    let names = ["408", "425", "429", "500", "502", "503", "504", "409", "418"];
    let run = run(Arc::new(server.handler()), options(), &names).await.unwrap();
    assert_eq!((run.stats.handled, run.stats.failed), (9, 18));
    assert_eq!((server.seen().len(), run.committed), (27, Some(8)));
}

#[tokio::test]
async fn a_handler_that_asks_for_time_gets_it() {
    // I12
    let calls = Arc::new(Mutex::new(Vec::new()));
    let log = calls.clone();
    let server = Server::start(move |_| {
        let mut calls = log.lock().unwrap();
        calls.push(Instant::now());
        if calls.len() == 1 { answer(429, &[("retry-after", "1")], "slow down") } else { status(200) }
    })
    .await;
    let run = run(Arc::new(server.handler()), options(), &["m"]).await.unwrap();
    assert_eq!((run.stats.handled, run.stats.failed), (1, 1));
    let calls = calls.lock().unwrap();
    let waited = calls[1].duration_since(calls[0]);
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
}

#[tokio::test]
async fn what_the_handler_demands_becomes_of_the_message() {
    let server = Server::start(|seen| {
        let verdict = std::str::from_utf8(&seen.body).unwrap();
        answer(200, &[("lazaret-verdict", verdict), ("lazaret-reason", "BY_HAND")], "")
    })
    .await;
    let names = ["dead-letter", "park", "quarantine", "skip", "duplicate"];
    let run = run(Arc::new(server.handler()), options(), &names).await.unwrap();
    let by_hand = || Reason::new("BY_HAND").unwrap();
    for (name, state) in names.iter().zip([LetterState::Dead, LetterState::Parked, LetterState::Quarantined])
    {
        assert_eq!(run.letter(name).await, Some((state, by_hand(), 1)), "{name}");
    }
    assert_eq!((run.stats.skipped, run.stats.duplicates), (1, 1));
    assert_eq!((server.seen().len(), run.committed), (5, Some(4)));
}

#[tokio::test]
async fn type_trace_and_diagnostics_of_an_error_are_in_the_letter_and_its_type_is_not_retried() {
    let server = Server::start(|seen| {
        let error_type = std::str::from_utf8(&seen.body).unwrap();
        let body = format!(r#"{{"detail":"boom","errorType":"{error_type}","stackTrace":"{error_type}: boom\n\tat shop.Pay.charge(Pay.java:7)"}}"#);
        let headers = [("content-type", "application/problem+json"), ("lazaret-diagnostic-gateway", "eu-1")];
        answer(500, &headers, body)
    })
    .await;
    let classifier = Classifier::default().no_retry_on_error_type("NullPointerException".parse().unwrap());
    let names = ["java.lang.NullPointerException", "java.net.SocketTimeoutException"];
    let run = run(Arc::new(server.handler()), Options { classifier, ..options() }, &names).await.unwrap();
    let queue = QueueName::of("shop", "shop");
    for (name, attempts) in names.into_iter().zip([1, 3]) {
        let letter = run.store.get(&queue, LetterId::of(&queue, &name.into())).await.unwrap().unwrap();
        let cause = letter.cause.unwrap();
        assert_eq!((letter.state, letter.attempts, &*cause.error_type), (LetterState::Dead, attempts, name));
        assert!(cause.backtrace.unwrap().ends_with("\tat shop.Pay.charge(Pay.java:7)"));
        assert_eq!(letter.diagnostics["gateway"], "eu-1");
    }
}

#[tokio::test]
async fn a_handler_can_stop_its_consumer() {
    let server =
        Server::start(|_| answer(500, &[("lazaret-verdict", "stop")], "the database is read-only")).await;
    let ended = run(Arc::new(server.handler()), options(), &["a", "b"]).await.err();
    assert!(matches!(ended, Some(Error::Stopped { .. })), "{ended:?}");
}

#[tokio::test]
async fn rules_go_before_what_a_status_means_but_not_before_what_the_handler_demands() {
    let server = Server::start(|seen| match &*seen.body {
        b"demand" => answer(418, &[("lazaret-verdict", "park")], ""),
        _ => status(418),
    })
    .await;
    let when = When { status: Some(418.into()), ..When::default() };
    let teapot = Reason::new("TEAPOT").unwrap();
    let rule = Rule { when, then: Verdict::DeadLetter, reason: Some(teapot.clone()) };
    let options = Options { classifier: Classifier::default().rule(rule), ..options() };
    let run = run(Arc::new(server.handler()), options, &["rule", "demand"]).await.unwrap();
    assert_eq!(run.letter("rule").await, Some((LetterState::Dead, teapot, 1)));
    assert_eq!(run.letter("demand").await, Some((LetterState::Parked, Reason::HANDLER_ERROR, 1)));
}

#[tokio::test]
async fn a_handler_that_is_away_for_a_while_loses_nothing() {
    // I1
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let handler = HttpHandler::new(HttpOptions::new(url)).unwrap();
    let run = run(Arc::new(handler), options(), &["a", "b"]).await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(run.letter(name).await, Some((LetterState::Dead, Reason::HANDLER_UNREACHABLE, 3)));
    }
}

#[tokio::test]
async fn a_command_can_be_the_handler_of_a_consumer() {
    let script = "read code; test $LAZARET_ATTEMPT -lt 3 || exit 0; exit $code";
    let handler = CommandHandler::new(CommandOptions::new(["sh", "-c", script])).unwrap();
    let run = run(Arc::new(handler), options(), &["0", "65", "75", "100", "101", "103"]).await.unwrap();
    assert_eq!((run.stats.handled, run.stats.duplicates, run.committed), (2, 1, Some(5)));
    let table = [
        ("65", LetterState::Dead, Reason::INVALID_SCHEMA),
        ("100", LetterState::Parked, Reason::UNSUPPORTED),
        ("101", LetterState::Quarantined, Reason::HANDLER_ERROR),
    ];
    for (name, state, reason) in table {
        assert_eq!(run.letter(name).await, Some((state, reason, 1)), "{name}");
    }
}
