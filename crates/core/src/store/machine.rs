//! The state machine of an operation, as pure functions: state, stage, stop rule and rate.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::audit::Actor;
use super::error::{ErrorKind, Result, StoreError};
use super::operations::{
    APPROVED_AGAIN, Action, Command, Exclusion, HELD, Operation, OperationId, OperationState, Outcome, Plan,
    PlanId, RolloutPolicy, STOPPED,
};
use super::payload_digest::PayloadDigest;
use super::rules::{self, AuditLine, Pace};
use crate::letter::LetterId;
use crate::person::may_be_same_person;

const NANOS: f64 = 1e9;

/// An operation as a store keeps it: its public view, and the internal counters of its rate and stop rule.
///
/// For store implementations: the methods decide, and the store persists the result in the same transaction as
/// the letters.
///
/// ```
/// use lazaret_core::Timestamp;
/// use lazaret_core::store::{Action, Actor, Command, RolloutPolicy, OperationMachine, OperationId, OperationState, Outcome};
/// use lazaret_core::store::{Plan, PlanId, plan_hash};
///
/// let now = Timestamp::UNIX_EPOCH;
/// let by = Actor::new("ada", "cli", "the service is back");
/// let plan = Plan {
///     id: PlanId(1), action: Action::Retry, query: None, letters: 3, sequences: 3, followers: 0, excluded: Vec::new(),
///     hash: plan_hash(Action::Retry, []), by: by.clone(), frozen_at: now, expires_at: Timestamp::MAX,
/// };
/// let rollout = RolloutPolicy { ramp: vec![1], ..RolloutPolicy::default() };
/// let mut machine = OperationMachine::begin(OperationId(1), &plan, &rollout, &by, now).unwrap();
/// assert_eq!((machine.operation.state, machine.allowance()), (OperationState::Running, 1));
/// // The first letter failed: the stage is over, and the stop rule pauses the operation.
/// machine.count(Outcome::FailedAgain, 1, now);
/// assert!(machine.advance(Some(1), now).is_some());
/// assert_eq!(machine.operation.state, OperationState::Paused);
/// // After a resume, the next stage starts.
/// machine.command(Command::Resume, &by, now).unwrap();
/// assert!(machine.advance(Some(1), now).is_none());
/// assert_eq!((machine.operation.stage, machine.allowance()), (1, 3));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OperationMachine {
    /// The public view.
    pub operation: Operation,
    /// When the rate has accounted for all letters taken so far; `None` before the first one.
    pub next_at: Option<Timestamp>,
    /// Number of successes when the stop rule was last reset.
    pub counted_ok: u64,
    /// Number of repeated failures when the stop rule was last reset.
    pub counted_failed: u64,
    /// Number of letters outside of the plan that used up a part of the rate ([`pace_released`](Self::pace_released)).
    pub released: u64,
}

fn refused<T>(kind: ErrorKind, operation: &'static str, context: String) -> Result<T> {
    Err(StoreError::not_done(kind, operation, context))
}

impl OperationMachine {
    /// Poll interval while letters are in flight or their sequences are leased.
    pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

