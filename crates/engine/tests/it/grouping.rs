//! Grouping rules, which decide which letters of a consumer are in the same group.

use lazaret_core::fingerprint::{Fingerprint, GroupPart, Grouping};
use lazaret_core::policy::{Classifier, Rule, When};
use lazaret_core::{HandlerError, LetterState, Reason, Verdict};
use lazaret_engine::{BuildError, Options};

use crate::support::{Bench, Reply, Running, Try, eventually, one_attempt};

/// The error of a message that fails for good. The payload is the tenant.
fn no_route(tenant: &str) -> HandlerError {
    HandlerError::msg(format!("tenant {tenant} has no route")).reason(Reason::DOMAIN_INVALID)
}

fn failing(this: &Try) -> Reply {
    Reply::Fail(no_route(&this.name))
}

/// Pushes a message for each key, event type and payload.
fn push(bench: &Bench, messages: &[(&str, &str, &str)]) {
    for (key, event_type, payload) in messages {
        bench.log.push_with(0, |message| {
            message.with_key((*key).to_owned()).with_type(*event_type).with_payload((*payload).to_owned())
        });
    }
}

fn by_tenant_of_any_name() -> Grouping {
    Grouping::default().replace("tenant ([a-z]+)".parse().expect("a pattern"))
}

fn grouped_by(grouping: Grouping) -> Options {
    Options { grouping, ..one_attempt() }
}

/// Returns the group of the only letter of a sequence.
fn group_of(bench: &Bench, sequence: &str) -> Fingerprint {
    bench.letter(sequence).cause.expect("it failed").fingerprint
}

const MESSAGES: [(&str, &str, &str); 3] =
    [("a", "Charge", "acme"), ("b", "Charge", "globex"), ("c", "Refund", "acme")];

#[tokio::test(start_paused = true)]
async fn letters_are_grouped_by_the_rules_of_their_consumer() {
    let with_type = by_tenant_of_any_name().with(GroupPart::EventType);
    // Columns: the rules; `true` if a and b are in the same group; `true` if a and c are.
    let table = [
        (Grouping::default(), false, true),
        (by_tenant_of_any_name(), true, true),
        (with_type, true, false),
        (Grouping::by([GroupPart::EventType]), true, false),
    ];
    for (rules, with_b, with_c) in table {
        let bench = Bench::new();
        push(&bench, &MESSAGES);
        bench.run(grouped_by(rules.clone()), failing).await;
        let [a, b, c] = ["a", "b", "c"].map(|key| group_of(&bench, key));
        assert_eq!((a == b, a == c), (with_b, with_c), "{rules:?}");
        let history = bench.letter("a").history;
        let recorded = history[0].failure.as_ref().expect("it failed");
        assert_eq!(recorded.fingerprint, a, "the history has the group as well");
    }
}

#[tokio::test(start_paused = true)]
async fn classification_rules_see_the_group() {
    let rules = by_tenant_of_any_name();
    let group = rules.fingerprint(&no_route("initech").failure(), None);
    let when = When { fingerprint: Some(group), ..When::default() };
    let classifier = Classifier::default().rule(Rule { when, then: Verdict::Park, reason: None });
    let bench = Bench::new();
    push(&bench, &MESSAGES);
    bench.run(Options { classifier, ..grouped_by(rules) }, failing).await;
    assert_eq!(bench.counts().of(LetterState::Parked), 3);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_its_handler_gives_up_is_grouped_by_the_rules() {
    let bench = Bench::new();
    push(&bench, &MESSAGES);
    let rules = Grouping::default().with(GroupPart::EventType);
    bench.run(grouped_by(rules), |_: &Try| Reply::SendToDlq("no use")).await;
    let [a, b, c] = ["a", "b", "c"].map(|key| group_of(&bench, key));
    assert_eq!((a == b, a == c), (true, false));
}

#[tokio::test(start_paused = true)]
async fn a_stored_letter_keeps_its_group_until_it_fails_again() {
    let bench = Bench::new();
    push(&bench, &MESSAGES[..1]);
    let running = bench.start(one_attempt(), failing);
    eventually("it is dead", || bench.counts().of(LetterState::Dead) == 1).await;
    running.stop().await;
    let before = group_of(&bench, "a");

    let rules = by_tenant_of_any_name();
    let running = bench.start(grouped_by(rules.clone()), failing);
    push(&bench, &MESSAGES[1..2]);
    eventually("the next is dead", || bench.counts().of(LetterState::Dead) == 2).await;
    assert_eq!(group_of(&bench, "a"), before, "the rules changed, and it did not fail again");
    let replayed = running.replayer().process_sequence(&"a".into(), "op").await.unwrap();
    assert!(replayed.is_some(), "it ran");
    assert_eq!(group_of(&bench, "a"), group_of(&bench, "b"));
    assert_eq!(group_of(&bench, "a"), rules.fingerprint(&no_route("any").failure(), None));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rules_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    let build = |rules: Grouping| {
        bench.builder(one_attempt()).grouping(rules).handler(bench.handler(failing)).build()
    };
    let many = (0..=Grouping::MAX_PATTERNS)
        .fold(Grouping::default(), |rules, _| rules.replace("a".parse().expect("a pattern")));
    for rules in [Grouping::by([]), many] {
        assert!(matches!(build(rules), Err(BuildError::Policy(_))));
    }
    Running::start(
        bench.builder(one_attempt()).grouping(by_tenant_of_any_name()).handler(bench.handler(failing)),
    )
    .stop()
    .await;
}
