//! Plans: which letters are frozen and excluded, in which order, and that nothing else changes.

use lazaret_core::letter::{Letter, LetterState};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Change, DraftLimits, ErrorKind, Exclusion, Item, OperationId, OperationState,
    PayloadDigest, Plan, PlanId, PlanRequest, RolloutPolicy, Selection, Store, plan_hash,
};
use lazaret_core::{LetterId, QueueName};

use super::fixture::{everything, request, second};
use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{kind, operator};
use crate::suite::secs;

pub async fn a_freeze_is_exact_and_touches_nothing<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.enqueue("b", "b-0").await;
    t.enqueue("c", "gone").await;
    t.act("gone", Act::Evict).await.unwrap();
    t.advance(secs(5));
    let before: Vec<Letter> = [t.list("a").await, t.list("b").await].concat();
    let (counts, audit) = (t.store.counts(&t.queue).await.unwrap(), t.audit().await);
    let plan = t.freeze(Action::Retry).await;
    assert_eq!((plan.letters, plan.sequences), (3, 2));
    assert_eq!((plan.action, plan.query.as_deref(), &plan.by), (Action::Retry, Some(""), &operator()));
    assert_eq!((plan.frozen_at, plan.expires_at), (t.now(), t.now() + secs(3600)));
    assert!(plan.excluded.is_empty(), "closed letters were not selected");
    assert_eq!(t.planned(plan.id).await, ["a-0", "a-1", "b-0"]);
    assert_eq!(t.store.plan(plan.id).await.unwrap(), Some(plan));
    assert_eq!([t.list("a").await, t.list("b").await].concat(), before);
    assert_eq!(t.store.counts(&t.queue).await.unwrap(), counts);
    assert_eq!(t.audit().await, audit);
    assert!(t.poll(10).await.items.is_empty(), "a plan alone does nothing");
}

pub async fn letters_stand_in_the_order_of_their_sequences<S: Store>(t: Fixture<S>) {
    // The sequence whose first letter came first goes first, whatever its name; its letters stay together.
    for (sequence, message) in [("z", "1"), ("a", "2"), ("z", "3"), ("m", "4"), ("a", "5")] {
        t.enqueue(sequence, message).await;
        t.advance(secs(1));
    }
    let plan = t.freeze(Action::Retry).await;
    assert_eq!(t.planned(plan.id).await, ["1", "3", "2", "5", "4"]);
    assert_eq!(plan.sequences, 3);
}

pub async fn what_comes_after_the_freeze_is_not_touched<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let plan = t.freeze(Action::Retry).await;
    t.behind(t.waiting("a", "late")).await;
    t.enqueue("b", "later").await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.tally(id).await, (2, 0, 0, 0));
    assert_eq!(t.state("late").await, LetterState::Waiting);
    assert_eq!(t.state("later").await, LetterState::Dead);
}

pub async fn named_letters_are_frozen_once_each<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.enqueue("b", "b-0").await;
    let plan = t.freeze_named(Action::Retry, &["b-0", "a-1", "a-0", "a-1"]).await;
    assert_eq!(plan.query, None);
    assert_eq!(t.planned(plan.id).await, ["a-0", "a-1", "b-0"]);
    assert!(plan.excluded.is_empty());
}

pub async fn letters_that_are_not_there_are_left_out<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let elsewhere = QueueName::of("orders", "elsewhere");
    let named = [
        (t.queue.clone(), t.id_of("1")),
        (t.queue.clone(), t.id_of("unknown")),
        (elsewhere.clone(), t.id_of("1")),
        (elsewhere, LetterId::of(&QueueName::of("x", "y"), &"1".into())),
    ];
    let named = Selection::Letters(named.into());
    let plan = t.store.freeze(&request(Action::Evict, named), &operator()).await.unwrap();
    assert_eq!((plan.letters, plan.excluded), (1, vec![(Exclusion::NotFound, 3)]));
}