    /// Starts the operation of a stored plan. `NotFound` without a plan, `Conflict` if an
    /// operation for it exists; see [`begin`](Self::begin) for other errors.
    pub fn begin_plan(
        (name, plan): (PlanId, Option<&Plan>),
        carried_out: bool,
        id: OperationId,
        rollout: &RolloutPolicy,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Self> {
        let Some(plan) = plan else {
            return refused(ErrorKind::NotFound, "begin", format!("plan {name} not found"));
        };
        if carried_out {
            return refused(ErrorKind::Conflict, "begin", format!("plan {name} already has an operation"));
        }
        Self::begin(id, plan, rollout, by, now)
    }

    /// The machine of this operation, or `NotFound`.
    pub fn found(machine: Option<Self>, id: OperationId) -> Result<Self> {
        machine
            .map_or_else(|| refused(ErrorKind::NotFound, "command", format!("operation {id} not found")), Ok)
    }

    /// Starts an operation for a plan. `Invalid` for an invalid rollout, `Conflict` for an expired plan.
    pub fn begin(
        id: OperationId,
        plan: &Plan,
        rollout: &RolloutPolicy,
        by: &Actor,
        now: Timestamp,
    ) -> Result<Self> {
        if let Err(error) = rollout.check() {
            return refused(ErrorKind::Invalid, "begin", error.to_string());
        }
        if plan.is_expired(now) {
            let context = format!("plan {} expired at {}", plan.id, plan.expires_at);
            return refused(ErrorKind::Conflict, "begin", context);
        }
        let state = match rollout.needs_approval {
            // An operation without letters needs no approval.
            _ if plan.letters == 0 => OperationState::Done,
            true => OperationState::AwaitingApproval,
            false => started(rollout, now),
        };
        let operation = Operation {
            id,
            plan: plan.id,
            action: plan.action,
            rollout: rollout.clone(),
            state,
            note: (plan.letters == 0).then(|| nothing_to_do(plan)),
            stage: 0,
            letters: plan.letters,
            ok: 0,
            failed_again: 0,
            skipped: 0,
            by: by.clone(),
            approved_by: None,
            created_at: now,
            updated_at: now,
            ended_at: state.is_over().then_some(now),
        };
        Ok(Self { operation, next_at: None, counted_ok: 0, counted_failed: 0, released: 0 })
    }

    /// Applies a person's command, and returns the audit line. `Conflict` if the state does not allow it, `Denied` if the
    /// person who started the operation approves or rejects it. After [`Cancel`](Command::Cancel) and [`Reject`](Command::Reject) the
    /// store counts the letters without an attempt as [`SkippedCancelled`](Outcome::SkippedCancelled).
    pub fn command(&mut self, command: Command, by: &Actor, now: Timestamp) -> Result<AuditLine> {
        self.set_back(now);
        let operation = &mut self.operation;
        let before = operation.state;
        let fits = match (command, operation.state) {
            (Command::Pause, state) => matches!(state, OperationState::Scheduled | OperationState::Running),
            (Command::Resume, state) => state == OperationState::Paused,
            (Command::Cancel, state) => !state.is_over(),
            (Command::Approve | Command::Reject, state) => state == OperationState::AwaitingApproval,
        };
        if !fits {
            let context =
                format!("cannot {} {} in state {}", command.as_str(), operation.id, operation.state);
            return refused(ErrorKind::Conflict, "command", context);
        }
        let is_review = matches!(command, Command::Approve | Command::Reject);
        if is_review && may_be_same_person(&by.who, &operation.by.who) {
            let context =
                format!("{} started {}: a second person has to {}", by.who, operation.id, command.as_str());
            return refused(ErrorKind::Denied, "command", context);
        }
        let held = operation.held_note().map(str::to_owned).filter(|_| before == OperationState::Paused);
        let asks_again = operation.note.as_deref().is_some_and(|note| note.starts_with(HELD));
        operation.state = match command {
            Command::Pause => OperationState::Paused,
            // Whoever may not start it must not find somebody who only resumes it.
            Command::Resume if held.is_some() => OperationState::AwaitingApproval,
            Command::Resume | Command::Approve => started(&operation.rollout, now),
            Command::Cancel => OperationState::Cancelled,
            Command::Reject => OperationState::Rejected,
        };
        let note = |what: &str| Some(format!("{what} by {}: {}", by.who, by.why));
        operation.note = match command {
            Command::Pause => note("paused"),
            Command::Cancel => note("cancelled"),
            Command::Reject => note("rejected"),
            Command::Approve if asks_again => note(APPROVED_AGAIN),
            Command::Resume => held,
            Command::Approve => None,
        };
        if is_review {
            operation.approved_by = Some(by.clone());
        }
        if operation.state.is_over() {
            operation.ended_at = Some(now);
        }
        if command == Command::Resume {
            (self.counted_ok, self.counted_failed) = (operation.ok, operation.failed_again);
        }
        operation.updated_at = now;
        Ok(operation.audit(by, command.as_str(), Some(before)))
    }

    /// Counts letters that got this outcome.
    pub fn count(&mut self, outcome: Outcome, letters: u64, now: Timestamp) {
        self.set_back(now);
        let operation = &mut self.operation;
        match outcome {
            Outcome::Ok => operation.ok += letters,
            Outcome::FailedAgain => operation.failed_again += letters,
            Outcome::SkippedBehindFailed | Outcome::SkippedChanged | Outcome::SkippedCancelled => {
                operation.skipped += letters;
            }
        }
        if letters > 0 {
            operation.updated_at = now;
        }
    }

    /// Advances the operation as far as possible without a command: to running, to the next stage, to paused by the stop rule, to
    /// done. `pending` is the lowest ordinal without an outcome. Returns the audit line if the stop rule paused it.
    pub fn advance(&mut self, pending: Option<u64>, now: Timestamp) -> Option<AuditLine> {
        self.set_back(now);
        let operation = &mut self.operation;
        if operation.state.is_over() || operation.state == OperationState::AwaitingApproval {
            return None;
        }
        let Some(pending) = pending else {
            (operation.state, operation.note) = (OperationState::Done, None);
            (operation.updated_at, operation.ended_at) = (now, Some(now));
            return None;
        };
        if operation.state == OperationState::Scheduled {
            operation.state = started(&operation.rollout, now);
        }
        if operation.state != OperationState::Running {
            return None;
        }
        let failed = operation.failed_again - self.counted_failed;
        let tried = operation.ok - self.counted_ok + failed;
        loop {
            let stage_over = pending >= operation.rollout.allowance(operation.stage, operation.letters);
            if operation.rollout.stops(tried, failed, stage_over) {
                let share = operation.rollout.stop_at.unwrap_or_default() * 100.0;
                let why = format!("{STOPPED}: {failed} of {tried} letters failed again, more than {share} %");
                let by = Actor::engine(why.clone());
                let before = operation.state;
                (operation.state, operation.note) = (OperationState::Paused, Some(why));
                operation.updated_at = now;
                return Some(operation.audit(&by, "pause", Some(before)));
            }
            if !stage_over {
                return None;
            }
            operation.stage += 1;
            operation.updated_at = now;
        }
    }

    /// Letters with an ordinal below this may run; 0 unless the operation is running.
    pub fn allowance(&self) -> u64 {
        let operation = &self.operation;
        match operation.state {
            OperationState::Running => operation.rollout.allowance(operation.stage, operation.letters),
            _ => 0,
        }
    }

    /// Number of letters without an outcome.
    pub const fn pending(&self) -> u64 {
        let operation = &self.operation;
        operation.letters - operation.ok - operation.failed_again - operation.skipped
    }

    /// Number of letters that the rate allows now.
    pub fn pace(&self, now: Timestamp) -> u64 {
        let Some(rate) = self.operation.rollout.rate else { return u64::MAX };
        let ahead = match self.next_at(now) {
            // The rate is too slow to express as a timestamp.
            Some(next) if next == Timestamp::MAX => return 0,
            Some(next) => nanos_between(now, next).max(0.0) * rate / NANOS,
            None => 0.0,
        };
        // A tolerance of a millionth of a letter against rounding.
        (burst(rate) - ahead + 1e-6).max(0.0) as u64
    }

    /// Notices that the store's clock was set back since the last change: the debt of the rate is as far from now as it was from
    /// that change.
    fn set_back(&mut self, now: Timestamp) {
        let updated_at = &mut self.operation.updated_at;
        if let Some(by) = rules::set_back(*updated_at, now) {
            self.next_at = self.next_at.map(|next| rules::earlier(next, by));
            *updated_at = now;
        }
    }

    /// When the rate has accounted for all letters taken so far. A time further ahead than the allowance reaches is from before
    /// the store's clock was set back, and does not count.
    fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        let rate = self.operation.rollout.rate?;
        // One letter more than the allowance, against rounding, and those that were released.
        let furthest = later(now, (burst(rate) + 1.0 + self.released as f64) * NANOS / rate);
        self.next_at.filter(|next| *next <= furthest)
    }

