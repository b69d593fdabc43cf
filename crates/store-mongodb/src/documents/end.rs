//! The documents of the outbox: the list of a queue, and the ends in it.

use bson::{Document, doc};
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use serde::{Deserialize, Serialize};

use crate::values::int;

/// The list of the ends of a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WatchDoc {
    #[serde(rename = "_id")]
    pub(crate) queue: QueueName,
    pub(crate) version: i64,
    /// `true` while the queue is watched.
    pub(crate) active: bool,
    /// How often watching began. Ends of earlier periods are not listed.
    pub(crate) period: i64,
    /// `true` if the letters that ended before the period are listed.
    pub(crate) complete: bool,
    /// The last number that was given.
    pub(crate) last: i64,
    /// The ends that have the last numbers, in their order, until the numbers are written there.
    pub(crate) numbering: Vec<String>,
}

impl WatchDoc {
    /// The list of a queue that was never watched.
    pub(crate) fn new(queue: &QueueName) -> Self {
        let (queue, numbering) = (queue.clone(), Vec::new());
        Self { queue, version: 0, active: false, period: 0, complete: false, last: 0, numbering }
    }

    /// The ends that have no number yet.
    pub(crate) fn waiting(&self) -> Document {
        doc! { "queue": self.queue.as_str(), "period": self.period, "waiting": true }
    }

    /// The ends behind a number. Numbers that are given after this was read are not among them: they are not written in their order.
    pub(crate) fn numbered_after(&self, number: i64) -> Document {
        let numbers = doc! { "$gt": number, "$lte": self.last };
        doc! { "queue": self.queue.as_str(), "period": self.period, "number": numbers }
    }
}

/// An end in the list of its queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndDoc {
    /// The same for all who list this end in this period.
    #[serde(rename = "_id")]
    pub(crate) id: String,
    queue: QueueName,
    period: i64,
    #[serde(with = "crate::values::text")]
    pub(crate) letter: LetterId,
    pub(crate) state: LetterState,
    pub(crate) attempts: u32,
    /// The order in which ends get their numbers. It has gaps, and may go back a little.
    order: i64,
    /// `true` until it gets a number.
    waiting: bool,
    /// Its number, until it is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<i64>,
}

/// A letter that a decision ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndedDoc {
    #[serde(with = "crate::values::text")]
    letter: LetterId,
    state: LetterState,
    attempts: u32,
    /// Its number in the order of arrival.
    pub(crate) arrival: i64,
    /// The version of the sequence that decided it.
    decided: i64,
}

impl EndedDoc {
    /// The end of a letter by this decision.
    pub(crate) fn of(letter: &Letter, arrival: u64, decided: i64) -> Self {
        Self::new(letter.id, letter.state, letter.attempts, int(arrival), decided)
    }

    pub(crate) const fn new(
        letter: LetterId,
        state: LetterState,
        attempts: u32,
        arrival: i64,
        decided: i64,
    ) -> Self {
        Self { letter, state, attempts, arrival, decided }
    }

    /// The end as it is listed in a period.
    pub(crate) fn listed(self, queue: &QueueName, period: i64, order: i64) -> EndDoc {
        let Self { letter, state, attempts, decided, .. } = self;
        let (id, queue) = (format!("{period}:{letter}#{decided}"), queue.clone());
        EndDoc { id, queue, period, letter, state, attempts, order, waiting: true, number: None }
    }
}