pub async fn closed_letters_are_left_out<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    let plan = t.freeze_named(Action::Retry, &["a-0", "a-1"]).await;
    assert_eq!(plan.excluded, [(Exclusion::Closed, 1)]);
    assert_eq!(t.planned(plan.id).await, ["a-1"], "a closed letter is no gap");
}

pub async fn what_stands_behind_a_letter_that_was_not_selected_is_not_replayed<S: Store>(t: Fixture<S>) {
    // I2
    t.fill("a", 4).await;
    t.fill("b", 1).await;
    let plan = t.freeze_named(Action::Retry, &["a-0", "a-2", "a-3", "b-0"]).await;
    assert_eq!(plan.excluded, [(Exclusion::Behind, 2)]);
    assert_eq!(t.planned(plan.id).await, ["a-0", "b-0"]);
    for action in [Action::Evict, Action::Park, Action::Release] {
        let plan = t.freeze_named(action, &["a-2", "a-3"]).await;
        assert_eq!((plan.letters, plan.sequences), (2, 1), "an act overtakes no letter");
    }
}

pub async fn what_a_query_by_state_leaves_out_is_told<S: Store>(t: Fixture<S>) {
    // I2: one of the dead letters stands behind a letter that will be retried, another one behind a parked one.
    t.fill("a", 2).await;
    t.fill("b", 2).await;
    t.fill("c", 2).await;
    t.act("a-0", Act::Release).await.unwrap();
    t.act("b-0", Act::Park).await.unwrap();
    let dead = || Selection::Query(Query::parse("state:dead").unwrap());
    let plan = t.store.freeze(&request(Action::Retry, dead()), &operator()).await.unwrap();
    assert_eq!((plan.letters, &plan.excluded), (2, &vec![(Exclusion::Behind, 2)]));
    assert_eq!(t.planned(plan.id).await, ["c-0", "c-1"]);
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.drain(|_| false).await;
    assert_eq!((t.tally(id).await, t.state_of(id).await), ((2, 0, 0, 0), OperationState::Done));
    let kept = t.store.plan(plan.id).await.unwrap().unwrap();
    assert_eq!(kept.excluded, [(Exclusion::Behind, 2)], "also when it is over");
    for action in [Action::Evict, Action::Park, Action::Release] {
        let plan = t.store.freeze(&request(action, dead()), &operator()).await.unwrap();
        assert_eq!((plan.letters, plan.excluded.len()), (2, 0), "an act overtakes no letter");
    }
}

pub async fn quarantined_letters_are_replayed_only_when_asked_for<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.act("a-0", Act::Quarantine).await.unwrap();
    assert_eq!(t.excluded(Action::Retry).await, [(Exclusion::Behind, 2), (Exclusion::Quarantined, 1)]);
    assert!(t.excluded(Action::Evict).await.is_empty());
    let plan = t.freeze_named(Action::Retry, &["a-0", "a-1"]).await;
    assert_eq!(t.planned(plan.id).await, ["a-0", "a-1"], "who names it has asked for it");
}

pub async fn letters_without_their_payload_are_not_replayed<S: Store>(t: Fixture<S>) {
    let mut empty = t.dead("a", "1");
    empty.payload_left_out = true;
    t.open(empty).await;
    t.enqueue("a", "2").await;
    assert_eq!(t.excluded(Action::Retry).await, [(Exclusion::NoPayload, 1), (Exclusion::Behind, 1)]);
    assert!(t.excluded(Action::Evict).await.is_empty());
}

pub async fn what_is_parked_is_not_parked_again<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.act("a-1", Act::Park).await.unwrap();
    assert_eq!(t.excluded(Action::Park).await, [(Exclusion::Already, 1)]);
    for action in [Action::Retry, Action::Evict, Action::Release] {
        assert!(t.excluded(action).await.is_empty(), "{action}");
    }
}

