//! Hand-off: grants, and the place of a letter.

use jiff::Timestamp;

use super::effects::{AuditLine, Effects, LetterView};
use super::refuse;
use super::sequence::{SequenceChange, SequenceRow, due_when_stored};
use crate::failure::Failure;
use crate::letter::{LetterId, LetterState};
use crate::message::{MessageId, QueueName};
use crate::sequence::SequenceId;
use crate::store::{Actor, ErrorKind, GrantFence, Limits, Placement, Result, StoreError};

/// The distance between the indexes of consecutive letters, which leaves space for redelivered ones between them.
pub const INDEX_STEP: u64 = 1 << 20;

/// The index below the first letter of a queue. The gap below it takes letters that are inserted before the first one, in
/// every store alike: the order of sequences in a plan depends on it.
pub const FIRST_INDEX: u64 = 1 << 40;

/// The share of the gap before a letter that an inserted one uses: many fit in order, and some out of order.
const ROOM_SHARE: u64 = 1024;

const HAND_OFF: &str = "hand_off";

/// The grant of one partition in one queue, as a store keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantRow {
    /// The number of the current grant; 0 before the first.
    pub fence: u64,
    /// The highest call number seen under it.
    pub turn: u64,
    /// The highest offset ever handed off.
    pub horizon: Option<u64>,
}

impl GrantRow {
    /// The row under a new grant, which revokes every older one.
    #[must_use]
    pub const fn granted(self) -> Self {
        Self { fence: self.fence + 1, turn: 0, horizon: self.horizon }
    }

    /// The row with the new call number. `Fenced` if this grant is not current, or a later call was seen.
    pub fn admit(self, grant: &GrantFence) -> Result<Self> {
        let GrantFence { partition, fence, turn } = grant;
        if self.fence != *fence || self.fence == 0 {
            return refuse(
                ErrorKind::Fenced,
                HAND_OFF,
                format!("grant {fence} of {partition} is no longer current"),
            );
        }
        if *turn < self.turn {
            let context =
                format!("call {turn} under the grant of {partition} arrived after call {}", self.turn);
            return refuse(ErrorKind::Fenced, HAND_OFF, context);
        }
        Ok(Self { turn: *turn, ..self })
    }

    /// The row after a hand-off of this offset: lookups after the next assignment cover it.
    #[must_use]
    pub fn raised(self, offset: u64) -> Self {
        Self { horizon: self.horizon.max(Some(offset)), ..self }
    }
}

/// A letter to hand off.
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
    /// The requested placement.
    pub placement: Placement,
    /// `true` if it has a grant.
    pub granted: bool,
}

/// The stored data that a hand-off depends on.
#[derive(Clone, Copy, Debug)]
pub struct HandOffView<'a> {
    /// The queue of the call.
    pub queue: &'a QueueName,
    /// The state of the message's existing letter, purged or not.
    pub held: Option<LetterState>,
    /// The error kind of an earlier item of this sequence in this call, if one was refused.
    pub refused: Option<ErrorKind>,
    /// The highest offset ever handed off in the message's own partition, which is not that of its grant if it returned from a
    /// retry topic.
    pub horizon: Option<u64>,
    /// The row of its sequence, if open.
    pub row: Option<&'a SequenceRow>,
    /// Number of open sequences of the queue.
    pub sequences: u64,
    /// The revision of the queue.
    pub revision: u64,
    /// The limits of the queue.
    pub limits: &'a Limits,
}

/// The decision about a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Not stored: the message has a letter in this state.
    Held(LetterState),
    /// Not stored: the sequence is not open. The number is the queue's revision.
    NotOpen(u64),
    /// Stored closed, outside of the sequence.
    Closed,
    /// Stored as the head of a new sequence.
    Open,
    /// Appended to the sequence.
    Append,
    /// Inserted before the first later letter of its partition, if there is one: look it up and call [`place`].
    Insert,
}

impl Entry {
    /// `true` if the message is durable afterwards.
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::NotOpen(_))
    }

    /// `true` if the horizon of the message's own partition rises to its offset. An import raises none: its position is not that of a
    /// message that a source delivered.
    pub fn raises_horizon(self, placement: Placement) -> bool {
        self.is_durable() && placement != Placement::Imported
    }
}

