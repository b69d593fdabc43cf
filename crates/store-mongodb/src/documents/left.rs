//! What is left to do after a decision, as the deciding document keeps it. Doing it twice changes nothing.

use bson::RawDocumentBuf;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::rules::{AuditLine, CountChange, Failed};
use lazaret_core::store::{Actor, OperationId, Outcome};
use lazaret_core::{Failure, Fingerprint, Timestamp};
use serde::{Deserialize, Serialize};

use super::end::EndedDoc;
use super::sequence::SequenceDoc;
use crate::values::{int, nanos, uint};

/// One thing that is left to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Left {
    /// Write this letter, in its new form. `new` if no letter has its id yet.
    Letter { document: RawDocumentBuf, new: bool },
    /// Open the sequence of a letter that left the deciding one, unless it was opened before.
    Sequence(Box<SequenceDoc>),
    /// Delete the chunks of a letter that its new form does not refer to.
    Chunks(String),
    /// Count letters and the sequence in their groups, all changes of one decision at once.
    Counts(Vec<CountDoc>),
    /// Append to the audit.
    Audit(LineDoc),
    /// List a letter that ended, if its queue is watched.
    End(EndedDoc),
    /// Record the outcome of a letter in an operation.
    Outcome(OutcomeDoc),
    /// Write the outcomes of these letters of a plan, by their ordinals, if they have none.
    Outcomes(Vec<(i64, Outcome)>),
    /// Write the outcome of the letters of a plan that have none: those in a range of ordinals, except some.
    Items { from: i64, to: i64, except: Vec<String>, outcome: Outcome },
}

/// What is left to do as one binary value. A letter is written twice, once here: a server copies these bytes and does not look into
/// them.
pub(crate) mod packed {
    use bson::Binary;
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    #[derive(Serialize, Deserialize)]
    struct Packed<T> {
        left: T,
    }

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        left: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = bson::serialize_to_vec(&Packed { left }).map_err(ser::Error::custom)?;
        serializer.serialize_bytes(&bytes)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let Binary { bytes, .. } = Binary::deserialize(deserializer)?;
        let packed: Packed<Vec<T>> = bson::deserialize_from_slice(&bytes).map_err(de::Error::custom)?;
        Ok(packed.left)
    }
}

/// A line of the audit, with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LineDoc {
    pub(crate) at: i64,
    pub(crate) by: Actor,
    pub(crate) action: String,
    pub(crate) subject: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

impl Left {
    /// A line that is left to be written.
    pub(crate) fn audit(line: AuditLine, now: Timestamp) -> Self {
        let AuditLine { by, action, subject, before, after } = line;
        Self::Audit(LineDoc { at: nanos(now), by, action, subject, before, after })
    }
}

/// The outcome of a letter in an operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OutcomeDoc {
    operation: i64,
    #[serde(with = "crate::values::text")]
    pub(crate) letter: LetterId,
    pub(crate) outcome: Outcome,
    /// Whether it counts for the rate only now.
    pub(crate) spend: bool,
    /// Number of letters outside of the plan that the operation lets run.
    released: i64,
    pub(crate) at: i64,
}

impl OutcomeDoc {
    pub(crate) fn new(operation: OperationId, letter: LetterId, outcome: Outcome, at: Timestamp) -> Self {
        Self { operation: int(operation.0), letter, outcome, spend: false, released: 0, at: nanos(at) }
    }

    /// It counts for the rate with the outcome.
    pub(crate) const fn spending(self) -> Self {
        Self { spend: true, ..self }
    }

    pub(crate) fn releasing(self, letters: u64) -> Self {
        Self { released: int(letters), ..self }
    }

    pub(crate) fn operation(&self) -> OperationId {
        OperationId(uint(self.operation))
    }

    pub(crate) fn released(&self) -> u64 {
        uint(self.released)
    }
}

/// A change of what groups count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CountDoc {
    pub(crate) at: i64,
    /// By group and state.
    pub(crate) letters: Vec<(Fingerprint, LetterState, i64)>,
    /// By group: the number of letters behind the head of the sequence.
    pub(crate) blocked: Vec<(Fingerprint, i64, i64)>,
    pub(crate) failed: Option<FailedDoc>,
}

/// A failure to record in a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FailedDoc {
    pub(crate) at: i64,
    pub(crate) enters: bool,
    pub(crate) failure: Failure,
}

impl CountDoc {
    /// The change for a letter with this cause, if it concerns a group.
    pub(crate) fn of(
        change: &CountChange,
        failed: Option<Failed>,
        cause: Option<&Failure>,
        now: Timestamp,
    ) -> Option<Self> {
        let letters = change.changes().filter_map(|(counted, by)| Some((counted.group?, counted.state, by)));
        let blocked = change.blocks().map(|(blocked, by)| (blocked.group, int(blocked.behind), by));
        let failed = failed.zip(cause).map(|(failed, cause)| FailedDoc {
            at: nanos(failed.at),
            enters: failed.enters,
            // A group shows reason, type and message.
            failure: Failure { chain: Vec::new(), backtrace: None, ..cause.clone() },
        });
        let doc = Self { at: nanos(now), letters: letters.collect(), blocked: blocked.collect(), failed };
        (!doc.letters.is_empty() || !doc.blocked.is_empty()).then_some(doc)
    }

    /// The groups that it concerns.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Fingerprint> + '_ {
        let letters = self.letters.iter().map(|(group, ..)| *group);
        letters.chain(self.blocked.iter().map(|(group, ..)| *group))
    }
}
