//! What the suite does not ask, because a store has no such words: ends of lists, numbers that are none, and what is known of
//! a consumer by its pause alone.

use axum::http::Method;
use lazaret_api as api;
use lazaret_api::Code;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Audit, HandOff, LetterStore, Limits, Operations, PauseScope, Placement, PlanRequest,
    RolloutPolicy, Selection,
};
use lazaret_core::{ConsumerName, Letter, LetterState, Message, Position, QueueName};
use lazaret_memory::MemoryStore;
use lazaret_testkit::ManualClock;
use serde_json::{Value, json};

use crate::conformance::pages::Page;
use crate::conformance::store::ThroughApi;

fn ada() -> Actor {
    Actor::new("ada", "cli", "try")
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// A store with a sequence of so many dead letters.
async fn store_with(letters: u64) -> ThroughApi<MemoryStore> {
    let clock = std::sync::Arc::new(ManualClock::new());
    let store = ThroughApi::in_process(MemoryStore::new(clock.clone()), clock);
    for n in 0..letters {
        let message = Message::new(format!("m{n}"), "orders", Position::new(0, n)).with_payload("{}");
        let mut letter = Letter::new(queue(), "a".into(), message.into(), store.clock.now());
        letter.state = LetterState::Dead;
        let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
        store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap();
    }
    store
}

async fn frozen(store: &ThroughApi<MemoryStore>) -> lazaret_core::store::Plan {
    let request = PlanRequest {
        action: Action::Park,
        selection: Selection::Query(Query::everything()),
        valid_for: std::time::Duration::from_secs(60),
        max_letters: 1_000_000,
    };
    store.freeze(&request, &ada()).await.unwrap()
}

/// How many things stand on each page of a list.
async fn sizes<P: Page>(store: &ThroughApi<MemoryStore>, path: &str, limit: &str) -> Vec<usize> {
    let (mut sizes, mut after) = (Vec::new(), None::<String>);
    loop {
        let params = [("limit", Some(limit)), ("after", after.as_deref())];
        let queue = [("queue", Some("orders/orders")), ("sequence", Some("a"))];
        let named = if path == "/v1/sequences" { &queue[..] } else { &[] };
        let (things, next) = store.api.get::<P>(path, &[named, &params].concat()).await.unwrap().split();
        sizes.push(things.len());
        assert!(next.is_none() || next != after, "the list does not go on: {path}");
        after = next;
        if after.is_none() {
            return sizes;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_page_of_a_list_says_that_it_is_the_last() {
    let store = store_with(4).await;
    let plan = frozen(&store).await;
    let operation = store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap().id;
    for n in 0..3 {
        // With the operation, four lines in the audit.
        let id = lazaret_core::LetterId::of(&queue(), &format!("m{n}").as_str().into());
        store.act(&queue(), id, Act::Park, &ada()).await.unwrap();
    }
    assert_eq!(store.audit(0, 10).await.unwrap().len(), 4);
    for (limit, expected) in [("1", vec![1, 1, 1, 1]), ("2", vec![2, 2]), ("4", vec![4]), ("5", vec![4])] {
        let plan_items = format!("/v1/plans/{}/items", plan.id);
        let items = format!("/v1/operations/{operation}/items");
        assert_eq!(sizes::<api::Sequence>(&store, "/v1/sequences", limit).await, expected, "of {limit}");
        assert_eq!(sizes::<api::ItemPage>(&store, &plan_items, limit).await, expected, "of {limit}");
        assert_eq!(sizes::<api::ItemPage>(&store, &items, limit).await, expected, "of {limit}");
        assert_eq!(sizes::<api::AuditPage>(&store, "/v1/audit", limit).await, expected, "of {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_impossible_rollout_is_refused_and_the_plan_stays_good() {
    let store = store_with(1).await;
    let plan = frozen(&store).await.id;
    let begin = async |spoil: &str, value: Value| {
        let mut body = json!({"plan": plan.to_string(), "reason": "try"});
        body[spoil] = value;
        store.api.change((Method::POST, "/v1/operations"), &ada(), &body).await
    };
    for (field, value) in [
        ("rate", json!(-1)),
        ("rate", json!("fast")),
        ("ramp", json!([1, 0])),
        ("ramp", json!([-1])),
        ("stop-at", json!(-0.1)),
        ("stop-at", json!(1.1)),
        ("at", json!("soon")),
    ] {
        let refused = begin(field, value.clone()).await.err().map(|problem| problem.code);
        assert_eq!(refused, Some(Code::InvalidRequest), "{field} {value}");
    }
    begin("rate", json!(0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_can_resume_a_consumer_can_see_its_pause() {
    // It runs in another process, has no letters, and somebody has paused it there.
    let store = store_with(0).await;
    let elsewhere = ConsumerName::from("elsewhere");
    store.inner.pause(&elsewhere, PauseScope::Consumer, &ada()).await.unwrap();
    let seen = store.pauses(&elsewhere).await.unwrap();
    assert_eq!(seen, store.inner.pauses(&elsewhere).await.unwrap());
    assert!(store.resume(&elsewhere, &PauseScope::Consumer, &ada()).await.unwrap());
}
