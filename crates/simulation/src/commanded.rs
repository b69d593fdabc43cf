//! One operation of the [ledger](crate::ledger): what the store let it do, and what has to follow from that.

use std::collections::{BTreeMap, BTreeSet};

use lazaret_core::store::{
    Action, Actor, AuditEntry, Command, ErrorKind, Item, Operation, OperationId, OperationState, Outcome,
    PlanId, Result,
};
use lazaret_core::{LetterId, MessageId, Timestamp};

/// Who changes operations without a command, in the audit.
const LAZARET: &str = "lazaret";

/// An operation that was begun.
pub(crate) struct Commanded {
    pub(crate) id: OperationId,
    pub(crate) component: usize,
    pub(crate) action: Action,
    pub(crate) plan: PlanId,
    /// Who started it.
    by: String,
    start_at: Option<Timestamp>,
    phase: Phase,
    /// The names of the messages of its letters.
    messages: BTreeMap<LetterId, MessageId>,
    /// The processes to which the store gave each letter.
    sent: BTreeMap<LetterId, BTreeSet<u64>>,
    /// The settlements that the store accepted.
    settled: BTreeMap<LetterId, Outcome>,
    /// The letters at which the store has performed the act.
    acted: BTreeSet<LetterId>,
    /// The commands that the store accepted, in order: command, person, and the state after it.
    accepted: Vec<(Command, String, OperationState)>,
    /// It is over, with all of its letters.
    pub(crate) is_finished: bool,
}

/// What follows from the commands that the store accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for its approval.
    Awaiting,
    /// It is scheduled or running, unless the stop rule has paused it, or it is done.
    Active,
    /// A person has paused it. It may be done, because letters in flight are finished.
    Paused,
    /// It is over.
    Over(OperationState),
}

/// The answer to a command, as far as it is known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Accepted,
    Refused(ErrorKind),
    /// It depends on what the operation did by itself.
    Either,
}

impl Commanded {
    pub(crate) fn begun(
        component: usize,
        operation: &Operation,
        messages: BTreeMap<LetterId, MessageId>,
    ) -> Self {
        let phase = match operation.state {
            OperationState::AwaitingApproval => Phase::Awaiting,
            state if state.is_over() => Phase::Over(state),
            _ => Phase::Active,
        };
        Self {
            id: operation.id,
            component,
            action: operation.action,
            plan: operation.plan,
            by: operation.by.who.clone(),
            start_at: operation.rollout.start_at,
            phase,
            messages,
            sent: BTreeMap::new(),
            settled: BTreeMap::new(),
            acted: BTreeSet::new(),
            accepted: Vec::new(),
            is_finished: false,
        }
    }

