//! Power cuts at any point in the life of a store: nothing answered is lost, and the store opens.
//!
//! The layer below ([`lazaret_power_loss`]) records what the store and SQLite write, and rebuilds the states in which a power cut may
//! leave the files. Each of them is opened, and compared with what had been answered before the cut.

mod life;
mod picture;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use lazaret_power_loss::{Event, Exploration, Explored, Log, Recording, State, scratch};

use crate::{Options, RestoreOptions, SqliteStore, backup, restore};
use life::{FILE, Life};

/// Runs a test on a thread of its own; the store needs others only.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

/// All groups go to the redo log, and stay in it until a call that it cannot hold.
fn by_redo_log() -> Options {
    Options { redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() }
}

/// Every group is committed.
fn by_commits() -> Options {
    Options { redo_from: usize::MAX, ..Options::default() }
}

/// Bursts go to the redo log, and are committed soon.
fn by_both() -> Options {
    Options { redo_from: 4, redo_time: Duration::from_millis(20), ..Options::default() }
}

/// Opens the store of a state, checks all that it holds, and closes it.
async fn check(life: &Life, cut: usize, file: &Path) {
    let store = SqliteStore::open(file, life.later()).unwrap();
    picture::check(life, cut, &store).await;
    store.close().await.unwrap();
    picture::check_file(file);
}

/// Two openings of a store with all kinds of calls, and a power cut at each point.
fn survives(options: Options, states: usize) -> Explored {
    let life = block_on(async {
        let life = Life::begin(options);
        life.open_and_run(0).await;
        life.open_and_run(1).await;
        life.end()
    });
    let rebuilt = scratch();
    life.log().explore(&Exploration::of(states), |state| {
        state.write_to(rebuilt.path());
        block_on(check(&life, state.cut(), &rebuilt.path().join(FILE)));
    })
}

#[test]
fn nothing_committed_is_lost_by_a_power_cut() {
    // I1, I8
    let explored = survives(by_commits(), 200);
    assert!(explored.states > 100, "{explored:?}");
}

#[test]
fn nothing_in_the_redo_log_alone_is_lost_by_a_power_cut() {
    // I1, I8
    let explored = survives(by_redo_log(), 250);
    assert!(explored.states > 100, "{explored:?}");
}

#[test]
fn nothing_is_lost_by_a_power_cut_between_redo_log_and_commit() {
    // I1, I8
    let explored = survives(by_both(), 120);
    assert!(explored.states > 60, "{explored:?}");
}

#[test]
fn nothing_is_lost_by_a_second_power_cut_during_recovery() {
    // I1
    let life = block_on(async {
        let life = Life::begin(by_redo_log());
        life.open_and_run(0).await;
        life.end()
    });
    let (first, second) = (scratch(), scratch());
    let mut recovered = 0;
    let all = Exploration::of(8);
    life.log().explore(&all, |state| {
        state.write_to(first.path());
        let recording = Recording::start(first.path());
        block_on(async {
            SqliteStore::open(first.path().join(FILE), life.later()).unwrap().close().await.unwrap();
        });
        let log = recording.finish();
        let explored = log.explore(&Exploration { limit: 16, ..all }, |again| {
            again.write_to(second.path());
            block_on(check(&life, state.cut(), &second.path().join(FILE)));
        });
        recovered += explored.states;
    });
    assert!(recovered > 60, "{recovered}");
}

/// A life whose store is backed up at its end.
fn with_backup() -> Life {
    block_on(async {
        let life = Life::begin(by_redo_log());
        let store = life.open();
        life.hand_offs(&store, 0).await;
        let to = life.folder().join("backup.db");
        life.call(&[("backup", "there")], store.backup(&to)).await;
        life.end()
    })
}

/// Every state from the moment on when the backup gets its name: there it has to be whole.
fn since_the_rename(log: &Log) -> Exploration {
    let is_it = |event: &Event| matches!(event, Event::Rename { to, .. } if to == "backup.db");
    let renamed = log.events().iter().position(is_it).expect("a backup gets its name by a rename");
    Exploration::all_from(renamed + 1)
}

/// Checks the store and its backup after power cuts in this log of the life.
fn survive_with_backup(life: &Life, log: &Log, exploration: &Exploration) -> Explored {
    // All letters had been answered before the backup began.
    let end = log.events().len();
    let rebuilt = scratch();
    log.explore(exploration, |state| {
        state.write_to(rebuilt.path());
        let (file, copy) = (rebuilt.path().join(FILE), rebuilt.path().join("backup.db"));
        block_on(async {
            let is_there = copy.exists();
            assert!(is_there || !life.is_answered("backup", state.cut()), "the backup is lost");
            if is_there {
                check(life, end, &copy).await;
            } else if life.is_requested("backup", state.cut()) {
                // What is left of the first one does not matter.
                backup(&file, &copy).await.unwrap();
                check(life, end, &copy).await;
            }
            check(life, state.cut(), &file).await;
        });
    })
}

