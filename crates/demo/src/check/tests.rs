//! Proves that each check can fail: one change to good evidence breaks the matching guarantee and no other.

use super::*;
use crate::console_pages::{ConsolePages, Page};
use crate::evidence::Sent;
use crate::orders::{customer, id};

/// Returns the evidence of a successful story: all orders in one incarnation, poison among them, and the
/// pages of the console.
fn good() -> Evidence {
    let mut evidence = Evidence { console: console(), ..Evidence::default() };
    let poison_orders: HashSet<u32> = orders::poison_orders().collect();
    let mut blocked = HashSet::new();
    for number in 1..=orders::MIN_ORDERS {
        let payload = u64::from(number);
        evidence.sent.push(Sent { id: id(number), customer: customer(number), payload });
        if !blocked.contains(&customer(number)) {
            begin(&mut evidence, number, 1, i64::from(number) * 10);
            if !poison_orders.contains(&number) {
                note(&mut evidence, number, 0, Fact::Done);
                continue;
            }
            note(&mut evidence, number, 0, Fact::Failed { reason: "X".to_owned() });
            blocked.insert(customer(number));
        }
        let poison = orders::poison(number);
        let state = if poison.is_some() { LetterState::Dead } else { LetterState::Waiting };
        note(&mut evidence, number, 0, Fact::Letter(state.to_string()));
        evidence.letters.push(StoredLetter {
            id: id(number),
            state,
            reason: poison.map(|poison| poison.reason().to_owned()),
            crash_attempts: if poison == Some(Poison::Crash) { MAX_CRASHES } else { 0 },
            ended_well: false,
        });
    }
    evidence
}

fn console() -> ConsolePages {
    let page = |text: &str| Page { status: 200, text: text.to_owned() };
    ConsolePages {
        overview: page("<h1>Overview</h1> orders"),
        groups: page("<a href=\"/console/groups/g1_0123456789abcdef%40orders\">"),
        fingerprints: vec!["g1_0123456789abcdef".to_owned()],
    }
}

fn note(evidence: &mut Evidence, number: u32, at: i64, fact: Fact) {
    evidence.journal.push(Entry { incarnation: 1, at, id: id(number), fact });
}

fn begin(evidence: &mut Evidence, number: u32, attempt: u32, at: i64) {
    note(evidence, number, at, Fact::Begun { attempt, replay: false, payload: u64::from(number) });
}

/// Returns the ids of the guarantees that a change to good evidence breaks.
#[track_caller]
fn broken(change: impl FnOnce(&mut Evidence)) -> Vec<&'static str> {
    let mut evidence = good();
    change(&mut evidence);
    check(&evidence).into_iter().filter(|finding| !finding.ok).map(|finding| finding.id).collect()
}

/// Returns the last order, which succeeded, and its position in the journal.
fn last(evidence: &Evidence) -> (u32, usize) {
    let place = evidence.journal.iter().rposition(|entry| matches!(entry.fact, Fact::Begun { .. })).unwrap();
    (orders::number_of(&evidence.journal[place].id).unwrap(), place)
}

#[test]
fn a_successful_story_breaks_nothing() {
    assert_eq!(broken(|_| {}), [""; 0]);
}

#[test]
fn a_lost_order_breaks_i1() {
    // I1
    assert_eq!(broken(|evidence| drop(evidence.journal.pop())), ["I1"]);
    let lost_letter = broken(|evidence| {
        let place = evidence.letters.iter().position(|letter| letter.state == LetterState::Waiting).unwrap();
        evidence.letters.remove(place);
    });
    assert_eq!(lost_letter, ["I1", "I11"]);
}

#[test]
fn an_order_that_overtakes_another_of_its_customer_breaks_i2() {
    // I2
    let after_poison = orders::crashing_order() + 30;
    assert_eq!(customer(after_poison), customer(orders::crashing_order()));
    assert_eq!(broken(|evidence| begin(evidence, after_poison, 1, 0)), ["I2"]);
}

