//! Polling of operations: the next letters, the action on each, and their outcomes.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use super::sequence::SequenceRow;
use crate::letter::{Letter, LetterId, LetterState};
use crate::store::{
    Act, Action, Claim, Operation, OperationMachine, OperationState, Outcome, PayloadDigest, PolledWork,
    WorkItem,
};

/// Maximum number of skipped letters per call, which bounds its duration.
const SKIPS: u64 = 1000;

/// One letter of an operation without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its ordinal in the plan.
    pub ordinal: u64,
    /// The ordinal of the last letter of its sequence.
    pub last: u64,
    /// The letter.
    pub letter: LetterId,
    /// Its state at the freeze.
    pub state: LetterState,
    /// Its payload at the freeze; `None` in a plan of an earlier version.
    pub digest: Option<PayloadDigest>,
}

/// The stored data that the action on a letter depends on.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'a> {
    /// The letter, if it is stored. It may lack its payload.
    pub letter: Option<&'a Letter>,
    /// The payload of the letter now.
    pub digest: PayloadDigest,
    /// The row of its sequence, if open.
    pub row: Option<&'a SequenceRow>,
    /// `true` if the letter is still pending in an unfinished operation that was started earlier.
    pub in_earlier: bool,
    /// The store's time.
    pub now: Timestamp,
}

/// The action on the next letter of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemAction {
    /// Claim its sequence for the operation, and return it for an attempt.
    Try,
    /// Apply this act, in the name of [`OperationMachine::actor`].
    Act(Act),
    /// Skip it: it has changed since the plan was frozen.
    Skip,
    /// Postpone it: its sequence is leased or paused.
    Postpone,
}

/// Decides the action on a letter of an operation.
pub fn item_action(operation: &Operation, item: &Pending, view: &ItemView<'_>) -> ItemAction {
    let letter = view.letter.filter(|letter| letter.state.is_open());
    let (Some(letter), Some(row)) = (letter, view.row) else { return ItemAction::Skip };
    // Approval and preview were for another payload.
    let edited = item.digest.is_some_and(|frozen| frozen != view.digest);
    // It was quarantined after the freeze.
    let quarantined = letter.state == LetterState::Quarantined && item.state != LetterState::Quarantined;
    if let Some(act) = operation.action.act() {
        let changed = match act {
            Act::Park => letter.state == LetterState::Parked,
            Act::Release => quarantined || letter.payload_left_out,
            _ => false,
        };
        return match row.is_in_flight(letter.index, view.now) {
            true => ItemAction::Postpone,
            false if changed || edited || view.in_earlier => ItemAction::Skip,
            false => ItemAction::Act(act),
        };
    }
    if row.is_leased(view.now) || row.paused {
        return ItemAction::Postpone;
    }
    // I2: a letter behind the head would overtake.
    let changed =
        letter.index != row.head.index || quarantined || edited || view.in_earlier || letter.payload_left_out;
    if changed { ItemAction::Skip } else { ItemAction::Try }
}

/// `true` if a letter is in flight for this operation now: it is finished and counted whatever the operation's state.
pub fn is_tried(operation: &Operation, view: &ItemView<'_>) -> bool {
    let (Some(letter), Some(row)) = (view.letter, view.row) else { return false };
    letter.state.is_open() && letter.index == row.head.index && row.operation(view.now) == Some(operation.id)
}

/// The outcomes to record after a letter of an operation was settled under its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemOutcomes {
    /// Outcomes of the letters with these ordinals that have none yet: record them, and pass their number to
    /// [`OperationMachine::count`].
    pub outcomes: Vec<(RangeInclusive<u64>, Outcome)>,
    /// `true` if the operation continues with the letters behind it, unless it is over by then. If it does not, the reservation of the
    /// sequence that the letter had when the plan was frozen ends. That is another one than its current sequence if it has left it.
    pub continues: bool,
}

