//! Random calls about operations: plans, commands that are refused or not, polls and settlements.
//!
//! Nothing is read between the calls unless a step says so: what a store keeps for later must survive the refusal of another call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use lazaret_core::store::{
    Action, Actor, Command, HandOff, Lease, Limits, OperationId, OperationState, Outcome, Placement,
    PlanRequest, Requeue, Result, RolloutPolicy, Selection, Settled, Settlement, Store,
};
use lazaret_core::{
    Clock, Letter, LetterId, LetterState, Message, MessageId, Position, QueueName, SequenceId,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::LEASE;
use crate::clock::ManualClock;

/// How many polls may be needed until every operation is over.
const MAX_POLLS: usize = 200;
const REFUSED: &str = "the store refuses what is always possible";

/// A call, or the passing of time. Operations and claims are chosen among those that exist.
#[derive(Clone, Debug)]
enum Step {
    /// Hands off this many dead letters, two in each sequence.
    HandOff(u64),
    /// Begins to replay letters, from this one on.
    Begin {
        from: usize,
        letters: usize,
        needs_approval: bool,
    },
    Command {
        operation: usize,
        command: Command,
        second: bool,
    },
    Poll {
        limit: usize,
    },
    Settle {
        claim: usize,
        succeeds: bool,
        continues: bool,
    },
    /// A settlement and a command at one time.
    Race {
        claim: usize,
        operation: usize,
        command: Command,
    },
    Release {
        claim: usize,
    },
    Advance {
        seconds: u64,
    },
    /// Compares the counters with the letters.
    Look,
}

fn commands() -> impl Strategy<Value = Command> {
    prop_oneof![
        3 => Just(Command::Approve),
        1 => Just(Command::Reject),
        2 => Just(Command::Pause),
        4 => Just(Command::Resume),
        1 => Just(Command::Cancel),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1..6_u64).prop_map(Step::HandOff),
        2 => (0..20_usize, 1..8_usize, any::<bool>())
            .prop_map(|(from, letters, needs_approval)| Step::Begin { from, letters, needs_approval }),
        6 => (0..4_usize, commands(), any::<bool>())
            .prop_map(|(operation, command, second)| Step::Command { operation, command, second }),
        5 => (1..6_usize).prop_map(|limit| Step::Poll { limit }),
        8 => (0..8_usize, prop::bool::weighted(0.7), any::<bool>())
            .prop_map(|(claim, succeeds, continues)| Step::Settle { claim, succeeds, continues }),
        4 => (0..8_usize, 0..4_usize, commands())
            .prop_map(|(claim, operation, command)| Step::Race { claim, operation, command }),
        1 => (0..8_usize).prop_map(|claim| Step::Release { claim }),
        1 => prop_oneof![1..5_u64, LEASE..LEASE + 5].prop_map(|seconds| Step::Advance { seconds }),
        1 => Just(Step::Look),
    ]
}

/// A letter in work, and its operation.
struct Claimed {
    operation: OperationId,
    lease: Lease,
    head: Letter,
}

/// A store that runs the steps, and the settlements that it has accepted.
struct Driver<S> {
    store: S,
    clock: ManualClock,
    queue: QueueName,
    letters: Vec<LetterId>,
    operations: Vec<OperationId>,
    claims: Vec<Claimed>,
    /// The letters that succeeded and that failed again, by operation.
    settled: BTreeMap<OperationId, (u64, u64)>,
}

fn first() -> Actor {
    Actor::new("ada", "cli", "model")
}

fn second() -> Actor {
    Actor::new("bob", "console", "model")
}

impl<S: Store> Driver<S> {
    async fn new<F: Future<Output = S>>(make: impl Fn(Arc<dyn Clock>) -> F) -> Self {
        let clock = ManualClock::new();
        let store = make(Arc::new(clock.clone())).await;
        Self {
            store,
            clock,
            queue: QueueName::of("orders", "orders"),
            letters: Vec::new(),
            operations: Vec::new(),
            claims: Vec::new(),
            settled: BTreeMap::new(),
        }
    }

    fn operation(&self, number: usize) -> Option<OperationId> {
        Some(self.operations[number.checked_rem(self.operations.len())?])
    }

