//! Tests of declared consumers: precedence and contradictions.

use std::time::Duration;

use super::*;
use crate::env::NoEnv;
use crate::model::{Handler, Reprocess, Source};

fn setting(key: &'static str, value: &'static str) -> Setting {
    Setting::new(format!("#[test({key} = {value})]"), key, value)
}

fn load(text: &str, settings: &[Setting]) -> Result<Loaded, Diagnostics> {
    let defaults = [setting("retry.max-attempts", "1")];
    let orders = Declared { name: "orders", settings, defaults: &defaults };
    let file = (!text.is_empty()).then_some(("lazaret.yaml", text.as_bytes()));
    declared(file, &NoEnv, &[orders])
}

fn good(text: &str, settings: &[Setting]) -> Config {
    load(text, settings).unwrap_or_else(|found| panic!("{}", found.plain())).config
}

fn bad(text: &str, settings: &[Setting]) -> String {
    match load(text, settings) {
        Err(found) => found.plain(),
        Ok(_) => panic!("it has no errors"),
    }
}

const EVERYTHING: &str = "
defaults: { retry: { max-attempts: 4, max-delay: 1m, initial-delay: 2s } }
consumers:
  orders: { retry: { max-attempts: 6, max-delay: 2m } }
";

#[test]
fn an_attribute_wins_over_the_consumer_that_wins_over_defaults_that_win_over_built_in_values() {
    let config = good(EVERYTHING, &[setting("retry.max-attempts", "9")]);
    let retry = &config.consumers[0].retry.policy;
    assert_eq!((retry.max_attempts, retry.multiplier), (9, 2.0));
    assert_eq!((retry.max_delay, retry.initial_delay), (Duration::from_secs(120), Duration::from_secs(2)));
    let table = [
        ("retry.max-attempts", Origin::Attribute),
        ("retry.max-delay", Origin::Own),
        ("retry.initial-delay", Origin::Defaults),
        ("retry.multiplier", Origin::BuiltIn),
    ];
    for (path, origin) in table {
        assert_eq!(config.origin("orders", path), Some(origin), "{path}");
    }
}

#[test]
fn the_effective_configuration_shows_where_each_value_came_from() {
    let config = good(EVERYTHING, &[setting("retry.max-attempts", "9")]);
    let shown = config.effective("orders").expect("it is declared");
    let line = |key: &str| shown.lines().find(|line| line.trim_start().starts_with(key)).expect(key);
    assert!(line("max-attempts: 9").ends_with("# attribute #[test(retry.max-attempts = 9)]"), "{shown}");
    assert!(line("max-delay: 2m").ends_with("# own, line 4"), "{shown}");
    assert!(line("initial-delay: 2s").ends_with("# defaults, line 2"), "{shown}");
    assert!(line("multiplier: 2.0").ends_with("# built-in"), "{shown}");
}

#[test]
fn a_default_of_the_declaration_is_built_in_and_everything_overrides_it() {
    let config = good("", &[]);
    assert_eq!(config.consumers[0].retry.policy.max_attempts, 1);
    assert_eq!(config.origin("orders", "retry.max-attempts"), Some(Origin::BuiltIn));
    let config = good("defaults: { retry: { max-attempts: 4 } }", &[]);
    assert_eq!(config.consumers[0].retry.policy.max_attempts, 4);
    assert_eq!(good("", &[setting("retry.max-attempts", "3")]).consumers[0].retry.policy.max_attempts, 3);
}

#[test]
fn no_file_is_needed() {
    let config = good("", &[setting("dead-letter.reprocess.strategy", "cron")]);
    assert_eq!(config.consumers[0].handler, Handler::Declared);
    let letters = config.consumers[0].dead_letter.as_ref().expect("they are on");
    assert!(matches!(&letters.reprocess, Reprocess::Cron { batch_size: 100, .. }));
}

