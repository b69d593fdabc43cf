//! A connection that is cut at any point of a call: nothing is half done, and the error says whether it may be done.
//!
//! A proxy between the store and the server counts the statements of the client, and closes the connection before one of them, or behind
//! the commit. Or it forwards nothing any more, and keeps the connection, as a server that is frozen.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Actor, Audit, Certainty, ErrorKind, HandOff, LetterStore, Limits, PauseScope, Placed, Placement,
    Settlement, StoreError, Topic, Triage,
};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{TestSchema, server, told};

const LEASE: Duration = Duration::from_secs(30);

/// What the proxy does with the messages of the client.
#[derive(Default)]
struct Plan {
    /// Number of statements before the connection is cut; negative for never.
    left: AtomicI64,
    /// Cut behind the next `COMMIT` instead: it reaches the server, its answer does not reach the client.
    after_commit: AtomicBool,
    /// Number of statements so far.
    seen: AtomicU64,
    /// Number of connections so far.
    accepted: AtomicU64,
    /// Nothing is forwarded on this many connections, the first ones. They stay open.
    frozen: AtomicU64,
}

impl Plan {
    fn is_frozen(&self, number: u64) -> bool {
        number < self.frozen.load(Ordering::SeqCst)
    }
}

/// A connection of a client, and what happens to it.
struct Proxied {
    plan: Arc<Plan>,
    number: u64,
    /// The answers of the server are not forwarded.
    lost: AtomicBool,
}

struct Proxy {
    dsn: String,
    plan: Arc<Plan>,
}

impl Proxy {
    async fn before(dsn: &str) -> Self {
        let (start, rest) = dsn.split_once('@').unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dsn = format!("{start}@{}/{database}", listener.local_addr().unwrap());
        let plan = Arc::new(Plan::default());
        plan.left.store(-1, Ordering::SeqCst);
        let (address, of_proxy) = (address.to_owned(), plan.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let number = of_proxy.accepted.fetch_add(1, Ordering::SeqCst);
                let proxied = Proxied { plan: of_proxy.clone(), number, lost: AtomicBool::new(false) };
                let proxied = Arc::new(proxied);
                let back = tokio::spawn(copy(from_server, to_client, proxied.clone()));
                tokio::spawn(async move {
                    forward(from_client, to_server, &proxied).await;
                    if proxied.lost.load(Ordering::SeqCst) {
                        // The server has read the commit when it closes the connection.
                        back.await.unwrap();
                    } else {
                        back.abort();
                    }
                });
            }
        });
        Self { dsn, plan }
    }
}

/// Forwards the answers of the server until it closes the connection, and drops those that are lost.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, proxied: Arc<Proxied>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if !proxied.lost.load(Ordering::SeqCst) && !proxied.plan.is_frozen(proxied.number) {
            to.write_all(&bytes[..length]).await.ok();
        }
    }
}

/// Forwards the messages of a client until the connection ends or is cut.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, proxied: &Proxied) {
    let Proxied { plan, number, lost } = proxied;
    // The first message has no type.
    let mut is_first = true;
    loop {
        let header = if is_first { 4 } else { 5 };
        let mut message = vec![0; header];
        if from.read_exact(&mut message).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes(message[header - 4..].try_into().unwrap()) as usize;
        message.resize(header + length - 4, 0);
        if from.read_exact(&mut message[header..]).await.is_err() {
            return;
        }
        if plan.is_frozen(*number) {
            continue;
        }
        let is_commit = !is_first && message[0] == b'Q' && message[5..].starts_with(b"COMMIT");
        // A simple query, or the end of a prepared one.
        if !is_first && matches!(message[0], b'Q' | b'S') {
            plan.seen.fetch_add(1, Ordering::SeqCst);
            match plan.left.load(Ordering::SeqCst) {
                0 => return,
                left @ 1.. => plan.left.store(left - 1, Ordering::SeqCst),
                _ => {}
            }
        }
        is_first = false;
        let is_cut = is_commit && plan.after_commit.swap(false, Ordering::SeqCst);
        lost.store(is_cut, Ordering::SeqCst);
        to.write_all(&message).await.ok();
        if is_cut {
            // The end of the connection, which the server reads behind the commit.
            to.write_all(b"X\0\0\0\x04").await.ok();
            return;
        }
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "a test")
}

