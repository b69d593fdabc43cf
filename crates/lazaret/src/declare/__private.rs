//! Functions that the code of the attribute macros calls. Not part of the public interface.

use std::sync::Arc;

use lazaret_config::Setting;
use lazaret_core::handler::{BoxHandler, Delivery, FromDeliveryWith, Handler, IntoOutcome, Router};
use lazaret_core::policy::Classifier;
use lazaret_core::{HandlerError, Message, Operation};

use super::declaration::{Declaration, DeclaredSource};
use super::on_error::{ErrorAction, OnError};

pub fn declaration(
    name: &'static str,
    source: DeclaredSource,
    settings: Vec<Setting>,
    defaults: Vec<Setting>,
    (dead_letter_collection, dead_letter_client): (Option<&'static str>, Option<&'static str>),
    handler: BoxHandler,
) -> Declaration {
    Declaration {
        name,
        source,
        settings,
        defaults,
        dead_letter_collection,
        dead_letter_client,
        handler,
        filter: None,
        classify: None,
    }
}

/// Routes an operation, whether the source sets the operation or only its name as the event type.
pub fn on_operation<A: 'static, S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    operation: Operation,
    handler: impl Handler<A, S>,
) -> Router<S> {
    let name = match operation {
        Operation::Insert => "insert",
        Operation::Update => "update",
        Operation::Replace => "replace",
        Operation::Delete => "delete",
        other => unreachable!("no attribute is for {other:?}"),
    };
    router.on(name, handler.clone()).on_operation(operation, handler)
}

pub fn classified(
    declaration: Declaration,
    classify: impl Fn(Classifier) -> Classifier + Send + Sync + 'static,
) -> Declaration {
    Declaration { classify: Some(Arc::new(classify)), ..declaration }
}

pub fn filtered(
    declaration: Declaration,
    keeps: impl Fn(&Delivery) -> Result<bool, HandlerError> + Send + Sync + 'static,
) -> Declaration {
    let filter = move |message: &Message| keeps(&Delivery::new(message.clone()));
    Declaration { filter: Some(Arc::new(filter)), ..declaration }
}

pub fn on_error(
    declaration: Declaration,
    decide: impl Fn(&HandlerError, &Delivery) -> Result<ErrorAction, HandlerError> + Send + Sync + 'static,
) -> Declaration {
    let handler = OnError { inner: declaration.handler, decide: Arc::new(decide) };
    Declaration { handler: Arc::new(handler), ..declaration }
}

/// Makes the compiler report a parameter that is not an extractor, at the parameter.
pub fn assert_extractor<S, T: FromDeliveryWith<S>>() {}

/// Makes the compiler report a result that a handler cannot return, at the result.
pub fn assert_outcome<Via, T: IntoOutcome<Via>>() {}

/// A type that a filter may return.
#[diagnostic::on_unimplemented(
    message = "a filter cannot return `{Self}`",
    label = "not an answer",
    note = "return `bool` or `Result<bool, E>`, where `E` is an error that a handler may return"
)]
pub trait IntoKeep<Via> {
    fn into_keep(self) -> Result<bool, HandlerError>;
}

impl IntoKeep<()> for bool {
    fn into_keep(self) -> Result<bool, HandlerError> {
        Ok(self)
    }
}

impl<E, Via> IntoKeep<(Via,)> for Result<bool, E>
where
    Result<(), E>: IntoOutcome<Via>,
{
    fn into_keep(self) -> Result<bool, HandlerError> {
        let (kept, result) = match self {
            Ok(kept) => (kept, Ok(())),
            Err(error) => (false, Err(error)),
        };
        result.into_outcome().map(|()| kept)
    }
}

/// A type that a method with `#[on_error]` may return.
#[diagnostic::on_unimplemented(
    message = "a method with `#[on_error]` cannot return `{Self}`",
    label = "not an action",
    note = "return nothing, or `ErrorAction`"
)]
pub trait IntoErrorAction {
    fn into_action(self) -> ErrorAction;
}

impl IntoErrorAction for () {
    fn into_action(self) -> ErrorAction {
        ErrorAction::Rethrow
    }
}

impl IntoErrorAction for ErrorAction {
    fn into_action(self) -> ErrorAction {
        self
    }
}
