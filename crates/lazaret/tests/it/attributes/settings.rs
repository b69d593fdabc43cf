//! The attributes and their defaults: seed 002 (`@RetryPolicy`), seed 001 (`@DeadLetterQueue`), and the
//! others.

use std::time::Duration;

use lazaret::declare::{
    BeforeChange, Declare, DeclaredConsumer, FullDocument, HistoryLost, OnInvalidate, Origin, Restart,
    StartPosition, Watch, change_stream,
};
use lazaret::policy::{OnDead, RetryPolicy};
use lazaret::{DeadLetterOptions, Reprocess};

use super::support::declared;

fn retry(declared: &DeclaredConsumer) -> &RetryPolicy {
    &declared.config().retry.policy
}

/// Returns the dead-letter options that reach the engine.
fn letters(declared: &DeclaredConsumer) -> DeadLetterOptions {
    let options = lazaret::Options::from_config(declared.config()).expect("a valid schedule");
    options.dead_letter.expect("a declared consumer never stops for want of letters")
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

// Seed 002: `@RetryPolicy`.

#[test]
fn max_attempts_is_3_by_default() {
    assert_eq!(retry(&declared!([retry_policy])).max_attempts, 3);
}

#[test]
fn max_attempts_is_set() {
    assert_eq!(retry(&declared!([retry_policy(max_attempts = 7)])).max_attempts, 7);
}

#[test]
fn initial_delay_is_500ms_by_default() {
    assert_eq!(retry(&declared!([retry_policy])).initial_delay, millis(500));
}

#[test]
fn initial_delay_is_set_in_milliseconds_seconds_or_minutes() {
    assert_eq!(retry(&declared!([retry_policy(initial_delay = "250ms")])).initial_delay, millis(250));
    assert_eq!(retry(&declared!([retry_policy(initial_delay = "1s")])).initial_delay, millis(1_000));
    let minute = declared!([retry_policy(initial_delay = "1m", max_delay = "5m")]);
    assert_eq!(retry(&minute).initial_delay, millis(60_000));
}

#[test]
fn max_delay_is_30s_by_default() {
    assert_eq!(retry(&declared!([retry_policy])).max_delay, millis(30_000));
}

#[test]
fn max_delay_is_set() {
    assert_eq!(retry(&declared!([retry_policy(max_delay = "1m")])).max_delay, millis(60_000));
}

#[test]
fn multiplier_is_2_by_default() {
    assert_eq!(retry(&declared!([retry_policy])).multiplier, 2.0);
}

#[test]
fn multiplier_is_set() {
    assert_eq!(retry(&declared!([retry_policy(multiplier = 1.5)])).multiplier, 1.5);
    assert_eq!(retry(&declared!([retry_policy(multiplier = 3)])).multiplier, 3.0);
}

#[test]
fn jitter_is_20_percent_by_default_and_with_true() {
    assert_eq!(retry(&declared!([retry_policy])).jitter, 0.2);
    assert_eq!(retry(&declared!([retry_policy(jitter = true)])).jitter, 0.2);
    let policy = retry(&declared!([retry_policy])).clone();
    for seed in 0..200 {
        let delay = policy.delay(1, None, seed);
        assert!((millis(400)..=millis(600)).contains(&delay), "{delay:?}");
    }
}

#[test]
fn jitter_is_switched_off_or_set_as_a_share() {
    assert_eq!(retry(&declared!([retry_policy(jitter = false)])).jitter, 0.0);
    assert_eq!(retry(&declared!([retry_policy(jitter = 0.3)])).jitter, 0.3);
}

#[test]
fn the_default_delays_are_those_of_the_backoff_table() {
    let policy = retry(&declared!([retry_policy(jitter = false)])).clone();
    let delays: Vec<_> = (1..=9).map(|failed| policy.delay(failed, None, 0)).collect();
    let expected = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000].map(millis);
    assert_eq!(delays, expected);
}

#[test]
fn without_a_retry_policy_there_is_one_attempt() {
    let declared = declared!();
    assert_eq!(retry(&declared).max_attempts, 1);
    assert_eq!(declared.origin("retry.max-attempts"), Some(Origin::BuiltIn));
}

// Seed 001: `@DeadLetterQueue`.

#[test]
fn enabled_is_true_by_default_also_without_the_attribute() {
    assert!(!letters(&declared!([dead_letter_queue])).discard);
    assert!(!letters(&declared!()).discard, "an event is lost only where the program says so");
}

#[test]
fn enabled_false_discards_final_failures() {
    assert!(letters(&declared!([dead_letter_queue(enabled = false)])).discard);
}

#[test]
fn collection_is_fw_dlq_by_default() {
    assert_eq!(declared!([dead_letter_queue]).dead_letter_collection(), "_fw_dlq");
    assert_eq!(declared!().dead_letter_collection(), "_fw_dlq");
}

