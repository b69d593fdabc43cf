//! Backups: a store is copied while it is in use, and a copy is put back, whatever lies in its place.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::store::{Act, Actor, ErrorKind, HandOff, LetterStore, Limits, Placed, Placement};
use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, Position, QueueName, Timestamp};
use lazaret_store_sqlite::{Options, RestoreOptions, SqliteStore, backup, format_version, restore};
use tempfile::TempDir;

const REPLACE: RestoreOptions = RestoreOptions { replace: true };

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn item(sequence: &str, message: &str, offset: u64) -> HandOff {
    let message = Message::new(message, "orders", Position::new(0, offset)).with_payload("{}");
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn put(store: &SqliteStore, sequence: &str, message: &str, offset: u64) -> Placed {
    let items = vec![item(sequence, message, offset)];
    store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap()
}

async fn evict(store: &SqliteStore, message: &str) {
    let id = LetterId::of(&queue(), &MessageId::from(message));
    store.act(&queue(), id, Act::Evict, &Actor::new("ada", "cli", "try")).await.unwrap();
}

async fn messages(store: &SqliteStore, sequence: &str) -> Vec<String> {
    let letters = store.sequence(&queue(), &sequence.into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.id.to_string()).collect()
}

/// Every hand-off goes to the redo log first, and stays there.
fn recording() -> Options {
    Options { redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() }
}

/// As above, but an idle writer soon commits: a second process can write as well.
fn shared() -> Options {
    Options { redo_from: 0, ..Options::default() }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// A folder for a store and its copies.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The names of all files.
    fn names(&self) -> BTreeSet<OsString> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    /// Copies the files of a store, as they are now.
    fn copy(&self, from: &str, to: &str, suffixes: &[&str]) {
        for suffix in suffixes {
            let from = beside(&self.file(from), suffix);
            if from.exists() {
                fs::copy(from, beside(&self.file(to), suffix)).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_copy_of_a_closed_store_ignores_the_log_that_a_later_opening_left() {
    // The documented kind of backup, put back beside a log of the same file.
    let place = Place::new();
    let path = place.file("lazaret.db");
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.close().await.unwrap();
    place.copy("lazaret.db", "backup.db", &[""]);

    let store = SqliteStore::open(&path, recording()).unwrap();
    evict(&store, "m0").await;
    assert_eq!(put(&store, "a", "m1", 1).await, Placed::Opened, "on the backup it would be appended");
    assert!(fs::metadata(beside(&path, "-redo")).unwrap().len() > 0);
    place.copy("backup.db", "restored.db", &[""]);
    fs::copy(beside(&path, "-redo"), place.file("restored.db-redo")).unwrap();

    let restored = SqliteStore::open(place.file("restored.db"), recording()).unwrap();
    assert_eq!(messages(&restored, "a").await, ["m0"]);
    assert_eq!(put(&restored, "a", "m2", 2).await, Placed::Appended);
}

#[tokio::test]
async fn a_copy_of_a_store_in_use_ignores_the_log_of_a_later_state() {
    let place = Place::new();
    let path = place.file("lazaret.db");
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    assert_eq!(messages(&store, "a").await, ["m0"], "reading commits what the log holds");
    place.copy("lazaret.db", "backup.db", &["", "-wal"]);
    evict(&store, "m0").await;
    assert_eq!(put(&store, "a", "m1", 1).await, Placed::Opened);
    fs::copy(beside(&path, "-redo"), place.file("backup.db-redo")).unwrap();

    let restored = SqliteStore::open(place.file("backup.db"), recording()).unwrap();
    assert_eq!(messages(&restored, "a").await, ["m0"]);
}

#[tokio::test]
async fn a_copy_of_all_files_has_what_only_the_log_held() {
    // I1
    let place = Place::new();
    let store = SqliteStore::open(place.file("lazaret.db"), recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    put(&store, "a", "m1", 1).await;
    place.copy("lazaret.db", "copy.db", &["", "-wal", "-redo"]);
    restore(place.file("copy.db"), place.file("restored.db"), RestoreOptions::default()).unwrap();
    for copy in ["restored.db", "copy.db"] {
        let copy = SqliteStore::open(place.file(copy), recording()).unwrap();
        assert_eq!(messages(&copy, "a").await, ["m0", "m1"]);
    }
}

#[tokio::test]
async fn a_backup_has_what_was_acknowledged_before_it_though_only_in_the_redo_log() {
    // I1
    let place = Place::new();
    let path = place.file("lazaret.db");
    let store = SqliteStore::open(&path, shared()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.backup(place.file("first.db")).await.unwrap();
    put(&store, "a", "m1", 1).await;
    // As another process does it.
    backup(&path, place.file("second.db")).await.unwrap();
    for (name, expected) in [("first.db", &["m0"][..]), ("second.db", &["m0", "m1"][..])] {
        restore(place.file(name), place.file("there.db"), REPLACE).unwrap();
        let restored = SqliteStore::open(place.file("there.db"), Options::default()).unwrap();
        assert_eq!(messages(&restored, "a").await, expected, "{name}");
        restored.close().await.unwrap();
    }
    assert_eq!(messages(&store, "a").await, ["m0", "m1"], "the store goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_letter_acknowledged_before_a_backup_under_load_is_in_it() {
    // I1
    const CALLERS: u64 = 4;
    let place = Place::new();
    let store =
        SqliteStore::open(place.file("lazaret.db"), Options { redo_from: 1, ..Options::default() }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..CALLERS).map(|_| AtomicU64::new(0)).collect());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, stop, acknowledged) = (store.clone(), stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    put(&store, &format!("s{caller}"), &format!("m{caller}-{number}"), number).await;
                    acknowledged[caller as usize].store(number + 1, Ordering::Release);
                }
            })
        })
        .collect();
    for round in 1..=5 {
        // Each caller has come further since the last round.
        let before: Vec<u64> = acknowledged.iter().map(|number| number.load(Ordering::Acquire)).collect();
        while !acknowledged.iter().zip(&before).all(|(now, before)| now.load(Ordering::Acquire) > *before) {
            tokio::task::yield_now().await;
        }
        let expected: Vec<u64> = acknowledged.iter().map(|number| number.load(Ordering::Acquire)).collect();
        let file = place.file(&format!("backup-{round}.db"));
        store.backup(&file).await.unwrap();
        let restored = place.file(&format!("restored-{round}.db"));
        restore(&file, &restored, RestoreOptions::default()).unwrap();
        let restored = SqliteStore::open(&restored, Options::default()).unwrap();
        for (caller, expected) in expected.into_iter().enumerate() {
            let size = restored.sequence_size(&queue(), &format!("s{caller}").as_str().into()).await.unwrap();
            assert!(size >= expected, "caller {caller}: {size} of {expected}");
            let last = format!("m{caller}-{}", expected - 1);
            assert!(restored.lookup(&queue(), &[last.as_str().into()]).await.unwrap()[0].is_some());
        }
        assert!(restored.counts(&queue()).await.unwrap().open() > 0);
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_exists_is_replaced_only_on_demand_and_kept() {
    let place = Place::new();
    let (path, copy) = (place.file("lazaret.db"), place.file("backup.db"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.backup(&copy).await.unwrap();
    let again = store.backup(&copy).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Invalid, "a backup is not overwritten");
    put(&store, "a", "m1", 1).await;

    let refused = restore(&copy, &path, RestoreOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let in_use = restore(&copy, &path, REPLACE).unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::Unavailable, "{in_use}");
    assert_eq!(messages(&store, "a").await, ["m0", "m1"], "nothing was changed");
    store.close().await.unwrap();

    let restored = restore(&copy, &path, REPLACE).unwrap();
    assert_eq!(restored.set_aside[0], place.file("lazaret.db.replaced-1"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    assert_eq!(messages(&store, "a").await, ["m0"]);
    let earlier = SqliteStore::open(&restored.set_aside[0], recording()).unwrap();
    assert_eq!(messages(&earlier, "a").await, ["m0", "m1"]);
}

#[tokio::test]
async fn a_store_is_unchanged_when_its_replacement_cannot_be_copied() {
    // I1
    let place = Place::new();
    let (path, copy) = (place.file("lazaret.db"), place.file("copy.db"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.backup(&copy).await.unwrap();
    put(&store, "a", "m1", 1).await;
    store.close().await.unwrap();
    // A log that cannot be read.
    fs::create_dir(beside(&copy, "-redo")).unwrap();
    let before = place.names();
    let error = restore(&copy, &path, REPLACE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(place.names(), before);
    let store = SqliteStore::open(&path, recording()).unwrap();
    assert_eq!(messages(&store, "a").await, ["m0", "m1"]);
}

#[tokio::test]
async fn a_store_whose_restore_was_interrupted_is_not_opened_before_it_is_repeated() {
    let place = Place::new();
    let (path, copy) = (place.file("lazaret.db"), place.file("backup.db"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.backup(&copy).await.unwrap();
    put(&store, "a", "m1", 1).await;
    store.close().await.unwrap();
    // The files as they are after a crash between two renames.
    fs::write(beside(&path, "-restoring"), r#"{"number":1,"files":["","-redo"]}"#).unwrap();
    fs::rename(&path, place.file("lazaret.db.replaced-1")).unwrap();
    for refused in
        [SqliteStore::open(&path, recording()).map(drop), backup(&path, place.file("other.db")).await]
    {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound), "{error}");
    }
    assert!(!path.exists(), "no new store was made");
    let restored = restore(&copy, &path, RestoreOptions::default()).unwrap();
    assert_eq!(restored.set_aside[0], place.file("lazaret.db.replaced-1"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    assert_eq!(messages(&store, "a").await, ["m0"]);
    let earlier = SqliteStore::open(&restored.set_aside[0], recording()).unwrap();
    assert_eq!(messages(&earlier, "a").await, ["m0", "m1"]);
}

#[tokio::test]
async fn logs_without_a_store_are_set_aside() {
    // The file was lost, and its logs were not.
    let place = Place::new();
    let (path, copy) = (place.file("lazaret.db"), place.file("backup.db"));
    let store = SqliteStore::open(&path, recording()).unwrap();
    put(&store, "a", "m0", 0).await;
    store.backup(&copy).await.unwrap();
    evict(&store, "m0").await;
    put(&store, "a", "m1", 1).await;
    place.copy("lazaret.db", "lost.db", &["-wal", "-redo"]);
    let restored = restore(&copy, place.file("lost.db"), RestoreOptions::default()).unwrap();
    assert_eq!(restored.set_aside.len(), 2, "{restored:?}");
    let store = SqliteStore::open(place.file("lost.db"), recording()).unwrap();
    assert_eq!(messages(&store, "a").await, ["m0"]);
}

#[tokio::test]
async fn what_is_not_a_store_is_not_restored() {
    let place = Place::new();
    let path = place.file("lazaret.db");
    drop(SqliteStore::open(&path, Options::default()).unwrap());
    fs::write(place.file("text"), "plain text, longer than the header of a database").unwrap();
    rusqlite::Connection::open(place.file("foreign.db"))
        .unwrap()
        .execute_batch("CREATE TABLE t (a)")
        .unwrap();
    let whole = place.file("whole.db");
    backup(&path, &whole).await.unwrap();
    let mut bytes = fs::read(&whole).unwrap();
    for byte in &mut bytes[8192..12_288] {
        *byte = 0xff;
    }
    fs::write(place.file("damaged.db"), bytes).unwrap();
    for (name, kind) in [
        ("missing.db", ErrorKind::Unavailable),
        ("text", ErrorKind::Corrupt),
        ("foreign.db", ErrorKind::Invalid),
        ("damaged.db", ErrorKind::Corrupt),
    ] {
        let error =
            restore(place.file(name), place.file("target.db"), RestoreOptions::default()).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(!place.file("target.db").exists());
    }
    let missing = backup(place.file("missing.db"), place.file("b.db")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let nowhere = backup(&path, place.file("no/such/folder.db")).await.unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Unavailable);
    let left: Vec<_> =
        fs::read_dir(place.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().contains(".backup-")), "{left:?}");
}

#[tokio::test]
async fn a_file_of_an_older_format_is_backed_up_as_it_is() {
    let place = Place::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v2.db");
    fs::copy(fixture, place.file("old.db")).unwrap();
    backup(place.file("old.db"), place.file("backup.db")).await.unwrap();
    for name in ["old.db", "backup.db"] {
        assert_eq!(format_version(place.file(name)).unwrap(), 2, "{name}");
    }
    restore(place.file("backup.db"), place.file("new.db"), RestoreOptions::default()).unwrap();
    SqliteStore::open(place.file("new.db"), Options::default()).unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn all_files_belong_to_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    let path = place.file("lazaret.db");
    let modes = || {
        let files = ["", "-wal", "-shm", "-redo"].map(|suffix| fs::metadata(beside(&path, suffix)));
        files.map(|file| file.unwrap().permissions().mode() & 0o777)
    };
    let store = SqliteStore::open(&path, shared()).unwrap();
    put(&store, "a", "m0", 0).await;
    assert_eq!(modes(), [0o600; 4]);
    // A store of an earlier version, which everybody can read.
    for suffix in ["", "-wal", "-shm", "-redo"] {
        fs::set_permissions(beside(&path, suffix), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let second = SqliteStore::open(&path, Options::default()).unwrap();
    assert_eq!(modes(), [0o600; 4], "existing files are restricted");
    second.backup(place.file("backup.db")).await.unwrap();
    let backup = fs::metadata(place.file("backup.db")).unwrap().permissions().mode();
    assert_eq!(backup & 0o777, 0o600);
    restore(place.file("backup.db"), place.file("restored.db"), RestoreOptions::default()).unwrap();
    let restored = fs::metadata(place.file("restored.db")).unwrap().permissions().mode();
    assert_eq!(restored & 0o777, 0o600);
}
