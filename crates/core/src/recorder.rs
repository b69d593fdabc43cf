//! The flight recorder: which attempts were running when the process crashed.
//!
//! A handler can kill its process by an abort, by exhausting memory or by a stack overflow. `catch_unwind` does not help, and
//! without a record the message is redelivered after the restart and kills the next process. So each attempt is recorded where
//! the record survives the process, without I/O, and the next process reads from it which messages are suspects.
//!
//! One rule decides: **only a message that was alone in flight when the process crashed is charged with the crash.** When
//! several were in flight, all are suspects and none is charged. The engine runs each suspect alone, so that a second crash
//! identifies the culprit.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::message::{Message, MessageId, Partition, QueueName};

/// The name of one message in one queue: a hash of both, which has the same size however long they are. A message of a later
/// [incarnation](crate::incarnation) of its stream has another one, also when its sender gave it the same id: nothing that an earlier
/// message of that id did is charged to it.
///
/// It is stored, so it never changes between versions.
///
/// ```
/// use lazaret_core::recorder::Identity;
/// use lazaret_core::{MessageId, QueueName};
/// let queue = QueueName::of("orders", "mail");
/// let (one, two) = (MessageId::from("evt-1"), MessageId::from("evt-2"));
/// assert_eq!(Identity::of(&queue, &one), Identity::of(&queue, &one));
/// assert_ne!(Identity::of(&queue, &one), Identity::of(&queue, &two));
/// assert_ne!(Identity::of(&queue, &one), Identity::of(&QueueName::of("orders", "search"), &one));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u128);

impl Identity {
    /// No identity, for recorders that keep queue and id whole and compute the identity on demand.
    pub const NONE: Self = Self(0);

    /// The identity of a message of the first incarnation of its stream in a queue.
    pub fn of(queue: &QueueName, message: &MessageId) -> Self {
        Self::in_incarnation(queue, message, 0)
    }

    /// The identity of a message of this incarnation of its stream in a queue.
    pub fn in_incarnation(queue: &QueueName, message: &MessageId, incarnation: u32) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(queue.as_str().as_bytes());
        // No UTF-8 text has this byte, so the border between the two is clear.
        hasher.write_u8(0xff);
        message.with_str(|id| hasher.write(id.as_bytes()));
        if incarnation > 0 {
            hasher.write_u8(0xff);
            hasher.write(&incarnation.to_be_bytes());
        }
        Self(hasher.finish128().as_u128())
    }

    /// The identity of a message in a queue.
    ///
    /// ```
    /// use lazaret_core::recorder::Identity;
    /// use lazaret_core::{Message, Position, QueueName};
    /// let queue = QueueName::of("orders", "mail");
    /// let mut message = Message::new("evt-1", "orders", Position::new(0, 5));
    /// let first = Identity::of_message(&queue, &message);
    /// assert_eq!(first, Identity::of(&queue, &message.id));
    /// message.position.incarnation = 1;
    /// assert_ne!(Identity::of_message(&queue, &message), first);
    /// ```
    pub fn of_message(queue: &QueueName, message: &Message) -> Self {
        Self::in_incarnation(queue, &message.id, message.position.incarnation)
    }
}

/// The slot that records a running attempt. It returns to the recorder when the attempt ends, with any outcome.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is not given back looks like an attempt that never ended"]
pub struct Slot(u32);

impl Slot {
    /// The slot of an attempt that found no room and runs unrecorded.
    pub const NOT_RECORDED: Self = Self(u32::MAX);

    /// The slot with this number, for recorders.
    pub const fn at(index: u32) -> Self {
        Self(index)
    }

    /// Its number; `None` for an attempt that is not recorded.
    pub const fn index(&self) -> Option<u32> {
        if self.0 == u32::MAX { None } else { Some(self.0) }
    }
}