/// Decides the outcomes of a letter that was settled under a lease of its operation, and of those behind it.
pub fn item_outcomes(item: &Pending, outcome: Outcome) -> ItemOutcomes {
    let mut outcomes = vec![(item.ordinal..=item.ordinal, outcome)];
    if outcome == Outcome::FailedAgain && item.ordinal < item.last {
        // I2: letters behind it may not overtake it.
        outcomes.push((item.ordinal + 1..=item.last, Outcome::SkippedBehindFailed));
    }
    ItemOutcomes { outcomes, continues: outcome == Outcome::Ok && item.ordinal < item.last }
}

/// Decides whether an operation takes a letter that a settlement under its lease made the head of the sequence, as a poll would, and
/// deducts it from the rate.
///
/// The machine has counted the outcome of the settled letter and was advanced: the stages, the stop rule and commands hold. The view has
/// the row [after the settlement](super::Settle::untaken).
pub fn takes_next(machine: &mut OperationMachine, item: &Pending, view: &ItemView<'_>) -> bool {
    let may_run = item.ordinal < machine.allowance() && machine.pace(view.now) > 0;
    let takes = may_run && item_action(&machine.operation, item, view) == ItemAction::Try;
    if takes {
        machine.spend(1, view.now);
    }
    takes
}

/// One call of [`poll_work`](crate::store::Operations::poll_work): the letters so far, and when to poll again.
///
/// For each operation that has letters of the queue without an outcome, the least recently served first: advance it, then
/// call [`begin`](Self::begin). While it runs, the store looks up the next pending letter from [`StageCursor::from`] on and calls
/// [`step`](Self::step), until the stage is over.
#[derive(Debug)]
pub struct Poll {
    limit: usize,
    now: Timestamp,
    given: usize,
    skipped: u64,
    work: PolledWork,
}

/// The decision of a poll about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollDecision {
    /// Nothing now.
    Nothing,
    /// Its letters may run.
    Run(StageCursor),
    /// A person has ended it: its letters are skipped, except those [in flight](is_tried).
    Sweep,
}

/// The position of a poll in the current stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageCursor {
    from: u64,
    allowance: u64,
}

impl StageCursor {
    /// The lowest ordinal of the next pending letter.
    pub const fn from(&self) -> u64 {
        self.from
    }

    /// Goes on behind a letter that has its outcome by now.
    pub const fn pass(&mut self, item: &Pending) {
        self.from = item.ordinal + 1;
    }
}

/// The next step of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollStep {
    /// Load this letter, call [`item_action`], and perform the action.
    Inspect,
    /// The stage has no more letters: advance the operation, then call [`Poll::next_stage`].
    StageDone,
    /// Stop. Polling continues at this time.
    Stop(Timestamp),
}

impl Poll {
    /// A call that returns at most `limit` letters.
    pub fn new(limit: usize, now: Timestamp) -> Self {
        Self { limit, now, given: 0, skipped: 0, work: PolledWork::default() }
    }

    /// Number of letters tried or acted upon so far.
    pub const fn given(&self) -> usize {
        self.given
    }

