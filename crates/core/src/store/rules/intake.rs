//! Letters that are taken in: grants, and where a letter goes.

use jiff::Timestamp;

use super::effects::{AuditLine, Effects, LetterView};
use super::refuse;
use super::sequence::{SequenceChange, SequenceRow};
use crate::failure::Failure;
use crate::letter::{LetterId, LetterState};
use crate::message::{MessageId, QueueName};
use crate::sequence::SequenceId;
use crate::store::{Actor, ErrorKind, GrantFence, Limits, Placement, Result};

/// The room between two letters that came one after the other, for those that are delivered again and go before.
pub const INDEX_STEP: u64 = 1 << 20;

/// Of the room before a letter, one that goes there takes this part: many fit in order, and some out of order.
const ROOM_SHARE: u64 = 1024;

const HAND_OFF: &str = "hand_off";

/// The grant of one partition in one queue, as a store keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantRow {
    /// The number of the current grant; 0 before the first.
    pub fence: u64,
    /// The highest turn seen under it.
    pub turn: u64,
    /// The highest offset ever handed off.
    pub horizon: Option<u64>,
}

impl GrantRow {
    /// The row under a new grant, which ends every older one.
    #[must_use]
    pub const fn granted(self) -> Self {
        Self { fence: self.fence + 1, turn: 0, horizon: self.horizon }
    }

    /// The row with its turn moved on. `Fenced` when this grant is not the current one, or a later call was seen.
    pub fn admit(self, grant: &GrantFence) -> Result<Self> {
        let GrantFence { partition, fence, turn } = grant;
        if self.fence != *fence || self.fence == 0 {
            return refuse(
                ErrorKind::Fenced,
                HAND_OFF,
                format!("grant {fence} of {partition} is not the current one"),
            );
        }
        if *turn < self.turn {
            let context =
                format!("turn {turn} under the grant of {partition} comes after turn {}", self.turn);
            return refuse(ErrorKind::Fenced, HAND_OFF, context);
        }
        Ok(Self { turn: *turn, ..self })
    }

    /// The row after a message with this offset was handed off: it must be found again after the next assignment.
    #[must_use]
    pub fn raised(self, offset: u64) -> Self {
        Self { horizon: self.horizon.max(Some(offset)), ..self }
    }
}

/// A letter that asks to be taken in.
#[derive(Clone, Copy, Debug)]
pub struct HandOffRequest<'a> {
    /// Its id.
    pub id: LetterId,
    /// Its queue.
    pub queue: &'a QueueName,
    /// Its state.
    pub state: LetterState,
    /// Its message.
    pub message: &'a MessageId,
    /// The offset of its message.
    pub offset: u64,
    /// Where it wants to go.
    pub placement: Placement,
    /// Whether it comes under a grant.
    pub granted: bool,
}

/// What a store knows when a letter asks to be taken in.
#[derive(Clone, Copy, Debug)]
pub struct HandOffView<'a> {
    /// The queue that was called.
    pub queue: &'a QueueName,
    /// The state of the letter that this message has already, purged or not.
    pub held: Option<LetterState>,
    /// Why an earlier item of this sequence was refused in this call, if one was.
    pub refused: Option<ErrorKind>,
    /// The highest offset ever handed off in its partition.
    pub horizon: Option<u64>,
    /// The row of its sequence, if it is open.
    pub row: Option<&'a SequenceRow>,
    /// How many sequences of the queue are open.
    pub sequences: u64,
    /// The revision of the queue.
    pub revision: u64,
    /// How large it may grow.
    pub limits: &'a Limits,
}

/// Where a letter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nowhere: its message has a letter in this state.
    Held(LetterState),
    /// Nowhere: its sequence is not open. The number is the queue's revision.
    NotOpen(u64),
    /// Beside its sequence, closed.
    Closed,
    /// Into a new sequence.
    Open,
    /// Behind the others.
    Append,
    /// Before the first letter of its partition that is later, if there is one: look for it, and ask [`place`].
    Insert,
}

impl Entry {
    /// Whether the message is durable after it, so that the horizon rises.
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::NotOpen(_))
    }
}

