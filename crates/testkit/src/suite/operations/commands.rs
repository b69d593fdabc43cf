//! Commands to operations: begin, approve, reject, pause, resume, cancel.

use std::time::Duration;

use futures_util::future::join;
use lazaret_core::letter::LetterState;
use lazaret_core::store::{
    Action, Actor, Command, ErrorKind, LeaseUse, OperationState, Outcome, PlanRequest, RolloutPolicy,
    Settled, Store, WorkItem,
};

use super::fixture::{everything, names, request, second};
use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{LEASE, fail_again, kind, operator, resolve};
use crate::suite::secs;

pub async fn an_operation_begins_as_it_was_asked_for<S: Store>(t: Fixture<S>) {
    t.letters("a", 3).await;
    let plan = t.freeze(Action::Retry).await;
    t.advance(secs(5));
    let rollout = RolloutPolicy { rate: Some(0.1), stop_at: Some(0.25), ..RolloutPolicy::default() };
    let operation = t.store.begin(plan.id, &rollout, &second()).await.unwrap();
    assert_eq!(t.operation(operation.id).await, operation);
    assert_eq!((operation.plan, operation.action, &operation.rollout), (plan.id, Action::Retry, &rollout));
    assert_eq!((operation.state, operation.stage, operation.letters), (OperationState::Running, 0, 3));
    assert_eq!((operation.by.clone(), operation.approved_by.clone()), (second(), None));
    assert_eq!((operation.created_at, operation.updated_at), (t.now(), t.now()));
    assert_eq!(t.tally(operation.id).await, (0, 0, 0, 3));
    let audit = t.audit().await;
    assert_eq!((audit.len(), audit[0].action.as_str(), &audit[0].by), (1, "begin", &second()));
    assert_eq!(audit[0].subject, operation.id.to_string());
    assert_eq!((audit[0].before.as_deref(), audit[0].after.as_deref()), (None, Some("running")));
}

pub async fn a_plan_is_carried_out_once<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let plan = t.freeze(Action::Retry).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    let again = t.store.begin(plan.id, &RolloutPolicy::unlimited(), &operator()).await;
    assert_eq!(kind(again), ErrorKind::Conflict);
    t.command(id, Command::Cancel).await;
    let again = t.store.begin(plan.id, &RolloutPolicy::unlimited(), &operator()).await;
    assert_eq!(kind(again), ErrorKind::Conflict, "not even when it is over");
    assert_eq!(t.store.operations(None, 10).await.unwrap().operations.len(), 1);
}

pub async fn a_plan_that_has_expired_is_not_carried_out<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let short = PlanRequest { valid_for: secs(60), ..request(Action::Retry, everything()) };
    let late = t.store.freeze(&short, &operator()).await.unwrap();
    let just = t.store.freeze(&short, &operator()).await.unwrap();
    t.advance(secs(60) - Duration::from_nanos(1));
    t.begin(&just, &RolloutPolicy::unlimited()).await;
    t.advance(Duration::from_nanos(1));
    let begun = t.store.begin(late.id, &RolloutPolicy::unlimited(), &operator()).await;
    assert_eq!(kind(begun), ErrorKind::Conflict);
}

pub async fn an_impossible_rollout_is_refused<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let plan = t.freeze(Action::Retry).await;
    let all = RolloutPolicy::unlimited;
    for rollout in [
        RolloutPolicy { rate: Some(0.0), ..all() },
        RolloutPolicy { rate: Some(-1.0), ..all() },
        RolloutPolicy { rate: Some(f64::NAN), ..all() },
        RolloutPolicy { rate: Some(f64::INFINITY), ..all() },
        RolloutPolicy { ramp: vec![1, 0], ..all() },
        RolloutPolicy { stop_at: Some(-0.1), ..all() },
        RolloutPolicy { stop_at: Some(1.1), ..all() },
        RolloutPolicy { stop_at: Some(f64::NAN), ..all() },
    ] {
        let begun = t.store.begin(plan.id, &rollout, &operator()).await;
        assert_eq!(kind(begun), ErrorKind::Invalid, "{rollout:?}");
    }
    t.begin(&plan, &all()).await;
}

pub async fn an_operation_about_nothing_is_done_at_once<S: Store>(t: Fixture<S>) {
    let plan = t.freeze(Action::Retry).await;
    assert_eq!((plan.letters, plan.sequences), (0, 0));
    let id = t.begin(&plan, &RolloutPolicy::default()).await;
    let operation = t.operation(id).await;
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(operation.note.as_deref(), Some("nothing to do: no letters match"));
    assert_eq!(t.poll(10).await.again_at, None);
}

