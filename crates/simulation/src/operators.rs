//! Operators who begin operations and command them at any moment: they approve, reject, pause, resume and cancel what waits, runs, is
//! paused or is over, and the store refuses much of that.
//!
//! Two people review one operation at once, a person who got no answer sends a command again, and a command comes right before or right
//! after a settlement: there is no other call between them, and nothing is read. Commands reach the store as those of the server do,
//! without faults. The [ledger](crate::ledger) checks what becomes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::store::{
    Action, Actor, AuditEntry, Command, Item, Operation, OperationId, OperationState, PlanRequest,
    RolloutPolicy, Selection,
};

use crate::ledger::ITEMS_LIMIT;
use crate::random::Random;
use crate::world::World;

/// How many plans have such operators, per mille.
const COMMANDED: u64 = 400;
/// Who starts operations. The others may approve them.
const AUTHOR: &str = "ada";
const PEOPLE: [&str; 3] = [AUTHOR, "bob", "cyd"];
const COMMANDS: [Command; 11] = [
    Command::Approve,
    Command::Approve,
    Command::Approve,
    Command::Reject,
    Command::Reject,
    Command::Pause,
    Command::Pause,
    Command::Resume,
    Command::Resume,
    Command::Resume,
    Command::Cancel,
];
const REVIEWS: [Command; 3] = [Command::Approve, Command::Approve, Command::Reject];
const ACTIONS: [Action; 10] = [
    Action::Retry,
    Action::Retry,
    Action::Retry,
    Action::Retry,
    Action::Retry,
    Action::Retry,
    Action::Retry,
    Action::Park,
    Action::Release,
    Action::Evict,
];

/// A command that is sent with the next settlement of a letter of its operation.
pub(crate) struct Armed {
    command: Command,
    by: Actor,
    /// Right before the settlement, not right after it.
    pub(crate) is_before: bool,
}

/// Draws whether a plan has operators who command operations, apart from everything else.
pub(crate) fn draw(seed: u64) -> bool {
    Random::new(seed).fork(10).chance(COMMANDED)
}

/// Begins operations and commands them until the phase with faults ends.
pub(crate) async fn run(world: Arc<World>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(500);
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(20, 1_000)).await;
        match random.below(10) {
            0..=2 => world.begin_any(&mut random),
            3 => world.check_operations(),
            _ => world.command_any(&mut random),
        }
    }
}

fn person(name: &str) -> Actor {
    Actor::new(name, "simulation", "to command operations")
}

impl World {
    fn begin_any(&self, random: &mut Random) {
        let component = random.below(self.queues.len() as u64) as usize;
        let action = *random.pick(&ACTIONS);
        let of_each = if action == Action::Retry && random.chance(700) { 8 } else { 1 };
        let is_later = random.chance(200);
        let delay = random.millis(100, 4_000);
        let rollout = RolloutPolicy {
            rate: random.chance(500).then(|| random.between(2, 12) as f64),
            ramp: random.pick(&[Vec::new(), vec![1], vec![1, 2, 4]]).clone(),
            stop_at: random.chance(300).then(|| random.below(60) as f64 / 100.0),
            // A clock that is set back by hours does not reach it in the time of a run.
            start_at: (is_later && !self.plan.clock_steps).then(|| self.store_time() + delay),
            needs_approval: random.chance(400),
        };
        self.begin_operation(component, of_each, action, &rollout, &person(AUTHOR));
    }

    /// Begins an operation on the heads of a queue, and on up to `of_each` letters of each of their sequences.
    pub(crate) fn begin_operation(
        &self,
        component: usize,
        of_each: usize,
        action: Action,
        rollout: &RolloutPolicy,
        by: &Actor,
    ) {
        let queue = &self.queues[component];
        let Ok(page) = self.run(self.store.heads(queue, None, 50)) else { return };
        let mut letters = Vec::new();
        for head in &page.heads {
            let Ok(first) = self.run(self.store.sequence(queue, &head.sequence, 0, of_each)) else { return };
            letters.extend(first);
        }
        if letters.is_empty() {
            return;
        }
        let request = PlanRequest {
            action,
            max_letters: letters.len() as u64,
            selection: Selection::Letters(letters.iter().map(|letter| (queue.clone(), letter.id)).collect()),
            valid_for: Duration::from_secs(60),
        };
        let Ok(plan) = self.run(self.store.freeze(&request, by)) else { return };
        if plan.letters == 0 {
            return;
        }
        match self.run(self.store.begin(plan.id, rollout, by)) {
            Ok(operation) => {
                let messages = letters.iter().map(|letter| (letter.id, self.name(&letter.message))).collect();
                self.ledger.begun(component, &operation, messages);
                let Operation { id, state, .. } = operation;
                self.trace(|| format!("operator began {id}, to {action} {} letters: {state}", plan.letters));
            }
            Err(error) => self.trace(|| format!("operator began nothing: {error}")),
        }
    }