#[test]
fn collection_is_set() {
    let declared = declared!([dead_letter_queue(collection = "orders_dlq")]);
    assert_eq!(declared.dead_letter_collection(), "orders_dlq");
}

#[test]
fn ttl_days_is_30_by_default() {
    assert_eq!(letters(&declared!([dead_letter_queue])).ttl, Some(Duration::from_secs(30 * 86_400)));
}

#[test]
fn ttl_days_is_set_and_0_is_for_ever() {
    let ninety = declared!([dead_letter_queue(ttl_days = 90)]);
    assert_eq!(letters(&ninety).ttl, Some(Duration::from_secs(90 * 86_400)));
    assert_eq!(letters(&declared!([dead_letter_queue(ttl_days = 0)])).ttl, None);
}

#[test]
fn include_original_document_is_true_by_default_and_can_be_switched_off() {
    assert!(letters(&declared!([dead_letter_queue])).include_payload);
    let without = declared!([dead_letter_queue(include_original_document = false)]);
    assert!(!letters(&without).include_payload);
}

#[test]
fn include_stack_trace_is_true_by_default_and_can_be_switched_off() {
    assert!(letters(&declared!([dead_letter_queue])).include_backtrace);
    assert!(!letters(&declared!([dead_letter_queue(include_stack_trace = false)])).include_backtrace);
}

#[test]
fn on_dead_is_hold_by_default_and_can_be_continue() {
    let on_dead = |declared: &DeclaredConsumer| letters(declared).on_dead.on_dead;
    assert_eq!(on_dead(&declared!([dead_letter_queue])), OnDead::Hold);
    assert_eq!(on_dead(&declared!([dead_letter_queue(on_dead = "hold")])), OnDead::Hold);
    assert_eq!(on_dead(&declared!([dead_letter_queue(on_dead = "continue")])), OnDead::Continue);
}

#[test]
fn reprocess_strategy_is_manual_by_default() {
    assert!(matches!(letters(&declared!([dead_letter_queue])).reprocess, Reprocess::Manual));
    let manual = declared!([dead_letter_queue(reprocess_strategy = "manual")]);
    assert!(matches!(letters(&manual).reprocess, Reprocess::Manual));
}

#[test]
fn reprocess_by_cron_has_a_schedule_and_a_batch_size_of_100() {
    for declared in [
        declared!([dead_letter_queue(reprocess_strategy = "cron", reprocess_cron = "0 0 3 * * *")]),
        declared!([dead_letter_queue(reprocess_strategy = "AUTO_CRON", reprocess_cron = "0 3 * * *")]),
    ] {
        let Reprocess::Cron { batch_size, .. } = letters(&declared).reprocess else { panic!("manual") };
        assert_eq!(batch_size, 100);
    }
}

#[test]
fn reprocess_batch_size_is_set() {
    let declared = declared!([dead_letter_queue(reprocess_strategy = "cron", reprocess_batch_size = 7)]);
    assert!(matches!(letters(&declared).reprocess, Reprocess::Cron { batch_size: 7, .. }));
}

#[test]
fn a_schedule_that_is_no_schedule_is_refused_when_the_declaration_is_resolved() {
    struct Orders;

    #[change_stream(collection = "orders")]
    #[dead_letter_queue(reprocess_strategy = "cron", reprocess_cron = "never on a sunday at")]
    impl Orders {
        #[on_change]
        async fn changed(&self) {}
    }

    let found = Orders.declare().consumer().expect_err("the schedule is invalid").plain();
    assert!(found.contains("LZ0136") && found.contains("reprocess_cron"), "{found}");
}

#[test]
fn the_client_of_the_dead_letters_is_none_by_default_and_can_be_named() {
    assert_eq!(declared!([dead_letter_queue]).dead_letter_client(), None);
    assert_eq!(declared!([dead_letter_queue(client = "archive")]).dead_letter_client(), Some("archive"));
}

// `@Checkpoint`.

#[test]
fn a_position_is_saved_after_every_event_every_5s_and_every_5m_when_idle_by_default() {
    for declared in [declared!(), declared!([checkpoint])] {
        let checkpoint = declared.change_stream().expect("a change stream").source.checkpoint;
        assert_eq!((checkpoint.every, checkpoint.interval), (1, Some(millis(5_000))));
        assert_eq!(checkpoint.idle_heartbeat, Some(millis(300_000)));
    }
}

#[test]
fn checkpoints_are_set() {
    let declared = declared!([checkpoint(every = 50, interval = "0", idle_heartbeat = "1m")]);
    let checkpoint = declared.change_stream().expect("a change stream").source.checkpoint;
    assert_eq!((checkpoint.every, checkpoint.interval), (50, None));
    assert_eq!(checkpoint.idle_heartbeat, Some(millis(60_000)));
}

