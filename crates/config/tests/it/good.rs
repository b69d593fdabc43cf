//! Valid files and the configurations they produce.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lazaret_config::{
    AdoptTopics, Advanced, Approval, CommandMode, Config, FullDocument, Handler, KafkaSource, KeySource,
    NoEnv, Order, Origin, Reload, Reprocess, Restart, SequenceRule, Source, StoreLocation, TopicFormat,
    check, diff,
};
use lazaret_core::fingerprint::{GroupPart, GroupPattern};
use lazaret_core::policy::{
    BreakerPolicy, ErrorTypePattern, FusePolicy, OnDead, OnDeadPolicy, PoisonPolicy, RetryPolicy, Strategy,
    Subject,
};
use lazaret_core::{Failure, Grouping, Message, Position, Reason, Sequencing, Verdict};
use lazaret_engine::{DeadLetterOptions, Options, ReplayOptions, Schedule};

fn env() -> BTreeMap<String, String> {
    let set = [("SECRET_WORD", "do-not-show"), ("URL", "http://127.0.0.1:8080/"), ("PORT", "7200")];
    set.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/good");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn good(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/good").join(name);
    read(&fs::read_to_string(path).unwrap())
}

fn read(text: &str) -> Config {
    let checked = check("test.yaml", text.as_bytes(), &env());
    checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()))
}