pub async fn operations_come_latest_first_in_pages<S: Store>(t: Fixture<S>) {
    let mut begun = Vec::new();
    for _ in 0..5 {
        begun.push(t.start(Action::Evict, &RolloutPolicy::unlimited()).await);
    }
    begun.reverse();
    let (mut listed, mut before) = (Vec::new(), None);
    loop {
        let page = t.store.operations(before, 2).await.unwrap();
        assert!(page.operations.len() <= 2);
        listed.extend(page.operations.iter().map(|operation| operation.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(listed, begun);
}

pub async fn operations_under_way_are_listed_however_many_followed<S: Store>(t: Fixture<S>) {
    t.letters("a", 3).await;
    let careful = RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() };
    let waiting = t.begin(&t.freeze_named(Action::Retry, &["a-000"]).await, &careful).await;
    let running =
        t.begin(&t.freeze_named(Action::Retry, &["a-001"]).await, &RolloutPolicy::unlimited()).await;
    let paused = t.begin(&t.freeze_named(Action::Park, &["a-002"]).await, &RolloutPolicy::unlimited()).await;
    t.command(paused, Command::Pause).await;
    for _ in 0..210 {
        let over = t.begin(&t.freeze_named(Action::Retry, &[]).await, &RolloutPolicy::unlimited()).await;
        assert_eq!(t.state_of(over).await, OperationState::Done);
    }
    let under_way = async |limit| t.store.under_way(limit).await.unwrap();
    let latest = [t.operation(paused).await, t.operation(running).await, t.operation(waiting).await];
    assert_eq!(under_way(10).await, latest);
    assert_eq!(under_way(2).await, latest[..2]);
    t.poll_one().await;
    t.command(running, Command::Cancel).await;
    let left = under_way(10).await.iter().map(|operation| operation.id).collect::<Vec<_>>();
    assert_eq!(left, [paused, waiting], "what is over is over, though a letter is in work");
    t.send_command(waiting, Command::Reject, &second()).await.unwrap();
    t.command(paused, Command::Resume).await;
    t.poll(10).await;
    assert!(under_way(10).await.is_empty());
}

pub async fn nothing_happens_before_a_second_person_approves<S: Store>(t: Fixture<S>) {
    t.letters("a", 2).await;
    let id =
        t.start(Action::Retry, &RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() }).await;
    assert_eq!(t.state_of(id).await, OperationState::AwaitingApproval);
    let polled = t.poll(10).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, None));
    for command in [Command::Approve, Command::Reject] {
        assert_eq!(kind(t.send_command(id, command, &operator()).await), ErrorKind::Denied);
    }
    for command in [Command::Pause, Command::Resume] {
        assert_eq!(kind(t.send_command(id, command, &second()).await), ErrorKind::Conflict);
    }
    let approved = t.send_command(id, Command::Approve, &second()).await.unwrap();
    assert_eq!((approved.state, approved.approved_by), (OperationState::Running, Some(second())));
    assert_eq!(kind(t.send_command(id, Command::Approve, &second()).await), ErrorKind::Conflict);
    assert_eq!(t.poll(10).await.items.len(), 2);
    let audit = t.audit().await;
    let lines: Vec<_> = audit.iter().map(|line| (line.action.as_str(), line.by.who.as_str())).collect();
    assert_eq!(lines, [("begin", "ada"), ("approve", "bob")], "refusals leave no line");
    assert_eq!(audit[1].before.as_deref(), Some("awaiting-approval"));
    assert_eq!(audit[1].after.as_deref(), Some("running"));
}

pub async fn a_refused_command_changes_no_counter_of_a_running_operation<S: Store>(t: Fixture<S>) {
    // I11
    t.letters("a", 8).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(10).await.items;
    let refused = [
        (Command::Resume, ErrorKind::Conflict),
        (Command::Approve, ErrorKind::Conflict),
        (Command::Reject, ErrorKind::Conflict),
    ];
    // Nothing is read between a settlement and the command, which come one after the other, or at once.
    for (item, (command, expected)) in items.iter().zip(refused) {
        t.settle(&item.claim, &item.claim.head, resolve()).await.unwrap();
        assert_eq!(kind(t.store.command(id, command, &second()).await), expected);
    }
    for (item, (command, expected)) in items[3..].iter().zip(refused) {
        let by = second();
        let settle = t.settle(&item.claim, &item.claim.head, fail_again(&item.claim.head));
        let (settled, commanded) = join(settle, t.store.command(id, command, &by)).await;
        settled.unwrap();
        assert_eq!(kind(commanded), expected);
    }
    assert_eq!(t.tally(id).await, (3, 3, 0, 2));
    for item in &items[6..] {
        t.settle(&item.claim, &item.claim.head, resolve()).await.unwrap();
    }
    assert_eq!((t.tally(id).await, t.state_of(id).await), ((5, 3, 0, 0), OperationState::Done));
}