/// A message that was in flight when a process crashed, or that was charged with a crash before, and has no durable outcome
/// yet as far as the recorder knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The queue of the component that handled it. Cut off when it was too long to be kept.
    pub queue: QueueName,
    /// Its id. Cut off when it was too long to be kept: ask [`is`](Self::is), which does not go by this text.
    pub message: MessageId,
    /// The partition it came from: its [place](Message::place). The stream is cut off when it was too long to be kept.
    pub partition: Partition,
    /// Its offset in the partition.
    pub offset: u64,
    /// The number of the attempt that was running.
    pub attempt: u32,
    /// `true` when nothing else was in flight at its last crash. Such a crash is counted in `crashes`.
    pub alone: bool,
    /// The number of crashes that it was charged with.
    pub crashes: u32,
    /// Its identity.
    pub identity: Identity,
}

impl Suspect {
    /// Returns whether this message in this queue is the suspect, whatever the length of its id.
    pub fn is(&self, queue: &QueueName, message: &Message) -> bool {
        self.identity == Identity::of_message(queue, message)
    }
}

/// Records the attempts in flight; the record survives a crash of the process.
///
/// The engine's part:
/// 1. At the start, before anything runs, ask for [`suspects`](Self::suspects). Run each of them alone. One that has [`crashes`](Suspect::crashes) beyond the limit is not run but handed off.
/// 2. [`enter`](Self::enter) before each attempt, [`leave`](Self::leave) after it: when the handler returned, failed,
///    panicked, ran out of time or was dropped.
/// 3. [`forget`](Self::forget) when the message has a durable outcome: handled, skipped, or a letter that holds its
///    number of crashes.
///
/// A suspect may be stale: the process crashed between the outcome and `forget`. Its message is never delivered again, or is
/// found to be settled. Forget it then.
pub trait FlightRecorder: Send + Sync + 'static {
    /// Records the start of an attempt. Does no I/O, takes no lock and allocates nothing. When there is no free slot, the attempt
    /// runs unrecorded, and while it does, no attempt counts as alone.
    fn enter(&self, queue: &QueueName, message: &Message, attempt: u32) -> Slot;

    /// Records the end of the attempt. As cheap as [`enter`](Self::enter).
    fn leave(&self, slot: Slot);

    /// Records the end of the attempt, and keeps the slot for the next one: cheaper than to leave and enter.
    fn rest(&self, slot: &Slot);

    /// Records the start of an attempt in a slot that [rests](Self::rest).
    fn enter_again(&self, slot: &Slot, queue: &QueueName, message: &Message, attempt: u32);

    /// The messages that are suspected since the recorder was opened and are not yet forgotten: by stream, partition and
    /// offset.
    fn suspects(&self) -> Vec<Suspect>;

    /// The number of crashes that the message with this identity was charged with.
    fn crashes(&self, message: Identity) -> u32;

    /// Removes the message with this identity from the suspects.
    fn forget(&self, message: Identity);

    /// The number of attempts that ran unrecorded since the recorder was opened.
    fn unrecorded(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_border_between_queue_and_id_counts() {
        let of = |queue: &str, id: &str| Identity::of(&queue.into(), &id.into());
        assert_ne!(of("ab", "c"), of("a", "bc"));
        assert_ne!(of("a", ""), of("", "a"));
    }

    #[test]
    fn an_identity_is_the_same_in_every_version() {
        // Files of earlier versions contain it.
        let identity = Identity::of(&QueueName::of("orders", "mail"), &"evt-1".into());
        assert_eq!(format!("{:032x}", identity.0), "8908d9ce0c79b851cef3d8fa3c8db4b2");
        let later = Identity::in_incarnation(&QueueName::of("orders", "mail"), &"evt-1".into(), 1);
        assert_eq!(format!("{:032x}", later.0), "a92408e66d4c682d6d14dbc698e6105b");
    }

    #[test]
    fn a_slot_knows_whether_it_is_recorded() {
        assert_eq!(Slot::at(7).index(), Some(7));
        assert_eq!(Slot::NOT_RECORDED.index(), None);
    }
}