/// Returns a consumer with these lines.
fn consumer(lines: &str) -> String {
    format!(
        "consumers:\n  orders:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [./h] }} }}\n{lines}\n"
    )
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn every_good_file_is_taken_without_a_word() {
    assert!(files().len() >= 12);
    for path in files() {
        let checked = check("test.yaml", &fs::read(&path).unwrap(), &env());
        assert!(
            checked.config.is_some() && checked.diagnostics.is_empty(),
            "{}:\n{}",
            path.display(),
            checked.diagnostics.plain()
        );
        assert!(!format!("{checked:?}").contains("do-not-show"), "{} shows a secret", path.display());
    }
}

#[test]
fn the_sign_in_to_the_console_is_read() {
    let console = good("every-key.yaml").console;
    assert_eq!((console.session_idle, console.session_lifetime), (secs(1800), secs(8 * 3600)));
    let oidc = console.oidc.unwrap();
    assert_eq!((oidc.client_id.as_str(), oidc.person_claim.as_str()), ("lazaret", "preferred_username"));
    assert_eq!(oidc.client_secret.unwrap().reveal(), "do-not-show");
    assert_eq!((oidc.roles[0].consumers.len(), oidc.roles[1].consumers.len()), (1, 0));
    let proxy = console.proxy.unwrap();
    let trusted: Vec<String> = proxy.trusted.iter().map(ToString::to_string).collect();
    assert_eq!(trusted, ["10.1.0.0/16", "fd00::1/128"]);
    assert_eq!(proxy.user_header.as_deref(), Some("X-Auth-Request-Email"));
    assert_eq!(console.trace_url.as_deref(), Some("https://jaeger.example.com/trace/{trace-id}"));
    let default = good("minimal.yaml").console;
    assert_eq!((default.session_idle, default.session_lifetime), (secs(3600), secs(12 * 3600)));
    assert!(default.oidc.is_none() && default.proxy.is_none() && default.trace_url.is_none());
}

#[test]
fn browsers_use_tls_for_a_year_unless_the_file_says_otherwise() {
    let hsts = |rest: &str| {
        let text = format!("tls: {{ certificate: tls.crt, key: tls.key{rest} }}\nconsumers: {{}}\n");
        read(&text).tls.unwrap().hsts
    };
    assert_eq!(hsts(""), secs(365 * 24 * 3600));
    assert_eq!(hsts(", hsts: 30d"), secs(30 * 24 * 3600));
    assert_eq!(hsts(", hsts: 0s"), Duration::ZERO);
}

#[test]
fn encryption_keys_are_read() {
    let keys = good("every-key.yaml").encryption.unwrap().keys;
    let program = ["vault", "read", "-field=key", "secret/lazaret"].map(str::to_owned).to_vec();
    let expected = [
        KeySource::File("/etc/lazaret/lazaret.key".into()),
        KeySource::Command { program, timeout: secs(10) },
    ];
    assert_eq!(keys, expected);
    assert_eq!(good("minimal.yaml").encryption, None);
    let checked = check("f", b"encryption: { keys: [{ timeout: 1s }] }", &env());
    assert!(checked.diagnostics.plain().contains("neither a `file` nor a `command`"));
}

#[test]
fn redaction_rules_are_read() {
    let redact = good("every-key.yaml").redact;
    assert!(redact.covers_header("authorization") && redact.covers_header("Cookie"));
    let covers = |query: &str| {
        let query = lazaret_core::query::Query::parse(query).unwrap();
        query.expr().any_term(&|term| redact.covers_term(term))
    };
    assert!(covers("payload./card/number:4*") && covers("payload./items/3/iban:x"));
    assert!(!covers("payload./card/name:x"));
    let texts = redact.stored_texts();
    let text = "4111 1111 1111 1111, ada@example.org, iban DE02: no";
    assert_eq!(texts.redact(text), "[redacted], [redacted], iban [redacted]: no");
    assert_eq!(good("every-key.yaml").consumers[0].redact, redact);
    let shown = read(&format!("redact: {{ errors: [emails] }}\n{}", consumer(""))).redact;
    assert_eq!(shown.texts().redact("of ada@example.org"), "of [redacted]");
    assert!(shown.stored_texts().is_empty(), "texts are stored as they are");
    assert!(good("minimal.yaml").redact.is_empty());
}

#[test]
fn grouping_rules_are_read_and_a_reload_changes_them() {
    let rules = |lines: &str| read(&consumer(lines)).consumers[0].grouping.clone();
    let every = good("every-key.yaml").consumer("kafka").unwrap().grouping.clone();
    let parts: Vec<_> = every.parts().map(GroupPart::as_str).collect();
    assert_eq!(parts, ["error-type", "message", "event-type"]);
    let patterns: Vec<_> = every.patterns().iter().map(GroupPattern::as_str).collect();
    assert_eq!(patterns, ["tenant ([a-z-]+)", "order of (\\w+)"]);
    assert_eq!(rules(""), Grouping::default());
    assert_eq!(rules("    grouping: {}"), Grouping::default());
    let replaced = rules("    grouping: { replace: [acme] }");
    assert_eq!(replaced, Grouping::default().replace("acme".parse().unwrap()));
    let text = format!("defaults: {{ grouping: {{ by: [message], replace: [acme] }} }}\n{}", consumer(""));
    assert_eq!(
        read(&text).consumers[0].grouping,
        Grouping::by([GroupPart::Message]).replace("acme".parse().unwrap())
    );
    let (old, new) = (consumer(""), consumer("    grouping: { replace: [acme] }"));
    let changed = diff(&read(&old), &read(&new));
    assert!(changed.changes.iter().all(|change| change.reload == Reload::Live), "{changed:?}");
    assert_eq!(changed.changes.len(), 1);
    let options = Options::from_config(&read(&new).consumers[0]).unwrap();
    assert_eq!(options.grouping, replaced);
}

#[test]
fn the_example_of_the_contract_means_what_it_says() {
    let config = good("contract.yaml");
    assert_eq!(config.listen.to_string(), "127.0.0.1:7117");
    assert_eq!(config.store, StoreLocation::Sqlite("lazaret.db".to_owned()));
    let consumer = config.consumer("notification-service").unwrap();
    assert!(matches!(consumer.source, Source::Inbox));
    let Handler::Http(http) = &consumer.handler else { panic!("{:?}", consumer.handler) };
    assert_eq!((http.url.as_str(), http.timeout), ("http://127.0.0.1:8080/events", secs(10)));
    assert_eq!(
        (consumer.order, &consumer.sequence, consumer.concurrency),
        (Order::Key, &SequenceRule::Key, 64)
    );
    let expected = RetryPolicy {
        strategy: Strategy::Ordered,
        hold: secs(5),
        max_attempts: 5,
        max_elapsed: Some(secs(3600)),
        initial_delay: secs(1),
        multiplier: 2.0,
        max_delay: secs(300),
        jitter: 0.2,
        max_crashes: 3,
        ..RetryPolicy::default()
    };
    assert_eq!(consumer.retry.policy, expected);
    assert_eq!(consumer.retry.no_retry_on, [Reason::INVALID_SCHEMA, Reason::AUTHORIZATION_DENIED]);
    assert!(consumer.retry.no_retry_on_types.is_empty(), "the list replaces the default one");
    let budget = &consumer.retry.budget;
    assert_eq!((budget.rate.unwrap().per_second(), budget.backlog), (50.0, Some(10_000)));
    assert_eq!((budget.per_key, budget.per_type), (Some(100), Some(1000)));
    assert_eq!(consumer.rules.len(), 2);
    let teapot = &consumer.rules[1];
    assert_eq!((teapot.then, teapot.when.status), (Verdict::DeadLetter, Some(418.into())));
    assert_eq!(teapot.reason.as_ref().unwrap().as_str(), "TEAPOT");
    assert_eq!(
        (&consumer.breaker, &consumer.fuse),
        (&Some(BreakerPolicy::default()), &Some(FusePolicy::default()))
    );
    let letters = consumer.dead_letter.as_ref().unwrap();
    assert_eq!((letters.owner.as_deref(), letters.ttl), (Some("notification-team"), Some(secs(30 * 86_400))));
    assert_eq!(letters.reprocess, Reprocess::Manual);
    assert_eq!(consumer.inbox_dedupe, Some(secs(7 * 86_400)));
    assert_eq!((consumer.replay.approval, consumer.replay.max_replays), (Approval::None, Some(5)));
}

#[test]
fn every_alternative_of_the_contract_is_read() {
    let source = |name: &str| good(name).consumers[0].source.clone();
    assert_eq!(source("contract-file.yaml"), Source::File { path: "events.jsonl".into(), follow: false });
    let Source::Kafka(kafka) = source("contract-kafka.yaml") else { panic!() };
    assert_eq!((kafka.brokers.as_str(), kafka.group.as_str()), ("127.0.0.1:9092", "notification-service"));
    assert_eq!((kafka.topics, kafka.properties[0].1.reveal()), (vec!["case-events".to_owned()], "earliest"));
    assert_eq!((kafka.id_headers.len(), kafka.type_headers), (0, vec!["ce_type".to_owned()]));
    assert_eq!(kafka.correlation_headers, ["correlation-id", "ce_correlationid"]);
    let Source::Mongodb(mongodb) = source("contract-mongodb.yaml") else { panic!() };
    assert_eq!(
        (mongodb.collection.as_deref(), mongodb.full_document, mongodb.single_leader),
        (Some("orders"), FullDocument::UpdateLookup, true)
    );
    assert_eq!((mongodb.checkpoint.every, mongodb.checkpoint.idle_heartbeat), (1, Some(secs(300))));
    let expected =
        Restart { max_attempts: None, initial_delay: secs(1), multiplier: 2.0, max_delay: secs(60) };
    assert_eq!(mongodb.restart, expected, "the default");
    let Handler::Command(command) = good("contract-command.yaml").consumers[0].handler.clone() else {
        panic!()
    };
    assert_eq!(
        (command.program, command.mode),
        (vec!["python3".to_owned(), "handler.py".to_owned()], CommandMode::Once)
    );
}

#[test]
fn the_restarts_of_a_change_stream_are_read_and_shown_with_their_origin() {
    let Source::Mongodb(mongodb) = good("every-key.yaml").consumer("mongodb").unwrap().source.clone() else {
        panic!()
    };
    let expected =
        Restart { max_attempts: Some(20), initial_delay: secs(2), multiplier: 1.5, max_delay: secs(300) };
    assert_eq!(mongodb.restart, expected);
    let config = read(
        "defaults: { source: { mongodb: { restart: { max-attempts: 9 } } } }
consumers:
  orders:
    source: { mongodb: { uri: 'mongodb://h', database: shop, restart: { max-attempts: unlimited, max-delay: 2m } } }
    handler: { command: { program: [./h] } }
  refunds:
    source: { mongodb: { uri: 'mongodb://h', database: shop } }
    handler: { command: { program: [./h] } }
",
    );
    let restart = |name: &str| match &config.consumer(name).unwrap().source {
        Source::Mongodb(mongodb) => mongodb.restart,
        other => panic!("{other:?}"),
    };
    assert_eq!((restart("orders").max_attempts, restart("orders").max_delay), (None, secs(120)));
    assert_eq!((restart("refunds").max_attempts, restart("refunds").max_delay), (Some(9), secs(60)));
    let path = |key: &str| format!("source.mongodb.restart.{key}");
    assert_eq!(config.origin("orders", &path("max-attempts")), Some(Origin::Own));
    assert_eq!(config.origin("refunds", &path("max-attempts")), Some(Origin::Defaults));
    assert_eq!(config.origin("refunds", &path("initial-delay")), Some(Origin::BuiltIn));
    let shown = config.effective("orders").unwrap();
    let line = |key: &str| shown.lines().find(|line| line.trim_start().starts_with(key)).map(str::to_owned);
    assert!(line("initial-delay: 1s").is_some_and(|line| line.ends_with("# built-in")), "{shown}");
    assert!(line("max-delay: 2m").is_some_and(|line| line.ends_with("# own, line 4")), "{shown}");
}

#[test]
fn the_delays_of_retry_topics_say_when_and_how_often_to_retry() {
    // I12
    let retry = |defaults: &str, keys: &str| {
        let text = format!(
            "defaults: {{ retry: {{ {defaults} }} }}\nconsumers:\n  orders:\n    source: {{ kafka: {{ brokers: 'k:9092', topics: [orders] }} }}
    handler: {{ command: {{ program: [x] }} }}\n    retry: {{ strategy: topics, {keys} }}\n"
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &env());
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let policy = config.consumers[0].retry.policy.clone();
        (policy.delays.iter().map(Duration::as_secs).collect::<Vec<_>>(), policy.max_attempts)
    };
    assert_eq!(retry("", ""), (vec![60, 600, 3600], 4), "the default list");
    assert_eq!(retry("", "topics: { delays: [3s, 6s, 9s] }"), (vec![3, 6, 9], 4));
    assert_eq!(
        retry("", "max-attempts: 2, topics: { delays: [3s, 6s, 9s] }"),
        (vec![3, 6, 9], 2),
        "stricter"
    );
    assert_eq!(retry("max-attempts: 9", "topics: { delays: [3s, 6s] }"), (vec![3, 6], 3), "the list ends");
    assert_eq!(retry("initial-delay: 1s", "topics: { delays: [3s] }"), (vec![3], 2), "its own list");
    assert_eq!(retry("", "initial-delay: 1s"), (vec![], 3), "a formula in place of the default list");
    assert_eq!(retry("topics: { delays: [3s] }", "initial-delay: 1s"), (vec![], 3), "its own formula");
    let stored = good("contract.yaml").consumers[0].retry.policy.clone();
    assert!(stored.delays.is_empty(), "without retry topics there is no list");
}

#[test]
fn a_kafka_source_starts_fresh_only_if_the_file_says_so() {
    let may_start_fresh = |config: &Config, consumer: &str| {
        let Source::Kafka(kafka) = &config.consumer(consumer).unwrap().source else { panic!() };
        kafka.may_start_fresh
    };
    assert!(may_start_fresh(&good("every-key.yaml"), "kafka"));
    let kafka = |keys: &str| {
        let source = format!("kafka: {{ brokers: k1:9092, topics: [orders]{keys} }}");
        read(&consumer("").replace("inbox: {}", &source))
    };
    assert!(!may_start_fresh(&kafka(""), "orders"));
    assert!(!may_start_fresh(&kafka(", on-lost-position: fail"), "orders"));
    assert!(may_start_fresh(&kafka(", on-lost-position: start-fresh"), "orders"));
}

#[test]
fn an_adoption_reads_as_the_kafka_source_unless_it_says_otherwise() {
    let kafka = good("every-key.yaml").consumer("kafka").unwrap().clone();
    let [spring, connect] = kafka.adopt.as_slice() else { panic!("{:?}", kafka.adopt) };
    assert_eq!((spring.format, connect.format), (TopicFormat::SpringDlt, TopicFormat::Connect));
    assert_eq!(spring.kafka.topics, ["orders-dlt", "payments-dlt"]);
    assert_eq!((spring.kafka.brokers.as_str(), spring.group.as_deref()), ("k1:9092,k2:9092", Some("shop")));
    // The ids are the same as in the source, so that a redelivered message finds its letter (I8).
    assert_eq!(spring.kafka.id_headers, ["ce_id"]);
    assert_eq!(spring.kafka.type_headers, ["__TypeId__"]);
    let names = |adopt: &AdoptTopics| -> Vec<String> {
        adopt.kafka.properties.iter().map(|(name, _)| name.clone()).collect()
    };
    assert!(
        names(spring).contains(&"sasl.password".to_owned())
            && names(spring).contains(&"client.id".to_owned())
    );
    assert!(!spring.continuous && spring.adopts_unknown && spring.separate_sequences);
    // Another cluster does not receive the source's credentials.
    assert_eq!(
        (connect.kafka.brokers.as_str(), names(connect)),
        ("k3:9092", vec!["sasl.password".to_owned()])
    );
    assert_eq!(connect.kafka.properties[0].1.reveal(), "do-not-show");
    assert!(connect.continuous && !connect.adopts_unknown && !connect.separate_sequences);
    let contract = good("contract.yaml").consumers[0].adopt.clone();
    assert_eq!(contract[0].kafka.topics, ["orders.DLT"]);
    let Source::Kafka(source) = good("contract-kafka.yaml").consumers[0].source.clone() else { panic!() };
    let headers = |kafka: &KafkaSource| {
        (kafka.id_headers.clone(), kafka.type_headers.clone(), kafka.correlation_headers.clone())
    };
    assert_eq!(headers(&contract[0].kafka), headers(&source), "the defaults of a Kafka source");
}

#[test]
fn a_consumer_has_a_collection_of_its_own_for_copies_of_its_dead_letters() {
    let config = good("dead-letter-collection.yaml");
    let copies = |consumer: &str| {
        let letters = config.consumer(consumer).unwrap().dead_letter.clone().unwrap();
        let copies = letters.collection.unwrap();
        (copies.name, copies.uri.map(|uri| uri.reveal().to_owned()))
    };
    assert_eq!(copies("orders"), ("orders_dlq".to_owned(), None));
    let other = "mongodb://c:27017/shop?replicaSet=rs1".to_owned();
    assert_eq!(copies("payments"), ("_fw_dlq".to_owned(), Some(other)));
    assert!(good("minimal.yaml").consumers[0].dead_letter.as_ref().unwrap().collection.is_none());
}

#[test]
fn the_lists_of_retries_take_reason_codes_and_error_types() {
    let retry = |lists: &str| {
        let config = read(&consumer(&format!("    retry: {{ {lists} }}")));
        let retry = config.consumers[0].retry.clone();
        let names = |types: &[ErrorTypePattern]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
        (
            retry.retry_on.len(),
            names(&retry.retry_on_types),
            retry.no_retry_on.len(),
            names(&retry.no_retry_on_types),
        )
    };
    let programming =
        ["IllegalArgumentException", "NullPointerException", "ClassCastException"].map(str::to_owned);
    assert_eq!(retry(""), (0, vec![], 0, programming.to_vec()), "those of FlowWarden by default");
    assert_eq!(retry("no-retry-on: []"), (0, vec![], 0, vec![]));
    let given =
        retry("retry-on: [TIMEOUT, 'java.io.*'], no-retry-on: ['shop::Declined', CONFLICT, KeyError]");
    assert_eq!(
        given,
        (1, vec!["java.io.*".to_owned()], 1, vec!["shop::Declined".to_owned(), "KeyError".to_owned()])
    );
}

#[test]
fn by_default_programming_errors_of_the_jvm_are_not_retried_with_and_without_their_package() {
    let classifier = read(&consumer("")).consumers[0].classifier();
    let verdict = |error_type: &str| {
        let failure = Failure::new(Reason::HANDLER_ERROR, error_type, "boom");
        let message = Message::new("m", "s", Position::new(0, 0));
        let suggested = Some(Verdict::Retry);
        let subject =
            Subject { failure: &failure, error: None, message: &message, attempt: 1, asked: None, suggested };
        classifier.classify(&subject).verdict
    };
    for error_type in
        ["java.lang.IllegalArgumentException", "NullPointerException", "java.lang.ClassCastException"]
    {
        assert_eq!(verdict(error_type), Verdict::DeadLetter, "{error_type}");
    }
    for error_type in ["java.lang.IllegalStateException", "java.io.IOException", "HTTP 500"] {
        assert_eq!(verdict(error_type), Verdict::Retry, "{error_type}");
    }
}

#[test]
fn a_type_that_is_retried_and_refused_by_default_is_remarked() {
    let text = consumer("    retry: { retry-on: [NullPointerException] }");
    let said = check("f", text.as_bytes(), &NoEnv).diagnostics.plain();
    assert!(said.contains("in `no-retry-on` by default") && said.contains("add `no-retry-on: []`"), "{said}");
}

#[test]
fn defaults_are_merged_key_by_key_and_lists_are_one_value() {
    let config = good("defaults.yaml");
    let orders = config.consumer("orders").unwrap();
    let Source::Kafka(kafka) = &orders.source else { panic!() };
    assert_eq!(
        (kafka.brokers.as_str(), kafka.topics.as_slice()),
        ("k1:9092,k2:9092", ["orders".to_owned()].as_slice())
    );
    assert_eq!(kafka.group, "orders", "the group is the consumer's name");
    let properties: Vec<_> =
        kafka.properties.iter().map(|(name, value)| (name.as_str(), value.reveal())).collect();
    assert_eq!(properties, [("client.id", "orders"), ("security.protocol", "SSL")]);
    assert_eq!(orders.retry.policy.max_attempts, 9);
    assert_eq!(orders.retry.no_retry_on, [Reason::CONFLICT]);
    assert_eq!((orders.retry.budget.rate, orders.retry.budget.backlog), (None, Some(10)));
    assert_eq!((&orders.breaker, orders.fuse.as_ref().unwrap().consecutive), (&None, 5));
    // A different choice replaces the choice in the defaults, with all its keys.
    let payments = config.consumer("payments").unwrap();
    assert!(
        matches!(payments.source, Source::File { .. }) && matches!(payments.handler, Handler::Command(_))
    );
    assert_eq!((payments.breaker.as_ref().unwrap().failures, &payments.fuse), (7, &None));
    assert_eq!(payments.dead_letter.as_ref().unwrap().limits.max_sequences, None);
    assert_eq!(config.consumer("refunds").unwrap().handler.timeout(), Some(secs(3)));
}

#[test]
fn values_come_from_the_environment() {
    let config = good("environment.yaml");
    assert_eq!(config.listen.port, 7200);
    assert_eq!(config.store, StoreLocation::Sqlite("/var/lib/lazaret/lazaret.db".to_owned()));
    assert_eq!(config.webhooks[0].secret.as_ref().unwrap().reveal(), "do-not-show");
    let orders = &config.consumers[0];
    assert_eq!(
        (orders.concurrency, orders.retry.policy.max_attempts, orders.retry.policy.hold),
        (8, 7, secs(2))
    );
    let Handler::Http(http) = &orders.handler else { panic!() };
    let headers: Vec<_> = http.headers.iter().map(|(_, value)| value.reveal()).collect();
    assert_eq!(headers, ["Bearer do-not-show", "${NOT_A_VARIABLE}"]);
}

#[test]
fn what_is_not_given_is_what_the_engine_takes_by_itself() {
    let consumer = &read(&consumer("")).consumers[0];
    let engine = Options::default();
    assert_eq!(consumer.retry.policy, engine.retry);
    assert_eq!(consumer.retry.budget, engine.budget);
    assert_eq!(
        (&consumer.breaker, &consumer.fuse, &consumer.poison),
        (&engine.breaker, &engine.fuse, &engine.poison)
    );
    assert_eq!((consumer.concurrency, consumer.max_payload), (engine.concurrency, engine.max_payload));
    let expected = Advanced {
        window: engine.window,
        shards: engine.shards,
        commit_interval: engine.commit_interval,
        drain_deadline: engine.drain_deadline,
        lease: engine.lease,
        refresh: engine.refresh,
        blocked_limit: engine.blocked_limit,
    };
    assert_eq!(consumer.advanced, expected);
    let (letters, expected) = (consumer.dead_letter.as_ref().unwrap(), DeadLetterOptions::default());
    assert_eq!(
        (letters.limits, letters.ttl, letters.keep_closed),
        (expected.limits, expected.ttl, expected.keep_closed)
    );
    assert_eq!(
        (letters.include_payload, letters.include_backtrace, &letters.on_dead),
        (expected.include_payload, expected.include_backtrace, &expected.on_dead)
    );
    let replay = ReplayOptions {
        max_replays: consumer.replay.max_replays,
        rate: consumer.replay.rate.map(|rate| rate.per_second()),
    };
    assert_eq!(replay, ReplayOptions::default());
    assert_eq!(consumer.poison, PoisonPolicy::default());
}

#[test]
fn every_schedule_that_is_taken_is_one_for_the_engine() {
    for (cron, fits) in [
        ("0 */15 * * * *", true),
        ("*/5 * * * *", true),
        ("@daily", true),
        ("0 0 29 2 *", true),
        ("0 0 31 2 *", false),
        ("0 0 30 2 1", true),
        ("* * *", false),
        ("0 61 * * * *", false),
    ] {
        let text =
            consumer(&format!("    dead-letter: {{ reprocess: {{ strategy: cron, cron: '{cron}' }} }}"));
        let config = check("f", text.as_bytes(), &NoEnv).config;
        // A cron expression that never fires is a valid schedule for the engine, but an error in a file.
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let comes = cron.parse::<Schedule>().is_ok_and(|schedule| schedule.next_after(now).is_some());
        assert_eq!(config.is_some(), comes, "{cron}");
        assert_eq!(config.is_some(), fits, "{cron}");
        if let Some(config) = config {
            let letters = config.consumers[0].dead_letter.clone().unwrap();
            assert_eq!(letters.reprocess, Reprocess::Cron { schedule: cron.to_owned(), batch_size: 100 });
        }
    }
}

#[test]
fn off_and_false_mean_the_same_wherever_something_can_be_switched_off() {
    for word in ["off", "false", "\"off\"", "'off'"] {
        let keys =
            ["breaker", "fuse", "poison", "inbox-dedupe"].map(|key| format!("    {key}: {word}\n")).concat();
        let text = format!("flight-recorder: {word}\n{}", consumer(&keys));
        let config = read(&text);
        let one = &config.consumers[0];
        assert!(one.breaker.is_none() && one.fuse.is_none() && one.inbox_dedupe.is_none(), "{word}");
        assert!(one.poison.same_failure.is_none() && config.flight_recorder.is_none(), "{word}");
    }
}

/// The table has its own limits for the schema. They must equal the limits of the core.
#[test]
fn the_limits_of_the_table_are_those_of_the_core() {
    let retry = RetryPolicy::default;
    let policies: [(&str, bool); 12] = [
        ("retry: { max-attempts: 0 }", RetryPolicy { max_attempts: 0, ..retry() }.validate().is_ok()),
        ("retry: { max-attempts: 1 }", RetryPolicy { max_attempts: 1, ..retry() }.validate().is_ok()),
        ("retry: { multiplier: 0.99 }", RetryPolicy { multiplier: 0.99, ..retry() }.validate().is_ok()),
        ("retry: { multiplier: 1 }", RetryPolicy { multiplier: 1.0, ..retry() }.validate().is_ok()),
        ("retry: { jitter: 1.01 }", RetryPolicy { jitter: 1.01, ..retry() }.validate().is_ok()),
        ("retry: { jitter: 1 }", RetryPolicy { jitter: 1.0, ..retry() }.validate().is_ok()),
        (
            "breaker: { failures: 65536 }",
            BreakerPolicy { failures: 65_536, ..BreakerPolicy::default() }.validate().is_ok(),
        ),
        (
            "breaker: { failures: 65537 }",
            BreakerPolicy { failures: 65_537, ..BreakerPolicy::default() }.validate().is_ok(),
        ),
        (
            "fuse: { window: 65537 }",
            FusePolicy { window: 65_537, ..FusePolicy::default() }.validate().is_ok(),
        ),
        ("fuse: { ratio: 1 }", FusePolicy { ratio: 1.0, ..FusePolicy::default() }.validate().is_ok()),
        ("poison: { same-failure: 1 }", PoisonPolicy { same_failure: Some(1) }.validate().is_ok()),
        ("poison: { same-failure: 2 }", PoisonPolicy { same_failure: Some(2) }.validate().is_ok()),
    ];
    for (line, fits) in policies {
        let text = consumer(&format!("    {line}"));
        assert_eq!(check("f", text.as_bytes(), &NoEnv).config.is_some(), fits, "{line}");
    }
}

#[test]
fn jitter_may_be_true_false_or_a_number() {
    for (jitter, expected) in [("true", 0.2), ("false", 0.0), ("0", 0.0), ("0.5", 0.5), ("1", 1.0)] {
        let config = read(&consumer(&format!("    retry: {{ jitter: {jitter} }}")));
        assert_eq!(config.consumers[0].retry.policy.jitter, expected, "{jitter}");
    }
}

#[test]
fn order_and_sequence_make_the_sequencing_of_the_engine() {
    let table = [
        ("", "key"),
        ("    order: none", "none"),
        ("    order: partition", "partition"),
        ("    sequence: partition", "partition"),
        ("    sequence: header:tenant", "header:tenant"),
        ("    sequence: json:/customer/id", "json:/customer/id"),
    ];
    for (lines, expected) in table {
        let sequencing: Sequencing = read(&consumer(lines)).consumers[0].sequencing();
        assert_eq!(format!("{sequencing:?}"), expected, "{lines}");
    }
}

/// The text with a hash in place of each that is not shown.
fn with_hashes(mut text: String) -> String {
    const HIDDEN: &str = "hash: '***'";
    for number in 1.. {
        let Some(at) = text.find(HIDDEN) else { break };
        text.replace_range(at..at + HIDDEN.len(), &format!("hash: 'sha256:{number:064x}'"));
    }
    text
}

#[test]
fn the_effective_configuration_is_a_configuration_and_means_the_same() {
    for path in files() {
        let config = good(path.file_name().unwrap().to_str().unwrap());
        for consumer in &config.consumers {
            let shown = config.effective(&consumer.name).unwrap();
            assert!(!shown.contains("do-not-show"), "{shown}");
            let indented: String = shown.lines().map(|line| format!("  {line}\n")).collect();
            let again = read(&format!("{}consumers:\n{indented}", with_hashes(config.effective_top())));
            let again = again.consumer(&consumer.name).unwrap();
            // Secrets are redacted in the output, so they differ.
            let mut expected = consumer.clone();
            (expected.source, expected.handler) = (again.source.clone(), again.handler.clone());
            assert_eq!(format!("{again:?}"), format!("{expected:?}"), "{}", path.display());
        }
    }
}

#[test]
fn the_effective_configuration_says_where_each_value_came_from() {
    let shown = good("defaults.yaml").effective("orders").unwrap();
    let line = |key: &str| {
        shown
            .lines()
            .find(|line| line.trim_start().starts_with(key))
            .unwrap_or_else(|| panic!("{key}\n{shown}"))
    };
    assert!(line("brokers:").ends_with("# defaults, line 4"), "{shown}");
    assert!(line("topics:").ends_with("# own, line 13"), "{shown}");
    assert!(line("hold: 5s").ends_with("# built-in"), "{shown}");
    assert!(line("breaker: off").ends_with("# own, line 15"), "{shown}");
    assert!(line("client.id: orders").ends_with("# own, line 13"), "{shown}");
    assert!(shown.lines().any(|line| line == "      # group: the name of the consumer"), "{shown}");
    assert!(good("defaults.yaml").effective("nobody").is_none());
}

#[test]
fn a_reload_takes_over_policies_and_nothing_that_needs_a_restart() {
    let base = consumer("    retry: { max-attempts: 3 }\n    breaker: { failures: 5 }");
    let live = [
        ("max-attempts: 3", "max-attempts: 4"),
        ("max-attempts: 3", "max-attempts: 3, hold: 9s"),
        ("failures: 5", "failures: 6"),
        ("breaker: { failures: 5 }", "breaker: off"),
        ("breaker: { failures: 5 }", "classify: [{ when: {}, then: park }]"),
        ("breaker: { failures: 5 }", "fuse: off"),
        ("breaker: { failures: 5 }", "dead-letter: { ttl: 1d, owner: me }"),
        ("breaker: { failures: 5 }", "replay: { rate: 1/s }"),
        ("max-attempts: 3", "budget: { rate: 1/s }"),
        ("program: [./h]", "program: [./other], timeout: 1s"),
    ];
    let restart = [
        ("inbox: {}", "file: { path: x }"),
        ("command: { program: [./h] }", "http: { url: 'http://x/' }"),
        ("program: [./h]", "program: [./h], mode: lines"),
        ("breaker: { failures: 5 }", "order: none"),
        ("breaker: { failures: 5 }", "sequence: partition"),
        ("breaker: { failures: 5 }", "concurrency: 2"),
        ("max-attempts: 3", "strategy: unordered"),
        ("  orders:", "  other:"),
        ("consumers:", "store: sqlite:other.db\nconsumers:"),
        ("consumers:", "listen: 127.0.0.1:1\nconsumers:"),
    ];
    for (table, reload) in [(&live, Reload::Live), (&restart, Reload::Restart)] {
        for (from, to) in table {
            assert!(base.contains(from));
            let changed = diff(&read(&base), &read(&base.replacen(from, to, 1)));
            let shown: Vec<_> = changed.changes.iter().map(ToString::to_string).collect();
            assert!(!changed.is_empty(), "{from} -> {to}");
            assert_eq!(changed.needs_restart(), reload == Reload::Restart, "{from} -> {to}: {shown:#?}");
        }
    }
    assert!(diff(&read(&base), &read(&base)).is_empty());
    // The same value, spelled differently and in another place, is not a change.
    let other = base.replace("max-attempts: 3", "hold: 5000ms");
    assert_eq!(
        diff(&read(&base), &read(&format!("{other}defaults: {{ retry: {{ max-attempts: 3 }} }}\n"))).changes,
        []
    );
}

#[test]
fn a_consumer_that_comes_or_goes_is_one_change() {
    let one = consumer("");
    let two = format!(
        "{one}  more:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [./h] }} }}\n"
    );
    let added = diff(&read(&one), &read(&two));
    assert_eq!(
        added.changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["consumers.more: + consumer (restart)"]
    );
    let removed = diff(&read(&two), &read(&one));
    assert_eq!(
        removed.changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["consumers.more: - consumer (restart)"]
    );
}

#[test]
fn a_secret_that_changes_is_a_change_that_is_not_shown() {
    let text = consumer("")
        .replace("program: [./h]", "program: [./h], env: { API_TOKEN: \"${TOKEN}\", B_TOKEN: plain-1 }");
    let with = |token: &str, text: &str| {
        let env = BTreeMap::from([("TOKEN".to_owned(), token.to_owned())]);
        check("f", text.as_bytes(), &env).config.unwrap()
    };
    let changed = diff(&with("secret-1", &text), &with("secret-2", &text.replace("plain-1", "plain-2")));
    assert_eq!(changed.changes.len(), 1);
    let shown = format!("{} {changed:?}", changed.changes[0]);
    assert!(!shown.contains("secret-") && !shown.contains("plain-"), "{shown}");
}

#[test]
fn a_schedule_of_an_event_type_or_a_reason_takes_the_rest_from_the_consumer() {
    let text = "
consumers:
  billing:
    source: { inbox: {} }
    handler: { http: { url: 'http://127.0.0.1:8080/' } }
    retry:
      max-attempts: 5
      max-elapsed: 1h
      initial-delay: 1s
      overrides:
        - { when: { type: 'Invoice*' }, max-attempts: 10, max-elapsed: unlimited }
        - { when: { reason: RATE_LIMITED }, initial-delay: 1m, jitter: false }
    classify:
      - { when: { status: 4xx }, then: park }
";
    let config = check("f", text.as_bytes(), &NoEnv).config.unwrap();
    let retry = &config.consumers[0].retry;
    let [invoices, limited] = retry.overrides.as_slice() else { panic!("{:?}", retry.overrides) };
    assert_eq!(invoices.event_type.as_ref().unwrap().as_str(), "Invoice*");
    assert_eq!((invoices.policy.max_attempts, invoices.policy.max_elapsed), (10, None));
    assert_eq!(invoices.policy.initial_delay, secs(1));
    assert_eq!(limited.reason, Some(Reason::RATE_LIMITED));
    assert_eq!((limited.policy.max_attempts, limited.policy.max_elapsed), (5, Some(secs(3600))));
    assert_eq!((limited.policy.initial_delay, limited.policy.jitter), (secs(60), 0.0));
    let status = config.consumers[0].rules[0].when.status.unwrap();
    assert!(status.matches(404) && !status.matches(500));
    let everything = text.replace("{ reason: RATE_LIMITED }", "{}");
    let report = check("f", everything.as_bytes(), &NoEnv);
    assert!(report.config.is_none());
}

#[test]
fn a_dead_letter_holds_its_sequence_unless_the_file_says_otherwise() {
    let text = "
consumers:
  billing:
    source: { inbox: {} }
    handler: { http: { url: 'http://127.0.0.1:8080/' } }
    dead-letter:
      on-dead: continue
      overrides:
        - { when: { type: 'Invoice*', reason: TIMEOUT }, on-dead: hold }
";
    let letters = |text: &str| {
        let config = check("f", text.as_bytes(), &NoEnv).config.unwrap();
        config.consumers[0].dead_letter.clone().unwrap()
    };
    let policy = letters(text).on_dead;
    let message = Message::new("m", "s", Position::new(0, 0));
    let invoice = message.clone().with_type("InvoicePaid");
    assert_eq!(policy.decide(&invoice, Some(&Reason::TIMEOUT)), OnDead::Hold);
    assert_eq!(policy.decide(&message, Some(&Reason::TIMEOUT)), OnDead::Continue);
    let bare = text.split("    dead-letter").next().unwrap();
    assert_eq!(letters(bare).on_dead, OnDeadPolicy::default());
}
