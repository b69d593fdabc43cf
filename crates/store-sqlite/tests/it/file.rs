//! Properties of a store in a file: it persists, other processes can use it, and damage is detected.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{
    Act, Actor, Anchor, AttemptNote, Audit, Certainty, Change, Checkpoints, Dedupe, DedupeClaim, ErrorKind,
    GrantFence, HandOff, LetterStore, Limits, Locks, PauseScope, Placed, Placement, Settlement, Triage,
};
use lazaret_core::{
    Clock, Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName, Reason,
};
use lazaret_store_sqlite::{FORMAT_VERSION, Options, SqliteStore};
use lazaret_testkit::ManualClock;
use lazaret_testkit::clock::test_epoch;
use rusqlite::Connection;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(30);

/// A folder with a store file, and the clock of all stores on it.
struct Place {
    folder: TempDir,
    clock: ManualClock,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: ManualClock::new() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("lazaret.db")
    }

    fn options(&self) -> Options {
        Options { clock: Arc::new(self.clock.clone()), ..Options::default() }
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), self.options()).unwrap()
    }

    fn refused(&self) -> (ErrorKind, String) {
        let error = SqliteStore::open(self.path(), self.options()).expect_err("the file should be refused");
        (error.kind(), error.to_string())
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn partition() -> Partition {
    Partition::new("orders", 0)
}

fn operator() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn id_of(message: &str) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(message))
}

fn letter(sequence: &str, message: &str, offset: u64, state: LetterState) -> Letter {
    let message = Message::new(message, "orders", Position::new(0, offset))
        .with_key(sequence.to_owned())
        .with_payload("{}");
    let now = test_epoch();
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), now);
    letter.state = state;
    letter
}

