//! A recorder's file: reopened, shared, foreign, truncated, enlarged, on a full disk.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::fs;
use std::path::PathBuf;

use lazaret_core::recorder::{Identity, Slot};
use lazaret_core::relay::Hop;
use lazaret_core::{Failure, FlightRecorder, Message, Partition, Position, QueueName, Reason, Timestamp};
use lazaret_flight_recorder::{MappedRecorder, OpenError, Options};
use tempfile::TempDir;

struct Bed {
    _folder: TempDir,
    path: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.flight");
        Self { _folder: folder, path }
    }

    fn open(&self, slots: u32) -> MappedRecorder {
        self.try_open(slots).unwrap()
    }

    fn try_open(&self, slots: u32) -> Result<MappedRecorder, OpenError> {
        MappedRecorder::open(&self.path, Options { slots })
    }

    fn refused(&self) -> String {
        let before = fs::read(&self.path).unwrap();
        let error = self.try_open(4).unwrap_err();
        assert_eq!(fs::read(&self.path).unwrap(), before, "the file is unharmed");
        error.to_string()
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "mail")
}

fn message(id: &str, offset: u64) -> Message {
    Message::new(id, "orders", Position::new(3, offset))
}

fn in_incarnation(message: &Message, incarnation: u32) -> Message {
    let mut message = message.clone();
    message.position.incarnation = incarnation;
    message
}

#[test]
fn a_clean_end_leaves_no_suspect() {
    let bed = Bed::new();
    let recorder = bed.open(4);
    let slot = recorder.enter(&queue(), &message("evt-1", 9), 1);
    recorder.leave(slot);
    drop(recorder);
    assert_eq!(bed.open(4).suspects(), []);
}

#[test]
fn a_suspect_says_where_it_came_from() {
    let bed = Bed::new();
    let _taken = bed.open(4).enter(&queue(), &message("evt-1", 9), 5);
    let suspects = bed.open(4).suspects();
    assert_eq!(suspects.len(), 1);
    let suspect = &suspects[0];
    assert_eq!((suspect.queue.clone(), suspect.message.as_str()), (queue(), "evt-1"));
    assert_eq!((suspect.partition.clone(), suspect.offset), (Partition::new("orders", 3), 9));
    assert_eq!((suspect.attempt, suspect.alone, suspect.crashes), (5, true, 1));
}

#[test]
fn suspects_come_in_the_order_of_their_places() {
    let bed = Bed::new();
    let recorder = bed.open(8);
    for offset in [7, 2, 11] {
        let _taken = recorder.enter(&queue(), &message(&format!("evt-{offset}"), offset), 1);
    }
    drop(recorder);
    let offsets: Vec<u64> = bed.open(8).suspects().iter().map(|suspect| suspect.offset).collect();
    assert_eq!(offsets, [2, 7, 11]);
}

#[test]
fn charges_add_up_until_they_are_forgotten() {
    let bed = Bed::new();
    let (queue, message) = (queue(), message("evt-1", 9));
    let identity = Identity::of_message(&queue, &message);
    for crashes in 0..3 {
        let recorder = bed.open(4);
        assert_eq!(recorder.crashes(identity), crashes);
        let _taken = recorder.enter(&queue, &message, crashes + 1);
    }
    let recorder = bed.open(4);
    assert_eq!(recorder.crashes(identity), 3);
    let elsewhere = Identity::of_message(&QueueName::of("orders", "search"), &message);
    assert_eq!(recorder.crashes(elsewhere), 0, "another component");
    recorder.forget(identity);
    recorder.forget(identity);
    assert_eq!(recorder.crashes(identity), 0);
    assert_eq!(recorder.suspects(), []);
    drop(recorder);
    assert_eq!(bed.open(4).suspects(), [], "also for the next process");
}

#[test]
fn a_suspicion_outlives_a_process_that_ran_nothing() {
    let bed = Bed::new();
    let recorder = bed.open(4);
    let _taken = [1, 2].map(|offset| recorder.enter(&queue(), &message(&format!("evt-{offset}"), offset), 1));
    drop(recorder);
    let first = bed.open(4).suspects();
    assert_eq!(first.len(), 2);
    assert!(first.iter().all(|suspect| !suspect.alone && suspect.crashes == 0));
    assert_eq!(bed.open(4).suspects(), first);
}

#[test]
fn long_ids_are_told_apart_by_what_was_cut_off() {
    let bed = Bed::new();
    let long = |end: &str| format!("{}{end}", "x".repeat(5000));
    let queue = QueueName::of(&"c".repeat(300), "mail");
    let _taken = bed.open(4).enter(&queue, &message(&long("1"), 1), 1);
    let recorder = bed.open(4);
    let suspect = recorder.suspects().remove(0);
    assert!(long("").starts_with(suspect.message.as_str()));
    let [first, second] = ["1", "2"].map(|end| message(&long(end), 1));
    assert!(suspect.is(&queue, &first));
    assert!(!suspect.is(&queue, &second));
    recorder.forget(Identity::of_message(&queue, &second));
    assert_eq!(recorder.crashes(Identity::of_message(&queue, &first)), 1);
}