pub async fn a_rejected_operation_touches_nothing<S: Store>(t: Fixture<S>) {
    t.letters("a", 2).await;
    let id =
        t.start(Action::Evict, &RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() }).await;
    let rejected = t.send_command(id, Command::Reject, &second()).await.unwrap();
    assert_eq!((rejected.state, rejected.ended_at), (OperationState::Rejected, Some(t.now())));
    assert_eq!(rejected.approved_by, Some(second()));
    assert_eq!(t.tally(id).await, (0, 0, 2, 0));
    let polled = t.poll(10).await;
    assert_eq!((polled.settled, polled.again_at), (0, None));
    assert_eq!(t.state("a-000").await, LetterState::Dead);
    assert!(t.excluded(Action::Evict).await.is_empty(), "it holds no letter any more");
}

pub async fn a_scheduled_operation_waits_for_its_time<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let start_at = t.now() + secs(60);
    let id = t
        .start(Action::Retry, &RolloutPolicy { start_at: Some(start_at), ..RolloutPolicy::unlimited() })
        .await;
    assert_eq!(t.state_of(id).await, OperationState::Scheduled);
    t.advance(secs(60) - Duration::from_nanos(1));
    let polled = t.poll(10).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, Some(start_at)));
    t.advance(Duration::from_nanos(1));
    let item = t.poll_one().await;
    assert_eq!(t.state_of(id).await, OperationState::Running);
    t.succeed(&item).await;
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn a_schedule_in_the_past_is_now<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t
        .start(Action::Retry, &RolloutPolicy { start_at: Some(t.now()), ..RolloutPolicy::unlimited() })
        .await;
    assert_eq!(t.state_of(id).await, OperationState::Running);
    assert_eq!(t.poll(10).await.items.len(), 1);
}

pub async fn a_paused_operation_finishes_what_is_in_work_and_goes_on<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(2).await.items;
    let paused = t.send_command(id, Command::Pause, &second()).await.unwrap();
    assert_eq!(paused.state, OperationState::Paused);
    assert_eq!(paused.note.as_deref(), Some("paused by bob: looks right"));
    let polled = t.poll(10).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, None));
    t.succeed(&items[0]).await;
    t.fail_item(&items[1]).await;
    assert_eq!(t.tally(id).await, (1, 1, 0, 2));
    assert_eq!(t.state_of(id).await, OperationState::Paused);
    assert!(t.poll(10).await.items.is_empty());
    assert_eq!(kind(t.send_command(id, Command::Pause, &operator()).await), ErrorKind::Conflict);
    assert_eq!(t.command(id, Command::Resume).await, OperationState::Running);
    assert_eq!(t.operation(id).await.note, None);
    assert_eq!(kind(t.send_command(id, Command::Resume, &operator()).await), ErrorKind::Conflict);
    assert_eq!(t.drain(|_| false).await, ["a-002", "a-003"]);
    assert_eq!(t.state_of(id).await, OperationState::Done);
    let of_operation = t.audit().await.into_iter().filter(|line| line.action != "resolve");
    let lines: Vec<_> = of_operation.map(|line| (line.action, line.before, line.after)).collect();
    let line =
        |action: &str, before: &str, after: &str| (action.into(), Some(before.into()), Some(after.into()));
    assert_eq!(lines[1..], [line("pause", "running", "paused"), line("resume", "paused", "running")]);
}

pub async fn an_operation_whose_last_letters_end_while_it_is_paused_is_done<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    t.command(id, Command::Pause).await;
    t.succeed(&item).await;
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn a_cancelled_operation_counts_what_is_in_work<S: Store>(t: Fixture<S>) {
    t.letters("a", 5).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(2).await.items;
    t.advance(secs(1));
    let cancelled = t.send_command(id, Command::Cancel, &operator()).await.unwrap();
    assert_eq!((cancelled.state, cancelled.ended_at), (OperationState::Cancelled, Some(t.now())));
    assert_eq!(t.tally(id).await, (0, 0, 3, 2));
    assert!(t.poll(10).await.items.is_empty());
    t.succeed(&items[0]).await;
    t.fail_item(&items[1]).await;
    assert_eq!(t.tally(id).await, (1, 1, 3, 0));
    assert_eq!(t.state_of(id).await, OperationState::Cancelled);
    assert_eq!(t.poll(10).await.again_at, None);
    for command in [Command::Pause, Command::Resume, Command::Cancel, Command::Approve, Command::Reject] {
        assert_eq!(kind(t.send_command(id, command, &second()).await), ErrorKind::Conflict, "{command:?}");
    }
    assert_eq!(t.state("a-004").await, LetterState::Dead);
}