    /// Returns `true` when it is known to be over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    fn expected(&self, command: Command, by: &Actor) -> Expected {
        match (self.phase, command) {
            (Phase::Awaiting, Command::Approve | Command::Reject) if by.who == self.by => {
                Expected::Refused(ErrorKind::Denied)
            }
            (Phase::Awaiting, Command::Approve | Command::Reject | Command::Cancel) => Expected::Accepted,
            (Phase::Awaiting, Command::Pause | Command::Resume)
            | (Phase::Active | Phase::Paused, Command::Approve | Command::Reject)
            | (Phase::Paused, Command::Pause)
            | (Phase::Over(_), _) => Expected::Refused(ErrorKind::Conflict),
            (Phase::Active, Command::Pause | Command::Resume | Command::Cancel)
            | (Phase::Paused, Command::Resume | Command::Cancel) => Expected::Either,
        }
    }

    /// Enters the answer to a command. Returns what is wrong with it.
    pub(crate) fn answered(
        &mut self,
        command: Command,
        by: &Actor,
        answer: &Result<Operation>,
    ) -> Option<String> {
        let (id, phase, expected) = (self.id, self.phase, self.expected(command, by));
        match answer {
            Ok(operation) => {
                let state = operation.state;
                self.accepted.push((command, by.who.clone(), state));
                self.phase = match command {
                    Command::Approve | Command::Resume => Phase::Active,
                    Command::Pause => Phase::Paused,
                    Command::Cancel => Phase::Over(OperationState::Cancelled),
                    Command::Reject => Phase::Over(OperationState::Rejected),
                };
                if matches!(expected, Expected::Refused(_)) {
                    return Some(format!("{id} takes a {command} of {} when it is {phase:?}", by.who));
                }
                let is_legal = leads_to(command.as_str(), state);
                (!is_legal).then(|| format!("{id} is {state} after a {command}"))
            }
            Err(error) => {
                // Nothing but its end is in the way of these.
                let is_done = matches!(
                    (phase, command),
                    (Phase::Active | Phase::Paused, Command::Cancel) | (Phase::Paused, Command::Resume)
                );
                if is_done {
                    self.phase = Phase::Over(OperationState::Done);
                }
                let kind = match expected {
                    Expected::Refused(kind) => kind,
                    Expected::Accepted | Expected::Either => ErrorKind::Conflict,
                };
                let is_wrong = expected == Expected::Accepted || error.kind() != kind;
                is_wrong
                    .then(|| format!("{id} refuses a {command} of {} when it is {phase:?}: {error}", by.who))
            }
        }
    }

    /// The reason why nothing may be done for it now.
    fn held(&self, now: Timestamp) -> Option<String> {
        match self.phase {
            Phase::Awaiting => Some("before it is approved".to_owned()),
            Phase::Paused => Some("while it is paused".to_owned()),
            Phase::Over(state) => Some(format!("although it is {state}")),
            Phase::Active if self.start_at.is_some_and(|start_at| now < start_at) => {
                Some("before its start".to_owned())
            }
            Phase::Active => None,
        }
    }

    /// Enters a letter that the store gave to a process. Returns what is wrong with that.
    pub(crate) fn send(&mut self, letter: LetterId, process: u64, now: Timestamp) -> Option<String> {
        self.sent.entry(letter).or_default().insert(process);
        self.held(now).map(|why| format!("{} sends letter {letter} {why}", self.id))
    }

    /// Returns `true` when the store gave the letter to this process.
    pub(crate) fn has_sent(&self, letter: LetterId, process: u64) -> bool {
        self.sent.get(&letter).is_some_and(|processes| processes.contains(&process))
    }

    /// Enters a settlement that the store accepted under a lease of the operation. Returns what is wrong with it.
    pub(crate) fn settle(&mut self, letter: LetterId, outcome: Outcome) -> Option<String> {
        let is_first = self.settled.insert(letter, outcome).is_none();
        if !self.sent.contains_key(&letter) {
            return Some(format!("{} settles letter {letter}, which it has not sent", self.id));
        }
        (!is_first).then(|| format!("{} settles letter {letter} once more", self.id))
    }

    /// Enters the acts that the store has performed since the last time. Returns the messages of their letters, and what is wrong.
    pub(crate) fn act(&mut self, items: &[Item], now: Timestamp) -> (Vec<MessageId>, Option<String>) {
        let done = items.iter().filter(|item| item.outcome == Some(Outcome::Ok)).map(|item| item.letter);
        let new: Vec<LetterId> = done.filter(|letter| self.acted.insert(*letter)).collect();
        let fault = new.first().zip(self.held(now));
        let fault = fault.map(|(letter, why)| format!("{} acts on letter {letter} {why}", self.id));
        (new.iter().filter_map(|letter| self.messages.get(letter).cloned()).collect(), fault)
    }

    /// Returns `true` when an operation that had these commands may be in this state.
    fn may_be(&self, operation: &Operation) -> bool {
        use OperationState::{AwaitingApproval, Done, Paused, Running, Scheduled};
        match (self.phase, operation.state) {
            (Phase::Awaiting, AwaitingApproval)
            | (Phase::Active, Scheduled | Running | Done)
            | (Phase::Paused, Paused | Done) => true,
            (Phase::Active, Paused) => operation.is_stopped(),
            (Phase::Over(over), state) => over == state,
            _ => false,
        }
    }

    /// Compares the operation with its letters, and with what was entered. Returns what is wrong.
    ///
    /// `is_set_back`: the store's clock is set back now and then. A lease that had expired may hold again then, and the settlement of a
    /// letter that was skipped meanwhile is accepted.
    pub(crate) fn compare(
        &mut self,
        operation: &Operation,
        items: &[Item],
        is_set_back: bool,
    ) -> Vec<String> {
        let Operation { id, state, .. } = operation;
        let mut faults = Vec::new();
        let number =
            |outcome: Option<Outcome>| items.iter().filter(|item| item.outcome == outcome).count() as u64;
        let (ok, failed) = (number(Some(Outcome::Ok)), number(Some(Outcome::FailedAgain)));
        let (letters, left) = (items.len() as u64, number(None));
        let outcomes = (ok, failed, letters - ok - failed - left);
        let counters = (operation.ok, operation.failed_again, operation.skipped);
        if counters != outcomes || operation.letters != letters || operation.sent() != ok + failed {
            faults.push(format!(
                "{id} counts {counters:?} of {} letters as ok, failed again and skipped, but {outcomes:?} of \
                 {letters} are",
                operation.letters
            ));
        }
        if *state != OperationState::Cancelled && state.is_over() != (left == 0) {
            faults.push(format!("{id} is {state} with {left} letters left"));
        }
        if !self.may_be(operation) {
            faults.push(format!("{id} is {state}, which does not follow from {:?}", self.phase));
        }
        let wrong = items.iter().filter(|item| !self.is_right(item, items, is_set_back));
        faults.extend(wrong.map(|item| {
            let (letter, outcome, done) = (item.letter, item.outcome, self.done(item.letter));
            format!("{id} has the outcome {outcome:?} of letter {letter}, but did {done:?}")
        }));
        if *state == OperationState::Done && matches!(self.phase, Phase::Active | Phase::Paused) {
            self.phase = Phase::Over(OperationState::Done);
        }
        faults
    }

    /// What the store has done with a letter for the operation.
    fn done(&self, letter: LetterId) -> Option<Outcome> {
        match self.action {
            Action::Retry => self.settled.get(&letter).copied(),
            Action::Evict | Action::Park | Action::Release => {
                self.acted.contains(&letter).then_some(Outcome::Ok)
            }
        }
    }

    /// Returns `true` when the outcome of a letter is what happened to it.
    fn is_right(&self, item: &Item, items: &[Item], is_set_back: bool) -> bool {
        let done = self.done(item.letter);
        let is_untouched = done.is_none() || is_set_back;
        match item.outcome {
            None | Some(Outcome::Ok | Outcome::FailedAgain) => item.outcome == done,
            Some(Outcome::SkippedBehindFailed) => {
                let mut before = items.iter().filter(|other| {
                    other.queue == item.queue
                        && other.sequence == item.sequence
                        && other.ordinal < item.ordinal
                });
                is_untouched && before.any(|other| other.outcome == Some(Outcome::FailedAgain))
            }
            Some(Outcome::SkippedChanged) => is_untouched,
            Some(Outcome::SkippedCancelled) => {
                let cancelled = Phase::Over(OperationState::Cancelled);
                let rejected = Phase::Over(OperationState::Rejected);
                is_untouched && (self.phase == cancelled || self.phase == rejected)
            }
        }
    }

    /// Compares the audit of the operation, in order, with the commands that the store accepted. Returns what is wrong.
    pub(crate) fn compare_audit(&self, operation: &Operation, entries: &[&AuditEntry]) -> Option<String> {
        let id = self.id;
        let of_people = entries.iter().skip(1).filter(|entry| entry.by.who != LAZARET);
        let audited: Vec<(&str, &str, Option<&str>)> = of_people
            .map(|entry| (entry.action.as_str(), entry.by.who.as_str(), entry.after.as_deref()))
            .collect();
        let accepted = self.accepted.iter();
        let accepted: Vec<(&str, &str, Option<&str>)> = accepted
            .map(|(command, who, state)| (command.as_str(), who.as_str(), Some(state.as_str())))
            .collect();
        if audited != accepted {
            return Some(format!("{id} has the commands {audited:?} in its audit, but took {accepted:?}"));
        }
        let mut state = None;
        for entry in entries {
            let (before, after) = (state_of(entry.before.as_deref()), state_of(entry.after.as_deref()));
            let is_legal = match (state, before, after) {
                (None, None, Some(_)) => entry.action == "begin",
                (Some(state), Some(before), Some(after)) => {
                    becomes(state, before)
                        && starts_from(&entry.action, before)
                        && leads_to(&entry.action, after)
                }
                _ => false,
            };
            if !is_legal {
                let AuditEntry { action, before, after, .. } = entry;
                return Some(format!("{id} went by {action} from {before:?} to {after:?}, out of {state:?}"));
            }
            state = after;
        }
        let is_last = state.is_some_and(|state| becomes(state, operation.state));
        (!is_last).then(|| format!("{id} is {}, but its audit ends with {state:?}", operation.state))
    }
}

