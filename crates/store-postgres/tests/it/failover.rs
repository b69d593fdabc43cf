//! A primary that crashes, and a standby that is promoted in its place: what is said meanwhile, what goes on, and what is lost.

use std::time::{Duration, Instant};

use lazaret_core::store::{
    Actor, Certainty, ErrorKind, GrantFence, HandOff, LetterStore, Limits, PauseScope, Placed, Placement,
    Result, Settlement, StoreError, Topic,
};
use lazaret_core::{
    Letter, LetterState, Message, MessageId, Partition, Position, QueueName, SequenceId, Timestamp,
};
use lazaret_postgres_testkit::{Cluster, SYNCHRONOUS};
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{TestSchema, connect, server, told};

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
/// How long to wait before a call is repeated.
const AGAIN: Duration = Duration::from_millis(20);
/// A lease that outlasts the test.
const LONG: Duration = Duration::from_secs(3_600);
const KEYS: u64 = 5;
/// The first number of many letters.
const FIRST: u64 = 2;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn key(number: u64) -> SequenceId {
    SequenceId::new(format!("k{}", number % KEYS))
}

fn id(number: u64) -> MessageId {
    format!("m{number}").into()
}

fn dead(number: u64, sequence: SequenceId) -> HandOff {
    let message = Message::new(id(number), "orders", Position::new(0, number)).with_payload("{}");
    let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn hand_off(store: &PostgresStore, item: HandOff) -> Result<Placed> {
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await?.remove(0)
}

/// Hands a letter off again until that is acknowledged, as the engine does. Errors before that are temporary.
async fn store_until_ok(store: &PostgresStore, number: u64) -> Placed {
    let started = Instant::now();
    loop {
        match hand_off(store, dead(number, key(number))).await {
            Ok(placed) => return placed,
            Err(error) => {
                assert!(error.kind() == ErrorKind::Unavailable && started.elapsed() < DEADLINE, "{error}");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Hands letters off one after the other, and says up to which number they were acknowledged.
async fn write(store: PostgresStore, acknowledged: watch::Sender<u64>, over: CancellationToken) {
    for number in FIRST.. {
        if over.is_cancelled() {
            return;
        }
        store_until_ok(&store, number).await;
        acknowledged.send_replace(number + 1);
    }
}

/// Waits until a number is reached.
async fn reached(acknowledged: &mut watch::Receiver<u64>, number: u64) {
    let waiting = acknowledged.wait_for(|acknowledged| *acknowledged >= number);
    tokio::time::timeout(DEADLINE, waiting).await.expect("letters are acknowledged").unwrap();
}

/// Calls until the answer is this one.
async fn until<T>(what: &str, mut call: impl AsyncFnMut() -> Option<T>) -> T {
    let repeated = async {
        loop {
            match call().await {
                Some(answer) => return answer,
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, repeated).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// The DSN of a primary and its standby, as the guide has it.
fn both(primary: &Cluster, standby: &Cluster, attributes: &str) -> String {
    let (one, other) = (primary.host().unwrap(), standby.host().unwrap());
    format!("postgres://lazaret@{one},{other}/postgres?target_session_attrs={attributes}&sslmode=disable")
}

async fn open(dsn: &str) -> Result<PostgresStore> {
    PostgresStore::connect(
        dsn,
        PostgresStoreOptions { max_connections: 4, ..PostgresStoreOptions::default() },
    )
    .await
}

/// The error of a call that changed nothing, and may succeed later.
fn is_temporary(error: &StoreError) {
    let (kind, certainty) = (error.kind(), error.certainty());
    assert!(kind == ErrorKind::Unavailable && kind.is_temporary(), "{error}");
    assert_eq!(certainty, Certainty::NotDone, "{error}");
}

async fn count(store: &PostgresStore) -> Option<u64> {
    store.counts(&queue()).await.ok().map(|counts| counts.open())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_at_a_standby_says_so_and_goes_on_when_that_is_promoted() {
    // I1
    let Some(mut primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let standby = primary.standby().unwrap();
    // Whatever answers, the primary first.
    let store = open(&both(&primary, &standby, "any")).await.unwrap();
    hand_off(&store, dead(0, key(0))).await.unwrap();
    let refused = open(&standby.dsn()).await.unwrap_err();
    is_temporary(&refused);
    assert!(refused.context().contains("the server is a replica"), "{refused}");

    primary.crash().unwrap();
    // Its next connections are those of the standby. The first calls find out that the old ones were ended.
    let refused = until("the standby", async || match hand_off(&store, dead(1, key(1))).await {
        Err(error) if error.context().contains("the server is a replica") => Some(error),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            None
        }
        Ok(placed) => panic!("a standby took a letter: {placed:?}"),
    });
    is_temporary(&refused.await);
    until("the letter, which can be read", async || count(&store).await.filter(|open| *open == 1)).await;
    let nobody = open(&both(&primary, &standby, "read-write")).await.unwrap_err();
    is_temporary(&nobody);
    assert!(
        nobody.context().ends_with("does not allow writes; a replica does when it is promoted"),
        "{nobody}"
    );

    standby.promote().unwrap();
    assert_eq!(store_until_ok(&store, 1).await, Placed::Opened);
    assert_eq!(count(&store).await, Some(2));
    open(&both(&primary, &standby, "read-write")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_that_is_promoted_has_all_that_was_acknowledged_and_every_fence() {
    // I1, I2, I6, I8
    let Some(mut primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let standby = primary.standby().unwrap();
    let dsn = both(&primary, &standby, "read-write");
    let (one, other) = (open(&dsn).await.unwrap(), open(&dsn).await.unwrap());
    let mut changes = other.changes(vec![Topic::Pauses("orders".into())]);
    told(&mut changes).await;
    for (number, sequence) in [(0, "kept"), (1, "late")] {
        hand_off(&one, dead(number, sequence.into())).await.unwrap();
    }
    let kept = one.claim(&queue(), &"kept".into(), "one", LONG).await.unwrap().unwrap();
    let late = one.claim(&queue(), &"late".into(), "one", Duration::from_secs(3)).await.unwrap().unwrap();
    let partition = Partition::new("orders", 0);
    let granted = one.assign(&queue(), std::slice::from_ref(&partition)).await.unwrap().remove(0);

    let (acknowledged, mut progress) = watch::channel(FIRST);
    let over = CancellationToken::new();
    let writing = tokio::spawn(write(one.clone(), acknowledged, over.clone()));
    reached(&mut progress, FIRST + 50).await;
    primary.crash().unwrap();
    let before = *progress.borrow();
    standby.promote().unwrap();
    reached(&mut progress, before + 50).await;
    over.cancel();
    writing.await.unwrap();

    // Each letter once, in its place.
    let total = *progress.borrow();
    let ids: Vec<MessageId> = (FIRST..total).map(id).collect();
    let states = until("an answer", async || other.lookup(&queue(), &ids).await.ok()).await;
    assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
    assert_eq!(count(&other).await, Some(total));
    for number in 0..KEYS {
        let letters = other.sequence(&queue(), &key(number), 0, usize::MAX).await.unwrap();
        let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
        let expected: Vec<u64> = (FIRST..total).filter(|offset| key(*offset) == key(number)).collect();
        assert_eq!(offsets, expected);
    }
    // A lease that lasts is known to the new primary; one that has ended is taken over, and its owner fenced.
    assert!(other.claim(&queue(), &"kept".into(), "other", LONG).await.unwrap().is_none());
    one.settle(&kept.lease, kept.head.id, Settlement::Resolve(None)).await.unwrap();
    let taken = until("the end of the lease", async || {
        other.claim(&queue(), &"late".into(), "other", LONG).await.unwrap()
    });
    let taken = taken.await;
    assert!(taken.lease.fence > late.lease.fence, "{taken:?}");
    let fenced = one.settle(&late.lease, late.head.id, Settlement::Resolve(None)).await.unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    other.settle(&taken.lease, taken.head.id, Settlement::Resolve(None)).await.unwrap();
    // And so is the owner of a grant.
    let again = other.assign(&queue(), std::slice::from_ref(&partition)).await.unwrap().remove(0);
    assert_eq!(again.fence, granted.fence + 1);
    let fence = GrantFence { partition, fence: granted.fence, turn: 1 };
    let fenced = hand_off(&one, HandOff { grant: Some(fence), ..dead(total, key(total)) }).await.unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    // Connected again: something may have been missed before. From then on changes are told.
    told(&mut changes).await;
    let by = Actor::new("ada", "test", "why");
    one.pause(&"orders".into(), PauseScope::Consumer, &by).await.unwrap();
    told(&mut changes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_its_synchronous_standby_does_not_have_is_not_acknowledged() {
    // I1
    let Some(primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let mut standby = primary.standby().unwrap();
    let store = open(&primary.dsn()).await.unwrap();
    hand_off(&store, dead(0, key(0))).await.unwrap();
    standby.crash().unwrap();
    let of_task = store.clone();
    let waiting = tokio::spawn(async move { hand_off(&of_task, dead(1, key(1))).await });
    let client = connect(&primary.dsn()).await;
    let sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'lazaret' AND wait_event = 'SyncRep'";
    until("the commit", async || client.query(sql, &[]).await.unwrap().pop()).await;
    assert!(!waiting.is_finished());
    standby.run().unwrap();
    let placed = tokio::time::timeout(DEADLINE, waiting).await.expect("the standby has it").unwrap();
    assert_eq!(placed.unwrap(), Placed::Opened);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_asynchronous_standby_did_not_get_is_lost_and_can_be_delivered_again() {
    // I8
    let Some(mut primary) = Cluster::for_test(&[]) else { return };
    let mut standby = primary.standby().unwrap();
    let store = open(&both(&primary, &standby, "read-write")).await.unwrap();
    hand_off(&store, dead(0, key(0))).await.unwrap();
    let client = connect(&standby.dsn()).await;
    let sql = "SELECT 1 FROM pg_class WHERE relname = 'letters'";
    until("the tables", async || client.query(sql, &[]).await.unwrap().pop()).await;
    let sql = "SELECT 1 FROM lazaret.letters";
    until("the letter", async || client.query(sql, &[]).await.unwrap().pop()).await;
    // The standby is behind: it gets nothing of what follows.
    standby.crash().unwrap();
    assert_eq!(hand_off(&store, dead(1, key(1))).await.unwrap(), Placed::Opened);
    primary.crash().unwrap();
    standby.run().unwrap();
    standby.promote().unwrap();
    let states = until("an answer", async || store.lookup(&queue(), &[id(0), id(1)]).await.ok()).await;
    assert_eq!(states, [Some(LetterState::Dead), None], "acknowledged, and lost");
    assert_eq!(store_until_ok(&store, 1).await, Placed::Opened);
    assert_eq!(hand_off(&store, dead(0, key(0))).await.unwrap(), Placed::Held(LetterState::Dead));
    assert_eq!(count(&store).await, Some(2));
}

/// A port with a full queue of connections, which answers no other: as a machine that is gone.
async fn silent() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let (address, mut queue) = (listener.local_addr().unwrap(), Vec::new());
    while let Ok(connected) = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(address)).await
    {
        queue.push(connected.unwrap());
    }
    (listener, queue)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_gone_without_a_word_leaves_time_for_the_next_one() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (gone, _queue) = silent().await;
    let (start, rest) = test.dsn.split_once('@').unwrap();
    let between = if rest.contains('?') { '&' } else { '?' };
    let address = gone.local_addr().unwrap();
    let behind = format!("{start}@{address},{rest}{between}target_session_attrs=read-write");
    PostgresStore::connect(&behind, test.options(None)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_accepts_connections_and_never_answers_leaves_time_for_the_next_one() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    // As a process that is stopped: its machine completes the connections.
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (start, rest) = test.dsn.split_once('@').unwrap();
    let between = if rest.contains('?') { '&' } else { '?' };
    let address = frozen.local_addr().unwrap();
    let behind = format!("{start}@{address},{rest}{between}target_session_attrs=read-write");
    let store = PostgresStore::connect(&behind, test.options(None)).await.unwrap();
    // And so does the connection for notifications.
    let mut changes = store.changes(vec![Topic::Pauses("orders".into())]);
    told(&mut changes).await;
}