pub async fn letters_of_an_operation_that_is_not_over_are_left_out<S: Store>(t: Fixture<S>) {
    t.fill("a", 1).await;
    t.fill("b", 1).await;
    let plan = t.freeze_named(Action::Retry, &["a-0"]).await;
    assert!(t.excluded(Action::Retry).await.is_empty(), "a plan alone holds nothing");
    t.begin(&plan, &RolloutPolicy::unlimited()).await;
    for action in Action::ALL {
        assert_eq!(t.excluded(action).await, [(Exclusion::InOperation, 1)], "{action}");
    }
    let item = t.poll_one().await;
    t.fail_item(&item).await;
    assert!(t.excluded(Action::Retry).await.is_empty(), "it has its outcome");
}

pub async fn equal_plans_have_equal_hashes<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    let plan = t.freeze(Action::Retry).await;
    let letters = t.ids_of(&["1", "2"]).into_iter().map(|id| (id, PayloadDigest::of(Some(b"{}"))));
    assert_eq!(plan.hash, plan_hash(Action::Retry, letters));
    assert_eq!(t.freeze(Action::Retry).await.hash, plan.hash);
    assert_eq!(t.freeze_named(Action::Retry, &["2", "1"]).await.hash, plan.hash);
    assert_ne!(t.freeze(Action::Evict).await.hash, plan.hash);
    assert_ne!(t.freeze_named(Action::Retry, &["1"]).await.hash, plan.hash);
    t.enqueue("c", "3").await;
    assert_ne!(t.freeze(Action::Retry).await.hash, plan.hash);
}

pub async fn a_plan_holds_the_digests_of_its_payloads<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    t.change("2", Change::Payload(None)).await.unwrap();
    let plan = t.freeze(Action::Retry).await;
    let digests = |items: Vec<Item>| items.into_iter().map(|item| item.digest).collect::<Vec<_>>();
    let expected = [Some(PayloadDigest::of(Some(b"{}"))), Some(PayloadDigest::of(None))];
    assert_eq!(digests(t.store.plan_items(plan.id, 0, 10).await.unwrap()), expected);
    t.change("1", Change::Payload(Some("[]".into()))).await.unwrap();
    assert_eq!(digests(t.store.plan_items(plan.id, 0, 10).await.unwrap()), expected, "as frozen");
    assert_ne!(t.freeze(Action::Retry).await.hash, plan.hash, "the same letters, another payload");
    t.change("1", Change::Payload(Some("{}".into()))).await.unwrap();
    assert_eq!(t.freeze(Action::Retry).await.hash, plan.hash, "and back");
}

pub async fn plans_and_operations_forget_the_payload_of_an_erased_letter<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    let (draft, carried_out) = (t.freeze(Action::Retry).await, t.freeze(Action::Evict).await);
    let other = t.freeze_named(Action::Retry, &["2"]).await;
    let id = t.begin(&carried_out, &RolloutPolicy::unlimited()).await;
    t.drain(|_| false).await;
    let done = t.store.items(id, 0, 10).await.unwrap();
    t.store.erase(&t.queue, t.id_of("1"), &operator()).await.unwrap();
    for plan in [&draft, &carried_out] {
        let items = t.store.plan_items(plan.id, 0, 10).await.unwrap();
        let digests: Vec<_> = items.into_iter().map(|item| item.digest).collect();
        let of_other = Some(PayloadDigest::of(Some(b"{}")));
        assert_eq!(digests, [Some(PayloadDigest::of(None)), of_other], "{}", plan.action);
        // The hash covers the payloads.
        let expected = Plan { hash: Plan::erased_hash(plan.id), ..plan.clone() };
        assert_eq!(t.store.plan(plan.id).await.unwrap(), Some(expected));
    }
    let outcomes = |items: Vec<Item>| items.into_iter().map(|item| item.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes(t.store.items(id, 0, 10).await.unwrap()), outcomes(done), "the rest stays");
    assert_eq!(t.store.plan(other.id).await.unwrap(), Some(other), "it has another letter only");
    let id = t.begin(&draft, &RolloutPolicy::unlimited()).await;
    t.drain(|_| false).await;
    assert_eq!(t.tally(id).await, (0, 0, 2, 0), "they are closed");
}

