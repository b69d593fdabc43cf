//! Steps of a user at `top`, without a terminal and a daemon.

use lazaret_api::{
    ConsumerState, Group, LetterError, Sequence, State, StateCounts, Status, StoreCapabilities,
};
use lazaret_tui::frame_text;

use super::*;
use crate::fixtures::{NOW, at, consumer, letter, operation};

fn group(id: &str) -> Group {
    Group {
        id: id.into(),
        queue: "payments/ledger".into(),
        owner: None,
        fingerprint: id.into(),
        reason: "TIMEOUT".into(),
        error: LetterError { error_type: "DbError".into(), message: "connection reset".into() },
        letters: 7,
        states: StateCounts { dead: 4, retrying: 2, parked: 1, ..StateCounts::default() },
        sequences: 5,
        blocked_behind: 12,
        oldest_at: Some(at(0)),
        next_expiry_at: None,
        first_seen_at: at(0),
        last_seen_at: at(1800),
        trend: vec![0, 1],
        trend_bucket_seconds: 3600,
    }
}

fn lane(sequence: &str, state: State) -> Sequence {
    let letters = vec![letter("0a1b2c3d", sequence, state), letter("ffffffff", sequence, State::Waiting)];
    let queue = "payments/ledger".to_owned();
    Sequence { queue, sequence: sequence.into(), size: 7, letters, next: None }
}

/// A snapshot with a consumer, keys of these names, a group and an operation.
fn snapshot(keys: &[&str], handled: u64, second: i64) -> Box<Snapshot> {
    let payments = Consumer { handled: Some(handled), ..consumer("payments", ConsumerState::Running, 4) };
    let lanes = keys.iter().map(|key| lane(key, State::Dead)).collect();
    Box::new(Snapshot {
        status: Status {
            consumers: vec![payments],
            operations: vec![operation(OperationState::Running, 7)],
            store: StoreCapabilities { durable: true, ..StoreCapabilities::default() },
            instances: vec![],
            erasure: None,
        },
        groups: vec![group("g1_4f1c0a2b@payments/ledger")],
        has_more_groups: false,
        lanes,
        blocked: None,
        at: at(second),
    })
}

fn app(keys: &[&str]) -> App {
    let mut app = App::new("http://127.0.0.1:7117");
    app.apply(Update::Snapshot(Ok(snapshot(keys, 100, NOW))), at(NOW));
    app
}

fn type_text(app: &mut App, text: &str) {
    for c in text.chars() {
        assert_eq!(app.press(Key::Char(c), at(NOW)), None);
    }
}

fn key(name: &str) -> Option<Item> {
    Some(Item::Key { queue: "payments/ledger".into(), sequence: name.into() })
}