pub async fn whatever_an_operation_hands_out_counts_however_it_is_cancelled<S: Store>(t: Fixture<S>) {
    // I11: a worker polls, settles and takes the letters behind while a person cancels, a little later in each round.
    for round in 0..24_u64 {
        let mut all = Vec::new();
        for sequence in ["a", "b", "c"].map(|name| format!("{name}{round}")) {
            t.fill(&sequence, 3).await;
            all.extend((0..3).map(|n| format!("{sequence}-{n}")));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let id = t.begin(&t.freeze_named(Action::Retry, &all).await, &RolloutPolicy::unlimited()).await;
        let work = async {
            let mut settled = 0;
            loop {
                let items = t.store.poll_work(&t.queue, "worker", LEASE, 2).await.unwrap().items;
                if items.is_empty() {
                    return settled;
                }
                for WorkItem { claim, .. } in items {
                    let mut head = claim.head.id;
                    loop {
                        let answer =
                            t.store.settle_and_continue(&claim.lease, head, resolve()).await.unwrap();
                        settled += 1;
                        let Settled::Next(next) = answer else { break };
                        head = next.id;
                    }
                }
            }
        };
        let cancel = async {
            tokio::time::sleep(Duration::from_micros(round * round * 50)).await;
            // Refused if it is done.
            _ = t.store.command(id, Command::Cancel, &operator()).await;
        };
        let (settled, ()) = tokio::join!(work, cancel);
        let (ok, failed, _, left) = t.tally(id).await;
        assert_eq!((ok, failed, left), (settled, 0, 0), "round {round}");
    }
}

pub async fn letters_of_a_cancelled_operation_whose_lease_was_lost_are_skipped<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.fill("b", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(10).await.items;
    assert_eq!(names(&items), ["a-0", "b-0"]);
    t.command(id, Command::Cancel).await;
    assert_eq!(t.tally(id).await, (0, 0, 2, 2));
    t.store.release(&items[0].claim.lease).await.unwrap();
    assert_eq!(t.tally(id).await, (0, 0, 3, 1));
    assert!(t.poll(10).await.again_at.is_some(), "one is still tried");
    t.advance(LEASE);
    assert_eq!(t.poll(10).await.settled, 1);
    assert_eq!(t.tally(id).await, (0, 0, 4, 0));
    assert!(t.outcomes(id).await.iter().all(|outcome| *outcome == Some(Outcome::SkippedCancelled)));
}

pub async fn an_operation_can_be_held_and_cancelled_before_its_time<S: Store>(t: Fixture<S>) {
    t.letters("a", 2).await;
    let later = Some(t.now() + secs(60));
    let id = t.start(Action::Retry, &RolloutPolicy { start_at: later, ..RolloutPolicy::unlimited() }).await;
    assert_eq!(t.command(id, Command::Pause).await, OperationState::Paused);
    assert_eq!(t.command(id, Command::Resume).await, OperationState::Scheduled, "its time has not come");
    assert_eq!(t.command(id, Command::Pause).await, OperationState::Paused);
    assert_eq!(t.command(id, Command::Cancel).await, OperationState::Cancelled);
    assert_eq!(t.tally(id).await, (0, 0, 2, 0));
    let again = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.operation(again).await.letters, 2, "the letters are free for another");
}

pub async fn approvers_are_compared_by_name_not_by_channel<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id =
        t.start(Action::Retry, &RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() }).await;
    let same = Actor::new(operator().who, "console", "from another window");
    assert_eq!(kind(t.send_command(id, Command::Approve, &same).await), ErrorKind::Denied);
    assert_eq!(
        t.command(id, Command::Cancel).await,
        OperationState::Cancelled,
        "taking it back is no approval"
    );
}

pub async fn each_letter_of_an_operation_is_leased_alone<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    assert!(matches!(t.succeed(&item).await, Settled::Blocked), "the lease ends with the settlement");
    assert_eq!(kind(t.store.renew(&item.claim.lease, LEASE, LeaseUse::Attempt).await), ErrorKind::Fenced);
    let item = t.poll_one().await;
    assert_eq!(item.claim.head.message.id.as_str(), "a-1");
    assert!(matches!(t.succeed(&item).await, Settled::Closed));
    assert_eq!(t.tally(id).await, (2, 0, 0, 0));
}