fn open(letter: Letter) -> HandOff {
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn put(store: &SqliteStore, item: HandOff) -> Placed {
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap()
}

async fn put_dead(store: &SqliteStore, sequence: &str, message: &str, offset: u64) -> Placed {
    put(store, open(letter(sequence, message, offset, LetterState::Dead))).await
}

async fn messages(store: &SqliteStore, sequence: &str) -> Vec<String> {
    let letters = store.sequence(&queue(), &sequence.into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.id.to_string()).collect()
}

#[tokio::test]
async fn everything_persists_after_reopening() {
    // I1, I4, I6, I8, I11
    let place = Place::new();
    let store = place.open();
    let grant = store.assign(&queue(), &[partition()]).await.unwrap().remove(0);
    let under = Some(GrantFence { partition: partition(), fence: grant.fence, turn: 4 });
    let item = HandOff { grant: under.clone(), ..open(letter("a", "1", 7, LetterState::Retrying)) };
    put(&store, item).await;
    put_dead(&store, "b", "2", 8).await;
    put_dead(&store, "c", "3", 9).await;
    store.act(&queue(), id_of("3"), Act::Evict, &operator()).await.unwrap();
    let claim = store.claim_due(&queue(), "worker", LEASE, 9).await.unwrap().remove(0);
    let note = AttemptNote {
        message: "9".into(),
        partition: partition(),
        offset: 9,
        attempts: 2,
        first_failed_at: test_epoch(),
        failure: Failure::new(Reason::TIMEOUT, "HttpError", "boom"),
        same_failure: 1,
        due_at: test_epoch(),
    };
    store.note_attempts(&queue(), vec![note.clone()]).await.unwrap();
    store.pause(&"orders".into(), PauseScope::Sequence("d".into()), &operator()).await.unwrap();
    let anchor = Anchor { token: "t".into(), at: test_epoch() };
    store.save_processed("stream", anchor.clone(), None).await.unwrap();
    let lock = store.acquire("leader", "me", LEASE).await.unwrap().unwrap();
    Dedupe::done(&store, &queue(), &"1".into(), "me", LEASE).await.unwrap();
    let letters: Vec<Letter> = store.heads(&queue(), None, 10).await.unwrap().heads;
    let counts = store.counts(&queue()).await.unwrap();
    let opened = store.opened_since(&queue(), 0, 10).await.unwrap();
    let audit = store.audit(0, 10).await.unwrap();
    drop(store);

    let store = place.open();
    assert_eq!(store.heads(&queue(), None, 10).await.unwrap().heads, letters);
    assert_eq!(store.counts(&queue()).await.unwrap(), counts);
    assert_eq!(store.opened_since(&queue(), 0, 10).await.unwrap(), opened);
    assert_eq!((store.audit(0, 10).await.unwrap(), audit.len()), (audit, 2));
    assert_eq!(store.attempt_notes(&queue(), &[partition()]).await.unwrap(), [note]);
    assert_eq!(store.load("stream").await.unwrap().unwrap().processed, Some(anchor));
    assert_eq!(Locks::state(&store, "leader").await.unwrap(), Some(lock.clone()));
    assert_eq!(Dedupe::claim(&store, &queue(), &"1".into(), "you", LEASE).await.unwrap(), DedupeClaim::Done);
    // A hand-off with an earlier call number is still refused, and a repeated one finds its letter.
    let earlier = Some(GrantFence { turn: 3, ..under.clone().unwrap() });
    let late = HandOff { grant: earlier, ..open(letter("e", "late", 10, LetterState::Dead)) };
    let refused = store.hand_off(&queue(), &Limits::NONE, vec![late]).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(put_dead(&store, "c", "3", 9).await, Placed::Held(LetterState::Evicted));
    // The pause of a sequence applies to one that is opened later; the lease from before holds too.
    put(&store, open(letter("d", "4", 11, LetterState::Waiting))).await;
    assert!(store.claim_due(&queue(), "other", LEASE, 9).await.unwrap().is_empty());
    LetterStore::settle(&store, &claim.lease, id_of("1"), Settlement::Resolve(None)).await.unwrap();
    // Numbers continue.
    let again = store.assign(&queue(), &[partition()]).await.unwrap().remove(0);
    assert_eq!((again.fence, again.horizon), (grant.fence + 1, Some(11)));
    let claim_again = LetterStore::claim(&store, &queue(), &"b".into(), "w", LEASE).await.unwrap().unwrap();
    assert!(claim_again.lease.fence > claim.lease.fence);
    Locks::release(&store, "leader", "me").await.unwrap();
    assert!(store.acquire("leader", "you", LEASE).await.unwrap().unwrap().fence > lock.fence);
    let placed = store.opened_since(&queue(), opened.revision, 10).await.unwrap();
    assert_eq!(placed.sequences, ["d".into()]);
}

/// How long messages are remembered.
const WINDOW: Duration = Duration::from_secs(3600);

async fn claim_of(store: &SqliteStore, message: &str) -> DedupeClaim {
    Dedupe::claim(store, &queue(), &message.into(), "worker", LEASE).await.unwrap()
}

async fn handled(store: &SqliteStore, message: &str) {
    Dedupe::done(store, &queue(), &message.into(), "worker", WINDOW).await.unwrap();
}

#[tokio::test]
async fn a_mark_outlasts_a_clock_that_was_set_while_no_process_ran() {
    for forward in [true, false] {
        let place = Place::new();
        let store = place.open();
        handled(&store, "1").await;
        store.close().await.unwrap();
        // Half of the window passes, and the clock is set by twice the window.
        place.clock.advance(WINDOW / 2);
        let now = place.clock.now();
        place.clock.set(if forward { now + 2 * WINDOW } else { now - 2 * WINDOW });
        let store = place.open();
        handled(&store, "2").await;
        assert_eq!(claim_of(&store, "1").await, DedupeClaim::Done, "forward: {forward}");
        place.clock.advance(WINDOW / 2 - Duration::from_secs(1));
        assert_eq!(claim_of(&store, "1").await, DedupeClaim::Done, "forward: {forward}");
        place.clock.advance(Duration::from_secs(1));
        assert_eq!(claim_of(&store, "1").await, DedupeClaim::Claimed, "the window has passed");
        assert_eq!(claim_of(&store, "2").await, DedupeClaim::Done, "its window began later");
    }
}

#[tokio::test]
async fn after_a_restart_of_the_machine_its_clock_tells_how_long_it_was_off() {
    let place = Place::new();
    let store = place.open();
    handled(&store, "1").await;
    store.close().await.unwrap();
    for (off, expected) in [
        (WINDOW - Duration::from_secs(1), DedupeClaim::Done),
        (WINDOW + Duration::from_secs(1), DedupeClaim::Claimed),
    ] {
        // The steady time begins anew.
        let restarted = ManualClock::new();
        restarted.set(place.clock.now() + off);
        let options = Options { clock: Arc::new(restarted), ..Options::default() };
        let store = SqliteStore::open(place.path(), options).unwrap();
        assert_eq!(claim_of(&store, "1").await, expected, "off for {off:?}");
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn two_processes_agree_about_a_clock_that_was_set() {
    let place = Place::new();
    let (one, two) = (place.open(), place.open());
    handled(&one, "1").await;
    handled(&two, "2").await;
    for (step, set) in [2 * WINDOW, Duration::ZERO, 3 * WINDOW].into_iter().enumerate() {
        place.clock.set(test_epoch() + set);
        place.clock.advance(Duration::from_secs(60));
        for message in ["1", "2"] {
            assert_eq!(claim_of(&one, message).await, DedupeClaim::Done, "step {step}");
            assert_eq!(claim_of(&two, message).await, DedupeClaim::Done, "step {step}");
        }
    }
    // One that starts has the same time.
    let three = place.open();
    place.clock.advance(WINDOW - Duration::from_secs(3 * 60 + 1));
    for store in [&three, &one, &two] {
        assert_eq!(claim_of(store, "1").await, DedupeClaim::Done);
    }
    place.clock.advance(Duration::from_secs(1));
    assert_eq!(claim_of(&three, "1").await, DedupeClaim::Claimed);
    assert_eq!(claim_of(&one, "1").await, DedupeClaim::Claimed, "under the same owner");
}

#[tokio::test]
async fn marks_do_not_accumulate_however_the_clock_is_set() {
    // I7
    let place = Place::new();
    let store = place.open();
    for round in 0..60_u64 {
        for n in 0..10 {
            handled(&store, &format!("{round}-{n}")).await;
        }
        let now = place.clock.now();
        place.clock.set(if round % 2 == 0 { now + 5 * WINDOW } else { now - 6 * WINDOW });
        place.clock.advance(WINDOW / 4);
    }
    store.close().await.unwrap();
    let file = Connection::open(place.path()).unwrap();
    let count = "SELECT count(*) FROM key_values WHERE space = 'dedupe'";
    let kept: i64 = file.query_row(count, [], |row| row.get(0)).unwrap();
    // Those of one window, and of the round in which they expire.
    assert!((40..=50).contains(&kept), "{kept} marks are kept");
}

#[tokio::test]
async fn a_second_store_on_the_file_reads_and_writes_beside_the_first() {
    // I2, I6, I8: each sees the other's writes, whatever it has cached.
    let place = Place::new();
    let (one, two) = (place.open(), place.open());
    for round in 0..20_u64 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let message = format!("m{round:02}");
        let placed = put_dead(writer, "a", &message, round).await;
        assert_eq!(placed, if round == 0 { Placed::Opened } else { Placed::Appended });
        assert_eq!(put_dead(reader, "a", &message, round).await, Placed::Held(LetterState::Dead));
        assert_eq!(reader.counts(&queue()).await.unwrap().open(), round + 1);
    }
    let expected: Vec<String> = (0..20).map(|n| format!("m{n:02}")).collect();
    assert_eq!(messages(&one, "a").await, expected);
    let claim = LetterStore::claim(&one, &queue(), &"a".into(), "one", LEASE).await.unwrap().unwrap();
    assert!(LetterStore::claim(&two, &queue(), &"a".into(), "two", LEASE).await.unwrap().is_none());
    place.clock.advance(LEASE);
    let taken = LetterStore::claim(&two, &queue(), &"a".into(), "two", LEASE).await.unwrap().unwrap();
    assert!(taken.lease.fence > claim.lease.fence);
    // Grants and pauses apply to both.
    let old = one.assign(&queue(), &[partition()]).await.unwrap().remove(0);
    assert!(two.assign(&queue(), &[partition()]).await.unwrap()[0].fence > old.fence);
    let grant = Some(GrantFence { partition: partition(), fence: old.fence, turn: 1 });
    let late = HandOff { grant, ..open(letter("b", "late", 99, LetterState::Dead)) };
    let refused = one.hand_off(&queue(), &Limits::NONE, vec![late]).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    two.pause(&"orders".into(), PauseScope::Sequence("p".into()), &operator()).await.unwrap();
    put(&one, open(letter("p", "paused", 100, LetterState::Waiting))).await;
    assert!(one.claim_due(&queue(), "w", LEASE, 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_reader_beside_the_writer_sees_whole_batches_only() {
    let place = Place::new();
    let (writer, reader) = (place.open(), place.open());
    put_dead(&writer, "a", "first", 0).await;
    let writing = tokio::spawn(async move {
        for batch in 0..40_u64 {
            let items = (0..5).map(|n| {
                let offset = 1 + batch * 5 + n;
                open(letter("a", &format!("m{offset}"), offset, LetterState::Dead))
            });
            writer.hand_off(&queue(), &Limits::NONE, items.collect()).await.unwrap();
        }
    });
    loop {
        let done = writing.is_finished();
        let size = reader.sequence_size(&queue(), &"a".into()).await.unwrap();
        assert_eq!(size % 5, 1, "a batch is visible as a whole or not at all");
        if done {
            assert_eq!(size, 201);
            return;
        }
    }
}

#[test]
fn a_new_file_can_be_opened_concurrently() {
    let place = Place::new();
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..8).map(|_| scope.spawn(|| drop(place.open()))).collect();
        for opener in openers {
            opener.join().unwrap();
        }
    });
}

#[test]
fn a_file_of_a_newer_format_is_refused() {
    let place = Place::new();
    drop(place.open());
    let newer = FORMAT_VERSION + 6;
    Connection::open(place.path()).unwrap().pragma_update(None, "user_version", newer).unwrap();
    let (kind, text) = place.refused();
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains(&format!("format version {newer}")), "{text}");
    assert!(text.contains(&format!("supported version {FORMAT_VERSION}")), "{text}");
    assert!(text.contains("lazaret.db"), "{text}");
}

#[test]
fn a_foreign_database_is_refused_and_unchanged() {
    let place = Place::new();
    Connection::open(place.path()).unwrap().execute_batch("CREATE TABLE letters (theirs)").unwrap();
    let before = fs::read(place.path()).unwrap();
    let (kind, text) = place.refused();
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("not a Lazaret file"), "{text}");
    assert_eq!(fs::read(place.path()).unwrap(), before);
}

