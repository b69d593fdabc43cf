//! The bounds of a search.

use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Message, Position, QueueName};

use super::*;
use crate::MemoryStore;

#[tokio::test]
async fn a_call_reads_a_bounded_number_of_letters() {
    // I7
    let store = MemoryStore::default();
    let queue = QueueName::of("orders", "orders");
    let items = (0..50).map(|n| {
        let message = Message::new(format!("m{n}"), "orders", Position::new(0, n)).into();
        let letter = Letter::new(queue.clone(), "s".into(), message, Timestamp::now());
        HandOff { letter, placement: Placement::Open, grant: None }
    });
    let placed = store.hand_off(&queue, &Limits::NONE, items.collect()).await.unwrap();
    assert!(placed.iter().all(Result::is_ok));
    let (state, now) = store.begin();
    let pages = |text: &str| {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let query = Query::parse(text).unwrap();
            let page = find_within(&state, &query, after.as_deref(), 100, now, 20).unwrap();
            pages.push(page.letters.len());
            after = page.next;
            if after.is_none() {
                return pages;
            }
        }
    };
    assert_eq!(pages("message:m0"), [0, 0, 1]);
    assert_eq!(pages(""), [20, 20, 10]);
    let counted = |text: &str, bound| count_within(&state, &Query::parse(text).unwrap(), now, bound);
    assert_eq!(counted("message:m*", 20), Matches { letters: 20, exact: false });
    assert_eq!(counted("message:m*", 50), Matches { letters: 50, exact: true });
    assert_eq!(counted("queue:orders", 20), Matches { letters: 50, exact: true });
}