#[test]
fn the_screen_of_a_daemon() {
    let mut app = app(&["order-7", "customer \u{202e}kl\u{1b}[2J"]);
    app.apply(
        Update::Snapshot(Ok(snapshot(&["order-7", "customer \u{202e}kl\u{1b}[2J"], 220, NOW + 2))),
        at(NOW + 2),
    );
    app.press(Key::Char('j'), at(NOW));
    let text = frame_text(&app.screen(at(NOW + 2)), 160);
    for part in [
        "1 consumer, 434 open letters\n",
        "  payments  running     4 dead    17 retrying   412 waiting     1 held  60/s  lag 12,345  breaker half-open\n",
        "2 KEYS BLOCKED  ",
        "> order-7 ",
        // What messages choose cannot control the terminal.
        r"  customer \u{202e}kl\u{1… dead ",
        "  4 dead 2 retrying 1 held 12 behind  TIMEOUT  DbError: connection reset\n",
        "op_31 running [#######################.] 1,243/1,284, 1,233 ok, 7 failed again, 3 skipped\n",
        " p  pause/resume ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let narrow = frame_text(&app.screen(at(NOW + 2)), 40);
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
}

#[test]
fn keys_name_their_consumer_where_there_are_several() {
    let mut two = snapshot(&["order-7"], 100, NOW);
    two.status.consumers.push(consumer("mail", ConsumerState::Running, 0));
    let mut app = App::new("http://127.0.0.1:7117");
    app.apply(Update::Snapshot(Ok(two)), at(NOW));
    let text = frame_text(&app.screen(at(NOW)), 160);
    assert!(text.contains("  order-7 (payments) dead "), "{text}");
}

#[test]
fn a_selected_item_stays_selected_and_one_that_vanishes_gives_its_place() {
    let mut app = app(&["a", "b", "c"]);
    app.press(Key::Down, at(NOW));
    app.press(Key::Char('j'), at(NOW));
    assert_eq!(app.selected, key("b"));
    // Another key fails, and comes first.
    app.apply(Update::Snapshot(Ok(snapshot(&["new", "a", "b", "c"], 100, NOW))), at(NOW));
    assert_eq!(app.selected, key("b"));
    app.apply(Update::Snapshot(Ok(snapshot(&["new", "a", "c"], 100, NOW))), at(NOW));
    assert_eq!(app.selected, key("c"));
    app.press(Key::End, at(NOW));
    assert_eq!(app.selected, Some(Item::Operation("op_31".into())));
    app.press(Key::Down, at(NOW));
    app.press(Key::Home, at(NOW));
    assert_eq!(app.selected, Some(Item::Consumer("payments".into())));
    app.press(Key::Tab, at(NOW));
    assert_eq!(app.selected, key("new"));
    app.press(Key::BackTab, at(NOW));
    app.press(Key::BackTab, at(NOW));
    assert_eq!(app.selected, Some(Item::Operation("op_31".into())));
}

#[test]
fn a_change_needs_a_reason_and_is_sent_once() {
    let mut app = app(&["a"]);
    assert_eq!(app.press(Key::Char('p'), at(NOW)), None);
    assert_eq!(app.press(Key::Enter, at(NOW)), None, "without a reason");
    type_text(&mut app, "  q\u{e9}");
    app.press(Key::Backspace, at(NOW));
    let request = app.press(Key::Enter, at(NOW));
    let change = Change::Pause { consumer: "payments".into(), sequence: None };
    assert_eq!(request, Some(Request::Change { change, reason: "q".into() }));
    assert!(app.is_changing());
    // Its response is waited for, whatever is pressed.
    for key in [Key::Enter, Key::Escape, Key::Char('q'), Key::Char('p')] {
        assert_eq!(app.press(key, at(NOW)), None);
    }
    let response = Err(Error::NoResponse { why: "timed out".into() });
    let is_refreshed = app.apply(Update::Response { number: app.request_number(), response }, at(NOW));
    assert!(is_refreshed && !app.is_changing());
    let text = frame_text(&app.screen(at(NOW)), 100);
    assert!(text.contains("the change may have been applied"), "{text}");
}

#[test]
fn a_response_to_a_closed_dialog_is_dropped() {
    let mut app = app(&["a"]);
    app.press(Key::Down, at(NOW));
    assert!(matches!(app.press(Key::Enter, at(NOW)), Some(Request::Lane { .. })));
    let first = app.request_number();
    app.press(Key::Escape, at(NOW));
    app.apply(
        Update::Response { number: first, response: Ok(Response::Lane(lane("a", State::Dead))) },
        at(NOW),
    );
    assert!(app.screen(at(NOW)).dialog.is_none());
    // Nor does it take the place of a later one.
    app.press(Key::Enter, at(NOW));
    app.apply(Update::Response { number: first, response: Ok(Response::Nothing) }, at(NOW));
    let number = app.request_number();
    app.apply(Update::Response { number, response: Ok(Response::Lane(lane("a", State::Dead))) }, at(NOW));
    assert_eq!(app.screen(at(NOW)).dialog.unwrap().choices.len(), 2);
    app.press(Key::Down, at(NOW));
    let id = "ffffffff-0000-8000-8000-000000000000".to_owned();
    assert_eq!(app.press(Key::Char('r'), at(NOW)), Some(Request::Plan(Target::Letter(id))));
}

#[test]
fn operations_are_paused_and_not_replayed_and_groups_the_other_way_round() {
    let mut app = app(&[]);
    app.press(Key::End, at(NOW));
    assert_eq!(app.press(Key::Char('r'), at(NOW)), None);
    assert!(app.notice.is_some());
    app.press(Key::Char('p'), at(NOW));
    type_text(&mut app, "wait");
    let change = Change::Command { id: "op_31".into(), command: Command::Pause };
    assert_eq!(app.press(Key::Enter, at(NOW)), Some(Request::Change { change, reason: "wait".into() }));
    app.dialogs.clear();
    app.press(Key::Up, at(NOW));
    assert_eq!(app.press(Key::Char('p'), at(NOW)), None);
    assert!(app.notice.is_some());
    let group = Target::Item(Item::Group("g1_4f1c0a2b@payments/ledger".into()));
    assert_eq!(app.press(Key::Char('r'), at(NOW)), Some(Request::Plan(group)));
}

#[test]
fn a_lost_daemon_is_told_once_in_the_log_and_the_screen_stays() {
    let mut app = app(&["a"]);
    for second in 0..3 {
        let error = Error::ConnectionRefused { url: "http://127.0.0.1:7117".into() };
        app.apply(Update::Snapshot(Err(error)), at(NOW + second));
    }
    let text = frame_text(&app.screen(at(NOW + 5)), 120);
    assert!(text.contains("; retrying for 5s") && text.contains("1 KEY BLOCKED"), "{text}");
    assert_eq!(app.log.len(), 1);
    app.apply(Update::Snapshot(Ok(snapshot(&["a"], 100, NOW))), at(NOW + 6));
    let text = frame_text(&app.screen(at(NOW + 6)), 120);
    assert!(!text.contains("retrying for") && text.contains("the daemon responds again"), "{text}");
}

#[test]
fn a_rate_is_measured_between_snapshots_and_survives_a_restart_of_the_consumer() {
    let mut app = app(&[]);
    let rate = |app: &App| app.handled["payments"].rate;
    assert_eq!(rate(&app), None);
    app.apply(Update::Snapshot(Ok(snapshot(&[], 220, NOW + 2))), at(NOW));
    assert_eq!(rate(&app), Some(60.0));
    // Too soon to measure.
    app.apply(Update::Snapshot(Ok(snapshot(&[], 220, NOW + 2))), at(NOW));
    assert_eq!(rate(&app), Some(60.0));
    app.apply(Update::Snapshot(Ok(snapshot(&[], 5, NOW + 4))), at(NOW));
    assert_eq!(rate(&app), None);
}
