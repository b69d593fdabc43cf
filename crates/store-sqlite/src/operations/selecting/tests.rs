//! Selection beside the writer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lazaret_core::store::{
    Act, Action, Actor, Change, Exclusion, HandOff, LetterStore, Limits, Operations, Placement, Plan, Triage,
};
use lazaret_core::{Letter, LetterState, Message, Position, Timestamp};

use super::*;
use crate::operations::drafting::Draft;
use crate::operations::freezing::Decision;
use crate::{Durability, Options};

const READERS: usize = 2;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn id(message: &str) -> LetterId {
    LetterId::of(&queue(), &message.into())
}

async fn add(store: &SqliteStore, message: &str, payload: &str) {
    let message = Message::new(message, "orders", Position::new(0, 0)).with_payload(payload.to_owned());
    let sequence = message.id.as_str().into();
    let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::UNIX_EPOCH);
    letter.state = LetterState::Dead;
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
}

/// A store with letters `m0` and so on, whose payload is `{"a":1}`.
async fn filled(letters: usize) -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Normal, readers: READERS, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
    for n in 0..letters {
        add(&store, &format!("m{n}"), r#"{"a":1}"#).await;
    }
    (folder, store)
}

fn request(query: &str) -> PlanRequest {
    let selection = Selection::Query(Query::parse(query).unwrap());
    PlanRequest { action: Action::Retry, selection, valid_for: Duration::from_secs(60), max_letters: 100 }
}

async fn edit(store: &SqliteStore, message: &str, payload: &str) {
    let change = Change::Payload(Some(payload.to_owned().into()));
    Triage::change(store, &queue(), id(message), &change, &ada()).await.unwrap();
}

async fn decide(store: &SqliteStore, request: &PlanRequest, selected: Candidates, most: usize) -> Decision {
    store.decide(request, &ada(), selected, most).await.unwrap()
}

/// The letters of a plan, with the digests of their payloads.
async fn letters(store: &SqliteStore, plan: &Plan) -> Vec<(LetterId, Option<PayloadDigest>)> {
    let items = store.plan_items(plan.id, 0, 100).await.unwrap();
    items.into_iter().map(|item| (item.letter, item.digest)).collect()
}

#[tokio::test]
async fn a_plan_is_matched_by_readers_and_the_writer_answers_meanwhile() {
    let (_folder, store) = filled(3).await;
    // The readers are busy until the test lets them go on.
    let mut blocked = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let store = store.clone();
        readers.push(tokio::spawn(async move {
            let question = move |_: &View<'_>| {
                _ = started.send(());
                _ = may_go_on.recv();
                Ok(())
            };
            store.ask("block", question).await
        }));
        has_started.await.unwrap();
        blocked.push(go_on);
    }
    let request = request("payload./a:1");
    let by = ada();
    let mut freeze = store.freeze(&request, &by);
    let mut is_frozen =
        async || poll_fn(|context| Poll::Ready(Pin::new(&mut freeze).poll(context).is_ready())).await;
    assert!(!is_frozen().await, "it was sent");
    // The writer takes one request after the other.
    add(&store, "m3", "{}").await;
    assert!(!is_frozen().await, "the writer does not match it");
    drop(blocked);
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    assert_eq!(freeze.await.unwrap().letters, 3);
}

/// Polls a future once.
async fn is_ready<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}

/// Takes the only turn of scans, until the sender is dropped.
async fn occupy_scans(
    store: &SqliteStore,
) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let (started, has_started) = tokio::sync::oneshot::channel();
    let store = store.clone();
    let scan = tokio::spawn(async move {
        let question = move |_: &View<'_>| {
            _ = started.send(());
            _ = may_go_on.recv();
            Ok(())
        };
        store.scan("block", question).await
    });
    has_started.await.unwrap();
    (go_on, scan)
}

