//! A poll of operations: which letters of which operation come next, and the order of the questions, once for all stores.

use jiff::Timestamp;

use super::polling::{ItemAction, ItemView, Pending, item_action};
use super::sequence::SequenceRow;
use crate::store::{Action, Claim, OperationMachine, OperationState, Outcome, PolledWork, WorkItem};

/// Maximum number of skipped letters per call, which bounds its duration.
const SKIPS: u64 = 1000;

/// One call of [`poll_work`](crate::store::Operations::poll_work): the letters so far, and when to poll again.
///
/// The store makes a [`Serving`] of each operation that has letters of the queue without an outcome, the least recently served first.
#[derive(Debug)]
pub struct Poll {
    limit: usize,
    now: Timestamp,
    given: usize,
    skipped: u64,
    work: PolledWork,
}

impl Poll {
    /// A call that returns at most `limit` letters.
    pub fn new(limit: usize, now: Timestamp) -> Self {
        Self { limit, now, given: 0, skipped: 0, work: PolledWork::default() }
    }

    /// Number of letters that it may still return.
    pub const fn room(&self) -> usize {
        self.limit.saturating_sub(self.given)
    }

    /// The result of the call.
    pub fn finish(self) -> PolledWork {
        self.work
    }

    /// Requests another poll at this time, or earlier.
    fn again(&mut self, at: Timestamp) {
        self.work.again_at = Some(self.work.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When the next letter may run; `None` if it may now.
    fn stops(&self, machine: &OperationMachine) -> Option<Timestamp> {
        if self.room() == 0 || self.skipped >= SKIPS {
            return Some(self.now);
        }
        (machine.pace(self.now) == 0).then(|| machine.pace_at(self.now))
    }
}

/// What a [`Serving`] asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Advance [`Serving::machine`] as far as it goes, with the lowest ordinal of its plan that has no outcome. Then
    /// [`advanced`](Serving::advanced).
    Advance,
    /// The next letter of the queue without an outcome, from this ordinal on: [`pending`](Serving::pending). A store may leave out
    /// letters whose sequences are leased.
    Pending(u64),
    /// The state of this letter. Ask [`action`](Serving::action), and perform the answer together with the outcome of the letter.
    /// Then [`tried`](Serving::tried), [`acted`](Serving::acted), [`skipped`](Serving::skipped) or
    /// [`postponed`](Serving::postponed). If another transaction holds the sequence: [`postponed`](Serving::postponed). If the letter
    /// has its outcome by now: [`passed`](Serving::passed).
    Item(Pending),
    /// The row of the sequence of this letter, if it is open. Ask [`released_from`](Serving::released_from), count the
    /// [letters](super::released_letters), ask [`pace`](Serving::pace), and write that row. Then [`paced`](Serving::paced).
    Pace(Pending),
    /// Skip letters of the queue without an outcome, except those [in flight](super::is_tried): a person has ended the operation.
    /// Then [`swept`](Serving::swept).
    Sweep,
    /// Whether letters of the queue have no outcome: [`left`](Serving::left).
    Left,
    /// Nothing: store [`Serving::machine`].
    Done,
}

/// One operation in a [`Poll`]: asks for what it needs, until it is [done](Need::Done).
///
/// ```text
///   Advance ──► Pending ──► Item ──► Pace ──┐
///     │  ▲       ▲   │                      │
///     │  └───────│───┘ stage over           │
///     │          └──────────────────────────┘ ──► Left ──► Done
///     └─► Sweep ──► Done
/// ```
#[derive(Debug)]
pub struct Serving<'a> {
    /// The operation. The store changes it only by [advancing](Need::Advance) it.
    pub machine: OperationMachine,
    poll: &'a mut Poll,
    /// The lowest ordinal of the next letter.
    from: u64,
    /// Letters with an ordinal below this may run in the stage.
    allowance: u64,
    step: Step,
    given: usize,
}

/// The question that was asked.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    Pending,
    Item(Pending),
    Pace(Pending),
    StageOver,
    /// When to continue, if known.
    Left(Option<Timestamp>),
    Sweep,
    Done,
}

/// The letters of an operation that a person has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of letters that were skipped as [`SkippedCancelled`](Outcome::SkippedCancelled).
    pub skipped: u64,
    /// `true` if further letters are to be skipped by the next poll.
    pub more: bool,
    /// `true` if letters are in flight.
    pub in_flight: bool,
}