    /// Requests another poll at this time, or earlier.
    pub fn again(&mut self, at: Timestamp) {
        self.work.again_at = Some(self.work.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Decides about an operation that was advanced.
    pub fn begin(&mut self, machine: &OperationMachine) -> PollDecision {
        match machine.operation.state {
            OperationState::Running => {
                PollDecision::Run(StageCursor { from: 0, allowance: machine.allowance() })
            }
            OperationState::Scheduled => {
                self.again(machine.operation.rollout.start_at.unwrap_or(self.now));
                PollDecision::Nothing
            }
            OperationState::Cancelled | OperationState::Rejected => PollDecision::Sweep,
            _ => PollDecision::Nothing,
        }
    }

    /// Decides the step for the next pending letter of the queue, if there is one.
    pub fn step(&self, machine: &OperationMachine, stage: &StageCursor, item: Option<&Pending>) -> PollStep {
        if item.is_none_or(|item| item.ordinal >= stage.allowance) {
            return PollStep::StageDone;
        }
        if self.given >= self.limit || self.skipped >= SKIPS {
            return PollStep::Stop(self.now);
        }
        if machine.pace(self.now) == 0 {
            return PollStep::Stop(machine.pace_at(self.now));
        }
        PollStep::Inspect
    }

    /// Records a claimed letter.
    pub fn tried(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
        claim: Claim,
    ) {
        self.work.items.push(WorkItem { operation: machine.operation.id, claim });
        self.given += 1;
        machine.spend(1, self.now);
        // Letters behind it run after it.
        stage.from = item.last + 1;
    }

    /// Records an act.
    pub fn acted(&mut self, machine: &mut OperationMachine, stage: &mut StageCursor, item: &Pending) {
        machine.count(Outcome::Ok, 1, self.now);
        machine.spend(1, self.now);
        self.work.settled += 1;
        self.given += 1;
        stage.from = item.ordinal + 1;
    }

    /// The index from which letters of a sequence run automatically after an act on the last of its letters in the plan, if the
    /// operation has a rate: that bounds them, too. The store [counts](super::released_letters) them and asks for their
    /// [pace](Self::paced).
    pub fn released_from(
        &self,
        machine: &OperationMachine,
        item: &Pending,
        row: &SequenceRow,
    ) -> Option<u64> {
        let is_last = item.ordinal == item.last && !row.is_leased(self.now);
        row.released_from().filter(|_| is_last && machine.has_rate())
    }

    /// The row of a sequence of which the operation has released so many letters. The store writes it.
    pub fn paced(
        &self,
        machine: &mut OperationMachine,
        letters: u64,
        row: &SequenceRow,
    ) -> Option<SequenceRow> {
        let pace = machine.pace_released(letters, self.now)?;
        Some(row.clone().paced(pace, self.now))
    }

    /// Records a letter that was skipped as [`SkippedChanged`](Outcome::SkippedChanged). Returns `true` if the reservation of its
    /// sequence for the operation ends: of the one that it had when the plan was frozen.
    pub fn skipped(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
    ) -> bool {
        machine.count(Outcome::SkippedChanged, 1, self.now);
        self.work.settled += 1;
        self.skipped += 1;
        stage.from = item.ordinal + 1;
        item.ordinal == item.last
    }

    /// Records a postponed letter.
    pub fn postponed(&self, machine: &OperationMachine, stage: &mut StageCursor, item: &Pending) {
        // Letters behind one that is to be tried wait for it, too.
        let whole = machine.operation.action == Action::Retry;
        stage.from = if whole { item.last + 1 } else { item.ordinal + 1 };
    }

    /// Records a letter of an operation that a person has ended. Returns `true` if it is skipped as
    /// [`SkippedCancelled`](Outcome::SkippedCancelled), because its lease was lost.
    pub fn swept(&mut self, machine: &mut OperationMachine, tried: bool) -> bool {
        if tried {
            self.again(self.now + OperationMachine::POLL_INTERVAL);
        } else {
            machine.count(Outcome::SkippedCancelled, 1, self.now);
            self.work.settled += 1;
        }
        !tried
    }

    /// The next stage of an operation that was advanced; `None` if there is none now.
    pub fn next_stage(&self, machine: &OperationMachine, stage: &StageCursor) -> Option<StageCursor> {
        let allowance = machine.allowance();
        (allowance > stage.allowance).then_some(StageCursor { from: 0, allowance })
    }

    /// Ends the poll of a running operation. `stopped` is the time of [`PollStep::Stop`], `left` is `true`
    /// if letters of the queue have no outcome yet.
    pub fn end(&mut self, machine: &OperationMachine, stopped: Option<Timestamp>, left: bool) {
        if machine.operation.state == OperationState::Running && left {
            self.again(stopped.unwrap_or(self.now + OperationMachine::POLL_INTERVAL));
        }
    }

    /// The result of the call.
    pub fn finish(self) -> PolledWork {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::effects::LetterView;
    use super::super::sequence::LeaseKind;
    use super::*;
    use crate::message::{Message, Position, QueueName};
    use crate::store::{Actor, OperationId, Plan, PlanId, RolloutPolicy};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn letter(state: LetterState) -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload("p");
        let mut letter = Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), NOW);
        (letter.state, letter.index) = (state, 10);
        letter
    }