    fn command_any(&self, random: &mut Random) {
        let Some(id) = self.ledger.pick(random) else { return };
        let command = *random.pick(&COMMANDS);
        let name = *random.pick(&PEOPLE);
        let by = person(name);
        let is_review = matches!(command, Command::Approve | Command::Reject);
        match random.below(8) {
            0..=2 => self.ledger.arm(id, Armed { command, by, is_before: random.chance(500) }),
            3 | 4 if is_review => {
                let (other, name) = (*random.pick(&REVIEWS), *random.pick(&PEOPLE));
                let by_other = person(name);
                self.run(async {
                    self.send_command(id, command, &by).await;
                    self.send_command(id, other, &by_other).await;
                });
            }
            5 => self.run(self.send_twice(id, command, &by)),
            6 => self.run(self.send_watched(id, command, &by)),
            _ => {
                self.run(self.send_command(id, command, &by));
            }
        }
    }

    /// Sends a command. Returns `true` when it was accepted.
    async fn send_command(&self, id: OperationId, command: Command, by: &Actor) -> bool {
        let answer = self.store.command(id, command, by).await;
        self.trace(|| {
            let answer = match &answer {
                Ok(operation) => operation.state.to_string(),
                Err(error) => format!("refused, {}", error.context()),
            };
            format!("operator {} sends {command} to {id}: {answer}", by.who)
        });
        let fault = self.ledger.answered(id, command, by, &answer);
        self.report_operation(fault);
        answer.is_ok()
    }

    /// Sends a command twice, as if the first answer had been lost. No command fits the state that it has led to.
    async fn send_twice(&self, id: OperationId, command: Command, by: &Actor) {
        let accepted = self.send_command(id, command, by).await;
        let again = self.send_command(id, command, by).await;
        self.report_operation((accepted && again).then(|| format!("{id} takes a {command} twice in a row")));
    }

    /// Sends a command, and looks whether anything has changed if it is refused: state, counters, letters or audit.
    async fn send_watched(&self, id: OperationId, command: Command, by: &Actor) {
        let before = self.look_at(id).await;
        let accepted = self.send_command(id, command, by).await;
        let after = self.look_at(id).await;
        let is_changed = !accepted && before != after;
        self.report_operation(is_changed.then(|| format!("{id} is changed by a refused {command}")));
    }

    async fn look_at(&self, id: OperationId) -> (Option<Operation>, Vec<Item>, Vec<AuditEntry>) {
        (
            self.store.operation(id).await.unwrap_or_default(),
            self.store.items(id, 0, ITEMS_LIMIT).await.unwrap_or_default(),
            self.store.audit_about(&[id.to_string()], ITEMS_LIMIT).await.unwrap_or_default(),
        )
    }

    /// Sends the command that waits for this moment of a settlement of the operation.
    pub(crate) async fn send_armed(&self, id: Option<OperationId>, is_before: bool) {
        let Some(id) = id else { return };
        let Some(armed) = self.ledger.take_armed(id, is_before) else { return };
        self.send_command(id, armed.command, &armed.by).await;
    }

    /// Approves what waits for it, and resumes what is paused. Returns `true` when every operation is over, with all of its letters.
    pub(crate) fn finish_operations(&self) -> bool {
        self.ledger.disarm();
        let second = person(PEOPLE[1]);
        let mut are_over = true;
        for id in self.ledger.unfinished() {
            let Some((operation, items)) = self.read_operation(id) else { continue };
            let command = match operation.state {
                OperationState::AwaitingApproval => Some(Command::Approve),
                OperationState::Paused => Some(Command::Resume),
                _ => None,
            };
            if let Some(command) = command {
                self.run(self.send_command(id, command, &second));
            }
            if operation.state.is_over() && items.iter().all(|item| item.outcome.is_some()) {
                self.ledger.finished(id);
            } else {
                are_over = false;
            }
        }
        are_over
    }

    /// The operations that are not over, for a report.
    pub(crate) fn unfinished_operations(&self) -> String {
        let unfinished = self.ledger.unfinished().into_iter().filter_map(|id| self.read_operation(id));
        let texts = unfinished.map(|(Operation { id, state, letters, .. }, items)| {
            let left = items.iter().filter(|item| item.outcome.is_none()).count();
            format!("{id} {state} with {left} of {letters} letters left; ")
        });
        texts.collect()
    }
}