fn item(id: &str, sequence: &str, state: LetterState, placement: Placement) -> HandOff {
    let message = Message::new(id, "orders", Position::new(0, 0)).with_payload("{}");
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
    letter.state = state;
    if state != LetterState::Waiting {
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    }
    HandOff { letter, placement, grant: None }
}

fn batch() -> Vec<HandOff> {
    vec![
        item("a1", "a", LetterState::Dead, Placement::Open),
        item("a2", "a", LetterState::Waiting, Placement::Behind),
        item("b1", "b", LetterState::Dead, Placement::Open),
        item("c1", "c", LetterState::Skipped, Placement::Closed),
    ]
}

/// Opened through the proxy, with one connection, so that a cut hits the call.
async fn through(proxy: &Proxy, test: &TestSchema) -> PostgresStore {
    let options = PostgresStoreOptions { max_connections: 1, ..test.options(None) };
    PostgresStore::connect(&proxy.dsn, options).await.unwrap()
}

/// All letters are whole, counted once, and the audit has no gap.
async fn check(store: &PostgresStore) -> BTreeSet<String> {
    let all = Query::parse("state:open or state:closed").unwrap();
    let letters = store.find(&all, None, 100).await.unwrap().letters;
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!(letters.len() as u64, counts.by_state.iter().sum::<u64>());
    let heads = store.heads(&queue(), None, 100).await.unwrap().heads;
    assert_eq!(heads.len() as u64, counts.sequences);
    let mut open = 0;
    for head in heads {
        let letters = store.sequence(&queue(), &head.sequence, 0, 100).await.unwrap();
        assert_eq!(letters.len() as u64, store.sequence_size(&queue(), &head.sequence).await.unwrap());
        assert_eq!(letters[0].id, head.id);
        open += letters.len() as u64;
    }
    assert_eq!(open, counts.open());
    let request = lazaret_core::store::GroupsRequest { closed: true, limit: 10, ..Default::default() };
    let groups = store.groups(&request).await.unwrap().groups;
    let caused = letters.iter().filter(|letter| letter.cause.is_some()).count() as u64;
    assert_eq!(groups.iter().map(|group| group.counts.by_state.iter().sum::<u64>()).sum::<u64>(), caused);
    assert!(store.verify_audit().await.unwrap().unwrap().broken.is_none());
    letters.iter().map(|letter| letter.message.id.to_string()).collect()
}

