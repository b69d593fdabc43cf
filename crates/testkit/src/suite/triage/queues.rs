//! Summaries of queues.

use lazaret_core::store::{Act, Store};
use lazaret_core::{LetterId, LetterState, QueueName};

use crate::suite::letters::Fixture;
use crate::suite::secs;

pub async fn queues_are_summed_up_by_name<S: Store>(t: Fixture<S>) {
    let other = QueueName::of("accounts", "mails");
    let start = t.now();
    t.fill("a", 3).await;
    t.advance(secs(5));
    let mut letter = t.waiting("a", "1");
    (letter.queue, letter.id) = (other.clone(), LetterId::of(&other, &"1".into()));
    t.open(letter).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    let queues = t.store.queues().await.unwrap();
    assert_eq!(queues.iter().map(|summary| &summary.queue).collect::<Vec<_>>(), [&other, &t.queue]);
    for summary in &queues {
        assert_eq!(summary.counts, t.store.counts(&summary.queue).await.unwrap());
    }
    assert_eq!(queues[1].counts.of(LetterState::Dead), 2);
    assert_eq!((queues[0].oldest, queues[1].oldest), (Some(t.now()), Some(start)));
}

pub async fn the_oldest_letter_of_a_queue_may_only_wait<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.advance(secs(5));
    t.behind(t.waiting("a", "2")).await;
    let second = t.now();
    t.advance(secs(5));
    t.enqueue("b", "3").await;
    t.act("1", Act::Evict).await.unwrap();
    assert_eq!(t.store.queues().await.unwrap()[0].oldest, Some(second));
}

pub async fn a_queue_is_listed_once_it_held_a_letter<S: Store>(t: Fixture<S>) {
    t.store.assign(&t.queue, &[t.partition()]).await.unwrap();
    t.due("w", 1).await;
    assert!(t.store.queues().await.unwrap().is_empty());
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.purge("1").await.unwrap();
    let queues = t.store.queues().await.unwrap();
    assert_eq!(queues.len(), 1, "even if nothing is left of it");
    assert_eq!((queues[0].counts.by_state, queues[0].oldest), ([0; 9], None));
}