/// Decides where a letter goes. Check its grant first ([`GrantRow::admit`]).
///
/// `Invalid` for a letter of another queue, or in a state that does not fit its placement; `Full` when there is no room;
/// the kind of the earlier refusal when one of its sequence was refused before it in this call, which it must not overtake (I2).
pub fn hand_off(request: &HandOffRequest<'_>, view: &HandOffView<'_>) -> Result<Entry> {
    let HandOffRequest { id, queue, state, placement, .. } = request;
    if *queue != view.queue {
        let context = format!("letter {id} belongs to queue {queue}, not {}", view.queue);
        return refuse(ErrorKind::Invalid, HAND_OFF, context);
    }
    if state.is_open() == (*placement == Placement::Closed) {
        let context = format!("letter {id} is {state}, which does not fit {placement:?}");
        return refuse(ErrorKind::Invalid, HAND_OFF, context);
    }
    match (view.held, view.refused) {
        // I8: a message has one letter.
        (Some(held), _) => return Ok(Entry::Held(held)),
        (None, Some(kind)) => {
            return refuse(kind, HAND_OFF, "an earlier message of its sequence was refused in this call");
        }
        (None, None) => {}
    }
    match (placement, view.row) {
        (Placement::Closed, _) => return Ok(Entry::Closed),
        (Placement::Behind, None) => return Ok(Entry::NotOpen(view.revision)),
        _ => {}
    }
    if view.limits.is_full(view.row.map(|row| row.count), view.sequences) {
        let what = if view.row.is_some() { "the sequence" } else { "the queue" };
        return refuse(
            ErrorKind::Full,
            HAND_OFF,
            format!("{what} has no room for message {}", request.message),
        );
    }
    // Only what was delivered before can be earlier than what is there, and what comes under no grant comes in any order: the
    // usual append looks at nothing.
    let again = !request.granted || view.horizon.is_some_and(|horizon| request.offset <= horizon);
    Ok(match view.row {
        None => Entry::Open,
        Some(_) if again => Entry::Insert,
        Some(_) => Entry::Append,
    })
}

/// The first letter of a sequence that is later in its partition than the one that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Its index.
    pub index: u64,
    /// The index of the letter before it, whatever its partition.
    pub before: Option<u64>,
}

/// An index that a letter gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// This one.
    At(u64),
    /// The next one at the end of the queue: [`INDEX_STEP`] more than the last one given.
    End,
    /// The next one at the end, after which all letters of the sequence from this index on get new ones behind it, in their
    /// order: there is no room before this one. Needed only after a million redeliveries into one gap.
    MoveBehind(u64),
}

/// The place of a letter that may be earlier than others of its partition, so that they stand in the order of their offsets (I2).
/// `Conflict` when it would go before the head of a sequence that somebody works on.
pub fn place(sequence: &SequenceId, row: &SequenceRow, later: Option<Later>, now: Timestamp) -> Result<Slot> {
    let Some(later) = later else { return Ok(Slot::End) };
    if later.index == row.head.index && row.is_leased(now) {
        let context = format!("somebody is working on a later message of {sequence}");
        return refuse(ErrorKind::Conflict, HAND_OFF, context);
    }
    // Those that are delivered again come in order, so each leaves most of the room to the next.
    let before = later.before.unwrap_or_else(|| later.index.saturating_sub(INDEX_STEP));
    let room = later.index - before;
    Ok(if room > 1 { Slot::At(before + (room / ROOM_SHARE).max(1)) } else { Slot::MoveBehind(later.index) })
}

/// What storing a letter changes. `letter` stands at its index and was enqueued and touched now; `failed_at` is when it last
/// failed; `paused` tells whether its sequence is paused, for one that is opened.
pub fn insert(
    letter: &LetterView,
    failed_at: Option<Timestamp>,
    row: Option<&SequenceRow>,
    paused: bool,
    now: Timestamp,
) -> Effects {
    let sequence = match row {
        _ if !letter.state.is_open() => SequenceChange::Keep,
        None => SequenceChange::Open(SequenceRow::opened(letter.head(), paused)),
        Some(row) => SequenceChange::Put(row.with(letter)),
    };
    let row = row.filter(|_| letter.state.is_open());
    Effects::insert(letter, failed_at, sequence, row, now)
}