#[test]
fn two_attempts_of_one_customer_at_once_break_i2() {
    // I2
    let at_once = broken(|evidence| {
        let (number, place) = last(evidence);
        let again = evidence.journal[place].clone();
        assert_eq!(again.id, id(number));
        evidence.journal.insert(place, again);
    });
    assert_eq!(at_once, ["I2"]);
    // A call that is dropped before it ends no longer runs.
    let after_another = broken(|evidence| {
        let (number, place) = last(evidence);
        let again = evidence.journal[place].clone();
        evidence.journal.insert(place, again.clone());
        evidence.journal.insert(place + 1, Entry { fact: Fact::Left, ..again });
        assert_eq!(evidence.journal[place].id, id(number));
    });
    assert_eq!(after_another, [""; 0]);
}

#[test]
fn handling_an_order_again_needs_a_crash_in_between() {
    // I2, I8
    let again = |incarnation| {
        move |evidence: &mut Evidence| {
            begin(evidence, 1, 1, 0);
            note(evidence, 1, 0, Fact::Done);
            evidence.journal.iter_mut().rev().take(2).for_each(|entry| entry.incarnation = incarnation);
        }
    };
    assert_eq!(broken(again(1)), ["I2"]);
    assert_eq!(broken(again(2)), [""; 0]);
    // A lost lease of the customer explains one repetition.
    let lose = |evidence: &mut Evidence| {
        evidence.journal.push(Entry { incarnation: 1, at: 0, id: customer(1), fact: Fact::LeaseLost });
    };
    let once = |evidence: &mut Evidence| (again(1)(evidence), lose(evidence)).0;
    assert_eq!(broken(once), [""; 0]);
    assert_eq!(broken(|evidence| (again(1)(evidence), once(evidence)).0), ["I2"]);
}

#[test]
fn one_attempt_too_many_breaks_i4() {
    // I4
    let changed = |attempt| move |evidence: &mut Evidence| retry(evidence, 1, attempt);
    assert_eq!(broken(changed(MAX_ATTEMPTS)), [""; 0]);
    assert_eq!(broken(changed(MAX_ATTEMPTS + 1)), ["I4"]);
}

/// Schedules the crashing order and retries it in this incarnation.
fn retry(evidence: &mut Evidence, incarnation: u32, attempt: u32) {
    let crashing_order = orders::crashing_order();
    let fact = Fact::Begun { attempt, replay: false, payload: u64::from(crashing_order) };
    for fact in [Fact::Due(0), fact, Fact::Failed { reason: "X".to_owned() }] {
        evidence.journal.push(Entry { incarnation, at: 0, id: id(crashing_order), fact });
    }
}

#[test]
fn an_engine_that_does_not_count_its_attempts_breaks_i4() {
    // I4
    let calls = |incarnation, calls: u32| {
        move |evidence: &mut Evidence| (0..calls).for_each(|_| retry(evidence, incarnation, 1))
    };
    // The first call is already in the evidence.
    assert_eq!(broken(calls(1, MAX_ATTEMPTS - 1)), [""; 0]);
    assert_eq!(broken(calls(1, MAX_ATTEMPTS)), ["I4"]);
    // A new incarnation does not know the attempts that the crashed one held in memory.
    assert_eq!(broken(calls(2, MAX_ATTEMPTS - 1 + ATTEMPTS_IN_MEMORY)), [""; 0]);
    assert_eq!(broken(calls(2, MAX_ATTEMPTS + ATTEMPTS_IN_MEMORY)), ["I4"]);
}

#[test]
fn another_payload_breaks_i5() {
    // I5
    assert_eq!(broken(|evidence| evidence.sent[0].payload += 1), ["I5"]);
}

#[test]
fn a_second_letter_breaks_i8() {
    // I8
    let twice = |evidence: &mut Evidence| {
        let letter = evidence.letters.iter().find(|letter| letter.state == LetterState::Waiting).unwrap();
        evidence.letters.push(letter.clone());
    };
    assert_eq!(broken(twice), ["I8"]);
    let again = |evidence: &mut Evidence| {
        let resolved = StoredLetter {
            id: id(1),
            state: LetterState::Resolved,
            reason: None,
            crash_attempts: 0,
            ended_well: true,
        };
        evidence.letters.push(resolved);
        note(evidence, 1, 0, Fact::Closed("resolved".to_owned()));
        note(evidence, 1, 0, Fact::Letter("retrying".to_owned()));
    };
    assert_eq!(broken(again), ["I8"]);
}