/// Cuts the connection before the first statement of a call, the second, and so on, until the call succeeds.
async fn cut_everywhere<T>(
    test: &TestSchema,
    proxy: &Proxy,
    mut call: impl AsyncFnMut(&PostgresStore) -> Result<T, StoreError>,
    mut is_done: impl AsyncFnMut(&PostgresStore) -> bool,
) -> T {
    let observer = test.open(None).await;
    for statements in 0.. {
        let store = through(proxy, test).await;
        // The connection is there: what follows is the call itself.
        store.counts(&queue()).await.unwrap();
        proxy.plan.left.store(statements, Ordering::SeqCst);
        let called = call(&store).await;
        proxy.plan.left.store(-1, Ordering::SeqCst);
        match called {
            Ok(answer) => return answer,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                let done = is_done(&observer).await;
                assert!(
                    !done || error.certainty() == Certainty::MaybeDone,
                    "done, and said not to be: {error}"
                );
                check(&observer).await;
                if done {
                    // The answer was lost, not the call.
                    continue;
                }
            }
        }
    }
    unreachable!("a call has an end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_that_is_cut_anywhere_is_done_whole_or_not_at_all() {
    // I1, I8
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let proxy = Proxy::before(&test.dsn).await;
    drop(test.open(None).await);
    let placed = cut_everywhere(
        &test,
        &proxy,
        async |store| store.hand_off(&queue(), &Limits::NONE, batch()).await,
        async |observer| observer.counts(&queue()).await.unwrap().open() > 0,
    )
    .await;
    assert_eq!(placed.len(), 4);
    let store = test.open(None).await;
    assert_eq!(check(&store).await.len(), 4);
    assert!(proxy.plan.seen.load(Ordering::SeqCst) > 20, "the proxy has seen the statements");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_and_an_act_that_are_cut_anywhere_are_done_whole_or_not_at_all() {
    // I1, I11
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let proxy = Proxy::before(&test.dsn).await;
    let store = test.open(None).await;
    store.hand_off(&queue(), &Limits::NONE, batch()).await.unwrap();
    let claim = store.claim(&queue(), &"a".into(), "w", LEASE).await.unwrap().unwrap();
    let state = async |observer: &PostgresStore, id| observer.get(&queue(), id).await.unwrap().unwrap().state;
    let id = claim.head.id;
    cut_everywhere(
        &test,
        &proxy,
        async |store| match store.settle(&claim.lease, id, Settlement::Resolve(None)).await {
            // It was done before.
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound) => Ok(()),
            other => other.map(drop),
        },
        async |observer| state(observer, id).await == LetterState::Resolved,
    )
    .await;
    let other = item("b1", "b", LetterState::Dead, Placement::Open).letter.id;
    cut_everywhere(
        &test,
        &proxy,
        async |store| match store.act(&queue(), other, Act::Evict, &ada()).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => done.map(drop),
        },
        async |observer| state(observer, other).await == LetterState::Evicted,
    )
    .await;
    let evictions = store.audit(0, 100).await.unwrap();
    assert_eq!(evictions.iter().filter(|entry| entry.action == "evict").count(), 1, "audited once");
    check(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_may_have_happened_and_the_call_can_be_repeated() {
    // I1, I8
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let proxy = Proxy::before(&test.dsn).await;
    let observer = test.open(None).await;
    let store = through(&proxy, &test).await;
    store.assign(&queue(), &[lazaret_core::Partition::new("orders", 0)]).await.unwrap();
    proxy.plan.after_commit.store(true, Ordering::SeqCst);
    let lost = store.hand_off(&queue(), &Limits::NONE, batch()).await.unwrap_err();
    assert_eq!((lost.kind(), lost.certainty()), (ErrorKind::Unavailable, Certainty::MaybeDone), "{lost}");
    assert!(!proxy.plan.after_commit.load(Ordering::SeqCst), "it was cut behind the commit");
    // A new connection, and the same call: the server has committed, and knows the letters.
    let placed = store.hand_off(&queue(), &Limits::NONE, batch()).await.unwrap();
    let placed: Vec<_> = placed.into_iter().map(Result::unwrap).collect();
    assert!(placed.iter().all(|placed| matches!(placed, Placed::Held(_))), "{placed:?}");
    assert_eq!(check(&observer).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_for_notifications_that_hangs_is_replaced() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let proxy = Proxy::before(&test.dsn).await;
    let one = test.open(None).await;
    let options = PostgresStoreOptions { acquire_timeout: Duration::from_secs(3), ..test.options(None) };
    let other = PostgresStore::connect(&proxy.dsn, options).await.unwrap();
    let mut changes = other.changes(vec![Topic::Pauses("orders".into())]);
    told(&mut changes).await;
    // Those that are there hang, and so does the next one when it is made.
    let frozen = proxy.plan.accepted.load(Ordering::SeqCst) + 1;
    proxy.plan.frozen.store(frozen, Ordering::SeqCst);
    one.pause(&"orders".into(), PauseScope::Consumer, &ada()).await.unwrap();
    // By the connection after that.
    told(&mut changes).await;
    assert!(proxy.plan.accepted.load(Ordering::SeqCst) > frozen, "the connection was replaced twice");
    one.resume(&"orders".into(), &PauseScope::Consumer, &ada()).await.unwrap();
    told(&mut changes).await;
}