impl<'a> Serving<'a> {
    /// Begins with an operation that has letters of the queue without an outcome.
    pub const fn new(poll: &'a mut Poll, machine: OperationMachine) -> Self {
        Self { machine, poll, from: 0, allowance: 0, step: Step::Begin, given: 0 }
    }

    /// What it needs next.
    pub const fn next(&self) -> Need {
        match self.step {
            Step::Begin | Step::StageOver => Need::Advance,
            Step::Pending => Need::Pending(self.from),
            Step::Item(item) => Need::Item(item),
            Step::Pace(item) => Need::Pace(item),
            Step::Left(_) => Need::Left,
            Step::Sweep => Need::Sweep,
            Step::Done => Need::Done,
        }
    }

    /// Number of letters of the operation that were tried or acted upon.
    pub const fn given(&self) -> usize {
        self.given
    }

    /// Number of letters that may be tried now, at most.
    pub fn room(&self) -> usize {
        let paced = usize::try_from(self.machine.pace(self.poll.now)).unwrap_or(usize::MAX);
        self.poll.room().min(paced)
    }

    /// Continues with an operation that was advanced.
    pub fn advanced(&mut self) {
        let operation = &self.machine.operation;
        self.step = match (self.step, operation.state) {
            (Step::Begin, OperationState::Scheduled) => {
                self.poll.again(operation.rollout.start_at.unwrap_or(self.poll.now));
                Step::Done
            }
            (Step::Begin, OperationState::Cancelled | OperationState::Rejected) => Step::Sweep,
            (Step::Begin, state) if state != OperationState::Running => Step::Done,
            _ if self.machine.allowance() > self.allowance => {
                (self.from, self.allowance) = (0, self.machine.allowance());
                Step::Pending
            }
            _ => Step::Left(None),
        };
    }

    /// Continues with the next letter of the queue without an outcome.
    pub fn pending(&mut self, item: Option<Pending>) {
        self.step = match item.filter(|item| item.ordinal < self.allowance) {
            None => Step::StageOver,
            Some(item) => match self.poll.stops(&self.machine) {
                Some(at) => Step::Left(Some(at)),
                None => Step::Item(item),
            },
        };
    }

    /// Decides the action on a letter.
    pub fn action(&self, item: &Pending, view: &ItemView<'_>) -> ItemAction {
        item_action(&self.machine.operation, item, view)
    }

    /// Records a letter whose sequence was leased.
    pub fn tried(&mut self, item: &Pending, claim: Claim) {
        self.tried_ahead(claim);
        // Letters behind it run after it.
        self.go_on(item.last + 1);
    }

    /// Records a letter that the store leased ahead, in one call with other letters, if the poll [stops](Need::Left) before it asks for
    /// that letter. No other process finds the letter before its lease ends.
    pub fn tried_ahead(&mut self, claim: Claim) {
        self.poll.work.items.push(WorkItem { operation: self.machine.operation.id, claim });
        self.give();
    }

    /// Records a letter that was acted upon.
    pub fn acted(&mut self, item: &Pending) {
        self.machine.count(Outcome::Ok, 1, self.poll.now);
        self.poll.work.settled += 1;
        self.give();
        self.go_on(item.ordinal + 1);
        // Letters that the last act on a sequence lets run are bounded by the rate, too.
        if item.ordinal == item.last && self.machine.has_rate() {
            self.step = Step::Pace(*item);
        }
    }

    /// Records a letter that was skipped as [`SkippedChanged`](Outcome::SkippedChanged).
    pub fn skipped(&mut self, item: &Pending) {
        self.machine.count(Outcome::SkippedChanged, 1, self.poll.now);
        self.poll.work.settled += 1;
        self.poll.skipped += 1;
        self.go_on(item.ordinal + 1);
    }

    /// Records a letter whose sequence is leased, paused, or held by another transaction.
    pub fn postponed(&mut self, item: &Pending) {
        // Letters behind one that is to be tried wait for it, too.
        let whole = self.machine.operation.action == Action::Retry;
        self.go_on(if whole { item.last + 1 } else { item.ordinal + 1 });
    }

    /// Goes on behind a letter that has its outcome by now.
    pub const fn passed(&mut self, item: &Pending) {
        self.go_on(item.ordinal + 1);
    }