/// Decides where a letter is stored. Check its grant first ([`GrantRow::admit`]).
///
/// `Invalid` for a letter of another queue, in a state that its placement does not allow, or for an import that could be
/// taken for a message that this queue has settled; `Full` if a limit is reached;
/// the kind of the earlier error if an item of its sequence was refused in this call, which it must not overtake (I2); `Conflict`
/// if only that one's grant has ended, because its own is current and the caller may send it again.
pub fn hand_off(request: &HandOffRequest<'_>, view: &HandOffView<'_>) -> Result<Entry> {
    let HandOffRequest { id, queue, state, placement, .. } = request;
    if *queue != view.queue {
        let context = format!("letter {id} belongs to queue {queue}, not {}", view.queue);
        return refuse(ErrorKind::Invalid, HAND_OFF, context);
    }
    match placement {
        Placement::Imported => check_import(request)?,
        _ if state.is_open() == (*placement == Placement::Closed) => {
            let context = format!("letter {id} is {state}, which placement {placement:?} does not allow");
            return refuse(ErrorKind::Invalid, HAND_OFF, context);
        }
        _ => {}
    }
    match (view.held, view.refused) {
        // I8: a message has one letter.
        (Some(held), _) => return Ok(Entry::Held(held)),
        (None, Some(kind)) => {
            let kind = if kind == ErrorKind::Fenced { ErrorKind::Conflict } else { kind };
            let context = "an earlier message of its sequence was refused in this call";
            let refused = StoreError::not_done(kind, HAND_OFF, context);
            return Err(match view.limits.exceeded(view.row.map(|row| row.count), view.sequences) {
                Some((limit, _)) if kind == ErrorKind::Full => refused.with_limit(limit),
                _ => refused,
            });
        }
        (None, None) => {}
    }
    match (placement, view.row) {
        _ if !state.is_open() => return Ok(Entry::Closed),
        (Placement::Behind, None) => return Ok(Entry::NotOpen(view.revision)),
        _ => {}
    }
    if let Some((limit, max)) = view.limits.exceeded(view.row.map(|row| row.count), view.sequences) {
        let (what, message) = (if view.row.is_some() { "sequence" } else { "queue" }, request.message);
        let context = format!("the {what} is full, {limit} is {max}: message {message} was not stored");
        return Err(StoreError::not_done(ErrorKind::Full, HAND_OFF, context).with_limit(limit));
    }
    Ok(match view.row {
        None => Entry::Open,
        Some(_) if may_precede(request.granted, request.offset, view.horizon) => Entry::Insert,
        Some(_) => Entry::Append,
    })
}

/// Returns whether a message may precede letters of its sequence that are stored already. Only redelivered messages and those without
/// a grant can: the usual append needs no lookup.
pub fn may_precede(granted: bool, offset: u64, horizon: Option<u64>) -> bool {
    !granted || horizon.is_some_and(|horizon| offset <= horizon)
}

/// An imported letter has no grant. If it had the id of its message's own letter, it would absorb that message when it fails, at
/// the latest when the import is closed (I1).
fn check_import(request: &HandOffRequest<'_>) -> Result<()> {
    let HandOffRequest { id, queue, state, message, granted, .. } = request;
    if *granted {
        return refuse(ErrorKind::Invalid, HAND_OFF, format!("letter {id} is imported under a grant"));
    }
    if *id != LetterId::of_import(queue, message) {
        let context = format!("letter {id} is imported as {state} with the id of a message's own letter");
        return refuse(ErrorKind::Invalid, HAND_OFF, context);
    }
    Ok(())
}

/// The first of the letters at the end of a sequence that have a later offset in the partition of the handed-off one: the
/// search goes from the end to the first letter of the partition that is not later. Delivered letters are in the order of their
/// offsets, and so this is the first later one. An imported letter with a later offset may precede them, and is not found
/// behind an earlier one: the order of the delivered ones holds (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterLetter {
    /// Its index.
    pub index: u64,
    /// The index of the letter before it, whatever its partition.
    pub before: Option<u64>,
}

/// The index of a new letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// This index.
    At(u64),
    /// The next index at the end of the queue: [`INDEX_STEP`] above the last one.
    End,
    /// The next index at the end, after which all letters of the sequence from this index on get new ones behind it, in
    /// order: the gap before it is full. Needed only after a million redeliveries into one gap.
    MoveBehind(u64),
}

/// The place of a letter in the offset order of its partition (I2).
/// `Conflict` if it would precede the head of a leased sequence.
pub fn place(
    sequence: &SequenceId,
    row: &SequenceRow,
    later: Option<LaterLetter>,
    now: Timestamp,
) -> Result<Slot> {
    let Some(later) = later else { return Ok(Slot::End) };
    if later.index == row.head.index && row.is_leased(now) {
        return Err(StoreError::leased(HAND_OFF, format!("a later message of {sequence} is in flight")));
    }
    // Redelivered messages arrive in order, so each leaves most of the gap to the next.
    let before = later.before.unwrap_or_else(|| later.index.saturating_sub(INDEX_STEP));
    let room = later.index - before;
    Ok(if room > 1 { Slot::At(before + (room / ROOM_SHARE).max(1)) } else { Slot::MoveBehind(later.index) })
}

/// Decides the effects of storing a letter. `letter` has its index and was enqueued and touched now; `failed_at` is its last
/// failure; `paused` is `true` if its sequence is paused, and applies to one that is opened.
pub fn insert(
    letter: &LetterView,
    failed_at: Option<Timestamp>,
    row: Option<&SequenceRow>,
    paused: bool,
    now: Timestamp,
) -> Effects {
    let letter = &LetterView { due_at: due_when_stored(letter.due_at, failed_at, now), ..*letter };
    let sequence = match row {
        _ if !letter.state.is_open() => SequenceChange::Keep,
        None => SequenceChange::Open(SequenceRow::opened(letter.head(now), paused)),
        Some(row) => SequenceChange::Put(row.with(letter, now)),
    };
    let row = row.filter(|_| letter.state.is_open());
    Effects::insert(letter, failed_at, sequence, row, now)
}

