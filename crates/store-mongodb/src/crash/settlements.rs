//! A process that dies while it settles letters of several sequences together: whoever comes next goes on with each of them.

use lazaret_core::store::PolledWork;

use super::*;

const KEYS: [&str; 3] = ["p", "q", "r"];
const LETTERS: u64 = 2 * KEYS.len() as u64;

/// Two dead letters for each key, with the same cause.
async fn hand_off(store: &MongoStore) {
    let letter = |offset: usize| {
        let key = KEYS[offset / 2];
        let message = Message::new(format!("{key}{offset}"), "orders", Position::new(0, offset as u64));
        let mut letter = Letter::new(queue(), key.into(), message.into(), ManualClock::new().now());
        (letter.state, letter.cause) =
            (LetterState::Dead, Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom")));
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    let items = (0..2 * KEYS.len()).map(letter).collect();
    for placed in store.hand_off(&queue(), &Limits::default(), items).await.unwrap() {
        placed.unwrap();
    }
}

/// The heads of all sequences, leased for an operation about all letters.
async fn polled(store: &MongoStore) -> PolledWork {
    hand_off(store).await;
    let selection = Selection::Query(Query::parse("state:dead").unwrap());
    let request =
        PlanRequest { action: Action::Retry, selection, valid_for: LEASE * 100, max_letters: LETTERS };
    let plan = store.freeze(&request, &ada()).await.unwrap();
    store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap();
    let work = store.poll_work(&queue(), "w", LEASE, 10).await.unwrap();
    assert_eq!(work.items.len(), KEYS.len());
    work
}

/// Settles all of them at once; the last one fails again.
async fn settle(store: &MongoStore, work: &PolledWork) -> Vec<Result<Settled>> {
    let settle = |work: &lazaret_core::store::WorkItem| {
        let (lease, head) = (work.claim.lease.clone(), work.claim.head.clone());
        let fails = head.sequence.as_str() == KEYS[2];
        let settlement = if fails { failed(&head, "boom") } else { Settlement::Resolve(None) };
        async move { store.settle_and_continue(&lease, head.id, settlement).await }
    };
    future::join_all(work.items.iter().map(settle)).await
}

/// I1, I11: all counters are those of the letters, and each letter that was resolved has one line in the audit.
async fn check_settled(store: &MongoStore, clock: &ManualClock) {
    let queue = queue();
    clock.advance(LEASE * 2);
    loop {
        let work = store.poll_work(&queue, "heir", LEASE, 10).await.unwrap();
        for work in &work.items {
            store.settle(&work.claim.lease, work.claim.head.id, Settlement::Resolve(None)).await.unwrap();
        }
        if work.items.is_empty() && work.settled == 0 {
            break;
        }
    }
    let counts = store.counts(&queue).await.unwrap();
    let request = GroupsRequest { closed: true, limit: 10, ..GroupsRequest::default() };
    let groups = store.groups(&request).await.unwrap().groups;
    assert_eq!((groups.len(), groups[0].counts), (1, counts));
    let operation = store.operations(None, 1).await.unwrap().operations.remove(0);
    assert_eq!(operation.state, OperationState::Done, "{operation:?}");
    assert_eq!(operation.ok, counts.of(LetterState::Resolved));
    assert_eq!(
        (operation.ok + 2 * operation.failed_again, operation.failed_again),
        (LETTERS, operation.skipped)
    );
    let lines = audit(store).await;
    let resolved = lines.iter().filter(|line| line.contains(" resolve ")).count();
    assert_eq!(resolved as u64, operation.ok, "{lines:?}");
}

#[tokio::test]
async fn settlements_that_are_cut_off_after_any_write_are_finished() {
    // I1, I2, I11
    let Some(client) = client().await else { return };
    let database = format!("lzs_settle_{}", uuid::Uuid::new_v4().simple());
    let clock = ManualClock::new();
    let whole = open(&client, &database, ENOUGH, &clock).await;
    let work = polled(&whole).await;
    whole.db().cut_after(ENOUGH);
    let settled: Vec<_> = settle(&whole, &work).await.into_iter().map(Result::unwrap).collect();
    assert!(matches!(settled[..], [Settled::Next(_), Settled::Next(_), Settled::Requeued]), "{settled:?}");
    let writes = ENOUGH - whole.db().writes_left();
    check_settled(&whole, &clock).await;
    for cut in 0..writes {
        let clock = ManualClock::new();
        let store = open(&client, &database, cut, &clock).await;
        let work = polled(&store).await;
        store.db().cut_after(cut);
        let settled = settle(&store, &work).await;
        assert!(settled.iter().any(Result::is_err), "write {cut} was made");
        let heir = open(&client, &database, cut, &clock).await;
        check_settled(&heir, &clock).await;
        forget(&heir).await;
    }
    println!("cut off after each of {writes} writes");
    client.database(&database).drop().await.unwrap();
}