    /// The index from which letters of a sequence run automatically after an act, if the rate of the operation bounds them.
    pub fn released_from(&self, row: &SequenceRow) -> Option<u64> {
        row.released_from().filter(|_| !row.is_leased(self.poll.now) && self.machine.has_rate())
    }

    /// The row of a sequence of which an act has released so many letters, and the number that it paces.
    pub fn pace(&self, letters: u64, row: &SequenceRow) -> Option<(SequenceRow, u64)> {
        let pace = self.machine.clone().pace_released(letters, self.poll.now)?;
        let paced = pace.left;
        Some((row.clone().paced(pace, self.poll.now), paced))
    }

    /// Goes on after so many released letters got their pace.
    pub fn paced(&mut self, letters: u64) {
        self.machine.pace_released(letters, self.poll.now);
        self.step = Step::Pending;
    }

    /// Records the letters of an operation that a person has ended.
    pub fn swept(&mut self, swept: Swept) {
        let Swept { skipped, more, in_flight } = swept;
        self.machine.count(Outcome::SkippedCancelled, skipped, self.poll.now);
        self.poll.work.settled += skipped;
        if more {
            self.poll.again(self.poll.now);
        } else if in_flight {
            self.poll.again(self.poll.now + OperationMachine::POLL_INTERVAL);
        }
        self.step = Step::Done;
    }

    /// Ends the poll of a running operation. `left` is `true` if letters of the queue have no outcome yet.
    pub fn left(&mut self, left: bool) {
        if let (Step::Left(stopped), OperationState::Running, true) =
            (self.step, self.machine.operation.state, left)
        {
            self.poll.again(stopped.unwrap_or(self.poll.now + OperationMachine::POLL_INTERVAL));
        }
        self.step = Step::Done;
    }

    const fn go_on(&mut self, from: u64) {
        (self.from, self.step) = (from, Step::Pending);
    }

    fn give(&mut self) {
        self.machine.spend(1, self.poll.now);
        self.poll.given += 1;
        self.given += 1;
    }
}

impl Pending {
    /// `true` if the reservation of a sequence ends when this letter is skipped: of the one that it had when the plan was frozen.
    pub const fn is_last(&self) -> bool {
        self.ordinal == self.last
    }
}

#[cfg(test)]
mod tests {
    use super::super::polling::tests::machine;
    use super::super::sequence::{Head, LeaseKind};
    use super::*;
    use crate::letter::{Letter, LetterId, LetterState};
    use crate::message::{Message, Position, QueueName};
    use crate::sequence::SequenceId;
    use crate::store::RolloutPolicy;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn item(ordinal: u64, last: u64) -> Pending {
        let letter = LetterId::of(&QueueName::of("c", "c"), &format!("m-{ordinal}").into());
        Pending { ordinal, last, letter, state: LetterState::Dead, digest: None }
    }

    fn claim() -> Claim {
        let (queue, sequence) = (QueueName::of("c", "c"), SequenceId::from("k"));
        let message = Message::new("m", "s", Position::new(0, 0));
        let head = Letter::new(queue.clone(), sequence.clone(), message.into(), NOW);
        let row = row().claimed("w", std::time::Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        let lease = row.lease_of(&queue, &sequence).unwrap();
        Claim { lease, head, interrupted: false, lost: false }
    }

    fn row() -> SequenceRow {
        let head = Head { index: 7, due: Some(NOW), touched: NOW, group: None };
        SequenceRow { count: 3, ..SequenceRow::opened(head, false) }
    }

    /// A running operation with three letters, advanced.
    fn serving(poll: &mut Poll, action: Action, rollout: RolloutPolicy) -> Serving<'_> {
        let mut machine = machine(action);
        machine.operation.rollout = rollout;
        let mut serving = Serving::new(poll, machine);
        assert_eq!(serving.next(), Need::Advance);
        serving.advanced();
        serving
    }

    #[test]
    fn a_poll_ends_at_its_limit_and_continues_at_once() {
        let mut poll = Poll::new(1, NOW);
        let mut serving = serving(&mut poll, Action::Evict, RolloutPolicy::unlimited());
        assert_eq!(serving.next(), Need::Pending(0));
        serving.pending(Some(item(0, 2)));
        assert_eq!(serving.next(), Need::Item(item(0, 2)));
        serving.acted(&item(0, 2));
        assert_eq!((serving.given(), serving.next()), (1, Need::Pending(1)));
        serving.pending(Some(item(1, 2)));
        assert_eq!(serving.next(), Need::Left);
        serving.left(true);
        assert_eq!(serving.next(), Need::Done);
        let work = poll.finish();
        assert_eq!((work.settled, work.again_at), (1, Some(NOW)));
    }