#[test]
fn a_message_of_a_later_incarnation_is_not_charged_with_the_crashes_of_an_earlier_one() {
    // The topic was created again, and a message has the id and the offset of one that crashed the
    // process before.
    let bed = Bed::new();
    let old = message("evt-1", 5);
    let new = in_incarnation(&old, 1);
    let of = |message: &Message| Identity::of_message(&queue(), message);
    let _taken = bed.open(4).enter(&queue(), &old, 1);
    let recorder = bed.open(4);
    assert_eq!((recorder.crashes(of(&old)), recorder.crashes(of(&new))), (1, 0));
    assert!(!recorder.suspects()[0].is(&queue(), &new));
    let _taken = recorder.enter(&queue(), &new, 1);
    drop(recorder);
    let recorder = bed.open(4);
    let places: Vec<_> =
        recorder.suspects().iter().map(|suspect| (suspect.partition.incarnation, suspect.crashes)).collect();
    assert_eq!(places, [(0, 1), (1, 1)], "each has its own");
    recorder.forget(of(&old));
    assert_eq!((recorder.crashes(of(&old)), recorder.crashes(of(&new))), (0, 1));
    assert!(recorder.suspects()[0].is(&queue(), &new));
}

#[test]
fn the_incarnation_of_a_long_id_and_of_a_relayed_message_counts() {
    let bed = Bed::new();
    let long = in_incarnation(&message(&"x".repeat(5000), 5), 2);
    let mut relayed = in_incarnation(&message("evt-1", 7), 3);
    relayed.hop = Some(Box::new(Hop {
        stream: "retry".into(),
        position: Position::new(0, 41),
        queue: queue(),
        attempts: 1,
        crashes: 0,
        first_failed_at: Timestamp::UNIX_EPOCH,
        last_failed_at: Timestamp::UNIX_EPOCH,
        failure: Failure::new(Reason::TIMEOUT, "E", "no"),
        same_failure: 1,
        due_at: Timestamp::UNIX_EPOCH,
        twin: false,
        conflict: false,
    }));
    let _taken = {
        let recorder = bed.open(4);
        [&long, &relayed].map(|message| recorder.enter(&queue(), message, 1))
    };
    let suspects = bed.open(4).suspects();
    assert!(suspects.iter().any(|suspect| suspect.is(&queue(), &long) && suspect.partition.incarnation == 2));
    let found = suspects.iter().find(|suspect| suspect.is(&queue(), &relayed)).unwrap();
    assert_eq!((found.partition.clone(), found.offset), (Partition::new("retry", 0), 41));
}

#[test]
fn an_attempt_without_a_slot_runs_and_is_counted() {
    let bed = Bed::new();
    let recorder = bed.open(1);
    let first = recorder.enter(&queue(), &message("evt-1", 1), 1);
    let second = recorder.enter(&queue(), &message("evt-2", 2), 1);
    assert_eq!((second.index(), recorder.unrecorded()), (None, 1));
    recorder.leave(first);
    let _third = recorder.enter(&queue(), &message("evt-3", 3), 1);
    drop(recorder);
    // The second message was still running, so the third was not alone.
    let recorder = bed.open(1);
    assert_eq!(recorder.suspects()[0].message.as_str(), "evt-3");
    assert_eq!(recorder.suspects()[0].crashes, 0);
    assert_eq!(recorder.unrecorded(), 0);
    let first = recorder.enter(&queue(), &message("evt-3", 3), 2);
    let second = recorder.enter(&queue(), &message("evt-4", 4), 1);
    recorder.leave(second);
    drop(recorder);
    assert_eq!(bed.open(1).suspects()[0].crashes, 1, "the unrecorded one had left");
    drop(first);
}

#[test]
fn a_slot_that_nobody_entered_is_not_given_out_twice() {
    let bed = Bed::new();
    let recorder = bed.open(2);
    recorder.leave(Slot::at(0));
    recorder.leave(Slot::at(77));
    let slots = [1, 2, 3].map(|offset| recorder.enter(&queue(), &message("evt", offset), 1).index());
    assert_eq!(slots.iter().flatten().count(), 2);
    assert_ne!(slots[0], slots[1]);
}

#[test]
fn many_threads_leave_a_clean_file() {
    let bed = Bed::new();
    let recorder = bed.open(3);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                for offset in 0..2_000 {
                    let slot = recorder.enter(&queue(), &message(&format!("{thread}-{offset}"), offset), 1);
                    recorder.leave(slot);
                }
            });
        }
    });
    let _taken = recorder.enter(&queue(), &message("last", 1), 1);
    drop(recorder);
    let suspects = bed.open(3).suspects();
    assert_eq!(suspects.len(), 1);
    assert!(suspects[0].alone, "no slot and no count was left behind");
}