#[tokio::test]
async fn no_step_of_a_freeze_uses_the_reader_that_scans_leave_to_others() {
    let (_folder, store) = filled(3).await;
    let named: Vec<_> = ["m0", "m1", "m2"].map(|message| (queue(), id(message))).into();
    let request = PlanRequest { selection: Selection::Letters(named), ..request("") };
    let selected = store.select(&request).await.unwrap();
    let rows: Vec<i64> = selected.open.iter().map(|letter| letter.lid).collect();
    let by = ada();
    let (go_on, scan) = occupy_scans(&store).await;
    let mut select = Box::pin(store.select(&request));
    let mut again = Box::pin(store.select_again(&request, Candidates::default(), rows));
    let mut decide = Box::pin(store.decide(&request, &by, selected, 0));
    assert!(!is_ready(&mut select).await && !is_ready(&mut again).await && !is_ready(&mut decide).await);
    // The other reader answers in the order of the calls: if one of the three was in its queue, it has been answered as well.
    assert_eq!(store.queues().await.unwrap().len(), 1);
    assert!(!is_ready(&mut select).await, "letters by their ids");
    assert!(!is_ready(&mut again).await, "letters that have changed");
    assert!(!is_ready(&mut decide).await, "the decision");
    drop(go_on);
    scan.await.unwrap().unwrap();
    let (found, again, decision) = tokio::join!(select, again, decide);
    assert_eq!((found.unwrap().open.len(), again.unwrap().open.len()), (3, 3));
    assert!(matches!(decision.unwrap(), Decision::Frozen(frozen) if frozen.letters.len() == 3));
}

#[tokio::test]
async fn a_letter_that_has_changed_since_it_was_selected_is_selected_again() {
    for most in [0, 16] {
        let (_folder, store) = filled(4).await;
        let request = request("payload./a:1");
        let mut selected = store.select(&request).await.unwrap();
        assert_eq!(selected.open.len(), 4);
        edit(&store, "m0", r#"{"a":2}"#).await;
        edit(&store, "m1", r#"{"a":1,"b":2}"#).await;
        store.act(&queue(), id("m2"), Act::Resolve, &ada()).await.unwrap();
        let plan = loop {
            match decide(&store, &request, selected, most).await {
                Decision::Frozen(frozen) => break Draft::new(frozen).write(&store).await.unwrap(),
                Decision::Changed(earlier, changed) => {
                    assert_eq!((most, changed.len()), (0, 3), "there are more than {most}");
                    selected = store.select_again(&request, earlier, changed).await.unwrap();
                }
            }
        };
        let digest = |payload: &str| Some(PayloadDigest::of(Some(payload.as_bytes())));
        let mut expected = vec![(id("m1"), digest(r#"{"a":1,"b":2}"#)), (id("m3"), digest(r#"{"a":1}"#))];
        let mut found = letters(&store, &plan).await;
        expected.sort_by_key(|(letter, _)| *letter);
        found.sort_by_key(|(letter, _)| *letter);
        assert_eq!(found, expected);
        assert!(plan.excluded.is_empty(), "a query without a state does not select closed letters");
    }
}

#[tokio::test]
async fn named_letters_that_have_changed_are_frozen_as_they_are() {
    let (_folder, store) = filled(3).await;
    let named = ["m0", "m1", "m2", "unknown"].map(|message| (queue(), id(message)));
    let request = PlanRequest { selection: Selection::Letters(named.into()), ..request("") };
    let selected = store.select(&request).await.unwrap();
    edit(&store, "m0", "[]").await;
    store.act(&queue(), id("m1"), Act::Resolve, &ada()).await.unwrap();
    let Decision::Frozen(frozen) = decide(&store, &request, selected, 16).await else {
        panic!("few have changed")
    };
    let plan = Draft::new(frozen).write(&store).await.unwrap();
    assert!(letters(&store, &plan).await.contains(&(id("m0"), Some(PayloadDigest::of(Some(b"[]"))))));
    assert_eq!((plan.letters, plan.excluded), (2, vec![(Exclusion::NotFound, 1), (Exclusion::Closed, 1)]));
}

#[tokio::test]
async fn the_bytes_that_a_plan_reads_are_bounded() {
    // I7
    let (_folder, store) = filled(20).await;
    for (text, fits) in
        [("payload./a:1", false), ("error:x", true), ("queue:orders", true), ("message:m1", true)]
    {
        let query = Query::parse(text).unwrap();
        let selected = store.select_matching(&request(text), &query, 100).await;
        let refused = selected.map_err(|error| (error.kind(), error.context().to_owned())).err();
        assert_eq!(refused.is_none(), fits, "{text}: {refused:?}");
        if let Some((kind, context)) = refused {
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(context.contains("restrict it by"), "{context}");
        }
    }
}
