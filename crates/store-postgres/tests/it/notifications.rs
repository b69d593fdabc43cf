//! Changes of one process are told to the others, and a lost connection loses no more than notifications.

use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Command, HandOff, LetterStore, Limits, OperationState, Operations, PauseScope, Placement,
    PlanRequest, RolloutPolicy, Selection, Topic,
};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_store_postgres::PostgresStore;

use crate::support::{TestSchema, server, told};

async fn pause(store: &PostgresStore, consumer: &str) {
    let by = Actor::new("ada", "test", "why");
    store.pause(&consumer.into(), PauseScope::Consumer, &by).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_changes_is_told_to_the_others() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (one, other) = (test.open(None).await, test.open(None).await);
    let mut orders = other.changes(vec![Topic::Pauses("orders".into())]);
    let mut mails = other.changes(vec![Topic::Pauses("mails".into())]);
    // The first wake comes from the connection: something may have been missed before.
    told(&mut orders).await;
    told(&mut mails).await;
    pause(&one, "orders").await;
    told(&mut orders).await;
    pause(&one, "mails").await;
    told(&mut mails).await;
    // Nothing of the other topic came in between.
    let again = tokio::time::timeout(Duration::ZERO, orders.changed()).await;
    assert!(again.is_err(), "only the subscribed topic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_made_again_and_everything_is_looked_at() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let name = format!("{}_listener", test.name);
    let between = if test.dsn.contains('?') { '&' } else { '?' };
    let named = format!("{}{between}application_name={name}", test.dsn);
    let one = test.open(None).await;
    let other = PostgresStore::connect(&named, test.options(None)).await.unwrap();
    let mut changes = other.changes(vec![Topic::Pauses("orders".into())]);
    told(&mut changes).await;
    let client = test.client().await;
    for _ in 0..2 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        client.query(cut, &[&name]).await.unwrap();
        // Connected again, by another process of the server.
        told(&mut changes).await;
        pause(&one, "orders").await;
        told(&mut changes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_one_process_begins_and_cancels_is_told_to_the_others() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (one, other) = (test.open(None).await, test.open(None).await);
    let (queue, by) = (QueueName::of("orders", "orders"), Actor::new("ada", "test", "why"));
    let mut letters = Vec::new();
    for id in ["a", "b"] {
        let message = Message::new(id, "orders", Position::new(0, 0)).with_payload("{}");
        let mut letter = Letter::new(queue.clone(), id.into(), message.into(), Timestamp::now());
        letter.state = LetterState::Dead;
        letters.push(HandOff { letter, placement: Placement::Open, grant: None });
    }
    for placed in one.hand_off(&queue, &Limits::NONE, letters).await.unwrap() {
        placed.unwrap();
    }
    let mut changes = other.changes(vec![Topic::Operations]);
    told(&mut changes).await;
    for (command, dead) in [(Some(Command::Cancel), 2), (None, 0)] {
        let request = PlanRequest {
            action: Action::Evict,
            selection: Selection::Query(Query::parse("state:dead").unwrap()),
            valid_for: Duration::from_secs(600),
            max_letters: 10,
        };
        let plan = one.freeze(&request, &by).await.unwrap();
        let operation = one.begin(plan.id, &RolloutPolicy::unlimited(), &by).await.unwrap();
        told(&mut changes).await;
        if let Some(command) = command {
            one.command(operation.id, command, &by).await.unwrap();
            told(&mut changes).await;
            let seen = other.operation(operation.id).await.unwrap().unwrap();
            assert_eq!(seen.state, OperationState::Cancelled);
        }
        // Any process carries it out, unless it was cancelled by another.
        other.poll_work(&queue, "other", Duration::from_secs(30), 10).await.unwrap();
        assert_eq!(one.counts(&queue).await.unwrap().of(LetterState::Dead), dead);
    }
}
