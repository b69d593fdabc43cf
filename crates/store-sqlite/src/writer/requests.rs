//! What the writer is asked for, and what those who asked hear when their group is lost.

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use tokio::sync::oneshot;

use crate::error::{Fault, Work};
use crate::recorded::{self, Repeatable};
use crate::redo::Size;
use crate::step::Step;

/// What stands in the writer's line.
pub(super) enum Order {
    Do(Box<dyn Request>),
    /// Answer those in line, let nobody else in, and end.
    Close,
}

/// Something to be done by the writer.
pub(super) trait Request: Send {
    /// Whether it has a savepoint of its own.
    fn has_savepoint(&self) -> bool;
    /// How much the redo log would have to hold; `None` when it cannot hold this.
    fn record_size(&self) -> Option<Size>;
    /// Does it. The answer, be it an error, is kept until it is durable.
    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), Loss>;
    /// Puts what was done into a record of the redo log.
    fn record(&self, into: &mut Vec<u8>);
    /// Answers: with what was found out, or with what happened to the whole group.
    fn answer(self: Box<Self>, loss: Option<&Loss>);
}

/// Any work.
pub(super) struct Call<T, F> {
    operation: &'static str,
    work: Option<F>,
    answer: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Call<T, F> {
    pub(super) fn new(operation: &'static str, work: F, reply: oneshot::Sender<Result<T>>) -> Self {
        Self { operation, work: Some(work), answer: None, reply }
    }
}

impl<T, F> Request for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Step<'_>) -> Work<T> + Send,
{
    fn has_savepoint(&self) -> bool {
        true
    }

    fn record_size(&self) -> Option<Size> {
        None
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), Loss> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let answer = work(step).map_err(|fault| fault.into_error(self.operation));
        let loss = answer.as_ref().err().map(Loss::rolled_back);
        self.answer = Some(answer);
        loss.map_or(Ok(()), Err)
    }

    fn record(&self, _: &mut Vec<u8>) {}

    fn answer(self: Box<Self>, loss: Option<&Loss>) {
        let answer = match (loss, self.answer) {
            (None, Some(answer)) => answer,
            (Some(loss), _) => Err(loss.error(self.operation)),
            (None, None) => Err(stopped(self.operation, Certainty::NotDone)),
        };
        // Who does not wait any more needs no answer.
        _ = self.reply.send(answer);
    }
}

/// Work that the redo log can hold.
pub(super) struct Recordable<C: Repeatable> {
    call: C,
    /// When it ran, and what came out.
    answer: Option<(i64, Result<C::Answer>)>,
    reply: oneshot::Sender<Result<C::Answer>>,
}

impl<C: Repeatable> Recordable<C> {
    pub(super) fn new(call: C, reply: oneshot::Sender<Result<C::Answer>>) -> Self {
        Self { call, answer: None, reply }
    }
}

impl<C: Repeatable> Request for Recordable<C> {
    fn has_savepoint(&self) -> bool {
        false
    }

    fn record_size(&self) -> Option<Size> {
        Some(self.call.size())
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), Loss> {
        let now = step.now;
        let (answer, loss) = match self.call.run(step) {
            Ok(answer) => (Ok(answer), None),
            // What it refuses as a whole it refuses before it writes: the others do not suffer.
            Err(Fault::Refused(error)) => (Err(error), None),
            Err(fault) => {
                let error = fault.into_error(C::OPERATION);
                let loss = Loss::rolled_back(&error);
                (Err(error), Some(loss))
            }
        };
        self.answer = Some((now, answer));
        loss.map_or(Ok(()), Err)
    }

    fn record(&self, into: &mut Vec<u8>) {
        // What was refused has changed nothing.
        if let Some((now, Ok(answer))) = &self.answer {
            recorded::encode_call(&self.call, *now, answer, into);
        }
    }

    fn answer(self: Box<Self>, loss: Option<&Loss>) {
        let answer = match (loss, self.answer) {
            (None, Some((_, answer))) => answer,
            // It is the one that took the group with it, or was refused before.
            (Some(_), Some((_, Err(error)))) => Err(error),
            (Some(loss), _) => Err(loss.error(C::OPERATION)),
            (None, None) => Err(stopped(C::OPERATION, Certainty::NotDone)),
        };
        // Who does not wait any more needs no answer.
        _ = self.reply.send(answer);
    }
}

/// What happened to a whole group.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) kind: ErrorKind,
    pub(super) certainty: Certainty,
    pub(super) context: String,
}

impl Loss {
    pub(super) fn rolled_back(error: &StoreError) -> Self {
        Self { kind: error.kind(), certainty: Certainty::NotDone, context: error.context().to_owned() }
    }

    pub(super) fn of(fault: impl Into<Fault>) -> Self {
        Self::rolled_back(&fault.into().into_error("commit"))
    }

    /// What those hear who had nothing to do with it: nothing was done, and they may ask again.
    pub(super) fn of_another(self) -> Self {
        let context = format!("another call of the same group failed: {}", self.context);
        Self { kind: ErrorKind::Unavailable, certainty: Certainty::NotDone, context }
    }

    pub(super) fn error(&self, operation: &'static str) -> StoreError {
        match self.certainty {
            Certainty::NotDone => StoreError::not_done(self.kind, operation, self.context.clone()),
            Certainty::MaybeDone => StoreError::maybe(self.kind, operation, self.context.clone()),
        }
    }
}

pub(super) fn stopped(operation: &'static str, certainty: Certainty) -> StoreError {
    let context = "the store's thread has ended";
    match certainty {
        Certainty::NotDone => StoreError::not_done(ErrorKind::Unavailable, operation, context),
        Certainty::MaybeDone => StoreError::maybe(ErrorKind::Unavailable, operation, context),
    }
}