#[test]
fn a_second_recorder_on_the_file_is_refused() {
    let bed = Bed::new();
    let first = bed.open(4);
    assert!(matches!(bed.try_open(4), Err(OpenError::InUse { .. })));
    drop(first);
    bed.open(4);
}

#[test]
fn a_file_grows_and_keeps_what_it_knows() {
    let bed = Bed::new();
    let _taken = bed.open(2).enter(&queue(), &message("evt-1", 1), 1);
    let recorder = bed.open(50);
    assert_eq!((recorder.slots(), recorder.crashes(Identity::of(&queue(), &"evt-1".into()))), (50, 1));
    for offset in 0..50 {
        assert!(recorder.enter(&queue(), &message(&format!("evt-{offset}"), offset), 1).index().is_some());
    }
    drop(recorder);
    let recorder = bed.open(1);
    assert_eq!(recorder.slots(), 50, "it never shrinks");
    assert_eq!(recorder.suspects().len(), 50);
}

#[test]
fn an_interrupted_creation_is_begun_anew() {
    let bed = Bed::new();
    for length in [0, 5, 100_000] {
        fs::write(&bed.path, vec![0; length]).unwrap();
        assert_eq!(bed.open(4).slots(), 4, "{length} zeros");
    }
}

#[test]
fn a_foreign_file_is_refused() {
    let bed = Bed::new();
    let mut late = vec![0; 50_000];
    late[40_000] = 1;
    for content in [b"{}".to_vec(), b"something longer than a header, in plain text".to_vec(), late] {
        fs::write(&bed.path, content).unwrap();
        assert!(bed.refused().ends_with("is not a flight recorder file"));
    }
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let bed = Bed::new();
    drop(bed.open(4));
    let whole = fs::read(&bed.path).unwrap();
    for length in [9, 24, 4096, whole.len() - 1] {
        fs::write(&bed.path, &whole[..length]).unwrap();
        let told = bed.refused();
        assert!(told.contains(&format!("is truncated: {length} of")), "{told}");
    }
}

#[test]
fn a_file_of_another_version_is_refused() {
    let bed = Bed::new();
    drop(bed.open(4));
    let mut bytes = fs::read(&bed.path).unwrap();
    bytes[8..16].copy_from_slice(&9_u64.to_ne_bytes());
    fs::write(&bed.path, bytes).unwrap();
    assert!(bed.refused().ends_with("has format version 9, expected 1"));
}

#[test]
fn an_impossible_number_of_slots_is_refused() {
    let bed = Bed::new();
    for slots in [0, 65_537, u32::MAX] {
        assert!(matches!(bed.try_open(slots), Err(OpenError::Slots { .. })));
    }
    assert!(!bed.path.exists());
}

#[test]
fn a_path_that_cannot_be_opened_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: PathBuf| MappedRecorder::open(path, Options::default()).unwrap_err();
    assert!(matches!(open(folder.path().to_owned()), OpenError::Io { doing: "open", .. }));
    assert!(matches!(open(folder.path().join("no/such")), OpenError::Io { doing: "open", .. }));
}

#[cfg(target_os = "linux")]
#[test]
fn the_room_is_taken_when_the_file_is_made() {
    use std::os::unix::fs::MetadataExt;

    let bed = Bed::new();
    drop(bed.open(64));
    let metadata = fs::metadata(&bed.path).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.len(), "the file has no holes");
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_one_begun() {
    let bed = Bed::new();
    drop(bed.open(4));
    let whole = fs::read(&bed.path).unwrap();
    let mut other_version = whole.clone();
    other_version[8] = 9;
    let damages = [whole[..24].to_vec(), whole[..whole.len() - 1].to_vec(), b"{}".to_vec(), other_version];
    for (number, damaged) in (1..).zip(damages) {
        fs::write(&bed.path, &damaged).unwrap();
        let (recorder, found) = MappedRecorder::open_or_replace(&bed.path, Options { slots: 4 }).unwrap();
        let (aside, error) = found.expect("it is damaged");
        assert!(error.is_damage(), "{error}");
        assert!(aside.to_str().unwrap().ends_with(&format!("orders.flight.damaged-{number}")));
        assert_eq!(fs::read(aside).unwrap(), damaged, "nothing is thrown away");
        let _taken = recorder.enter(&queue(), &message("evt-1", 1), 1);
        drop(recorder);
        assert_eq!(bed.open(4).suspects().len(), 1, "the new one works");
        fs::remove_file(&bed.path).unwrap();
    }
    let whole_again = MappedRecorder::open_or_replace(&bed.path, Options { slots: 4 }).unwrap();
    assert!(whole_again.1.is_none());
    let second = MappedRecorder::open_or_replace(&bed.path, Options { slots: 4 });
    assert!(matches!(second, Err(OpenError::InUse { .. })), "a file in use is not damaged");
}