    /// Deducts this many letters from the rate's allowance.
    pub fn spend(&mut self, letters: u64, now: Timestamp) {
        let Some(rate) = self.operation.rollout.rate.filter(|_| letters > 0) else { return };
        self.set_back(now);
        self.operation.updated_at = now;
        let from = self.next_at(now).map_or(now, |next| next.max(now));
        self.next_at = Some(later(from, (letters as f64) * NANOS / rate));
    }

    /// `true` if the operation has a rate.
    pub const fn has_rate(&self) -> bool {
        self.operation.rollout.rate.is_some()
    }

    /// The pace of letters that the operation lets run automatically, and deducts them from the rate's allowance: the rate bounds
    /// the first call of each of them. `None` without a rate, or without letters.
    pub fn pace_released(&mut self, letters: u64, now: Timestamp) -> Option<Pace> {
        let rate = self.operation.rollout.rate.filter(|_| letters > 0)?;
        self.set_back(now);
        let next = self.pace_at(now);
        self.spend(letters, now);
        self.released = self.released.saturating_add(letters);
        let interval = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX);
        Some(Pace { next, interval, left: letters })
    }

    /// When the rate allows the next letter.
    pub fn pace_at(&self, now: Timestamp) -> Timestamp {
        let (Some(rate), Some(next)) = (self.operation.rollout.rate, self.next_at(now)) else { return now };
        later(next, ((1.0 - burst(rate)) * NANOS / rate).ceil()).max(now)
    }

    /// The actor in whose name the operation's acts are audited.
    pub fn actor(&self) -> Actor {
        let Operation { id, by, .. } = &self.operation;
        Actor::new(by.who.clone(), format!("operation {id}"), by.why.clone())
    }
}

