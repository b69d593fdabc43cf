//! How many commands the server gets for many letters: a handful for all of them, not some for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Claim, HandOff, LetterStore, Limits, OperationState, Operations, Placement, PlanRequest,
    RolloutPolicy, Selection, Settled, Settlement,
};
use lazaret_core::{Clock, Failure, Letter, LetterState, Message, Position, QueueName, Reason};
use lazaret_store_mongodb::MongoStore;
use lazaret_testkit::ManualClock;
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;

use crate::support::{TestDatabase, server};

const LEASE: Duration = Duration::from_secs(30);
/// Number of sequences: fewer than one read by id asks for.
const SEQUENCES: usize = 64;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// A store, and the number of commands that it has sent.
struct Counted {
    store: MongoStore,
    commands: Arc<AtomicUsize>,
    _database: TestDatabase,
}

impl Counted {
    async fn open(uri: String) -> Self {
        let database = TestDatabase::new(uri);
        let commands = Arc::new(AtomicUsize::new(0));
        let mut options = ClientOptions::parse(&database.uri).await.unwrap();
        let count = commands.clone();
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(_) = event {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }));
        let client = Client::with_options(options).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let store = MongoStore::with_client(&client, &database.name, database.options(Some(clock))).await;
        Self { store: store.unwrap(), commands, _database: database }
    }

    /// The number of commands since the last call.
    fn commands(&self) -> usize {
        self.commands.swap(0, Ordering::SeqCst)
    }

    /// Stores letters with one cause, so many in each sequence.
    async fn hand_off(&self, state: LetterState, of_sequence: usize) {
        let item = |number: usize| {
            let message = Message::new(format!("m-{number}"), "orders", Position::new(0, number as u64));
            let sequence = format!("k-{}", number / of_sequence);
            let now = ManualClock::new().now();
            let mut letter = Letter::new(queue(), sequence.as_str().into(), message.into(), now);
            (letter.state, letter.due_at) = (state, (state == LetterState::Retrying).then_some(now));
            letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "the ledger gave no answer"));
            HandOff { letter, placement: Placement::Open, grant: None }
        };
        let items = (0..SEQUENCES * of_sequence).map(item).collect();
        for placed in self.store.hand_off(&queue(), &Limits::NONE, items).await.unwrap() {
            placed.unwrap();
        }
    }

    /// Settles letters at the same time.
    async fn settle(&self, claims: &[Claim]) -> Vec<Settled> {
        let settle = |claim: &Claim| {
            let (lease, letter) = (claim.lease.clone(), claim.head.id);
            async move { self.store.settle_and_continue(&lease, letter, Settlement::Resolve(None)).await }
        };
        let settled = future::join_all(claims.iter().map(settle)).await;
        settled.into_iter().map(Result::unwrap).collect()
    }
}

#[tokio::test]
async fn due_letters_are_claimed_and_settled_by_a_handful_of_commands() {
    let Some(uri) = server() else { return };
    let counted = Counted::open(uri).await;
    counted.hand_off(LetterState::Retrying, 1).await;
    counted.commands();
    let claims = counted.store.claim_due(&queue(), "w", LEASE, SEQUENCES).await.unwrap();
    let claimed_by = counted.commands();
    assert_eq!(claims.len(), SEQUENCES);
    let settled = counted.settle(&claims).await;
    let settled_by = counted.commands();
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Closed)), "{settled:?}");
    println!("{SEQUENCES} letters: claimed by {claimed_by} commands, settled by {settled_by}");
    assert!(claimed_by <= 5 && settled_by <= 12, "claimed by {claimed_by}, settled by {settled_by}");
    assert_eq!(counted.store.counts(&queue()).await.unwrap().of(LetterState::Resolved), SEQUENCES as u64);
}

#[tokio::test]
async fn letters_of_an_operation_are_polled_and_settled_by_a_handful_of_commands() {
    let Some(uri) = server() else { return };
    let counted = Counted::open(uri).await;
    counted.hand_off(LetterState::Dead, 2).await;
    let letters = 2 * SEQUENCES as u64;
    let ada = Actor::new("ada", "cli", "the service is back");
    let selection = Selection::Query(Query::parse("state:dead").unwrap());
    let request =
        PlanRequest { action: Action::Retry, selection, valid_for: LEASE * 100, max_letters: letters };
    counted.commands();
    let plan = counted.store.freeze(&request, &ada).await.unwrap();
    let frozen_by = counted.commands();
    assert_eq!(plan.letters, letters);
    counted.store.begin(plan.id, &RolloutPolicy::unlimited(), &ada).await.unwrap();
    counted.commands();
    let polled = counted.store.poll_work(&queue(), "w", LEASE, SEQUENCES).await.unwrap();
    let polled_by = counted.commands();
    let mut claims: Vec<Claim> = polled.items.into_iter().map(|item| item.claim).collect();
    assert_eq!(claims.len(), SEQUENCES);
    let taken = counted.settle(&claims).await;
    let continued_by = counted.commands();
    for (claim, settled) in claims.iter_mut().zip(taken) {
        let Settled::Next(next) = settled else { panic!("{settled:?}") };
        claim.head = *next;
    }
    let settled = counted.settle(&claims).await;
    let settled_by = counted.commands();
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Closed)), "{settled:?}");
    println!(
        "{letters} letters in {SEQUENCES} sequences: frozen by {frozen_by} commands, polled by {polled_by}, the first ones settled \
         and the next ones taken by {continued_by}, those settled by {settled_by}"
    );
    assert!(frozen_by <= 25 && polled_by <= 16, "frozen by {frozen_by}, polled by {polled_by}");
    assert!(continued_by <= 26 && settled_by <= 26, "continued by {continued_by}, settled by {settled_by}");
    let operation = counted.store.operations(None, 1).await.unwrap().operations.remove(0);
    assert_eq!((operation.state, operation.ok), (OperationState::Done, letters));
}