#[test]
fn a_read_only_file_is_refused() {
    let place = Place::new();
    drop(place.open());
    let mut permissions = fs::metadata(place.path()).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(place.path(), permissions).unwrap();
    let (kind, text) = place.refused();
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains(&format!("file {} is read-only", place.path().display())), "{text}");
}

#[test]
fn garbage_is_refused_and_unchanged() {
    let place = Place::new();
    let garbage = b"this is no database, whatever it is called. ".repeat(400);
    fs::write(place.path(), &garbage).unwrap();
    let (kind, text) = place.refused();
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(text.contains("lazaret.db"), "{text}");
    assert_eq!(fs::read(place.path()).unwrap(), garbage);
}

#[test]
fn a_missing_folder_is_named() {
    let place = Place::new();
    let path = place.folder.path().join("nowhere/lazaret.db");
    let error = SqliteStore::open(&path, place.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("nowhere"), "{error}");
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

#[tokio::test]
async fn a_truncated_log_keeps_earlier_commits() {
    // I1
    const LETTERS: u64 = 12;
    let place = Place::new();
    let store = place.open();
    let mut lengths = Vec::new();
    for n in 0..LETTERS {
        put_dead(&store, &format!("s{}", n % 3), &format!("m{n}"), n).await;
        lengths.push(fs::metadata(log_of(&place.path())).unwrap().len());
    }
    let (file, log) = (fs::read(place.path()).unwrap(), fs::read(log_of(&place.path())).unwrap());
    for (kept, length) in lengths.iter().enumerate() {
        // Right behind a commit, and in the middle of the next.
        for beyond in [0, 1, 700, 4000] {
            let cut = usize::try_from(length + beyond).unwrap().min(log.len());
            let damaged = Place::new();
            fs::write(damaged.path(), &file).unwrap();
            fs::write(log_of(&damaged.path()), &log[..cut]).unwrap();
            let store = damaged.open();
            let counts = store.counts(&queue()).await.unwrap();
            assert!(counts.open() > kept as u64, "{} letters after {kept} + {beyond} bytes", counts.open());
            let asked: Vec<MessageId> = (0..=kept).map(|n| MessageId::from(format!("m{n}"))).collect();
            let states = store.lookup(&queue(), &asked).await.unwrap();
            assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
            put_dead(&store, "s0", "after", 1000).await;
            assert_eq!(messages(&store, "s0").await.last().unwrap(), "after");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_dropped_during_writes_loses_no_acknowledged_one() {
    // I1
    let place = Place::new();
    let store = place.open();
    let answered = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..32_u64)
        .map(|task| {
            let (store, answered) = (store.clone(), answered.clone());
            tokio::spawn(async move {
                for n in 0..50 {
                    let message = format!("{task}-{n}");
                    put_dead(&store, &format!("s{task}"), &message, n).await;
                    answered.lock().unwrap().push(MessageId::from(message));
                }
            })
        })
        .collect();
    drop(store);
    while answered.lock().unwrap().len() < 200 {
        tokio::task::yield_now().await;
    }
    // Calls are aborted, and the last clones of the store are dropped with them.
    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        _ = task.await;
    }
    let answered = std::mem::take(&mut *answered.lock().unwrap());
    let store = place.open();
    let states = store.lookup(&queue(), &answered).await.unwrap();
    assert!(states.iter().all(|state| *state == Some(LetterState::Dead)));
    for task in 0..32 {
        let stored = messages(&store, &format!("s{task}")).await;
        let expected: Vec<String> = (0..stored.len()).map(|n| format!("{task}-{n}")).collect();
        assert_eq!(stored, expected, "in order and without gaps");
    }
}

#[tokio::test]
async fn a_full_file_refuses_and_loses_nothing() {
    // I9
    let place = Place::new();
    let options = Options { max_pages: Some(120), ..place.options() };
    let store = SqliteStore::open(place.path(), options).unwrap();
    let large = |n: u64| {
        let mut item = open(letter(&format!("s{n}"), &format!("m{n}"), n, LetterState::Dead));
        let message = (*item.letter.message).clone().with_payload(vec![b'x'; 10_000]);
        item.letter.message = message.into();
        vec![item]
    };
    let mut stored = 0;
    let error = loop {
        match store.hand_off(&queue(), &Limits::NONE, large(stored)).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 1000, "the file is not limited");
    };
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Full, Certainty::NotDone));
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.sequences), (stored, stored));
    assert_eq!(store.lookup(&queue(), &[format!("m{stored}").into()]).await.unwrap(), [None]);
    // Other calls work, and with free space so does the intake.
    store.act(&queue(), id_of("m0"), Act::Resolve, &operator()).await.unwrap();
    drop(store);
    let store = place.open();
    store.hand_off(&queue(), &Limits::NONE, large(stored)).await.unwrap().remove(0).unwrap();
    assert_eq!(store.counts(&queue()).await.unwrap().open(), stored);
}

