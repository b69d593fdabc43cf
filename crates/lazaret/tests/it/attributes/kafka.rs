//! Kafka listeners.

use std::sync::Mutex;

use lazaret::declare::{Declare, DeclaredSource, kafka_listener};
use lazaret::prelude::*;

use super::support::run;

#[derive(Default)]
struct OrderListener {
    seen: std::sync::Arc<Mutex<Vec<String>>>,
}

#[kafka_listener(topics = ["orders", "returns"], group = "billing", type_headers = "event-type")]
#[retry_policy(max_attempts = 2, initial_delay = "1ms")]
#[dead_letter_queue(ttl_days = 7)]
impl OrderListener {
    #[on_message(type = "OrderPlaced")]
    async fn placed(&self, Text(text): Text) {
        self.note(format!("placed {text}"));
    }

    #[on_message]
    async fn other(&self, event_type: EventType) {
        self.note(format!("other {:?}", event_type.0.as_deref()));
    }

    fn note(&self, text: String) {
        self.seen.lock().expect("no test panics with it").push(text);
    }
}

#[test]
fn topics_group_and_policies_of_a_listener_are_set() {
    let declared = OrderListener::default().declare().consumer().expect("valid");
    assert_eq!(
        (declared.name(), declared.declaration().source()),
        ("order-listener", &DeclaredSource::Kafka)
    );
    let config = declared.config();
    assert_eq!(config.retry.policy.max_attempts, 2);
    assert_eq!(
        config.dead_letter.as_ref().expect("on").ttl,
        Some(std::time::Duration::from_secs(7 * 86_400))
    );
    assert!(declared.change_stream().is_none());
    let shown = declared.effective();
    for line in ["topics: [orders, returns]", "group: billing", "type-headers: [event-type]"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
}

#[tokio::test]
async fn a_listener_routes_by_the_type_of_the_event() {
    let listener = OrderListener::default();
    let seen = listener.seen.clone();
    let messages = [("OrderPlaced", "7"), ("OrderLost", "8")]
        .map(|(of, payload)| move |message: Message| message.with_type(of).with_payload(payload));
    run(&listener.declare().consumer().expect("valid"), messages).await;
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["other Some(\"OrderLost\")", "placed 7"]);
}

#[tokio::test]
async fn a_message_that_no_method_is_for_is_kept() {
    struct Placed;

    #[kafka_listener(topics = "orders")]
    impl Placed {
        #[on_message(type = "OrderPlaced")]
        async fn placed(&self) {}
    }

    // I1
    let ran =
        run(&Placed.declare().consumer().expect("valid"), [|message: Message| message.with_type("X")]).await;
    assert_eq!(ran.letter().await.cause.expect("a cause").reason, Reason::UNKNOWN_EVENT_TYPE);
}

#[cfg(feature = "kafka")]
#[test]
fn a_listener_has_the_options_of_its_source() {
    assert!(OrderListener::default().declare().consumer().expect("valid").kafka_options().is_some());
}