#[test]
fn a_stream_resumes_and_fails_when_history_is_lost_by_default() {
    let source = declared!().change_stream().expect("a change stream").source;
    assert_eq!((source.start, source.on_history_lost), (StartPosition::Resume, HistoryLost::Fail));
    let declared = declared!([checkpoint(start_position = "LATEST", on_history_lost = "from-now")]);
    let source = declared.change_stream().expect("a change stream").source;
    assert_eq!((source.start, source.on_history_lost), (StartPosition::Latest, HistoryLost::FromNow));
    let declared = declared!([checkpoint(start_position = "oplog-start")]);
    let source = declared.change_stream().expect("a change stream").source;
    assert_eq!(source.start, StartPosition::OplogStart);
}

#[test]
fn an_invalidated_stream_stops_by_default_and_can_be_continued() {
    let source = declared!().change_stream().expect("a change stream").source;
    assert_eq!(source.on_invalidate, OnInvalidate::Stop);
    let declared = declared!([checkpoint(on_invalidate = "start-after")]);
    let source = declared.change_stream().expect("a change stream").source;
    assert_eq!(source.on_invalidate, OnInvalidate::StartAfter);
}

// `@RestartPolicy`.

#[test]
fn a_failed_stream_is_opened_again_without_a_limit_after_1s_to_1m_by_default() {
    let expected = Restart {
        max_attempts: None,
        initial_delay: millis(1_000),
        multiplier: 2.0,
        max_delay: millis(60_000),
    };
    for declared in [declared!(), declared!([restart_policy]), declared!([restart_policy(max_attempts = 0)])]
    {
        assert_eq!(declared.change_stream().expect("a change stream").source.restart, expected);
    }
}

#[test]
fn restarts_are_set_beside_checkpoints() {
    let declared = declared!(
        [restart_policy(max_attempts = 5, initial_delay = "2s", max_delay = "5m", multiplier = 3)]
            [checkpoint(every = 50)]
    );
    let source = declared.change_stream().expect("a change stream").source;
    let expected = Restart {
        max_attempts: Some(5),
        initial_delay: millis(2_000),
        multiplier: 3.0,
        max_delay: millis(300_000),
    };
    assert_eq!((source.restart, source.checkpoint.every), (expected, 50));
    let origin = |key: &str| declared.origin(&format!("source.mongodb.restart.{key}"));
    assert_eq!(origin("max-attempts"), Some(Origin::Attribute));
    assert_eq!(declared!([checkpoint]).origin("source.mongodb.restart.max-delay"), Some(Origin::BuiltIn));
}

// `@ChangeStream`.

#[test]
fn a_change_stream_has_the_defaults_of_the_configuration() {
    let declared = declared!();
    let stream = declared.change_stream().expect("a change stream");
    assert_eq!((declared.name(), stream.source.collection.as_deref()), ("orders", Some("orders")));
    assert_eq!((stream.watch, stream.source.before_change), (Watch::Collection, BeforeChange::Off));
    assert_eq!(stream.source.full_document, FullDocument::UpdateLookup);
    assert!(stream.source.single_leader && stream.source.pipeline.is_empty());
    assert_eq!((stream.client, stream.source.database.clone()), (None, None));
}

struct InvoiceHandler;

#[change_stream(
    database = "billing",
    collection = "invoices",
    pipeline = r#"[{ "$match": { "fullDocument.cents": { "$gt": 0 } } }]"#,
    full_document = "when-available",
    full_document_before_change = "required",
    deployment_mode = "all-instances",
    client = "eu",
    concurrency = 4,
    order = "none"
)]
impl InvoiceHandler {
    #[on_change]
    async fn changed(&self) {}
}

#[test]
fn every_attribute_of_a_change_stream_is_set() {
    let declared = InvoiceHandler.declare().consumer().expect("valid");
    let stream = declared.change_stream().expect("a change stream");
    assert_eq!(declared.name(), "invoice-handler");
    let watched = (stream.source.database.as_deref(), stream.source.collection.as_deref());
    assert_eq!(watched, (Some("billing"), Some("invoices")));
    assert_eq!(stream.source.pipeline.len(), 1);
    assert_eq!(stream.source.pipeline[0]["$match"]["fullDocument.cents"]["$gt"], 0);
    assert_eq!(stream.source.full_document, FullDocument::WhenAvailable);
    assert_eq!((stream.source.before_change, stream.client), (BeforeChange::Required, Some("eu")));
    assert!(!stream.source.single_leader);
    assert_eq!(declared.config().concurrency, 4);
    assert!(matches!(declared.config().sequencing(), lazaret::Sequencing::Alone));
}

struct Everything;

#[change_stream(name = "all-changes", watch = "deployment")]
impl Everything {
    #[on_change]
    async fn changed(&self) {}
}

#[test]
fn a_stream_of_the_whole_deployment_is_declared_as_such() {
    let declared = Everything.declare().consumer().expect("valid");
    assert_eq!(declared.name(), "all-changes");
    let stream = declared.change_stream().expect("a change stream");
    assert_eq!((stream.watch, stream.source.collection), (Watch::Deployment, None));
}
