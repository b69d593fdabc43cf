//! The letters of operations: the action on each, and their outcomes.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use super::sequence::SequenceRow;
use crate::letter::{Letter, LetterId, LetterState};
use crate::store::{Act, Operation, OperationMachine, Outcome, PayloadDigest};

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

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::effects::LetterView;
    use super::super::sequence::LeaseKind;
    use super::*;
    use crate::message::{Message, Position, QueueName};
    use crate::store::{Action, Actor, OperationId, OperationState, Plan, PlanId, RolloutPolicy};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn letter(state: LetterState) -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload("p");
        let mut letter = Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), NOW);
        (letter.state, letter.index) = (state, 10);
        letter
    }

    pub(in super::super) fn machine(action: Action) -> OperationMachine {
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
}
