//! The recording sees every way of writing, and the rebuilt states are those that a disk may hold.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use lazaret_power_loss::{Event, Exploration, History, Log, Recording, Survival, scratch};

const ALL: Exploration = Exploration { seed: 1, limit: usize::MAX, random: 400, from: 0 };

/// Ends a recording with a mark, so that the states at the end are not those that were explored before it.
fn finish(recording: Recording) -> Log {
    recording.mark();
    recording.finish()
}

/// All contents that a file may have after the last event; `None` if it is missing.
fn at_the_end(log: &Log, name: &str) -> BTreeSet<Option<Vec<u8>>> {
    let mut found = BTreeSet::new();
    log.explore(&ALL, |state| {
        if state.cut() == log.events().len() {
            found.insert(state.files().get(name).cloned());
        }
    });
    found
}

fn has(log: &Log, is_it: impl Fn(&Event) -> bool) -> bool {
    log.events().iter().any(is_it)
}

/// `finish` compares the rebuilt files with the real ones, byte by byte.
#[test]
fn every_write_of_the_standard_library_is_seen() {
    let (folder, elsewhere) = (scratch(), scratch());
    let path = |name: &str| folder.path().join(name);
    fs::write(path("before"), "there before").unwrap();
    fs::write(elsewhere.path().join("source"), vec![b'x'; 100_000]).unwrap();
    let recording = Recording::start(folder.path());
    let mut file = File::create(path("a")).unwrap();
    file.write_all(b"one").unwrap();
    assert_eq!(file.write_vectored(&[IoSlice::new(b"two"), IoSlice::new(b"three")]).unwrap(), 8);
    file.write_all_at(b"far away", 5000).unwrap();
    file.seek(SeekFrom::Start(1)).unwrap();
    file.write_all(b"N").unwrap();
    file.set_len(6000).unwrap();
    file.sync_data().unwrap();
    let mut appended = OpenOptions::new().append(true).open(path("before")).unwrap();
    appended.write_all(b", and more").unwrap();
    appended.sync_all().unwrap();
    fs::copy(elsewhere.path().join("source"), path("copy")).unwrap();
    std::io::copy(&mut File::open(path("copy")).unwrap(), &mut File::create(path("again")).unwrap()).unwrap();
    fs::write(path("copy"), "short").unwrap();
    fs::rename(path("again"), path("renamed")).unwrap();
    fs::rename(path("renamed"), path("copy")).unwrap();
    fs::write(path("gone"), "gone").unwrap();
    fs::remove_file(path("gone")).unwrap();
    fs::write(path("gone"), "back").unwrap();
    File::open(folder.path()).unwrap().sync_all().unwrap();
    // None of its files.
    fs::write(elsewhere.path().join("other"), "not recorded").unwrap();
    let log = recording.finish();
    assert!(has(&log, |event| *event == Event::SyncFolder));
    assert_eq!(log.events().iter().filter(|event| matches!(event, Event::Sync { .. })).count(), 2);
    assert!(!format!("{:?}", log.events()).contains("other"));
}

#[test]
fn every_write_of_sqlite_is_seen() {
    let folder = scratch();
    let path = folder.path().join("test.db");
    let recording = Recording::start(folder.path());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT)").unwrap();
    let mode: String = connection.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    for number in 0..50 {
        connection.execute("INSERT INTO t (text) VALUES (?1)", ["x".repeat(number * 100)]).unwrap();
        if number % 20 == 19 {
            connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        }
    }
    let copy = folder.path().join("copy.db");
    connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    connection.execute("DELETE FROM t WHERE n > 10", []).unwrap();
    connection.execute_batch("VACUUM").unwrap();
    drop(connection);
    let log = recording.finish();
    let names = |start: &str| {
        let is_it = |event: &Event| matches!(event, Event::Create { name, .. } if name == start);
        has(&log, is_it)
    };
    assert!(names("test.db") && names("test.db-wal") && names("test.db-journal") && names("copy.db"));
    assert!(!names("test.db-shm"));
    assert!(has(&log, |event| matches!(event, Event::Remove { name, .. } if name == "test.db-wal")));
}

#[test]
#[should_panic(expected = "was written without being recorded")]
fn a_write_that_was_not_seen_is_reported() {
    let folder = scratch();
    fs::write(folder.path().join("a"), "before").unwrap();
    let recording = Recording::start(folder.path());
    let script = "printf after > \"$0\"";
    // Another process is not recorded.
    let shell = std::process::Command::new("sh").args(["-c", script]).arg(folder.path().join("a")).status();
    assert!(shell.unwrap().success());
    recording.finish();
}