pub async fn a_plan_with_too_many_letters_is_refused<S: Store>(t: Fixture<S>) {
    // I7
    t.fill("a", 3).await;
    let of_at_most = |max_letters| PlanRequest { max_letters, ..request(Action::Retry, everything()) };
    assert_eq!(kind(t.store.freeze(&of_at_most(2), &operator()).await), ErrorKind::Invalid);
    let plan = t.store.freeze(&of_at_most(3), &operator()).await.unwrap();
    assert_eq!(plan.letters, 3);
    t.enqueue("b", "closed").await;
    t.act("closed", Act::Evict).await.unwrap();
    let named =
        PlanRequest { selection: t.named(&["a-0", "a-1", "a-2", "closed", "unknown"]), ..of_at_most(3) };
    assert_eq!(t.store.freeze(&named, &operator()).await.unwrap().letters, 3, "only those left count");
}

pub async fn the_letters_of_a_plan_come_in_pages<S: Store>(t: Fixture<S>) {
    t.letters("a", 5).await;
    let plan = t.freeze(Action::Park).await;
    let page = t.store.plan_items(plan.id, 2, 2).await.unwrap();
    assert_eq!(page.iter().map(|item| item.ordinal).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(page.iter().map(|item| item.letter).collect::<Vec<_>>(), t.ids_of(&["a-002", "a-003"]));
    assert_eq!(page[0].queue, t.queue);
    assert!(t.store.plan_items(plan.id, 5, 10).await.unwrap().is_empty());
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.store.items(id, 2, 2).await.unwrap(), page);
    t.poll(10).await;
    assert_eq!(t.store.plan_items(plan.id, 2, 2).await.unwrap(), page, "a plan is as it was frozen");
    assert_ne!(t.store.items(id, 2, 2).await.unwrap(), page);
}

pub async fn old_plans_that_were_not_carried_out_are_forgotten<S: Store>(t: Fixture<S>) {
    // I7
    t.letters("a", 3).await;
    let used = t.freeze(Action::Retry).await;
    let id = t.begin(&used, &RolloutPolicy::unlimited()).await;
    let mut old = Vec::new();
    for _ in 0..2 * Plan::DELETED_PER_FREEZE {
        old.push(t.freeze(Action::Evict).await.id);
        t.advance(secs(1));
    }
    t.advance(secs(3600) + Plan::RETENTION - secs(5));
    t.freeze(Action::Evict).await;
    for plan in &old {
        assert!(t.store.plan(*plan).await.unwrap().is_some(), "it is kept for a while");
    }
    t.advance(secs(10));
    for left in [Plan::DELETED_PER_FREEZE, 0] {
        let new = t.freeze(Action::Evict).await.id;
        assert!(new > *old.last().unwrap(), "no id is given twice");
        let mut found = Vec::new();
        for plan in &old {
            found.extend(t.store.plan(*plan).await.unwrap());
        }
        assert_eq!(found.len(), left, "the oldest go first, some at a time");
        assert!(found.iter().all(|plan| old[Plan::DELETED_PER_FREEZE..].contains(&plan.id)));
    }
    assert!(t.store.plan_items(old[0], 0, 10).await.unwrap().is_empty());
    assert_eq!(
        kind(t.store.begin(old[0], &RolloutPolicy::default(), &operator()).await),
        ErrorKind::NotFound
    );
    assert_eq!(t.store.plan(used.id).await.unwrap(), Some(used));
    assert_eq!(t.drain(|_| false).await.len(), 3);
    assert_eq!(t.tally(id).await, (3, 0, 0, 0));
}