#[test]
fn a_letter_closed_without_history_breaks_i11() {
    // I11
    let gone = |state| {
        move |evidence: &mut Evidence| {
            let reason = Some("TIMEOUT".to_owned());
            evidence.letters.push(StoredLetter {
                id: id(1),
                state,
                reason,
                crash_attempts: 0,
                ended_well: false,
            });
        }
    };
    assert_eq!(broken(gone(LetterState::Evicted)), ["I11"]);
    assert_eq!(broken(gone(LetterState::Resolved)), ["I11"]);
    assert_eq!(broken(|evidence| evidence.audit_broken = Some(3)), ["I11"]);
    let anonymous = ("op_1".to_owned(), String::new(), "why".to_owned());
    assert_eq!(broken(|evidence| evidence.operations.push(anonymous)), ["I11"]);
}

/// Returns a change to the evidence: the first attempt of the crashing order fails, its retry is due at
/// 1000, and then this attempt runs.
fn retried(incarnation: u32, at: i64, attempt: u32, replay: bool) -> impl FnOnce(&mut Evidence) {
    move |evidence| {
        let crashing_order = orders::crashing_order();
        note(evidence, crashing_order, 0, Fact::Due(1000));
        let fact = Fact::Begun { attempt, replay, payload: u64::from(crashing_order) };
        evidence.journal.push(Entry { incarnation, at, id: id(crashing_order), fact });
    }
}

#[test]
fn an_early_retry_breaks_i12_and_a_replay_does_not() {
    // I12
    assert_eq!(broken(retried(1, 999, 2, false)), ["I12"]);
    assert_eq!(broken(retried(1, 1000, 2, false)), [""; 0]);
    assert_eq!(broken(retried(1, 999, 2, true)), [""; 0]);
}

#[test]
fn an_unscheduled_retry_breaks_i12_unless_after_a_crash_or_as_a_replay() {
    // I12
    let again = |incarnation, replay| {
        move |evidence: &mut Evidence| {
            let crashing_order = orders::crashing_order();
            let fact = Fact::Begun { attempt: 2, replay, payload: u64::from(crashing_order) };
            evidence.journal.push(Entry { incarnation, at: i64::MAX, id: id(crashing_order), fact });
        }
    };
    assert_eq!(broken(again(1, false)), ["I12"]);
    assert_eq!(broken(again(2, false)), [""; 0]);
    assert_eq!(broken(again(1, true)), [""; 0]);
}

#[test]
fn a_crash_does_not_make_a_retry_early_but_may_repeat_an_attempt() {
    // I12
    assert_eq!(broken(retried(2, 999, 2, false)), ["I12"]);
    assert_eq!(broken(retried(2, 999, 1, false)), [""; 0]);
    assert_eq!(broken(retried(1, 999, 1, false)), ["I12"]);
}

#[test]
fn any_other_open_letter_breaks_the_story() {
    let left = |evidence: &mut Evidence| {
        let reason = Some("DEPENDENCY_UNAVAILABLE".to_owned());
        let state = LetterState::Dead;
        evidence.letters.push(StoredLetter {
            id: id(1),
            state,
            reason,
            crash_attempts: 0,
            ended_well: false,
        });
    };
    assert_eq!(broken(left), ["story"]);
    let no_crash = |evidence: &mut Evidence| {
        let crashing_order = id(orders::crashing_order());
        let letter = evidence.letters.iter_mut().find(|letter| letter.id == crashing_order).unwrap();
        letter.crash_attempts = 0;
    };
    assert_eq!(broken(no_crash), ["story"]);
}

#[test]
fn a_console_that_fails_or_hides_a_group_is_reported() {
    let change = |change: fn(&mut ConsolePages)| broken(|evidence| change(&mut evidence.console));
    assert_eq!(change(|console| console.overview.status = 500), ["console"]);
    assert_eq!(change(|console| console.overview.text.clear()), ["console"]);
    assert_eq!(change(|console| console.groups.text.clear()), ["console"]);
    assert_eq!(change(|console| console.fingerprints.clear()), ["console"]);
}