fn state_of(text: Option<&str>) -> Option<OperationState> {
    OperationState::ALL.into_iter().find(|state| Some(state.as_str()) == text)
}

/// Returns `true` when an operation gets from the one state to the other without a command and without the stop rule.
fn becomes(from: OperationState, to: OperationState) -> bool {
    use OperationState::{Done, Paused, Running, Scheduled};
    from == to || matches!((from, to), (Scheduled, Running | Done) | (Running | Paused, Done))
}

/// Returns `true` when a command, or the stop rule, may find an operation in this state.
fn starts_from(action: &str, state: OperationState) -> bool {
    use OperationState::{AwaitingApproval, Paused, Running, Scheduled};
    match action {
        "pause" => matches!(state, Scheduled | Running),
        "resume" => state == Paused,
        "approve" | "reject" => state == AwaitingApproval,
        "cancel" => !state.is_over(),
        _ => false,
    }
}

/// Returns `true` when a command, or the stop rule, may leave an operation in this state.
fn leads_to(action: &str, state: OperationState) -> bool {
    use OperationState::{Cancelled, Paused, Rejected, Running, Scheduled};
    match action {
        "pause" => state == Paused,
        "resume" | "approve" => matches!(state, Scheduled | Running),
        "cancel" => state == Cancelled,
        "reject" => state == Rejected,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::QueueName;
    use lazaret_core::store::{OperationMachine, Plan, RolloutPolicy};

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn ada() -> Actor {
        Actor::new("ada", "simulation", "test")
    }

    fn bob() -> Actor {
        Actor::new("bob", "simulation", "test")
    }

    fn letter(number: u64) -> LetterId {
        LetterId::of(&QueueName::of("c", "c"), &number.to_string().into())
    }

    /// An operation on two letters of one sequence.
    fn begun(needs_approval: bool) -> (OperationMachine, Commanded) {
        let plan = Plan {
            id: PlanId(1),
            action: Action::Retry,
            query: None,
            letters: 2,
            sequences: 1,
            followers: 0,
            excluded: Vec::new(),
            hash: String::new(),
            by: ada(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        };
        let rollout = RolloutPolicy { needs_approval, ..RolloutPolicy::unlimited() };
        let machine = OperationMachine::begin(OperationId(1), &plan, &rollout, &ada(), NOW).unwrap();
        let commanded = Commanded::begun(0, &machine.operation, BTreeMap::new());
        (machine, commanded)
    }

    /// Sends a command to both. Returns what is wrong with the answer.
    fn send(
        machine: &mut OperationMachine,
        commanded: &mut Commanded,
        command: Command,
        by: &Actor,
    ) -> Option<String> {
        let answer = machine.command(command, by, NOW).map(|_| machine.operation.clone());
        commanded.answered(command, by, &answer)
    }

    fn items(outcomes: [Option<Outcome>; 2]) -> Vec<Item> {
        let items = outcomes.into_iter().enumerate().map(|(place, outcome)| Item {
            ordinal: place as u64,
            queue: QueueName::of("c", "c"),
            sequence: "k".into(),
            letter: letter(place as u64),
            digest: None,
            outcome,
        });
        items.collect()
    }

    #[test]
    fn counters_that_are_not_those_of_the_letters_are_told() {
        let (mut machine, mut commanded) = begun(false);
        assert_eq!(commanded.send(letter(0), 1, NOW), None);
        assert_eq!(commanded.settle(letter(0), Outcome::Ok), None);
        let items = items([Some(Outcome::Ok), None]);
        let lost = commanded.compare(&machine.operation, &items, false);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(lost[0].starts_with("op_1 counts (0, 0, 0) of 2 letters"), "{lost:?}");
        machine.count(Outcome::Ok, 1, NOW);
        assert!(commanded.compare(&machine.operation, &items, false).is_empty());
    }

    #[test]
    fn outcomes_that_did_not_happen_are_told() {
        let (mut machine, mut commanded) = begun(false);
        machine.count(Outcome::Ok, 1, NOW);
        let invented = commanded.compare(&machine.operation, &items([Some(Outcome::Ok), None]), false);
        assert_eq!(invented.len(), 1, "{invented:?}");
        assert!(invented[0].contains("but did None"), "{invented:?}");
        let (mut machine, mut commanded) = begun(false);
        machine.count(Outcome::SkippedBehindFailed, 1, NOW);
        let unfounded = items([None, Some(Outcome::SkippedBehindFailed)]);
        assert_eq!(commanded.compare(&machine.operation, &unfounded, false).len(), 1);
    }

    #[test]
    fn letters_that_are_sent_without_leave_are_told() {
        let (mut machine, mut commanded) = begun(true);
        let why = |fault: Option<String>| fault.map(|fault| fault.ends_with("before it is approved"));
        assert_eq!(why(commanded.send(letter(0), 1, NOW)), Some(true));
        assert_eq!(send(&mut machine, &mut commanded, Command::Approve, &bob()), None);
        assert_eq!(commanded.send(letter(0), 1, NOW), None);
        assert!(commanded.has_sent(letter(0), 1) && !commanded.has_sent(letter(0), 2));
        for (command, text) in
            [(Command::Pause, "while it is paused"), (Command::Cancel, "although it is cancelled")]
        {
            assert_eq!(send(&mut machine, &mut commanded, command, &ada()), None);
            let fault = commanded.send(letter(1), 1, NOW).unwrap();
            assert!(fault.ends_with(text), "{fault}");
        }
        assert!(commanded.settle(letter(7), Outcome::Ok).is_some(), "it was not sent");
    }

    #[test]
    fn the_rules_give_every_answer_that_is_expected() {
        let commands = [Command::Approve, Command::Reject, Command::Pause, Command::Resume, Command::Cancel];
        // Every sequence of three commands, by each of two people.
        let calls: Vec<(Command, Actor)> =
            commands.into_iter().flat_map(|command| [(command, ada()), (command, bob())]).collect();
        for number in 0..2 * calls.len().pow(3) {
            let (mut machine, mut commanded) = begun(number.is_multiple_of(2));
            let mut rest = number / 2;
            for _ in 0..3 {
                let (command, by) = &calls[rest % calls.len()];
                rest /= calls.len();
                assert_eq!(send(&mut machine, &mut commanded, *command, by), None, "{number}");
            }
        }
    }

    #[test]
    fn answers_that_do_not_follow_are_told() {
        let (mut machine, mut commanded) = begun(true);
        let by_author = Ok(machine.operation.clone());
        assert!(commanded.answered(Command::Approve, &ada(), &by_author).is_some());
        let (_, mut commanded) = begun(true);
        assert_eq!(send(&mut machine, &mut commanded, Command::Reject, &bob()), None);
        assert!(commanded.answered(Command::Resume, &bob(), &Ok(machine.operation)).is_some(), "it is over");
    }

    #[test]
    fn an_audit_with_another_command_than_those_that_were_accepted_is_told() {
        let (mut machine, mut commanded) = begun(false);
        let entry = |action: &str, before: Option<&str>, after: &str| AuditEntry {
            number: 1,
            at: NOW,
            by: ada(),
            action: action.to_owned(),
            subject: "op_1".to_owned(),
            before: before.map(str::to_owned),
            after: Some(after.to_owned()),
        };
        let begin = entry("begin", None, "running");
        let pause = entry("pause", Some("running"), "paused");
        assert_eq!(commanded.compare_audit(&machine.operation, &[&begin]), None);
        assert!(commanded.compare_audit(&machine.operation, &[&begin, &pause]).is_some());
        assert_eq!(send(&mut machine, &mut commanded, Command::Pause, &ada()), None);
        assert_eq!(commanded.compare_audit(&machine.operation, &[&begin, &pause]), None);
        assert!(commanded.compare_audit(&machine.operation, &[&begin]).is_some());
        let illegal = entry("pause", Some("done"), "paused");
        assert!(commanded.compare_audit(&machine.operation, &[&begin, &illegal]).is_some());
    }
}
