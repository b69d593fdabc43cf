//! Power losses at any point in the life of a recorder: its file stays valid, and only messages that ran
//! are suspected.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::path::Path;

use lazaret_core::recorder::Identity;
use lazaret_core::{FlightRecorder, Message, Position, QueueName};
use lazaret_flight_recorder::{MappedRecorder, Options};
use lazaret_power_loss::{Event, Exploration, Log, Recording, scratch};

const FILE: &str = "orders.flight";
/// The number of times a recorder was opened, which is the maximum number of crashes.
const OPENINGS: u32 = 4;

fn open(folder: &Path, slots: u32) -> MappedRecorder {
    MappedRecorder::open(folder.join(FILE), Options { slots }).unwrap()
}

fn queue() -> QueueName {
    QueueName::of("orders", "mail")
}

fn message(number: u64) -> Message {
    Message::new(format!("evt-{number}"), "orders", Position::new(0, number))
}

fn exploration(states: usize) -> Exploration {
    Exploration { random: 40, ..Exploration::of(states) }
}

/// Records processes that crash with attempts in flight, and a file that grows.
fn life() -> Log {
    let folder = scratch();
    let recording = Recording::start_mapped(folder.path(), &[FILE]);
    for (opening, slots) in (0..OPENINGS).zip([2, 4, 4, 7]) {
        let recorder = open(folder.path(), slots);
        recording.mark();
        for suspect in recorder.suspects().iter().take(1) {
            recorder.forget(suspect.identity);
            recording.mark();
        }
        let number = u64::from(opening) * 10;
        let first = recorder.enter(&queue(), &message(number), opening + 1);
        recording.mark();
        let _crashed = recorder.enter(&queue(), &message(number + 1), opening + 1);
        recording.mark();
        recorder.leave(first);
        recording.mark();
        let _crashed =
            (opening % 2 == 0).then(|| recorder.enter(&queue(), &message(number + 2), opening + 1));
        recording.mark();
    }
    recording.finish()
}

/// Returns `true` if the message was ever recorded.
fn ran(id: &str) -> bool {
    let number: u64 = id.strip_prefix("evt-").unwrap().parse().unwrap();
    number % 10 < 3 && number / 10 < OPENINGS.into()
}

#[test]
fn a_file_is_valid_after_a_power_cut_at_any_point() {
    let log = life();
    let stores = log.events().iter().filter(|event| matches!(event, Event::Store { .. })).count();
    assert!(stores > 10, "the mapped memory was recorded");
    let rebuilt = scratch();
    let explored = log.explore(&exploration(4000), |state| {
        state.write_to(rebuilt.path());
        let recorder = open(rebuilt.path(), 2);
        for suspect in recorder.suspects() {
            assert_eq!((suspect.queue, suspect.partition.stream.as_str()), (queue(), "orders"));
            assert!(ran(suspect.message.as_str()), "{} never ran", suspect.message);
            assert!(suspect.crashes <= OPENINGS, "{} of {}", suspect.crashes, suspect.message);
        }
        // The file also works: the next crash is charged to the message that was alone.
        let alone = message(99);
        let _crashed = recorder.enter(&queue(), &alone, 1);
        drop(recorder);
        assert_eq!(open(rebuilt.path(), 9).crashes(Identity::of_message(&queue(), &alone)), 1);
    });
    assert!(explored.states > 500, "{explored:?}");
}

#[test]
fn a_damaged_file_that_is_set_aside_during_a_power_cut_is_in_nobodys_way() {
    let folder = scratch();
    std::fs::write(folder.path().join(FILE), "damaged").unwrap();
    let recording = Recording::start_mapped(folder.path(), &[FILE]);
    let replaced = MappedRecorder::open_or_replace(folder.path().join(FILE), Options { slots: 2 }).unwrap();
    let done = recording.mark();
    drop(replaced);
    let log = recording.finish();
    let rebuilt = scratch();
    let explored = log.explore(&exploration(1000), |state| {
        state.write_to(rebuilt.path());
        let path = rebuilt.path().join(FILE);
        let (recorder, damaged) = MappedRecorder::open_or_replace(&path, Options { slots: 2 }).unwrap();
        assert!(damaged.is_none() || state.cut() < done, "the new file is on the disk");
        assert!(damaged.is_none_or(|(aside, _)| std::fs::read(aside).unwrap() == b"damaged"));
        assert!(recorder.suspects().is_empty());
    });
    assert!(explored.states > 25, "{explored:?}");
}