#[test]
fn what_was_synced_is_there() {
    let folder = scratch();
    let recording = Recording::start(folder.path());
    let mut file = File::create(folder.path().join("a")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_data().unwrap();
    let log = finish(recording);
    assert_eq!(at_the_end(&log, "a"), [Some(b"synced".to_vec())].into(), "with its name");
}

#[test]
fn what_was_not_synced_may_be_there_in_part() {
    let folder = scratch();
    let recording = Recording::start(folder.path());
    let mut file = File::create(folder.path().join("a")).unwrap();
    file.sync_data().unwrap();
    file.write_all(&[1; 1024]).unwrap();
    let log = finish(recording);
    let sectors = |first: u8, second: u8| Some([[first; 512], [second; 512]].concat());
    let short = |first: u8| Some(vec![first; 512]);
    let found = at_the_end(&log, "a");
    for expected in [Some(Vec::new()), sectors(1, 1), sectors(0, 0), sectors(1, 0), sectors(0, 1)] {
        assert!(found.contains(&expected));
    }
    assert!(!found.contains(&short(1)), "the file never had this length");
    assert!(!found.contains(&None));
    assert_eq!(found.len(), 5);
}

#[test]
fn a_later_write_may_be_there_without_an_earlier_one() {
    let folder = scratch();
    fs::write(folder.path().join("a"), [0; 1024]).unwrap();
    let recording = Recording::start(folder.path());
    let file = OpenOptions::new().write(true).open(folder.path().join("a")).unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    file.write_all_at(&[2; 10], 512).unwrap();
    let log = finish(recording);
    let found = at_the_end(&log, "a");
    let firsts: BTreeSet<(u8, u8)> = found.iter().flatten().map(|file| (file[0], file[512])).collect();
    assert_eq!(firsts, [(0, 0), (1, 0), (0, 2), (1, 2)].into());
}

#[test]
fn a_sector_is_not_torn() {
    let folder = scratch();
    fs::write(folder.path().join("a"), [0; 512]).unwrap();
    let recording = Recording::start(folder.path());
    let file = OpenOptions::new().write(true).open(folder.path().join("a")).unwrap();
    file.write_all_at(&[1; 512], 0).unwrap();
    let log = finish(recording);
    assert_eq!(at_the_end(&log, "a"), [Some(vec![0; 512]), Some(vec![1; 512])].into());
}

#[test]
fn a_name_is_there_after_a_sync_of_the_folder() {
    let folder = scratch();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    fs::write(&old, "x").unwrap();
    let recording = Recording::start(folder.path());
    fs::rename(&old, &new).unwrap();
    let cut = recording.mark();
    File::open(folder.path()).unwrap().sync_all().unwrap();
    let log = finish(recording);
    let mut before = BTreeSet::new();
    log.explore(&ALL, |state| {
        let names: Vec<String> = state.files().keys().cloned().collect();
        if state.cut() == cut {
            before.insert(names);
        } else if state.cut() > cut {
            assert_eq!(names, ["new"]);
        }
    });
    assert_eq!(before, [vec!["old".to_owned()], vec!["new".to_owned()]].into());
}

#[test]
fn a_removed_file_may_come_back_but_not_over_a_synced_one() {
    let folder = scratch();
    let path = folder.path().join("a");
    fs::write(&path, "old").unwrap();
    let recording = Recording::start(folder.path());
    fs::remove_file(&path).unwrap();
    let removed = recording.mark();
    let mut file = File::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    file.sync_all().unwrap();
    let log = finish(recording);
    let mut back = false;
    log.explore(&ALL, |state| back |= state.cut() == removed && state.files().get("a").is_some());
    assert!(back);
    assert_eq!(at_the_end(&log, "a"), [Some(b"new".to_vec())].into());
}

/// Writes, syncs and answers, in the order of the steps.
fn promised(steps: &str) -> (Log, History) {
    let folder = scratch();
    let recording = Recording::start(folder.path());
    let mut history = History::default();
    let mut file = File::create(folder.path().join("a")).unwrap();
    history.request("a", "done", &recording);
    for step in steps.split(' ') {
        match step {
            "write" => file.write_all(b"done").unwrap(),
            "sync" => file.sync_data().unwrap(),
            _ => history.answer("a", &recording),
        }
    }
    (recording.finish(), history)
}

fn check(log: &Log, history: &History) -> usize {
    let explored = log.explore(&ALL, |state| {
        let found = state.files().get("a").filter(|content| *content == b"done");
        let found = found.map(|content| ("a".to_owned(), String::from_utf8(content.clone()).unwrap()));
        history.check(state.cut(), &found.into_iter().collect());
    });
    explored.states
}

#[test]
fn an_answer_after_the_sync_is_kept() {
    let (log, history) = promised("write sync answer");
    assert!(check(&log, &history) > 3);
    assert!(history.is_answered("a", log.events().len()) && !history.is_answered("a", 0));
}

#[test]
#[should_panic(expected = "a is \"\" after a cut")]
fn an_answer_before_the_sync_is_told() {
    let (log, history) = promised("write answer sync");
    check(&log, &history);
}

#[test]
fn a_seed_decides_which_states_are_explored() {
    let (log, _) = promised("write sync write write sync answer");
    let states = |seed| {
        let mut states = Vec::new();
        let few = Exploration { seed, limit: 7, ..Exploration::of(7) };
        let explored = log.explore(&few, |state| states.push((state.cut(), state.survival())));
        assert!(explored.states <= 7);
        states
    };
    assert_eq!(states(7), states(7));
    assert!((0..9).any(|seed| states(seed) != states(7)));
    assert!(states(7).iter().all(|(cut, survival)| *cut > 0 || *survival != Survival::NoNames));
}