#[test]
fn a_power_cut_leaves_a_whole_backup_or_none() {
    // I1
    let life = with_backup();
    let explored = survive_with_backup(&life, life.log(), &Exploration::of(80));
    assert!(explored.states > 40, "{explored:?}");
    let explored = survive_with_backup(&life, life.log(), &since_the_rename(life.log()));
    assert!(explored.states > 1, "{explored:?}");
}

#[test]
fn a_backup_that_does_not_sync_its_file_is_found() {
    let life = with_backup();
    let log = life.log().without_syncs(|name| name.starts_with("backup.db"));
    assert_ne!(log.events(), life.log().events(), "a backup syncs its file");
    assert!(is_found(|| survive_with_backup(&life, &log, &since_the_rename(&log))));
}

/// Returns whether a check has found the bug that was planted.
fn is_found(check: impl FnOnce() -> Explored) -> bool {
    catch_unwind(AssertUnwindSafe(check)).is_err()
}

#[test]
fn a_restore_that_was_cut_off_can_be_repeated() {
    // I1
    survives_a_restore(block_on(backed_up()));
}

#[test]
fn a_restore_with_a_redo_log_that_was_cut_off_can_be_repeated() {
    // I1
    survives_a_restore(block_on(copied_with_its_logs()));
}

#[test]
fn a_restore_that_does_not_sync_its_files_is_found() {
    for suffix in ["", "-redo"] {
        let restore = Restore::record(block_on(copied_with_its_logs()));
        let written = format!("{FILE}{suffix}.restore-");
        let log = restore.log.without_syncs(|name| name.starts_with(&written));
        assert_ne!(log.events(), restore.log.events(), "a restore syncs {written}");
        assert!(is_found(|| restore.survive(&log, &Exploration::all_from(restore.answered))), "{written}");
    }
}

fn survives_a_restore(before: (Life, State)) {
    let restore = Restore::record(before);
    let explored = restore.survive(&restore.log, &Exploration::of(60));
    assert!(explored.states > 25, "{explored:?}");
    let explored = restore.survive(&restore.log, &Exploration::all_from(restore.answered));
    assert!(explored.states > 0, "{explored:?}");
}

/// The recorded restore of the backup of a life, over the store that was beside it.
struct Restore {
    life: Life,
    log: Log,
    /// The cut after which it had ended.
    answered: usize,
}

/// The earlier store is kept under another name.
const REPLACE: RestoreOptions = RestoreOptions { replace: true };

impl Restore {
    fn record((life, before): (Life, State)) -> Self {
        let folder = scratch();
        before.write_to(folder.path());
        let recording = Recording::start(folder.path());
        restore(folder.path().join("backup.db"), folder.path().join(FILE), REPLACE).unwrap();
        let answered = recording.mark();
        Self { life, log: recording.finish(), answered }
    }

    /// Checks the store after power cuts in this log of the restore.
    fn survive(&self, log: &Log, exploration: &Exploration) -> Explored {
        let rebuilt = scratch();
        let end = self.life.log().events().len();
        log.explore(exploration, |state| {
            state.write_to(rebuilt.path());
            let (file, copy) = (rebuilt.path().join(FILE), rebuilt.path().join("backup.db"));
            if state.cut() < self.answered {
                restore(&copy, &file, REPLACE).unwrap();
            }
            block_on(check(&self.life, end, &file));
        })
    }
}

/// A life and its backup, beside another store.
async fn backed_up() -> (Life, State) {
    let life = Life::begin(by_redo_log());
    let store = life.open();
    life.hand_offs(&store, 0).await;
    store.backup(life.folder().join("backup.db")).await.unwrap();
    let life = life.end();
    let mut state = another_store().await;
    state.insert("backup.db", life.log().last().files()["backup.db"].clone());
    (life, state)
}

/// A life and a copy of all its files, beside another store.
async fn copied_with_its_logs() -> (Life, State) {
    let life = Life::begin(by_redo_log());
    let store = life.open();
    life.hand_offs(&store, 0).await;
    let life = life.end();
    let mut state = another_store().await;
    for suffix in ["", "-wal", "-redo"] {
        let content = life.log().last().files()[&format!("{FILE}{suffix}")].clone();
        assert!(!content.is_empty());
        state.insert(&format!("backup.db{suffix}"), content);
    }
    (life, state)
}

/// A store that a power cut has stopped with records in its redo log.
async fn another_store() -> State {
    let other = Life::begin(by_redo_log());
    let store = other.open();
    other.hand_offs(&store, 5).await;
    let state = other.end().log().last();
    assert!(!state.files()[&format!("{FILE}-redo")].is_empty());
    state
}
