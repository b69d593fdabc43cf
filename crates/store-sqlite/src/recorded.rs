//! Calls that are recorded in the redo log, so that they can be run again.

use crate::error::{Fault, Work};
use crate::redo::{Fields, Size, put};
use crate::step::Step;

/// A call that can be run again, with the same effect on the same state at the same time.
pub(crate) trait Repeatable: Send + Sized + 'static {
    /// Which call it is, in the log.
    const KIND: u8;
    /// Which call it is, in errors.
    const OPERATION: &'static str;
    /// What its caller hears.
    type Answer: Send;

    /// Does it. What it refuses as a whole it refuses before it writes anything.
    fn run(&self, step: &mut Step<'_>) -> Work<Self::Answer>;
    /// What came out, to compare with when it is run again.
    fn outcome(answer: &Self::Answer, into: &mut Vec<u8>);
    /// The call as bytes.
    fn encode(&self, into: &mut Vec<u8>);
    /// The call from its bytes.
    fn decode(fields: &mut Fields<'_>) -> Work<Self>;
    /// How large it is.
    fn size(&self) -> Size;
}

/// Puts a call that was run into a record.
pub(crate) fn encode_call<C: Repeatable>(call: &C, now: i64, answer: &C::Answer, into: &mut Vec<u8>) {
    into.push(C::KIND);
    put::signed(into, now);
    put::sized(into, |into| call.encode(into));
    put::sized(into, |into| C::outcome(answer, into));
}

/// A call from a record, as it ran the first time.
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

    /// Runs it again.
    pub(crate) fn run_as<C: Repeatable>(&self, step: &mut Step<'_>) -> Work<()> {
        let answer = C::decode(&mut Fields::of(self.call))?.run(step)?;
        let mut outcome = Vec::new();
        C::outcome(&answer, &mut outcome);
        if outcome == self.outcome {
            return Ok(());
        }
        let context = format!(
            "a {} of the redo log has another outcome than the first time: the database is not the one it ran on",
            C::OPERATION
        );
        Err(Fault::Corrupt(context))
    }
}