    fn take_claim(&mut self, number: usize) -> Option<Claimed> {
        let place = number.checked_rem(self.claims.len())?;
        Some(self.claims.swap_remove(place))
    }

    async fn run(&mut self, step: &Step) -> std::result::Result<(), TestCaseError> {
        match step {
            Step::HandOff(letters) => self.hand_off(*letters).await,
            Step::Begin { from, letters, needs_approval } => {
                self.begin(*from, *letters, *needs_approval).await;
            }
            Step::Command { operation, command, second: is_second } => {
                if let Some(id) = self.operation(*operation) {
                    let by = if *is_second { second() } else { first() };
                    // It may be refused.
                    _ = self.store.command(id, *command, &by).await;
                }
            }
            Step::Poll { limit } => self.poll(*limit).await,
            Step::Settle { claim, succeeds, continues } => {
                if let Some(claimed) = self.take_claim(*claim) {
                    let settlement = settlement(&claimed.head, *succeeds);
                    let (lease, letter) = (&claimed.lease, claimed.head.id);
                    let settled = match continues {
                        true => self.store.settle_and_continue(lease, letter, settlement).await,
                        false => self.store.settle(lease, letter, settlement).await,
                    };
                    self.note(claimed, settled, *succeeds);
                }
            }
            Step::Race { claim, operation, command } => {
                if let (Some(id), Some(claimed)) = (self.operation(*operation), self.take_claim(*claim)) {
                    let by = second();
                    let settlement = settlement(&claimed.head, true);
                    let settle = self.store.settle(&claimed.lease, claimed.head.id, settlement);
                    let (settled, _) = join(settle, self.store.command(id, *command, &by)).await;
                    self.note(claimed, settled, true);
                }
            }
            Step::Release { claim } => {
                if let Some(claimed) = self.take_claim(*claim) {
                    self.store.release(&claimed.lease).await.expect(REFUSED);
                }
            }
            Step::Advance { seconds } => self.clock.advance(Duration::from_secs(*seconds)),
            Step::Look => return self.compare().await,
        }
        Ok(())
    }

    async fn hand_off(&mut self, letters: u64) {
        let first = self.letters.len() as u64;
        let items: Vec<HandOff> = (first..first + letters).map(|n| self.dead(n)).collect();
        self.letters.extend(items.iter().map(|item| item.letter.id));
        for placed in self.store.hand_off(&self.queue, &Limits::NONE, items).await.expect(REFUSED) {
            placed.expect(REFUSED);
        }
    }

    /// The nth letter. Two follow each other in a sequence.
    fn dead(&self, n: u64) -> HandOff {
        let sequence: SequenceId = format!("s{}", n / 2).as_str().into();
        let message = Message::new(MessageId::from(format!("m{n}")), "orders", Position::new(0, n));
        let mut letter = Letter::new(self.queue.clone(), sequence, message.into(), self.clock.now());
        letter.state = LetterState::Dead;
        letter.attempts = 1;
        HandOff { letter, placement: Placement::Open, grant: None }
    }

    async fn begin(&mut self, from: usize, letters: usize, needs_approval: bool) {
        let Some(from) = from.checked_rem(self.letters.len()) else { return };
        let selected = self.letters.iter().skip(from).take(letters);
        let selection = Selection::Letters(selected.map(|letter| (self.queue.clone(), *letter)).collect());
        let valid_for = Duration::from_secs(3600);
        let request = PlanRequest { action: Action::Retry, selection, valid_for, max_letters: 1_000 };
        let plan = self.store.freeze(&request, &first()).await.expect(REFUSED);
        let rollout = RolloutPolicy { needs_approval, ..RolloutPolicy::unlimited() };
        let operation = self.store.begin(plan.id, &rollout, &first()).await.expect(REFUSED);
        self.operations.push(operation.id);
    }

    async fn poll(&mut self, limit: usize) {
        let lease = Duration::from_secs(LEASE);
        let polled = self.store.poll_work(&self.queue, "worker", lease, limit).await.expect(REFUSED);
        self.claims.extend(polled.items.into_iter().map(|item| Claimed {
            operation: item.operation,
            lease: item.claim.lease,
            head: item.claim.head,
        }));
    }

