//! Operations that evict, park or release: done by the store, letter by letter, audited.

use lazaret_core::letter::LetterState;
use lazaret_core::store::{Act, Action, Actor, OperationState, Outcome, RolloutPolicy, Settled, Store};

use super::fixture::ramp;
use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{operator, resolve};
use crate::suite::secs;

pub async fn acts_are_done_and_audited_letter_by_letter<S: Store>(t: Fixture<S>) {
    for (action, states) in [
        (Action::Park, [LetterState::Parked; 2]),
        // I2: the second one waits for the first.
        (Action::Release, [LetterState::Retrying, LetterState::Waiting]),
        (Action::Evict, [LetterState::Evicted; 2]),
    ] {
        t.enqueue(action.as_str(), action.as_str()).await;
        t.enqueue(action.as_str(), &format!("{action}-2")).await;
        let messages = [action.to_string(), format!("{action}-2")];
        let named: Vec<&str> = messages.iter().map(String::as_str).collect();
        let before = t.audit().await.len();
        let plan = t.freeze_named(action, &named).await;
        let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
        t.advance(secs(1));
        let polled = t.poll(10).await;
        assert_eq!((polled.items.len(), polled.settled, polled.again_at), (0, 2, None));
        assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (2, 0, 0, 0)));
        let audit = t.audit().await.split_off(before + 1);
        assert_eq!(audit.len(), 2);
        let by = Actor::new(operator().who, format!("operation {id}"), operator().why);
        for ((line, message), state) in audit.iter().zip(named).zip(states) {
            let letter = t.get(message).await;
            assert_eq!((letter.state, letter.last_touched_at), (state, t.now()));
            assert_eq!((line.action.as_str(), &line.by), (action.as_str(), &by));
            assert_eq!((line.subject.as_str(), line.at), (letter.id.to_string().as_str(), t.now()));
            assert_eq!((line.before.as_deref(), line.after.as_deref()), (Some("dead"), Some(state.as_str())));
        }
    }
}

pub async fn acts_keep_to_limit_stage_and_rate<S: Store>(t: Fixture<S>) {
    t.letters("a", 10).await;
    let id = t.start(Action::Park, &RolloutPolicy { rate: Some(16.0), ..ramp(&[1, 2]) }).await;
    let polled = t.poll(2).await;
    assert_eq!((polled.settled, polled.again_at), (2, Some(t.now())), "the next stage begins at once");
    assert_eq!((t.tally(id).await, t.operation(id).await.stage), ((2, 0, 0, 8), 1));
    assert_eq!(t.poll(10).await.settled, 2);
    let none = t.poll(10).await;
    assert_eq!((none.settled, none.again_at), (0, Some(t.now() + secs(1) / 64)));
    t.advance(secs(1));
    assert_eq!(t.poll(10).await.settled, 4);
    t.advance(secs(1));
    assert_eq!(t.poll(10).await.settled, 2);
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn a_letter_whose_state_does_not_allow_the_act_any_more_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 3).await;
    let id = t.start(Action::Park, &RolloutPolicy::unlimited()).await;
    t.act("a-000", Act::Resolve).await.unwrap();
    t.act("a-001", Act::Park).await.unwrap();
    let lines = t.audit().await.len();
    assert_eq!(t.poll(10).await.settled, 3);
    let changed = Some(Outcome::SkippedChanged);
    assert_eq!(t.outcomes(id).await, [changed, changed, Some(Outcome::Ok)]);
    assert_eq!(t.audit().await.len(), lines + 1, "only what was done is audited");
    assert_eq!(t.state("a-000").await, LetterState::Resolved);
}

pub async fn a_letter_quarantined_meanwhile_is_not_released<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Release, &RolloutPolicy::unlimited()).await;
    t.act("a-000", Act::Quarantine).await.unwrap();
    t.poll(10).await;
    assert_eq!(t.outcomes(id).await, [Some(Outcome::SkippedChanged)]);
    assert_eq!(t.state("a-000").await, LetterState::Quarantined);
}

pub async fn the_head_of_a_sequence_in_work_is_acted_upon_later<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 3).await;
    let id = t.start(Action::Evict, &RolloutPolicy::unlimited()).await;
    let claim = t.claim("a", "worker").await.unwrap();
    let polled = t.poll(10).await;
    assert_eq!(polled.settled, 2, "those behind it are not leased");
    assert!(polled.again_at.is_some_and(|at| at > t.now()));
    assert_eq!(t.outcomes(id).await, [None, Some(Outcome::Ok), Some(Outcome::Ok)]);
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
    t.poll(10).await;
    assert_eq!(t.tally(id).await, (2, 0, 1, 0));
}

pub async fn a_pause_of_a_sequence_holds_no_act_back<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.pause("a").await;
    let id = t.start(Action::Evict, &RolloutPolicy::unlimited()).await;
    t.poll(10).await;
    assert_eq!(t.tally(id).await, (2, 0, 0, 0));
}

pub async fn a_head_that_an_operation_evicts_releases_those_behind_it<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    let plan = t.freeze_named(Action::Evict, &["1"]).await;
    t.begin(&plan, &RolloutPolicy::unlimited()).await;
    assert!(t.due("w", 10).await.is_empty());
    t.poll(10).await;
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "2");
}