impl Operation {
    /// An audit line about this operation in its current state.
    pub fn audit(&self, by: &Actor, action: &str, before: Option<OperationState>) -> AuditLine {
        let before = before.map(OperationState::as_str);
        AuditLine::new(by, action, self.id, before, Some(self.state.as_str()))
    }
}

/// The state of an operation that only waits for its start time.
fn started(rollout: &RolloutPolicy, now: Timestamp) -> OperationState {
    match rollout.start_at {
        Some(start_at) if start_at > now => OperationState::Scheduled,
        _ => OperationState::Running,
    }
}

/// The note of an operation whose plan has no letters.
fn nothing_to_do(plan: &Plan) -> String {
    if plan.excluded.is_empty() {
        return "nothing to do: no letters match".to_owned();
    }
    let part = |(reason, letters): &(Exclusion, u64)| format!("{}: {letters}", reason.as_str());
    let parts: Vec<String> = plan.excluded.iter().map(part).collect();
    format!("nothing to do: all selected letters are excluded ({})", parts.join(", "))
}

/// The burst size of a rate: one letter, and a quarter of what a second has beyond that. The first second therefore has hardly more
/// letters than any other, and a slightly late poll loses nothing.
fn burst(rate: f64) -> f64 {
    1.0 + (rate - 1.0).max(0.0) / 4.0
}

fn nanos_between(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_nanosecond() - from.as_nanosecond()) as f64
}

