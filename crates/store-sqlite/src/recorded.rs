//! Calls that are recorded in the redo log for replay.

use crate::error::{Fault, Work};
use crate::redo::{Fields, Size, put};
use crate::step::Step;

/// A deterministic call: repeated on the same state at the same time, it has the same effect.
pub(crate) trait Repeatable: Send + Sized + 'static {
    /// Its kind in the log.
    const KIND: u8;
    /// Its name in errors.
    const OPERATION: &'static str;
    /// Its result.
    type Answer: Send;

    /// `true` if its failure must not affect the other calls of its group, although it may fail after it has written. Otherwise its failure
    /// is that of its group, and a call that is refused as a whole has written nothing.
    const FAILS_ALONE: bool = false;

    /// Runs it. It may run again, after a run that was rolled back.
    fn run(&mut self, step: &mut Step<'_>) -> Work<Self::Answer>;
    /// Encodes the result, to verify a repetition.
    fn outcome(answer: &Self::Answer, into: &mut Vec<u8>);
    /// Encodes the call that has run.
    fn encode(&self, into: &mut Vec<u8>);
    /// Decodes the call.
    fn decode(fields: &mut Fields<'_>) -> Work<Self>;
    /// Its size, with this result.
    fn size(&self, answer: &Self::Answer) -> Size;
}

/// Appends an executed call to a record.
pub(crate) fn encode_call<C: Repeatable>(call: &C, now: i64, answer: &C::Answer, into: &mut Vec<u8>) {
    into.push(C::KIND);
    put::signed(into, now);
    put::sized(into, |into| call.encode(into));
    put::sized(into, |into| C::outcome(answer, into));
}

/// A call from a record, as first executed.
pub(crate) struct Call<'a> {
    pub(crate) kind: u8,
    pub(crate) now: i64,
    call: &'a [u8],
    outcome: &'a [u8],
}

impl<'a> Call<'a> {
    /// All calls of a record.
    pub(crate) fn all(record: &'a [u8]) -> Work<Vec<Self>> {
        let mut fields = Fields::of(record);
        let mut calls = Vec::new();
        while !fields.is_empty() {
            let (kind, now) = (fields.byte()?, fields.signed()?);
            calls.push(Self { kind, now, call: fields.bytes()?, outcome: fields.bytes()? });
        }
        Ok(calls)
    }

    /// The encoded call.
    #[cfg(test)]
    pub(crate) fn encoded(&self) -> &'a [u8] {
        self.call
    }

    /// Repeats it.
    pub(crate) fn run_as<C: Repeatable>(&self, step: &mut Step<'_>) -> Work<()> {
        let answer = C::decode(&mut Fields::of(self.call))?.run(step)?;
        let mut outcome = Vec::new();
        C::outcome(&answer, &mut outcome);
        if outcome == self.outcome {
            return Ok(());
        }
        let context = format!(
            "the result of a repeated {} of the redo log differs: the log does not belong to this database",
            C::OPERATION
        );
        Err(Fault::Corrupt(context))
    }
}
