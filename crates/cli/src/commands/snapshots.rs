//! Snapshot tests of the tables, at fixed widths and at a fixed time.

use lazaret_api::{
    AuditEntry, Consumer, ConsumerState, Group, Item, LetterError, OperationState, Outcome, State,
    StateCounts,
};

use crate::fixtures::{NOW, at, consumer, letter, operation};
use crate::output::Record;

/// Renders a table at common terminal widths.
fn at_widths<R: Record>(records: &[R]) -> String {
    let table = R::table(records, at(NOW));
    [160, 100, 80, 50].map(|width| format!("{width}:\n{}", table.render(width, false))).join("\n")
}

#[test]
fn letters() {
    let letters = [
        letter("0a1b2c3d", "order-7", State::Dead),
        letter("ffffffff", "order-7", State::Waiting),
        letter("12345678", "customer \u{202e}kl\u{1b}[2J", State::Retrying),
    ];
    insta::assert_snapshot!(at_widths(&letters));
}

#[test]
fn groups() {
    let group = |letters, message: &str| Group {
        id: "g1_4f1c0a2b99887766@payments/ledger".into(),
        queue: "payments/ledger".into(),
        owner: Some("ledger-team".into()),
        fingerprint: "g1_4f1c0a2b99887766".into(),
        reason: "TIMEOUT".into(),
        error: LetterError { error_type: "TimeoutError".into(), message: message.into() },
        letters,
        states: StateCounts { dead: letters, ..StateCounts::default() },
        sequences: 96,
        blocked_behind: 412,
        oldest_at: Some(at(0)),
        next_expiry_at: None,
        first_seen_at: at(0),
        last_seen_at: at(1800),
        trend: vec![0, 1, 2, 5, 9, 3, 0, 0],
        trend_bucket_seconds: 3600,
    };
    insta::assert_snapshot!(at_widths(&[
        group(1284, "timeout after 30000 ms calling bank.example.com"),
        group(7, "field is required")
    ]));
}

#[test]
fn consumers() {
    let elsewhere = Consumer {
        lag: None,
        in_flight: None,
        handled: None,
        failed: None,
        ..consumer("mail", ConsumerState::Elsewhere, 0)
    };
    insta::assert_snapshot!(at_widths(&[
        consumer("notification-service", ConsumerState::Running, 1284),
        elsewhere
    ]));
}

#[test]
fn operations() {
    insta::assert_snapshot!(at_widths(&[
        operation(OperationState::Running, 7),
        operation(OperationState::AwaitingApproval, 0)
    ]));
}

#[test]
fn items() {
    let item = |ordinal, outcome| Item {
        ordinal,
        queue: "payments/ledger".into(),
        sequence: "order-7".into(),
        letter: "0a1b2c3d-0000-8000-8000-000000000000".into(),
        digest: None,
        outcome,
    };
    let outcomes = [Some(Outcome::Ok), Some(Outcome::FailedAgain), Some(Outcome::SkippedBehindFailed), None];
    let items: Vec<Item> =
        outcomes.into_iter().zip(0..).map(|(outcome, ordinal)| item(ordinal, outcome)).collect();
    insta::assert_snapshot!(at_widths(&items));
}

#[test]
fn audit_entries() {
    let entry = |number, who: &str, why: &str| AuditEntry {
        number,
        at: at(120),
        who: who.into(),
        via: "cli".into(),
        why: why.into(),
        action: "letter.evict".into(),
        subject: "payments/ledger/0a1b2c3d-0000-8000-8000-000000000000".into(),
        before: Some("dead".into()),
        after: Some("evicted".into()),
    };
    insta::assert_snapshot!(at_widths(&[
        entry(1, "maria", "fixed in 2.8.2"),
        entry(1204, "lazaret", "it is in the way of order-7")
    ]));
}