/// The time this many nanoseconds later, saturating at the maximum.
fn later(from: Timestamp, nanos: f64) -> Timestamp {
    let time = from.as_nanosecond().saturating_add(nanos.round() as i128);
    Timestamp::from_nanosecond(time).unwrap_or(if nanos < 0.0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Computes the hash of a plan, letter by letter.
#[derive(Clone, Debug)]
pub struct PlanHasher(Sha256);

impl PlanHasher {
    /// Starts the hash of a plan with this action.
    pub fn new(action: Action) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(action.as_str());
        hasher.update([0]);
        Self(hasher)
    }

    /// Adds the next letter and its payload, in plan order. The id covers its queue.
    pub fn add(&mut self, letter: LetterId, payload: PayloadDigest) {
        self.0.update(letter.as_uuid().as_bytes());
        self.0.update(payload.as_bytes());
    }

    /// The hash as hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The hash of a plan: SHA-256 over the action, and the ids and payloads of its letters in order.
pub fn plan_hash(action: Action, letters: impl IntoIterator<Item = (LetterId, PayloadDigest)>) -> String {
    let mut hasher = PlanHasher::new(action);
    letters.into_iter().for_each(|(letter, payload)| hasher.add(letter, payload));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::QueueName;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn ada() -> Actor {
        Actor::new("ada", "cli", "it is back")
    }

    fn plan(letters: u64) -> Plan {
        Plan {
            id: PlanId(1),
            action: Action::Retry,
            query: None,
            letters,
            sequences: letters,
            followers: 0,
            excluded: Vec::new(),
            hash: String::new(),
            by: ada(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        }
    }

    fn machine(rollout: RolloutPolicy, letters: u64) -> OperationMachine {
        OperationMachine::begin(OperationId(1), &plan(letters), &rollout, &ada(), NOW).unwrap()
    }

    fn paced(rate: f64) -> OperationMachine {
        machine(RolloutPolicy { rate: Some(rate), ..RolloutPolicy::unlimited() }, 1_000_000)
    }

    #[test]
    fn only_the_stop_rule_stops_an_operation() {
        let mut machine = machine(RolloutPolicy { ramp: vec![1], ..RolloutPolicy::default() }, 3);
        let why = Actor::new("stopped: eve", "cli", "stopped: 1 of 1 letters");
        machine.command(Command::Pause, &why, NOW).unwrap();
        assert!(!machine.operation.is_stopped(), "a person paused it: {:?}", machine.operation.note);
        machine.command(Command::Resume, &why, NOW).unwrap();
        machine.count(Outcome::FailedAgain, 1, NOW);
        assert!(machine.advance(Some(1), NOW).is_some() && machine.operation.is_stopped());
        machine.command(Command::Resume, &ada(), NOW).unwrap();
        assert!(!machine.operation.is_stopped());
        machine.command(Command::Cancel, &ada(), NOW).unwrap();
        assert!(!machine.operation.is_stopped());
    }

    #[test]
    fn the_rate_holds_for_any_value_and_any_polling_pattern() {
        for rate in [0.001, 0.3, 1.0, 3.0, 7.7, 50.0, 1234.5] {
            let (mut machine, mut taken, burst) = (paced(rate), 0, burst(rate));
            let step = Duration::from_nanos(137_000_003);
            for n in 0..5000_u32 {
                let now = NOW + step * n;
                let some = machine.pace(now).min(1 + u64::from(n % 3));
                machine.spend(some, now);
                taken += some;
                let allowed = rate * (step * n).as_secs_f64() + burst;
                assert!(taken as f64 <= allowed + 1e-3, "{taken} of {allowed} at a rate of {rate}");
            }
            let seconds = (step * 4999).as_secs_f64();
            // An infrequent poll loses a little of a slow rate each time.
            let least = (rate * seconds).min(5000.0) * 0.85 - 1.0;
            assert!(taken as f64 >= least, "{taken}, not {least}, at a rate of {rate}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_the_rate() {
        for rate in [0.5, 2.0, 50.0] {
            let mut machine = paced(rate);
            let before = NOW + Duration::from_secs(3600);
            machine.spend(machine.pace(before), before);
            machine.advance(Some(0), NOW);
            assert_eq!(machine.pace(NOW), 0, "the rate holds across the step");
            let next = machine.pace_at(NOW);
            assert!(next <= NOW + Duration::from_secs_f64(1.0 / rate), "{next} at a rate of {rate}");
            machine.advance(Some(0), next);
            assert_eq!(machine.pace(next), 1);
        }
    }

    #[test]
    fn a_debt_further_ahead_than_the_rate_can_lead_does_not_count() {
        let mut machine = paced(2.0);
        machine.next_at = Some(NOW + Duration::from_secs(3600));
        assert!(machine.pace(NOW) >= 1);
    }

    #[test]
    fn the_time_of_the_next_letter_is_the_first_that_the_rate_allows() {
        for rate in [0.3, 1.0, 3.0, 50.0] {
            let mut machine = paced(rate);
            let mut now = NOW;
            for _ in 0..200 {
                machine.spend(machine.pace(now), now);
                assert_eq!(machine.pace(now), 0);
                let next = machine.pace_at(now);
                assert_eq!(machine.pace(next - Duration::from_micros(10)), 0);
                assert_eq!(machine.pace(next), 1, "at a rate of {rate}");
                now = next;
            }
        }
    }

    #[test]
    fn released_letters_use_up_the_rate_of_the_operation() {
        let mut machine = paced(2.0);
        machine.spend(machine.pace(NOW), NOW);
        let pace = machine.pace_released(10, NOW).unwrap();
        assert_eq!((pace.left, pace.interval), (10, Duration::from_millis(500)));
        assert_eq!(
            pace.next,
            machine.pace_at(NOW) - Duration::from_secs(5),
            "the next free slots are theirs"
        );
        assert_eq!(machine.pace(NOW + Duration::from_secs(4)), 0, "no other letter runs meanwhile");
        assert_eq!(paced(2.0).pace_released(0, NOW), None);
    }

    #[test]
    fn without_a_rate_the_pace_is_unlimited() {
        let mut machine = machine(RolloutPolicy::unlimited(), 10);
        machine.spend(1_000_000, NOW);
        assert_eq!((machine.pace(NOW), machine.pace_at(NOW)), (u64::MAX, NOW));
        assert_eq!(machine.pace_released(1_000_000, NOW), None);
    }

    #[test]
    fn extreme_rates_do_not_overflow() {
        let mut slow = paced(1e-300);
        slow.spend(slow.pace(NOW), NOW);
        assert_eq!((slow.pace(NOW), slow.next_at), (0, Some(Timestamp::MAX)));
        let mut fast = paced(1e300);
        fast.spend(fast.pace(NOW), NOW);
        assert_eq!(fast.pace(NOW + Duration::from_secs(2)), u64::MAX);
    }

    #[test]
    fn allowed_commands_depend_on_the_state() {
        use Command::{Approve, Cancel, Pause, Reject, Resume};
        use OperationState::{AwaitingApproval, Cancelled, Done, Paused, Rejected, Running, Scheduled};
        let allowed = [
            (AwaitingApproval, vec![(Cancel, Cancelled), (Approve, Running), (Reject, Rejected)]),
            (Scheduled, vec![(Pause, Paused), (Cancel, Cancelled)]),
            (Running, vec![(Pause, Paused), (Cancel, Cancelled)]),
            (Paused, vec![(Resume, Running), (Cancel, Cancelled)]),
            (Done, vec![]),
            (Cancelled, vec![]),
            (Rejected, vec![]),
        ];
        let bob = Actor::new("bob", "console", "looks right");
        for (state, allowed) in allowed {
            for command in [Pause, Resume, Cancel, Approve, Reject] {
                let mut machine = machine(RolloutPolicy::unlimited(), 1);
                machine.operation.state = state;
                let before = machine.clone();
                let result = machine.command(command, &bob, NOW);
                match allowed.iter().find(|(one, _)| *one == command) {
                    Some((_, after)) => assert_eq!(machine.operation.state, *after),
                    None => {
                        assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict, "{command:?} in {state}");
                        assert_eq!(machine, before, "a refusal changes nothing");
                    }
                }
            }
        }
    }

    #[test]
    fn a_held_operation_runs_only_after_a_second_person_has_approved_it() {
        let start_at = NOW + Duration::from_secs(60);
        let rollout = RolloutPolicy { start_at: Some(start_at), ..RolloutPolicy::unlimited() };
        let mut machine = machine(rollout, 1);
        let bob = Actor::new("bob", "console", "still needed");
        machine.command(Command::Pause, &Operation::holder("the token of ada was revoked"), NOW).unwrap();
        let note = "paused by lazaret: held: the token of ada was revoked";
        assert_eq!(machine.operation.note.as_deref(), Some(note));
        assert!(machine.operation.is_held() && machine.advance(Some(0), start_at).is_none());
        assert_eq!(machine.allowance(), 0, "it does not start on its own");
        // A resume by anybody, also its author, asks for approval.
        machine.command(Command::Resume, &ada(), NOW).unwrap();
        assert_eq!(machine.operation.state, OperationState::AwaitingApproval);
        assert_eq!(machine.operation.note.as_deref(), Some("held: the token of ada was revoked"));
        assert_eq!(
            machine.command(Command::Approve, &ada(), NOW).unwrap_err().kind(),
            ErrorKind::Denied,
            "not by its author"
        );
        machine.command(Command::Approve, &bob, NOW).unwrap();
        assert_eq!(machine.operation.state, OperationState::Scheduled, "its time holds");
        assert!(machine.operation.is_approved_again() && !machine.operation.is_held());
        machine.advance(Some(0), start_at);
        assert_eq!(machine.operation.state, OperationState::Running);
    }

    #[test]
    fn a_pause_by_a_person_holds_nothing() {
        let mut machine = machine(RolloutPolicy::unlimited(), 1);
        let by = Actor::new("eve", "cli", "held: the token of ada was revoked");
        machine.command(Command::Pause, &by, NOW).unwrap();
        assert!(!machine.operation.is_held());
        machine.command(Command::Resume, &by, NOW).unwrap();
        assert_eq!(machine.operation.state, OperationState::Running);
    }

    #[test]
    fn another_spelling_of_a_name_is_no_second_person() {
        let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::unlimited() };
        let spellings =
            [("ada", "ada"), ("ada", "Ada"), ("ada", "ada "), ("ada", "a\u{200b}da"), ("ada", "\u{430}da")];
        let look_alikes = [("ada", "ａｄａ"), ("olga.m", "0Iga_rn"), ("ewa", "evva")];
        for (requester, name) in spellings.into_iter().chain(look_alikes) {
            for command in [Command::Approve, Command::Reject] {
                let mut machine = machine(rollout.clone(), 1);
                machine.operation.by.who = requester.into();
                let by = Actor::new(name, "console", "looks right");
                let refused = machine.command(command, &by, NOW).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Denied, "{name:?}");
                assert_eq!(machine.operation.state, OperationState::AwaitingApproval);
            }
        }
    }

    #[test]
    fn a_schedule_holds_after_approval_and_after_a_pause() {
        let start_at = NOW + Duration::from_secs(60);
        let rollout =
            RolloutPolicy { start_at: Some(start_at), needs_approval: true, ..RolloutPolicy::unlimited() };
        let mut machine = machine(rollout, 1);
        let bob = Actor::new("bob", "console", "looks right");
        for (command, state) in [
            (Command::Approve, OperationState::Scheduled),
            (Command::Pause, OperationState::Paused),
            (Command::Resume, OperationState::Scheduled),
        ] {
            machine.command(command, &bob, NOW).unwrap();
            assert_eq!(machine.operation.state, state);
        }
        machine.advance(Some(0), start_at - Duration::from_nanos(1));
        assert_eq!((machine.operation.state, machine.allowance()), (OperationState::Scheduled, 0));
        machine.advance(Some(0), start_at);
        assert_eq!((machine.operation.state, machine.allowance()), (OperationState::Running, 1));
    }

    #[test]
    fn an_operation_without_letters_is_done_at_once_and_says_why() {
        let rollout = RolloutPolicy { needs_approval: true, ..RolloutPolicy::default() };
        let operation = machine(rollout.clone(), 0).operation;
        assert_eq!((operation.state, operation.ended_at), (OperationState::Done, Some(NOW)));
        assert_eq!(operation.note.as_deref(), Some("nothing to do: no letters match"));
        let excluded = vec![(Exclusion::InOperation, 2), (Exclusion::Closed, 1)];
        let plan = Plan { excluded, ..plan(0) };
        let operation =
            OperationMachine::begin(OperationId(1), &plan, &rollout, &ada(), NOW).unwrap().operation;
        assert_eq!(
            operation.note.as_deref(),
            Some("nothing to do: all selected letters are excluded (in-operation: 2, closed: 1)")
        );
        assert_eq!(machine(rollout, 1).operation.note, None);
    }

    #[test]
    fn a_hash_covers_action_letters_payloads_and_order() {
        let queue = QueueName::of("a", "a");
        let payload = PayloadDigest::of(Some(b"{}"));
        let [one, other] = ["1", "2"].map(|id| (LetterId::of(&queue, &id.into()), payload));
        let hash = plan_hash(Action::Retry, [one, other]);
        assert_eq!(hash.len(), 64);
        assert_eq!(hash, plan_hash(Action::Retry, [one, other]));
        for different in [
            plan_hash(Action::Evict, [one, other]),
            plan_hash(Action::Retry, [other, one]),
            plan_hash(Action::Retry, [one]),
            plan_hash(Action::Retry, [one, (other.0, PayloadDigest::of(None))]),
        ] {
            assert_ne!(hash, different);
        }
    }
}