pub async fn drafts_are_the_plans_that_can_still_begin<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let first = t.freeze(Action::Retry).await;
    t.advance(secs(5));
    let second = t.freeze(Action::Park).await;
    let third = t.freeze(Action::Retry).await;
    let drafts = async |before, limit| t.store.drafts(before, limit).await.unwrap();
    assert_eq!(drafts(None, 10).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(drafts(None, 2).await, [third.clone(), second.clone()]);
    assert_eq!(drafts(Some(third.id), 10).await, [second.clone(), first.clone()]);
    assert!(drafts(Some(first.id), 10).await.is_empty());
    t.begin(&second, &RolloutPolicy::unlimited()).await;
    assert_eq!(drafts(None, 10).await, [third.clone(), first.clone()], "one has its operation");
    t.advance(secs(3595));
    assert_eq!(first.expires_at, t.now());
    assert_eq!(drafts(None, 10).await, [third], "one has expired");
    t.advance(secs(5));
    assert!(drafts(None, 10).await.is_empty());
}

pub async fn only_drafts_count_against_their_limits<S: Store>(t: Fixture<S>) {
    // I7
    t.letters("a", 3).await;
    let limits = DraftLimits { per_person: 2, total: 3, letters: 7 };
    // The limit that is reached, and the reason.
    let reached = async |by: &Actor| {
        let refused = limits.check(&*t.store, &by.who, &[]).await.err()?;
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        Some((refused.limit().expect("it is named"), refused.context().to_owned()))
    };
    assert_eq!(reached(&operator()).await, None);
    let first = t.freeze(Action::Evict).await;
    t.advance(secs(5));
    t.freeze(Action::Evict).await;
    let (limit, why) = reached(&operator()).await.expect("two plans are the limit");
    assert_eq!(limit, "drafts-per-person");
    assert!(why.contains(&format!("until {} expires at {}", first.id, first.expires_at)), "{why}");
    let of_second = request(Action::Evict, t.named(&["a-000"]));
    assert_eq!(reached(&second()).await, None, "they are not those of a second person");
    t.store.freeze(&of_second, &second()).await.unwrap();
    assert_eq!(reached(&second()).await.map(|(limit, _)| limit), Some("drafts"));
    // A plan that is carried out is no draft.
    t.begin(&first, &RolloutPolicy::unlimited()).await;
    assert_eq!(reached(&operator()).await, None);
    let letters = DraftLimits { letters: 4, ..limits };
    let refused = letters.check(&*t.store, &operator().who, &[]).await.unwrap_err();
    assert_eq!(refused.limit(), Some("draft-letters"));
    t.store.freeze(&of_second, &second()).await.unwrap();
    assert_eq!(reached(&operator()).await.map(|(limit, _)| limit), Some("drafts"));
    // Nor is one that has expired.
    t.advance(secs(3600));
    assert_eq!(reached(&operator()).await, None);
    assert_eq!(reached(&second()).await, None);
}

pub async fn unknown_plans_and_operations_are_not_found<S: Store>(t: Fixture<S>) {
    let (plan, operation) = (PlanId(7), OperationId(7));
    assert_eq!(t.store.plan(plan).await.unwrap(), None);
    assert!(t.store.plan_items(plan, 0, 10).await.unwrap().is_empty());
    let begun = t.store.begin(plan, &RolloutPolicy::default(), &operator()).await;
    assert_eq!(kind(begun), ErrorKind::NotFound);
    assert_eq!(t.store.operation(operation).await.unwrap(), None);
    assert!(t.store.items(operation, 0, 10).await.unwrap().is_empty());
    let refused = t.store.command(operation, lazaret_core::store::Command::Cancel, &operator()).await;
    assert_eq!(kind(refused), ErrorKind::NotFound);
    assert!(t.store.operations(None, 10).await.unwrap().operations.is_empty());
    let polled = t.poll(10).await;
    assert_eq!((polled.items.len(), polled.settled, polled.again_at), (0, 0, None));
    assert!(t.audit().await.is_empty());
}
