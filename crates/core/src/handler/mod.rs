//! Handlers: plain async functions that say in their parameters what they want to know.
//!
//! ```
//! use lazaret_core::HandlerError;
//! use lazaret_core::handler::{Attempt, StoredLetter, Json, handler};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: u64,
//! }
//!
//! async fn on_order(
//!     Json(order): Json<Order>,
//!     Attempt(attempt): Attempt,
//!     letter: Option<StoredLetter>,
//! ) -> Result<(), HandlerError> {
//!     if let Some(letter) = letter {
//!         println!("order {}, attempt {attempt}, failed before: {:?}", order.id, letter.cause);
//!     }
//!     Ok(())
//! }
//!
//! let on_order = handler(on_order);
//! # let _ = on_order;
//! ```
//!
//! A function is a handler when
//! - it takes at most eight parameters, each of which is an extractor ([`FromDelivery`]). They are extracted from left
//!   to right, and the first that fails ends the attempt in phase `decode`;
//! - it returns a future that is `Send` and yields `()` or `Result<(), E>` for any error `E` ([`IntoOutcome`]);
//! - it is `Clone + Send + Sync + 'static`, as every `fn` and most closures are.
//!
//! # State
//!
//! There is no state extractor. A closure captures what the handler needs, and the compiler checks that it is there:
//!
//! ```
//! use lazaret_core::handler::{Key, handler};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let seen = Arc::new(AtomicU64::new(0));
//! let count = handler(move |_key: Key| {
//!     let seen = Arc::clone(&seen);
//!     async move {
//!         seen.fetch_add(1, Ordering::Relaxed);
//!     }
//! });
//! # let _ = count;
//! ```
//!
//! # How it fits together
//!
//! The engine knows only [`Handle`], which is object safe and costs one box per call. [`handler`] makes one from a
//! function; [`Router`] is one that chooses among others. The [`Delivery`] that it is called with lives as long as
//! the message is being handled: all attempts share it. Panics go through to the caller.

mod context;
mod delivery;
mod extract;
mod function;
mod router;

use std::pin::Pin;
use std::sync::Arc;

use crate::failure::HandlerError;

pub use context::{Context, METADATA_BYTES, METADATA_ENTRIES, MetadataFull};
pub use delivery::{Delivery, Desk};
pub use extract::{Attempt, EventType, FromDelivery, Json, Key, Payload, StoredLetter, Text};
pub use function::Ready;
pub use router::Router;

/// One attempt under way. It yields `Ok` when the message was handled.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'static>>;

/// A handler of any kind, ready to be called and shared.
pub type BoxHandler = Arc<dyn Handle>;

/// What the engine calls: one attempt at one message.
///
/// Implement it for handlers that are not functions. For functions there is [`handler`].
///
/// ```
/// use lazaret_core::handler::{Delivery, Handle, HandlerFuture};
///
/// struct Ignore;
///
/// impl Handle for Ignore {
///     fn handle(&self, _: Delivery) -> HandlerFuture {
///         Box::pin(std::future::ready(Ok(())))
///     }
/// }
/// ```
pub trait Handle: Send + Sync + 'static {
    /// Starts an attempt. Dropping the future gives the attempt up.
    ///
    /// Both this call and the future may panic.
    fn handle(&self, delivery: Delivery) -> HandlerFuture;
}

impl<H: Handle + ?Sized> Handle for Arc<H> {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        (**self).handle(delivery)
    }
}

/// An async function that can handle messages. See the [module](self) for which functions can.
///
/// It is implemented for functions of up to eight extractors, and for everything that is [`Handle`] and `Clone`, so
/// that a [`BoxHandler`] or a [`Router`] can stand wherever a function can. `Args` keeps these apart and never needs
/// to be written.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "a handler is an async function (or a closure that is `Clone + Send + Sync + 'static`)",
    note = "it takes at most eight parameters, all of them extractors (`FromDelivery`): `Json<T>`, `Context`, `Option<StoredLetter>`, …",
    note = "it returns `()` or `Result<(), E>`, where `E` is `HandlerError` or any `std::error::Error`",
    note = "its future must be `Send`: nothing that is not `Send` may be held across an `.await`"
)]
pub trait Handler<Args>: Clone + Send + Sync + 'static {
    /// Extracts the arguments and runs the function.
    fn call(self, delivery: Delivery) -> impl Future<Output = Result<(), HandlerError>> + Send + 'static;

    /// The handler without its type. [`handler`] reads better.
    fn boxed(self) -> BoxHandler
    where
        Args: 'static,
    {
        Arc::new(function::Function::new(self))
    }
}

/// Makes a handler from a function.
///
/// ```
/// use lazaret_core::handler::{Delivery, Text, handler};
/// use lazaret_core::{HandlerError, Message, Position};
///
/// async fn greet(Text(name): Text) -> Result<(), HandlerError> {
///     if name.is_empty() {
///         return Err(HandlerError::msg("nobody to greet"));
///     }
///     Ok(())
/// }
///
/// let greet = handler(greet);
/// let message = Message::new("evt-1", "names", Position::new(0, 0)).with_payload("Ada");
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// assert!(runtime.block_on(greet.handle(Delivery::new(message))).is_ok());
/// ```
///
/// Something else is refused by the compiler:
///
/// ```compile_fail
/// async fn wrong(number: u64) {} // `u64` is not an extractor
/// lazaret_core::handler::handler(wrong);
/// ```
pub fn handler<A: 'static, H: Handler<A>>(h: H) -> BoxHandler {
    h.boxed()
}

/// What a handler may return.
///
/// ```
/// use lazaret_core::handler::IntoOutcome;
/// assert!(().into_outcome().is_ok());
/// assert!("seven".parse::<u64>().map(|_| ()).into_outcome().is_err());
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not an outcome",
    note = "return `()` or `Result<(), E>`, where `E` is `HandlerError` or any `std::error::Error`",
    note = "for boxed errors and error-collecting libraries use `.map_err(HandlerError::from_boxed)`"
)]
pub trait IntoOutcome {
    /// How the attempt ended.
    fn into_outcome(self) -> Result<(), HandlerError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Into<HandlerError>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(Into::into)
    }
}
