//! Letters of operations: whose turn has come, what their turn asks for, and what becomes of them.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use super::sequence::SequenceRow;
use crate::letter::{Letter, LetterId, LetterState};
use crate::store::{
    Act, Action, Claim, Operation, OperationMachine, OperationState, Outcome, PolledWork, WorkItem,
};

/// How many letters are skipped in one call at most, so that it stays short.
const SKIPS: u64 = 1000;

/// One letter of an operation that has no outcome yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its place in the plan.
    pub ordinal: u64,
    /// The place of the last letter of its sequence.
    pub last: u64,
    /// The letter.
    pub letter: LetterId,
    /// Its state when it was frozen.
    pub state: LetterState,
}

/// What a store knows of a letter whose turn may have come.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'a> {
    /// The letter, if it is stored.
    pub letter: Option<&'a Letter>,
    /// The row of its sequence, if it is open.
    pub row: Option<&'a SequenceRow>,
    /// Whether an operation that was begun earlier, and is not over, has this letter still before it.
    pub in_earlier: bool,
    /// The time.
    pub now: Timestamp,
}

/// What the turn of a letter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Claim its sequence for the operation, and hand it out.
    Try,
    /// Do this to it, in the name of [`OperationMachine::actor`].
    Act(Act),
    /// Leave it out: it is not what it was when the plan was frozen.
    Skip,
    /// Come back: somebody holds its sequence, or a pause does.
    Later,
}

/// Decides what the turn of a letter asks for.
pub fn turn(operation: &Operation, item: &Pending, view: &ItemView<'_>) -> Turn {
    let letter = view.letter.filter(|letter| letter.state.is_open());
    let (Some(letter), Some(row)) = (letter, view.row) else { return Turn::Skip };
    // Somebody has put it into quarantine since.
    let quarantined = letter.state == LetterState::Quarantined && item.state != LetterState::Quarantined;
    if let Some(act) = operation.action.act() {
        let changed = match act {
            Act::Park => letter.state == LetterState::Parked,
            Act::Release => quarantined || letter.payload_left_out,
            _ => false,
        };
        return match row.is_in_work(letter.index, view.now) {
            true => Turn::Later,
            false if changed || view.in_earlier => Turn::Skip,
            false => Turn::Act(act),
        };
    }
    if row.is_leased(view.now) || row.paused {
        return Turn::Later;
    }
    // I2: what is not the head would overtake.
    let changed = letter.index != row.head.index || quarantined || view.in_earlier || letter.payload_left_out;
    if changed { Turn::Skip } else { Turn::Try }
}

/// Whether a letter is being tried for this operation now: it is finished and counted whatever is said meanwhile.
pub fn is_tried(operation: &Operation, view: &ItemView<'_>) -> bool {
    let (Some(letter), Some(row)) = (view.letter, view.row) else { return false };
    letter.state.is_open() && letter.index == row.head.index && row.operation(view.now) == Some(operation.id)
}

/// What is written down when a letter of an operation got an outcome under its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemOutcomes {
    /// What became of the letters with these ordinals that have no outcome yet: write it down, and tell
    /// [`OperationMachine::count`] how many there were.
    pub outcomes: Vec<(RangeInclusive<u64>, Outcome)>,
    /// Whether the operation goes on with the letters behind it, unless it is over then.
    pub goes_on: bool,
}

/// Decides what becomes of a letter that was settled under a lease of its operation, and of those behind it.
pub fn item_outcomes(item: &Pending, outcome: Outcome) -> ItemOutcomes {
    let mut outcomes = vec![(item.ordinal..=item.ordinal, outcome)];
    if outcome == Outcome::FailedAgain && item.ordinal < item.last {
        // I2: nothing behind it may overtake it.
        outcomes.push((item.ordinal + 1..=item.last, Outcome::SkippedBehindFailed));
    }
    ItemOutcomes { outcomes, goes_on: outcome == Outcome::Ok && item.ordinal < item.last }
}

/// One call of [`poll_work`](crate::store::Operations::poll_work): what was handed out so far, and when it is worth asking again.
///
/// For each operation that has letters of the queue without an outcome, the one served longest ago first: advance it, then
/// ask [`begin`](Self::begin). In a [`Round`] the store looks for the next pending letter from [`Round::from`] on and asks
/// [`step`](Self::step), until it is over.
#[derive(Debug)]
pub struct Poll {
    limit: usize,
    now: Timestamp,
    given: usize,
    skipped: u64,
    work: PolledWork,
}