/// The line that says that a message was closed without ever being open (I11).
pub fn skip_audit(letter: LetterId, state: LetterState, cause: Option<&Failure>) -> AuditLine {
    let action = match state {
        LetterState::Resolved => "resolve",
        LetterState::Evicted => "evict",
        LetterState::Expired => "expire",
        _ => "skip",
    };
    let why = cause.map_or_else(|| "handed off closed".to_owned(), ToString::to_string);
    AuditLine::new(&Actor::engine(why), action, letter, None, Some(state.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::sequence::{Head, LeaseKind};
    use super::*;
    use crate::message::Partition;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn row(count: u64) -> SequenceRow {
        let head = Head { index: INDEX_STEP, due: None, touched: NOW, group: None };
        SequenceRow { count, ..SequenceRow::opened(head, false) }
    }

    fn ask(change: impl FnOnce(&mut HandOffRequest<'_>, &mut HandOffView<'_>)) -> Result<Entry> {
        let (queue, message, limits) = (QueueName::of("c", "c"), "m".into(), Limits::default());
        let mut request = HandOffRequest {
            id: LetterId::of(&queue, &message),
            queue: &queue,
            state: LetterState::Dead,
            message: &message,
            offset: 5,
            placement: Placement::Open,
            granted: true,
        };
        let mut view = HandOffView {
            queue: &queue,
            held: None,
            refused: None,
            horizon: None,
            row: None,
            sequences: 0,
            revision: 3,
            limits: &limits,
        };
        change(&mut request, &mut view);
        hand_off(&request, &view)
    }

    #[test]
    fn a_message_that_has_a_letter_gets_no_second_one() {
        // I8, also where an earlier one of its sequence was refused.
        let entry =
            ask(|_, view| (view.held, view.refused) = (Some(LetterState::Resolved), Some(ErrorKind::Full)));
        assert_eq!(entry.unwrap(), Entry::Held(LetterState::Resolved));
    }

    #[test]
    fn what_follows_a_refused_message_is_refused_for_the_same_reason() {
        // I2
        let refused = ask(|_, view| view.refused = Some(ErrorKind::Full)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full);
    }

    #[test]
    fn only_what_may_have_come_before_looks_for_an_earlier_place() {
        let row = row(1);
        let open = |request: &mut HandOffRequest<'_>, horizon, granted| {
            (request.offset, request.granted) = (5, granted);
            horizon
        };
        for (horizon, granted, expected) in [
            (Some(4), true, Entry::Append),
            (Some(5), true, Entry::Insert),
            (None, true, Entry::Append),
            (None, false, Entry::Insert),
        ] {
            let limits = Limits::NONE;
            let (queue, message) = (QueueName::of("c", "c"), MessageId::from("m"));
            let mut request = HandOffRequest {
                id: LetterId::of(&queue, &message),
                queue: &queue,
                state: LetterState::Dead,
                message: &message,
                offset: 0,
                placement: Placement::Behind,
                granted: true,
            };
            let horizon = open(&mut request, horizon, granted);
            let view = HandOffView {
                queue: &queue,
                held: None,
                refused: None,
                horizon,
                row: Some(&row),
                sequences: 1,
                revision: 1,
                limits: &limits,
            };
            assert_eq!(hand_off(&request, &view).unwrap(), expected);
        }
    }

    #[test]
    fn a_grant_ends_with_the_next_and_its_turns_never_go_back() {
        // I6
        let grant = |fence, turn| GrantFence { partition: Partition::new("s", 0), fence, turn };
        let row = GrantRow::default();
        assert_eq!(row.admit(&grant(0, 0)).unwrap_err().kind(), ErrorKind::Fenced, "nobody has one yet");
        let row = row.granted().granted();
        assert_eq!(row.admit(&grant(1, 9)).unwrap_err().kind(), ErrorKind::Fenced);
        let row = row.admit(&grant(2, 7)).unwrap();
        assert_eq!(row.admit(&grant(2, 6)).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(row.admit(&grant(2, 7)).unwrap(), row, "all items of a call have one turn");
        assert_eq!(row.raised(9).raised(3).horizon, Some(9));
    }

    #[test]
    fn a_letter_goes_between_its_neighbours_or_they_move() {
        let sequence = SequenceId::from("k");
        let at = |index, before| place(&sequence, &row(2), Some(Later { index, before }), NOW).unwrap();
        assert_eq!(place(&sequence, &row(2), None, NOW).unwrap(), Slot::End);
        assert_eq!(at(2 * INDEX_STEP, Some(INDEX_STEP)), Slot::At(INDEX_STEP + 1024));
        assert_eq!(at(11, Some(9)), Slot::At(10));
        assert_eq!(at(10, Some(9)), Slot::MoveBehind(10));
        assert_eq!(at(INDEX_STEP, None), Slot::At(1024), "before the head there is room, too");
    }

    #[test]
    fn nothing_goes_before_a_head_that_somebody_works_on() {
        let sequence = SequenceId::from("k");
        let leased = row(2).claimed("w", std::time::Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        let later = Some(Later { index: INDEX_STEP, before: None });
        assert_eq!(place(&sequence, &leased, later, NOW).unwrap_err().kind(), ErrorKind::Conflict);
        let behind = Some(Later { index: 2 * INDEX_STEP, before: Some(INDEX_STEP) });
        assert!(place(&sequence, &leased, behind, NOW).is_ok());
    }
}