/// The audit line of a message that was stored closed (I11).
pub fn skip_audit(letter: LetterId, state: LetterState, cause: Option<&Failure>) -> AuditLine {
    let action = match state {
        LetterState::Resolved => "resolve",
        LetterState::Evicted => "evict",
        LetterState::Expired => "expire",
        _ => "skip",
    };
    let why = cause.map_or_else(|| "handed off closed".to_owned(), Failure::headline);
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
    fn a_message_with_a_letter_gets_no_second_one() {
        // I8, also if an earlier one of its sequence was refused.
        let entry =
            ask(|_, view| (view.held, view.refused) = (Some(LetterState::Resolved), Some(ErrorKind::Full)));
        assert_eq!(entry.unwrap(), Entry::Held(LetterState::Resolved));
    }

    #[test]
    fn messages_behind_a_refused_one_are_refused_with_the_same_kind() {
        // I2
        let refused = ask(|_, view| view.refused = Some(ErrorKind::Full)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full);
    }

    #[test]
    fn a_message_under_a_current_grant_is_not_fenced_with_one_of_an_earlier_grant() {
        // I6: its owner would give its partition up.
        let refused = ask(|_, view| view.refused = Some(ErrorKind::Fenced)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.kind().is_temporary());
    }

    #[test]
    fn only_redelivered_messages_look_for_an_earlier_place() {
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
    fn a_grant_ends_with_the_next_and_its_call_numbers_never_decrease() {
        // I6
        let grant = |fence, turn| GrantFence { partition: Partition::new("s", 0), fence, turn };
        let row = GrantRow::default();
        assert_eq!(row.admit(&grant(0, 0)).unwrap_err().kind(), ErrorKind::Fenced, "no grant exists yet");
        let row = row.granted().granted();
        assert_eq!(row.admit(&grant(1, 9)).unwrap_err().kind(), ErrorKind::Fenced);
        let row = row.admit(&grant(2, 7)).unwrap();
        assert_eq!(row.admit(&grant(2, 6)).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(row.admit(&grant(2, 7)).unwrap(), row, "all items of a call have the same number");
        assert_eq!(row.raised(9).raised(3).horizon, Some(9));
    }

    #[test]
    fn an_import_raises_no_horizon_and_has_an_id_that_no_message_finds() {
        // I1, I8
        for entry in
            [Entry::Open, Entry::Append, Entry::Insert, Entry::Closed, Entry::Held(LetterState::Dead)]
        {
            assert!(!entry.raises_horizon(Placement::Imported));
            assert!(entry.raises_horizon(Placement::Open));
        }
        assert!(!Entry::NotOpen(1).raises_horizon(Placement::Behind));
        let import = |state: LetterState, own_id: bool, granted: bool| {
            ask(|request, _| {
                (request.placement, request.state, request.granted) = (Placement::Imported, state, granted);
                if !own_id {
                    request.id = LetterId::of_import(request.queue, request.message);
                }
            })
        };
        assert_eq!(import(LetterState::Dead, false, false).unwrap(), Entry::Open);
        assert_eq!(import(LetterState::Resolved, false, false).unwrap(), Entry::Closed);
        for (state, own_id, granted) in [
            (LetterState::Resolved, true, false),
            (LetterState::Resolved, false, true),
            (LetterState::Dead, true, false),
            (LetterState::Dead, false, true),
        ] {
            assert_eq!(import(state, own_id, granted).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_letter_is_inserted_between_its_neighbours_or_they_move() {
        let sequence = SequenceId::from("k");
        let at = |index, before| place(&sequence, &row(2), Some(LaterLetter { index, before }), NOW).unwrap();
        assert_eq!(place(&sequence, &row(2), None, NOW).unwrap(), Slot::End);
        assert_eq!(at(2 * INDEX_STEP, Some(INDEX_STEP)), Slot::At(INDEX_STEP + 1024));
        assert_eq!(at(11, Some(9)), Slot::At(10));
        assert_eq!(at(10, Some(9)), Slot::MoveBehind(10));
        assert_eq!(at(INDEX_STEP, None), Slot::At(1024), "there is a gap before the head");
    }

    #[test]
    fn nothing_is_inserted_before_a_leased_head() {
        let sequence = SequenceId::from("k");
        let leased = row(2).claimed("w", std::time::Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        let later = Some(LaterLetter { index: INDEX_STEP, before: None });
        assert_eq!(place(&sequence, &leased, later, NOW).unwrap_err().kind(), ErrorKind::Conflict);
        let behind = Some(LaterLetter { index: 2 * INDEX_STEP, before: Some(INDEX_STEP) });
        assert!(place(&sequence, &leased, behind, NOW).is_ok());
    }
}