    fn machine(action: Action) -> OperationMachine {
        let by = Actor::new("ada", "cli", "it is back");
        let plan = Plan {
            id: PlanId(1),
            action,
            query: None,
            letters: 3,
            sequences: 1,
            followers: 0,
            excluded: Vec::new(),
            hash: String::new(),
            by: by.clone(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        };
        OperationMachine::begin(OperationId(1), &plan, &RolloutPolicy::unlimited(), &by, NOW).unwrap()
    }

    fn item(letter: &Letter, state: LetterState) -> Pending {
        Pending { ordinal: 0, last: 2, letter: letter.id, state, digest: Some(digest(letter)) }
    }

    fn digest(letter: &Letter) -> PayloadDigest {
        PayloadDigest::of(letter.message.payload.as_deref())
    }

    #[test]
    fn a_letter_with_another_payload_than_the_planned_one_is_skipped() {
        let letter = letter(LetterState::Dead);
        let row = SequenceRow::opened(LetterView::of(&letter).head(NOW), false);
        let digest = digest(&letter);
        let view = ItemView { letter: Some(&letter), digest, row: Some(&row), in_earlier: false, now: NOW };
        for action in Action::ALL {
            let operation = machine(action).operation;
            let item = item(&letter, LetterState::Dead);
            assert_ne!(item_action(&operation, &item, &view), ItemAction::Skip, "{action}");
            let edited = ItemView { digest: PayloadDigest::of(Some(b"other")), ..view };
            assert_eq!(item_action(&operation, &item, &edited), ItemAction::Skip, "{action}");
            let of_an_earlier_version = Pending { digest: None, ..item };
            assert_ne!(
                item_action(&operation, &of_an_earlier_version, &edited),
                ItemAction::Skip,
                "{action}"
            );
        }
    }

    #[test]
    fn the_action_depends_on_the_current_state_of_the_letter() {
        use LetterState::{Dead, Parked, Quarantined, Resolved};
        let bare = Letter { payload_left_out: true, ..letter(Dead) };
        for (action, letter, frozen, expected) in [
            (Action::Retry, letter(Dead), Dead, ItemAction::Try),
            (Action::Retry, letter(Quarantined), Dead, ItemAction::Skip),
            (Action::Retry, letter(Quarantined), Quarantined, ItemAction::Try),
            (Action::Retry, letter(Resolved), Dead, ItemAction::Skip),
            (Action::Retry, bare.clone(), Dead, ItemAction::Skip),
            (Action::Release, bare, Dead, ItemAction::Skip),
            (Action::Park, letter(Parked), Dead, ItemAction::Skip),
            (Action::Park, letter(Dead), Dead, ItemAction::Act(Act::Park)),
            (Action::Evict, letter(Quarantined), Dead, ItemAction::Act(Act::Evict)),
        ] {
            let row = SequenceRow::opened(LetterView::of(&letter).head(NOW), false);
            let view = ItemView {
                letter: Some(&letter),
                digest: digest(&letter),
                row: Some(&row),
                in_earlier: false,
                now: NOW,
            };
            let operation = machine(action).operation;
            assert_eq!(item_action(&operation, &item(&letter, frozen), &view), expected, "{action} {frozen}");
            if expected != ItemAction::Skip {
                let earlier = ItemView { in_earlier: true, ..view };
                assert_eq!(item_action(&operation, &item(&letter, frozen), &earlier), ItemAction::Skip);
                let leased = row.claimed("w", Duration::from_secs(9), LeaseKind::Due, 1, NOW);
                let held = ItemView { row: Some(&leased), ..view };
                assert_eq!(item_action(&operation, &item(&letter, frozen), &held), ItemAction::Postpone);
            }
        }
    }

    #[test]
    fn a_letter_behind_the_head_is_not_tried() {
        // I2
        let letter = letter(LetterState::Dead);
        let mut row = SequenceRow::opened(LetterView::of(&letter).head(NOW), false);
        row.head.index = 3;
        let view = ItemView {
            letter: Some(&letter),
            digest: digest(&letter),
            row: Some(&row),
            in_earlier: false,
            now: NOW,
        };
        let operation = machine(Action::Retry).operation;
        assert_eq!(item_action(&operation, &item(&letter, LetterState::Dead), &view), ItemAction::Skip);
    }

    #[test]
    fn a_repeated_failure_skips_the_letters_behind_it() {
        let letter = letter(LetterState::Dead);
        let failed = item_outcomes(&item(&letter, letter.state), Outcome::FailedAgain);
        assert_eq!(failed.outcomes[1], (1..=2, Outcome::SkippedBehindFailed));
        assert!(!failed.continues);
        let went_well = item_outcomes(&item(&letter, letter.state), Outcome::Ok);
        assert_eq!(went_well, ItemOutcomes { outcomes: vec![(0..=0, Outcome::Ok)], continues: true });
    }

    #[test]
    fn an_operation_takes_the_next_letter_only_if_a_poll_would() {
        let letter = letter(LetterState::Dead);
        let row = SequenceRow::opened(LetterView::of(&letter).head(NOW), false);
        let digest = digest(&letter);
        let view = ItemView { letter: Some(&letter), digest, row: Some(&row), in_earlier: false, now: NOW };
        let item = Pending { ordinal: 1, ..item(&letter, letter.state) };
        let with = |rollout: RolloutPolicy| {
            let mut machine = machine(Action::Retry);
            machine.operation.rollout = rollout;
            machine
        };
        let all = RolloutPolicy::unlimited;
        assert!(takes_next(&mut with(all()), &item, &view));
        let paused = SequenceRow { paused: true, ..row.clone() };
        assert!(!takes_next(&mut with(all()), &item, &ItemView { row: Some(&paused), ..view }));
        assert!(!takes_next(&mut with(all()), &item, &ItemView { in_earlier: true, ..view }));
        let stage = RolloutPolicy { ramp: vec![1], ..all() };
        assert!(!takes_next(&mut with(stage), &item, &view), "the stage before is not over");
        let mut held = with(all());
        held.operation.state = OperationState::Paused;
        assert!(!takes_next(&mut held, &item, &view));
        // The burst of this rate is one letter.
        let mut slow = with(RolloutPolicy { rate: Some(1.0), ..all() });
        assert!(takes_next(&mut slow, &item, &view));
        assert!(!takes_next(&mut slow, &item, &view), "it was deducted from the rate");
    }

    #[test]
    fn a_poll_ends_at_its_limit_and_continues_at_once() {
        let mut machine = machine(Action::Evict);
        let mut poll = Poll::new(1, NOW);
        let PollDecision::Run(mut stage) = poll.begin(&machine) else { panic!("it is running") };
        let letter = letter(LetterState::Dead);
        let item = item(&letter, letter.state);
        assert_eq!(poll.step(&machine, &stage, Some(&item)), PollStep::Inspect);
        poll.acted(&mut machine, &mut stage, &item);
        assert_eq!(stage.from(), 1);
        assert_eq!(poll.step(&machine, &stage, Some(&item)), PollStep::Stop(NOW));
        assert_eq!(poll.step(&machine, &stage, None), PollStep::StageDone);
        poll.end(&machine, Some(NOW), true);
        let work = poll.finish();
        assert_eq!((work.settled, work.again_at), (1, Some(NOW)));
    }
}