#[test]
fn the_file_completes_the_source() {
    let kafka = [setting("source.kafka.topics", "[orders]")];
    let text = "consumers: { orders: { source: { kafka: { brokers: '127.0.0.1:9092', topics: [other] } } } }";
    let config = good(text, &kafka);
    let Source::Kafka(source) = &config.consumers[0].source else { panic!("not Kafka") };
    assert_eq!((source.brokers.as_str(), &*source.topics), ("127.0.0.1:9092", &["orders".to_owned()][..]));
    assert_eq!(source.group, "orders", "the name of the consumer");
    let config = good("", &kafka);
    let Source::Kafka(source) = &config.consumers[0].source else { panic!("not Kafka") };
    assert_eq!(source.brokers, "", "the program may provide them");
}

#[test]
fn a_list_of_an_attribute_replaces_that_of_the_file() {
    let text = "defaults: { retry: { retry-on: [TIMEOUT], no-retry-on: [CONFLICT] } }";
    let config = good(text, &[setting("retry.retry-on", "[]")]);
    let retry = &config.consumers[0].retry;
    assert!(retry.retry_on.is_empty());
    assert_eq!(retry.no_retry_on.len(), 1);
}

#[test]
fn a_contradiction_between_the_file_and_an_attribute_shows_both() {
    let found = bad("defaults: { retry: { max-delay: 1s } }\n", &[setting("retry.initial-delay", "5s")]);
    assert!(found.contains("#[test(retry.initial-delay = 5s)]"), "{found}");
    assert!(found.contains("`max-delay` is set here"), "{found}");
}

#[test]
fn a_handler_or_another_source_in_the_file_is_a_contradiction() {
    let kafka = [setting("source.kafka.topics", "[orders]")];
    let found = bad("consumers: { orders: { handler: { command: { program: [x] } } } }", &kafka);
    assert!(found.contains("the program declares its handler"), "{found}");
    let found = bad("consumers: { orders: { source: { inbox: {} } } }", &kafka);
    assert!(found.contains("reads from `inbox`, but the program declares `kafka`"), "{found}");
}

#[test]
fn misspelled_keys_and_names_in_the_file_are_found() {
    let found = bad("consumers: { orders: { retry: { max-atempts: 4 } } }", &[]);
    assert!(found.contains("did you mean `max-attempts`?"), "{found}");
    let loaded = load("consumers: { ordres: { retry: { max-attempts: 4 } } }", &[]).expect("a warning");
    let warnings = loaded.warnings.plain();
    assert!(warnings.contains("LZ0173") && warnings.contains("did you mean `orders`?"), "{warnings}");
}

#[test]
fn consumers_of_the_daemon_in_the_same_file_are_left_alone() {
    let text = "consumers: { other: { source: { inbox: {} }, handler: { command: { program: [x] } } } }";
    let loaded = load(text, &[]).expect("valid");
    assert_eq!(loaded.warnings.list().len(), 0, "{}", loaded.warnings.plain());
    assert_eq!(loaded.config.consumers.len(), 1);
}

#[test]
fn variables_are_expanded_in_attributes_too() {
    let found = bad("", &[setting("source.kafka.group", "'${NO_SUCH_GROUP}'")]);
    assert!(found.contains("NO_SUCH_GROUP"), "{found}");
    let config = good("", &[setting("source.kafka.group", "'${NO_SUCH_GROUP:-billing}'")]);
    let Source::Kafka(source) = &config.consumers[0].source else { panic!("not Kafka") };
    assert_eq!(source.group, "billing");
}

#[test]
fn a_name_that_cannot_name_a_queue_is_refused() {
    let bad = Declared { name: "a/b", settings: &[], defaults: &[] };
    assert!(declared(None, &NoEnv, &[bad]).is_err());
}

#[test]
fn two_declared_consumers_with_one_name_are_refused() {
    let one = || Declared { name: "orders", settings: &[], defaults: &[] };
    let found = declared(None, &NoEnv, &[one(), one()]).expect_err("each has its own queue").plain();
    assert!(found.contains("two consumers are named `orders`"), "{found}");
}