    /// Remembers a settlement, unless it was refused, and the letter that it took.
    fn note(&mut self, claimed: Claimed, settled: Result<Settled>, succeeds: bool) {
        let Ok(settled) = settled else { return };
        let (ok, failed) = self.settled.entry(claimed.operation).or_default();
        *if succeeds { ok } else { failed } += 1;
        if let Settled::Next(head) = settled {
            self.claims.push(Claimed { head: *head, ..claimed });
        }
    }

    /// The counters of each operation are those of its letters, and count each settlement.
    async fn compare(&self) -> std::result::Result<(), TestCaseError> {
        for id in &self.operations {
            let operation = self.store.operation(*id).await.expect(REFUSED).expect("it was begun");
            let items = self.store.items(*id, 0, 10_000).await.expect(REFUSED);
            let outcomes = || items.iter().filter_map(|item| item.outcome);
            let count = |wanted: Outcome| outcomes().filter(|outcome| *outcome == wanted).count() as u64;
            let (ok, failed) = (count(Outcome::Ok), count(Outcome::FailedAgain));
            let skipped = outcomes().count() as u64 - ok - failed;
            let counted = (operation.ok, operation.failed_again, operation.skipped);
            prop_assert_eq!(counted, (ok, failed, skipped), "the counters and the letters of {}", id);
            let settled = self.settled.get(id).copied().unwrap_or_default();
            prop_assert_eq!((ok, failed), settled, "the outcomes and the settlements of {}", id);
            let left = operation.letters - ok - failed - skipped;
            let is_cancelled = operation.state == OperationState::Cancelled;
            prop_assert!(
                is_cancelled || operation.state.is_over() == (left == 0),
                "{} is {} with {} letters left",
                id,
                operation.state,
                left
            );
        }
        Ok(())
    }

    /// Brings every operation to its end.
    async fn finish(&mut self) -> std::result::Result<(), TestCaseError> {
        self.compare().await?;
        for _ in 0..MAX_POLLS {
            let mut is_over = true;
            for id in self.operations.clone() {
                let operation = self.store.operation(id).await.expect(REFUSED).expect("it was begun");
                let command = match operation.state {
                    OperationState::AwaitingApproval => Some(Command::Approve),
                    OperationState::Paused => Some(Command::Resume),
                    _ => None,
                };
                if let Some(command) = command {
                    self.store.command(id, command, &second()).await.expect(REFUSED);
                }
                let counted = operation.ok + operation.failed_again + operation.skipped;
                is_over &= operation.state.is_over() && counted == operation.letters;
            }
            if is_over {
                return self.compare().await;
            }
            self.clock.advance(Duration::from_secs(LEASE + 1));
            self.claims.clear();
            self.poll(100).await;
            for claimed in std::mem::take(&mut self.claims) {
                let settlement = settlement(&claimed.head, true);
                let settled = self.store.settle(&claimed.lease, claimed.head.id, settlement).await;
                self.note(claimed, settled, true);
            }
        }
        self.compare().await?;
        Err(TestCaseError::fail("an operation does not end"))
    }
}

fn settlement(head: &Letter, succeeds: bool) -> Settlement {
    match succeeds {
        true => Settlement::Resolve(None),
        false => Settlement::Requeue(Box::new(Requeue {
            state: LetterState::Dead,
            due_at: None,
            ..Requeue::of(head)
        })),
    }
}

/// Runs this many random sequences of commands to operations, refused ones among them, polls and settlements against the store
/// that `make` makes with a clock.
///
/// # Panics
/// With the shortest failing sequence that was found, when the counters of an operation differ from its letters or from the settlements
/// that the store accepted, or when an operation does not end.
pub fn check_operations<S, F>(cases: u32, make: impl Fn(Arc<dyn Clock>) -> F)
where
    S: Store,
    F: Future<Output = S>,
{
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&prop::collection::vec(steps(), 1..60), |steps| {
        runtime.block_on(async {
            let mut driver = Driver::new(&make).await;
            driver.hand_off(8).await;
            driver.begin(0, 6, false).await;
            for step in &steps {
                driver.run(step).await?;
            }
            driver.finish().await
        })
    });
    if let Err(error) = outcome {
        panic!("an operation is told wrong: {error}\n{runner}");
    }
}