/// What a poll does with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Nothing now.
    Nothing,
    /// Its letters have their turn.
    Run(Stage),
    /// It was cancelled: its letters are skipped, but those that [are tried](is_tried).
    Sweep,
}

/// Where a poll stands in the current stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    from: u64,
    allowance: u64,
}

impl Stage {
    /// Look for pending letters from this ordinal on.
    pub const fn from(&self) -> u64 {
        self.from
    }
}

/// What a poll asks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollStep {
    /// Look at this letter, ask [`turn`], and do it.
    Look,
    /// The stage has nothing more: advance the operation, then ask [`Poll::next_stage`].
    StageOver,
    /// Stop here. It goes on at this time.
    Stop(Timestamp),
}

impl Poll {
    /// A call that hands out at most `limit` letters.
    pub fn new(limit: usize, now: Timestamp) -> Self {
        Self { limit, now, given: 0, skipped: 0, work: PolledWork::default() }
    }

    /// How many letters had their turn so far.
    pub const fn given(&self) -> usize {
        self.given
    }

    /// Says when it is worth asking again.
    pub fn again(&mut self, at: Timestamp) {
        self.work.again_at = Some(self.work.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// What to do with an operation that was advanced.
    pub fn begin(&mut self, machine: &OperationMachine) -> Round {
        match machine.operation.state {
            OperationState::Running => Round::Run(Stage { from: 0, allowance: machine.allowance() }),
            OperationState::Scheduled => {
                self.again(machine.operation.rollout.start_at.unwrap_or(self.now));
                Round::Nothing
            }
            OperationState::Cancelled => Round::Sweep,
            _ => Round::Nothing,
        }
    }

    /// What to do with the next pending letter of the queue, if there is one.
    pub fn step(&self, machine: &OperationMachine, stage: &Stage, item: Option<&Pending>) -> PollStep {
        if item.is_none_or(|item| item.ordinal >= stage.allowance) {
            return PollStep::StageOver;
        }
        if self.given >= self.limit || self.skipped >= SKIPS {
            return PollStep::Stop(self.now);
        }
        if machine.pace(self.now) == 0 {
            return PollStep::Stop(machine.pace_at(self.now));
        }
        PollStep::Look
    }

    /// A letter was claimed.
    pub fn tried(&mut self, machine: &mut OperationMachine, stage: &mut Stage, item: &Pending, claim: Claim) {
        self.work.items.push(WorkItem { operation: machine.operation.id, claim });
        self.given += 1;
        machine.spend(1, self.now);
        // Those behind it have their turn after it.
        stage.from = item.last + 1;
    }

    /// An act was done.
    pub fn acted(&mut self, machine: &mut OperationMachine, stage: &mut Stage, item: &Pending) {
        machine.count(Outcome::Ok, 1, self.now);
        machine.spend(1, self.now);
        self.work.settled += 1;
        self.given += 1;
        stage.from = item.ordinal + 1;
    }

    /// A letter was left out, as [`SkippedChanged`](Outcome::SkippedChanged). Whether its sequence is not the operation's
    /// any more, if it was reserved for it.
    pub fn skipped(&mut self, machine: &mut OperationMachine, stage: &mut Stage, item: &Pending) -> bool {
        machine.count(Outcome::SkippedChanged, 1, self.now);
        self.work.settled += 1;
        self.skipped += 1;
        stage.from = item.ordinal + 1;
        item.ordinal == item.last
    }

    /// A letter is left for a later call.
    pub fn postponed(&self, machine: &OperationMachine, stage: &mut Stage, item: &Pending) {
        // Those behind one that is to be tried must wait for it, too.
        let whole = machine.operation.action == Action::Retry;
        stage.from = if whole { item.last + 1 } else { item.ordinal + 1 };
    }

    /// A letter of a cancelled operation was looked at. Whether it is skipped, as
    /// [`SkippedCancelled`](Outcome::SkippedCancelled): its lease was lost.
    pub fn swept(&mut self, machine: &mut OperationMachine, tried: bool) -> bool {
        if tried {
            self.again(self.now + OperationMachine::ASK_AGAIN);
        } else {
            machine.count(Outcome::SkippedCancelled, 1, self.now);
            self.work.settled += 1;
        }
        !tried
    }

    /// The next stage of an operation that was advanced; `None` when it has none now.
    pub fn next_stage(&self, machine: &OperationMachine, stage: &Stage) -> Option<Stage> {
        let allowance = machine.allowance();
        (allowance > stage.allowance).then_some(Stage { from: 0, allowance })
    }

    /// A running operation is done with for this call. `stopped` is when [`step`](Self::step) said to go on, `left`
    /// whether letters of the queue have no outcome yet.
    pub fn end(&mut self, machine: &OperationMachine, stopped: Option<Timestamp>, left: bool) {
        if machine.operation.state == OperationState::Running && left {
            self.again(stopped.unwrap_or(self.now + OperationMachine::ASK_AGAIN));
        }
    }

    /// What the call gives.
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
            excluded: Vec::new(),
            hash: String::new(),
            by: by.clone(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        };
        OperationMachine::begin(OperationId(1), &plan, &RolloutPolicy::unlimited(), &by, NOW).unwrap()
    }

    fn item(letter: &Letter, state: LetterState) -> Pending {
        Pending { ordinal: 0, last: 2, letter: letter.id, state }
    }

    #[test]
    fn a_turn_asks_for_what_the_letter_allows_now() {
        use LetterState::{Dead, Parked, Quarantined, Resolved};
        let bare = Letter { payload_left_out: true, ..letter(Dead) };
        for (action, letter, frozen, expected) in [
            (Action::Retry, letter(Dead), Dead, Turn::Try),
            (Action::Retry, letter(Quarantined), Dead, Turn::Skip),
            (Action::Retry, letter(Quarantined), Quarantined, Turn::Try),
            (Action::Retry, letter(Resolved), Dead, Turn::Skip),
            (Action::Retry, bare.clone(), Dead, Turn::Skip),
            (Action::Release, bare, Dead, Turn::Skip),
            (Action::Park, letter(Parked), Dead, Turn::Skip),
            (Action::Park, letter(Dead), Dead, Turn::Act(Act::Park)),
            (Action::Evict, letter(Quarantined), Dead, Turn::Act(Act::Evict)),
        ] {
            let row = SequenceRow::opened(LetterView::of(&letter).head(), false);
            let view = ItemView { letter: Some(&letter), row: Some(&row), in_earlier: false, now: NOW };
            let operation = machine(action).operation;
            assert_eq!(turn(&operation, &item(&letter, frozen), &view), expected, "{action} {frozen}");
            if expected != Turn::Skip {
                let earlier = ItemView { in_earlier: true, ..view };
                assert_eq!(turn(&operation, &item(&letter, frozen), &earlier), Turn::Skip);
                let leased = row.claimed("w", Duration::from_secs(9), LeaseKind::Due, 1, NOW);
                let held = ItemView { row: Some(&leased), ..view };
                assert_eq!(turn(&operation, &item(&letter, frozen), &held), Turn::Later);
            }
        }
    }

    #[test]
    fn what_is_not_the_head_is_not_tried() {
        // I2
        let letter = letter(LetterState::Dead);
        let mut row = SequenceRow::opened(LetterView::of(&letter).head(), false);
        row.head.index = 3;
        let view = ItemView { letter: Some(&letter), row: Some(&row), in_earlier: false, now: NOW };
        let operation = machine(Action::Retry).operation;
        assert_eq!(turn(&operation, &item(&letter, LetterState::Dead), &view), Turn::Skip);
    }

    #[test]
    fn a_letter_that_failed_again_takes_those_behind_it_along() {
        let letter = letter(LetterState::Dead);
        let failed = item_outcomes(&item(&letter, letter.state), Outcome::FailedAgain);
        assert_eq!(failed.outcomes[1], (1..=2, Outcome::SkippedBehindFailed));
        assert!(!failed.goes_on);
        let went_well = item_outcomes(&item(&letter, letter.state), Outcome::Ok);
        assert_eq!(went_well, ItemOutcomes { outcomes: vec![(0..=0, Outcome::Ok)], goes_on: true });
    }

    #[test]
    fn a_poll_ends_at_its_limit_and_goes_on_at_once() {
        let mut machine = machine(Action::Evict);
        let mut poll = Poll::new(1, NOW);
        let Round::Run(mut stage) = poll.begin(&machine) else { panic!("it is running") };
        let letter = letter(LetterState::Dead);
        let item = item(&letter, letter.state);
        assert_eq!(poll.step(&machine, &stage, Some(&item)), PollStep::Look);
        poll.acted(&mut machine, &mut stage, &item);
        assert_eq!(stage.from(), 1);
        assert_eq!(poll.step(&machine, &stage, Some(&item)), PollStep::Stop(NOW));
        assert_eq!(poll.step(&machine, &stage, None), PollStep::StageOver);
        poll.end(&machine, Some(NOW), true);
        let work = poll.finish();
        assert_eq!((work.settled, work.again_at), (1, Some(NOW)));
    }
}
