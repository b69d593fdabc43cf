//! Handlers: plain async functions whose parameters are extractors.
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
//! - it takes at most eight parameters, each of which is an extractor ([`FromDelivery`], [`State`]). They are extracted from
//!   left to right, and the first that fails ends the attempt in phase `decode`;
//! - it returns a future that is `Send` and yields `()` or `Result<(), E>`, where `E` is any error, a boxed error or, with the
//!   feature `anyhow`, an `anyhow::Error` ([`IntoOutcome`]);
//! - it is `Clone + Send + Sync + 'static`, as every `fn` and most closures are.
//!
//! # State
//!
//! [`State<T>`] gives a handler shared state. [`Router::with_state`] and [`Handler::with_state`] provide it; a handler whose
//! state was not provided does not compile:
//!
//! ```
//! use lazaret_core::handler::{Key, Router, State};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Clone, Default)]
//! struct App {
//!     seen: Arc<AtomicU64>,
//! }
//!
//! async fn count(State(app): State<App>, _key: Key) {
//!     app.seen.fetch_add(1, Ordering::Relaxed);
//! }
//!
//! let router: Router = Router::new().on("OrderPlaced", count).with_state(App::default());
//! # let _ = router;
//! ```
//!
//! A closure can capture what it needs instead.
//!
//! # Layers
//!
//! [`Handler::layer`] wraps a handler in a [`Layer`]: a timeout, metrics, or a function of yours. [`layer`] says in which
//! order layers run.
//!
//! # How it fits together
//!
//! The engine calls [`Handle`], which is object safe and costs one box per call. [`handler`] makes one from a function or
//! from a [`Router`], which chooses among handlers. The [`Delivery`] that it is called with lives as long as the message is
//! being handled: all attempts share it. Panics unwind to the caller.

mod context;
mod delivery;
mod extract;
mod function;
pub mod layer;
mod outcome;
mod router;
mod state;
mod table;

use std::pin::Pin;
use std::sync::Arc;

use crate::failure::HandlerError;
use crate::message::Message;
use crate::policy::RetryPolicy;

pub use context::{Context, METADATA_BYTES, METADATA_ENTRIES, MetadataFull};
pub use delivery::{AttemptEnd, DeadLetterSink, Delivery};
pub use extract::{Attempt, EventType, FromDelivery, Json, Key, Payload, StoredLetter, Text};
pub use function::Ready;
pub use layer::{Layer, Layered, Next, layer_fn};
pub use outcome::IntoOutcome;
pub use router::Router;
pub use state::{FromDeliveryWith, FromRef, State};

/// One attempt in progress. It yields `Ok` when the message was handled.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'static>>;

/// A handler of any kind, ready to be called and shared.
pub type BoxHandler = Arc<dyn Handle>;

/// The interface that the engine calls: one attempt at one message.
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
    /// Starts an attempt. Dropping the future abandons the attempt.
    ///
    /// Both this call and the future may panic.
    fn handle(&self, delivery: Delivery) -> HandlerFuture;

    /// Returns the retry policy for this message; `None` for the consumer's. The answer depends on the message alone.
    ///
    /// See [`Router::retry`].
    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        let _ = message;
        None
    }

    /// Returns every policy that [`retry_policy`](Self::retry_policy) may return. They are validated when the consumer is
    /// built.
    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        Vec::new()
    }
}

impl<H: Handle + ?Sized> Handle for Arc<H> {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        (**self).handle(delivery)
    }

    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        (**self).retry_policy(message)
    }

    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        (**self).retry_policies()
    }
}

/// An async function that can handle messages. The [module](self) says which functions can.
///
/// It is implemented for functions of up to eight extractors, for [`Router`] and [`Layered`], and for everything that is
/// [`Handle`] and `Clone`, so that a [`BoxHandler`] can stand wherever a function can. `S` is the state that it needs, see
/// [`State`]. `Args` keeps the implementations apart and never needs to be written.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "a handler is an async function (or a closure that is `Clone + Send + Sync + 'static`)",
    note = "it takes at most eight parameters, all of them extractors (`FromDelivery`): `Json<T>`, `Context`, `Option<StoredLetter>`, …",
    note = "a handler that takes `State<T>` needs `with_state(..)`, on the router or on the handler",
    note = "it returns `()` or `Result<(), E>`, where `E` is `HandlerError`, any `std::error::Error` or `Box<dyn Error + Send + Sync>`",
    note = "its future must be `Send`: nothing that is not `Send` may be held across an `.await`"
)]
pub trait Handler<Args, S = ()>: Clone + Send + Sync + Sized + 'static {
    /// Gives the handler its state and erases its type.
    ///
    /// ```
    /// use lazaret_core::handler::{Handler, State};
    ///
    /// async fn greet(State(greeting): State<&'static str>) {
    ///     println!("{greeting}");
    /// }
    ///
    /// let greet = greet.with_state("hello");
    /// # let _ = greet;
    /// ```
    fn with_state(self, state: S) -> BoxHandler;

    /// Wraps the handler in a layer. The layer applied last runs first: see [`layer`].
    fn layer<L: Layer>(self, layer: L) -> Layered<Self, Args, S> {
        Layered::new(self, layer)
    }
}

/// Makes a handler from a function, a router, or a handler with layers.
///
/// ```
/// use lazaret_core::handler::{Delivery, Text, handler};
/// use lazaret_core::{HandlerError, Message, Position};
///
/// async fn greet(Text(name): Text) -> Result<(), HandlerError> {
///     if name.is_empty() {
///         return Err(HandlerError::msg("no name"));
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
/// Anything else does not compile:
///
/// ```compile_fail
/// async fn wrong(number: u64) {} // `u64` is not an extractor
/// lazaret_core::handler::handler(wrong);
/// ```
pub fn handler<A: 'static, H: Handler<A>>(h: H) -> BoxHandler {
    h.with_state(())
}
