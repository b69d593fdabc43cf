//! Requests to the writer, and the error of a lost group.

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use tokio::sync::oneshot;

use crate::error::{Fault, Work};
use crate::recorded::{self, Repeatable};
use crate::redo::Size;
use crate::step::Step;

/// An item of the writer's queue.
pub(super) enum Command {
    Run(Box<dyn Request>),
    /// Write the whole file anew, and empty the logs.
    Rewrite(oneshot::Sender<std::result::Result<(), GroupFailure>>),
    /// Commit, and write the logs to the database. The response has the bytes that are free in the file, if nothing remains to be written.
    MergeLogs(oneshot::Sender<std::result::Result<Option<u64>, GroupFailure>>),
    /// Run the queued requests, accept no more, and stop.
    Close,
}

/// A request to the writer.
pub(super) trait Request: Send {
    /// `true` if its failure must not affect the others.
    fn fails_alone(&self) -> bool;
    /// `true` if it can run again, after a run that was rolled back.
    fn is_repeatable(&self) -> bool;
    /// Its size in the redo log, once it has run; `None` if the redo log cannot record it.
    fn record_size(&self) -> Option<Size>;
    /// Runs it. The result, which may be an error, is kept until it is durable.
    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), GroupFailure>;
    /// Appends the executed call to a record of the redo log.
    fn record(&self, into: &mut Vec<u8>);
    /// Responds to the caller: with its result, or with the failure of the whole group.
    fn answer(self: Box<Self>, failure: Option<&GroupFailure>);
}

/// A request of any kind.
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
    fn fails_alone(&self) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        false
    }

    fn record_size(&self) -> Option<Size> {
        None
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), GroupFailure> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let answer = self.answer.insert(work(step).map_err(|fault| fault.into_error(self.operation)));
        failure_of(answer)
    }

    fn record(&self, _: &mut Vec<u8>) {}

    fn answer(self: Box<Self>, failure: Option<&GroupFailure>) {
        let Self { operation, answer, reply, .. } = *self;
        respond(operation, answer, failure, reply);
    }
}

/// The failure of a request with this result, which has to be rolled back.
fn failure_of<T>(answer: &Result<T>) -> std::result::Result<(), GroupFailure> {
    answer.as_ref().map(|_| ()).map_err(GroupFailure::rolled_back)
}

/// Responds with the result of a request, or with the failure of its group.
fn respond<T>(
    operation: &'static str,
    answer: Option<Result<T>>,
    failure: Option<&GroupFailure>,
    reply: oneshot::Sender<Result<T>>,
) {
    let answer = match (failure, answer) {
        (None, Some(answer)) => answer,
        (Some(failure), _) => Err(failure.error(operation)),
        (None, None) => Err(stopped(operation, Certainty::NotDone)),
    };
    // The caller may have stopped waiting.
    _ = reply.send(answer);
}

/// A question that the writer answers from its open transaction, which has what is only in the redo log. It changes nothing, so neither
/// a commit nor a record is needed for it.
pub(super) struct Look<T, F> {
    operation: &'static str,
    question: F,
    answer: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Look<T, F> {
    pub(super) fn new(operation: &'static str, question: F, reply: oneshot::Sender<Result<T>>) -> Self {
        Self { operation, question, answer: None, reply }
    }
}

impl<T, F> Request for Look<T, F>
where
    T: Send,
    F: Fn(&Step<'_>) -> Work<T> + Send,
{
    fn fails_alone(&self) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn record_size(&self) -> Option<Size> {
        Some(Size::default())
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), GroupFailure> {
        let answer =
            self.answer.insert((self.question)(step).map_err(|fault| fault.into_error(self.operation)));
        failure_of(answer)
    }

    fn record(&self, _: &mut Vec<u8>) {}

    fn answer(self: Box<Self>, failure: Option<&GroupFailure>) {
        let Self { operation, answer, reply, .. } = *self;
        respond(operation, answer, failure, reply);
    }
}

/// A request that the redo log can record.
pub(super) struct Recordable<C: Repeatable> {
    call: C,
    /// When it ran, and its result.
    answer: Option<(i64, Result<C::Answer>)>,
    reply: oneshot::Sender<Result<C::Answer>>,
}

impl<C: Repeatable> Recordable<C> {
    pub(super) fn new(call: C, reply: oneshot::Sender<Result<C::Answer>>) -> Self {
        Self { call, answer: None, reply }
    }
}

impl<C: Repeatable> Request for Recordable<C> {
    fn fails_alone(&self) -> bool {
        C::FAILS_ALONE
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn record_size(&self) -> Option<Size> {
        let done = self.answer.as_ref().and_then(|(_, answer)| answer.as_ref().ok());
        Some(done.map_or_else(Size::default, |answer| self.call.size(answer)))
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), GroupFailure> {
        let now = step.now;
        let (answer, failure) = match self.call.run(step) {
            Ok(answer) => (Ok(answer), None),
            // A call that is refused as a whole has written nothing: the others are not affected.
            Err(Fault::Refused(error)) if !C::FAILS_ALONE => (Err(error), None),
            Err(fault) => {
                let error = fault.into_error(C::OPERATION);
                let failure = GroupFailure::rolled_back(&error);
                (Err(error), Some(failure))
            }
        };
        self.answer = Some((now, answer));
        failure.map_or(Ok(()), Err)
    }

    fn record(&self, into: &mut Vec<u8>) {
        // A refused call has changed nothing.
        if let Some((now, Ok(answer))) = &self.answer {
            recorded::encode_call(&self.call, *now, answer, into);
        }
    }

    fn answer(self: Box<Self>, failure: Option<&GroupFailure>) {
        let answer = match (failure, self.answer) {
            (None, Some((_, answer))) => answer,
            // It is the one that failed the group, or was refused before.
            (Some(_), Some((_, Err(error)))) => Err(error),
            (Some(failure), _) => Err(failure.error(C::OPERATION)),
            (None, None) => Err(stopped(C::OPERATION, Certainty::NotDone)),
        };
        // The caller may have stopped waiting.
        _ = self.reply.send(answer);
    }
}

/// The failure of a whole group.
#[derive(Debug)]
pub(super) struct GroupFailure {
    pub(super) kind: ErrorKind,
    pub(super) certainty: Certainty,
    pub(super) context: String,
}

impl GroupFailure {
    pub(super) fn rolled_back(error: &StoreError) -> Self {
        Self { kind: error.kind(), certainty: Certainty::NotDone, context: error.context().to_owned() }
    }

    pub(super) fn of(fault: impl Into<Fault>) -> Self {
        Self::rolled_back(&fault.into().into_error("commit"))
    }

    /// The failure for the other calls of the group: nothing was done, and they can be repeated.
    pub(super) fn for_others(self) -> Self {
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
    let context = "the store is closed";
    match certainty {
        Certainty::NotDone => StoreError::not_done(ErrorKind::Unavailable, operation, context),
        Certainty::MaybeDone => StoreError::maybe(ErrorKind::Unavailable, operation, context),
    }
}