    #[test]
    fn letters_behind_one_that_is_tried_or_postponed_are_passed_over() {
        // I2
        for tried in [true, false] {
            let mut poll = Poll::new(9, NOW);
            let mut serving = serving(&mut poll, Action::Retry, RolloutPolicy::unlimited());
            serving.pending(Some(item(0, 2)));
            match tried {
                true => serving.tried(&item(0, 2), claim()),
                false => serving.postponed(&item(0, 2)),
            }
            assert_eq!((serving.next(), serving.given()), (Need::Pending(3), usize::from(tried)));
        }
        let mut poll = Poll::new(9, NOW);
        let mut serving = serving(&mut poll, Action::Evict, RolloutPolicy::unlimited());
        serving.pending(Some(item(0, 2)));
        serving.postponed(&item(0, 2));
        assert_eq!(serving.next(), Need::Pending(1), "an act on one letter does not wait for another");
    }

    #[test]
    fn a_stage_ends_with_its_last_letter_and_the_next_one_begins_with_the_first() {
        let mut poll = Poll::new(9, NOW);
        let ramp = RolloutPolicy { ramp: vec![1], ..RolloutPolicy::unlimited() };
        let mut serving = serving(&mut poll, Action::Evict, ramp);
        serving.pending(Some(item(1, 2)));
        assert_eq!(serving.next(), Need::Advance, "the second letter is of the next stage");
        serving.advanced();
        assert_eq!(serving.next(), Need::Left, "it has not begun");
        let mut poll = Poll::new(9, NOW);
        let ramp = RolloutPolicy { ramp: vec![1], ..RolloutPolicy::unlimited() };
        let mut serving = self::serving(&mut poll, Action::Evict, ramp);
        serving.pending(Some(item(0, 2)));
        serving.acted(&item(0, 2));
        serving.pending(None);
        assert!(serving.machine.advance(Some(1), NOW).is_none());
        serving.advanced();
        assert_eq!(serving.next(), Need::Pending(0));
        serving.pending(Some(item(1, 2)));
        assert_eq!(serving.next(), Need::Item(item(1, 2)));
    }

    #[test]
    fn letters_that_the_last_act_on_a_sequence_releases_get_the_pace_of_the_operation() {
        let mut poll = Poll::new(9, NOW);
        let slow = RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() };
        let mut serving = serving(&mut poll, Action::Evict, slow);
        serving.pending(Some(item(0, 0)));
        serving.acted(&item(0, 0));
        assert_eq!(serving.next(), Need::Pace(item(0, 0)));
        let row = row();
        assert_eq!(serving.released_from(&row), Some(7));
        let leased = row.claimed("w", std::time::Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        assert_eq!(serving.released_from(&leased), None, "they run when the lease ends");
        let (paced, letters) = serving.pace(3, &row).unwrap();
        assert_eq!((letters, paced.pace.map(|pace| pace.left)), (3, Some(3)));
        serving.paced(letters);
        serving.pending(Some(item(1, 1)));
        assert_eq!(serving.next(), Need::Left, "the released letters have used up the rate");
    }

    #[test]
    fn letters_of_a_cancelled_operation_are_swept() {
        for (swept, again) in [
            (Swept { skipped: 2, more: false, in_flight: false }, None),
            (Swept { skipped: 2, more: true, in_flight: false }, Some(NOW)),
            (Swept { skipped: 0, more: false, in_flight: true }, Some(NOW + OperationMachine::POLL_INTERVAL)),
        ] {
            let mut poll = Poll::new(9, NOW);
            let mut machine = machine(Action::Retry);
            machine.operation.state = OperationState::Cancelled;
            let mut serving = Serving::new(&mut poll, machine);
            serving.advanced();
            assert_eq!(serving.next(), Need::Sweep);
            serving.swept(swept);
            assert_eq!((serving.next(), serving.machine.operation.skipped), (Need::Done, swept.skipped));
            let work = poll.finish();
            assert_eq!((work.settled, work.again_at), (swept.skipped, again));
        }
    }
}