#[tokio::test]
async fn a_hand_off_that_detects_damage_fails_its_group_and_nothing_else() {
    // I1, I8
    const OTHERS: u64 = 40;
    let place = Place::new();
    let store = place.open();
    put_dead(&store, "damaged", "damaged", 0).await;
    let other = Connection::open(place.path()).unwrap();
    other.execute("UPDATE letters SET state = 99", []).unwrap();
    // While another connection writes, the calls are queued.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let hand_off = |n: u64| {
        let name = if n == OTHERS / 2 { "damaged".to_owned() } else { format!("m{n}") };
        let (store, items) = (store.clone(), vec![open(letter(&name, &name, n, LetterState::Dead))]);
        async move { (n, store.hand_off(&queue(), &Limits::NONE, items).await) }
    };
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..=OTHERS {
        calls.spawn(hand_off(n));
    }
    // Spawned last, so it runs last.
    calls.spawn(async move {
        other.execute_batch("ROLLBACK").unwrap();
        (u64::MAX, Ok(Vec::new()))
    });
    let mut failed = 0;
    for (n, answer) in calls.join_all().await {
        match answer {
            Err(error) if n == OTHERS / 2 => {
                assert_eq!((error.kind(), error.certainty()), (ErrorKind::Corrupt, Certainty::NotDone));
            }
            Err(error) => {
                assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
                assert_eq!(store.lookup(&queue(), &[format!("m{n}").into()]).await.unwrap(), [None]);
                failed += 1;
            }
            Ok(_) => assert_ne!(n, OTHERS / 2, "damage is detected"),
        }
    }
    assert!(failed > 0, "others were in the group");
    for n in (0..=OTHERS).filter(|n| *n != OTHERS / 2) {
        hand_off(n).await.1.unwrap().remove(0).unwrap();
    }
    assert_eq!(store.counts(&queue()).await.unwrap().sequences, OTHERS + 1);
}

#[tokio::test]
async fn while_another_connection_writes_for_long_calls_fail_and_succeed_afterwards() {
    // I9
    let place = Place::new();
    let options = Options { busy_timeout: Duration::from_millis(20), ..place.options() };
    let store = SqliteStore::open(place.path(), options).unwrap();
    put_dead(&store, "a", "1", 0).await;
    let other = Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let items = vec![open(letter("a", "2", 1, LetterState::Dead))];
    let error = store.hand_off(&queue(), &Limits::NONE, items.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
    assert_eq!(messages(&store, "a").await, ["1"], "reading continues");
    other.execute_batch("ROLLBACK").unwrap();
    store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap();
    assert_eq!(messages(&store, "a").await, ["1", "2"]);
}

#[tokio::test]
async fn the_audit_chain_is_intact_until_an_entry_is_changed() {
    // I11
    let place = Place::new();
    let store = place.open();
    put_dead(&store, "a", "1", 0).await;
    for act in [Act::Park, Act::Release, Act::Evict, Act::Restore, Act::Resolve] {
        store.act(&queue(), id_of("1"), act, &operator()).await.unwrap();
    }
    let check = store.verify_audit().await.unwrap().unwrap();
    assert_eq!((check.intact, check.broken), (5, None));
    let other = Connection::open(place.path()).unwrap();
    other.execute("UPDATE audit SET who = 'nobody' WHERE number = 3", []).unwrap();
    let check = store.verify_audit().await.unwrap().unwrap();
    assert_eq!((check.intact, check.broken), (2, Some(3)));
    other.execute("DELETE FROM audit WHERE number = 3", []).unwrap();
    let check = store.verify_audit().await.unwrap().unwrap();
    assert_eq!((check.intact, check.broken), (2, Some(4)));
}

#[tokio::test]
async fn key_headers_and_payload_persist_byte_for_byte() {
    // I5
    let place = Place::new();
    let every_byte: Vec<u8> = (0..=255).collect();
    let large = every_byte.repeat(1000);
    let blobs: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"\0"), Some(&every_byte), Some(&large)];
    let mut expected = Vec::new();
    let store = place.open();
    for (n, (key, payload)) in
        blobs.iter().flat_map(|key| blobs.iter().map(move |payload| (key, payload))).enumerate()
    {
        let mut letter = letter("a", &format!("m\0{n}"), n as u64, LetterState::Dead);
        let mut message = (*letter.message).clone();
        message.key = key.map(|key| key.to_vec().into());
        message.payload = payload.map(|payload| payload.to_vec().into());
        message.position.token = payload.map(|token| token.to_vec().into());
        for (name, value) in [("", ""), ("tenant", "acme"), ("tenant", "globex"), ("\0", "\n")] {
            message.headers.push(name, value);
        }
        message.headers.push("binary", every_byte.clone());
        letter.message = message.into();
        expected.push(letter.message.clone());
        put(&store, open(letter)).await;
    }
    drop(store);
    let stored = place.open().sequence(&queue(), &"a".into(), 0, 100).await.unwrap();
    let stored: Vec<Arc<Message>> = stored.into_iter().map(|letter| letter.message).collect();
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn an_offset_out_of_range_is_refused_and_affects_no_other() {
    let place = Place::new();
    let store = place.open();
    let items = vec![
        open(letter("a", "huge", u64::MAX, LetterState::Dead)),
        open(letter("b", "largest", i64::MAX as u64, LetterState::Dead)),
    ];
    let mut answers = store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    assert_eq!(answers.remove(0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(answers.remove(0).unwrap(), Placed::Opened);
    assert_eq!(messages(&store, "b").await, ["largest"]);
}

#[tokio::test]
async fn a_redelivered_message_is_inserted_even_without_a_gap() {
    // I2
    let place = Place::new();
    let store = place.open();
    let fence = store.assign(&queue(), &[partition()]).await.unwrap().remove(0).fence;
    let under = |message: &str, offset| HandOff {
        grant: Some(GrantFence { partition: partition(), fence, turn: 0 }),
        ..open(letter("a", message, offset, LetterState::Dead))
    };
    for offset in [10, 30, 40] {
        put(&store, under(&format!("m{offset}"), offset)).await;
    }
    let other = Connection::open(place.path()).unwrap();
    other
        .execute_batch(
            "UPDATE letters SET idx = (SELECT idx + 1 FROM letters WHERE message = 'm10') WHERE message = 'm30'",
        )
        .unwrap();
    for offset in [20, 25, 15, 5, 4] {
        put(&store, under(&format!("m{offset:02}"), offset)).await;
    }
    let expected = ["m04", "m05", "m10", "m15", "m20", "m25", "m30", "m40"];
    assert_eq!(messages(&store, "a").await, expected);
    assert_eq!(store.heads(&queue(), None, 9).await.unwrap().heads[0].message.id.as_str(), "m04");
}

#[tokio::test]
async fn an_edit_writes_no_more_than_the_first_however_many_came_before() {
    // I7
    const SIZE: usize = 256 << 10;
    let place = Place::new();
    let store = place.open();
    put_dead(&store, "k", "1", 1).await;
    let (id, by) = (id_of("1"), operator());
    let log = place.folder.path().join("lazaret.db-wal");
    // The log only grows: it is written to the file when it is much larger.
    let mut written = Vec::new();
    for n in 0..12 {
        let before = fs::metadata(&log).unwrap().len();
        let change = Change::Payload(Some(vec![n; SIZE].into()));
        let edited = Triage::change(&store, &queue(), id, &change, &by).await.unwrap();
        assert_eq!(edited.edits.len(), usize::from(n) + 1);
        written.push(fs::metadata(&log).unwrap().len() - before);
    }
    // The first edit keeps a small original. Each later one writes its payload and the original.
    let most = written[1] + written[1] / 10;
    assert!(written[1..].iter().all(|bytes| *bytes <= most), "{written:?}");
    assert!(written[1] < 3 * SIZE as u64, "{written:?}");
    let before = fs::metadata(&log).unwrap().len();
    let comment = Change::Comment("known".into());
    Triage::change(&store, &queue(), id, &comment, &by).await.unwrap();
    store.act(&queue(), id, Act::Park, &by).await.unwrap();
    let small = fs::metadata(&log).unwrap().len() - before;
    assert!(small < SIZE as u64 / 2, "other changes do not write the edits: {small}");
    let stored = store.get(&queue(), id).await.unwrap().unwrap();
    let originals: Vec<_> = stored.edits[1..].iter().map(|edit| edit.original.clone().unwrap()[0]).collect();
    assert_eq!(originals, (0..11).collect::<Vec<u8>>());
}
