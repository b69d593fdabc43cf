//! Layers: code around a handler, such as timeouts, metrics and tracing.
//!
//! A [`Layer`] turns a handler into another one that calls it. [`Handler::layer`] applies it:
//!
//! ```
//! use lazaret_core::handler::{Delivery, Handler, Next, Text, handler, layer_fn};
//!
//! async fn greet(Text(name): Text) {
//!     println!("hello {name}");
//! }
//!
//! let logged = layer_fn(|delivery: Delivery, next: Next| async move {
//!     let id = delivery.message().id.clone();
//!     let result = next.run(delivery).await;
//!     println!("{id}: {}", if result.is_ok() { "handled" } else { "failed" });
//!     result
//! });
//! let greet = handler(greet.layer(logged));
//! # let _ = greet;
//! ```
//!
//! # Order
//!
//! The layer that is applied last runs first. In `place.layer(timeout).layer(metrics)` an attempt enters `metrics`, then
//! `timeout`, then `place`, and its outcome leaves them in the reverse order: `metrics` sees the error of a timeout. A layer
//! around a [`Router`](super::Router) runs for every message, also for those that no route fits; a layer around the handler
//! of a route runs for the messages of that route, inside those of the router.
//!
//! The engine applies its own limits outside of all layers: the attempt timeout of the consumer, and the guard that turns a
//! panic into a failure. A panic in a layer is the failure of that message (I10). Layers run once per attempt, after the
//! duplicate filter and the message filter.
//!
//! The retry policies of a router's routes are found through any layer around it.

use std::marker::PhantomData;
use std::sync::Arc;

use super::delivery::Delivery;
use super::function::Ready;
use super::{BoxHandler, Handle, Handler, HandlerFuture};
use crate::failure::HandlerError;
use crate::message::Message;
use crate::policy::RetryPolicy;

/// Wraps a handler in another one. The [module](self) says in which order layers run.
///
/// [`layer_fn`] makes a layer from an async function. Implement the trait for a layer with settings of its own:
///
/// ```
/// use lazaret_core::handler::{BoxHandler, Delivery, Handle, HandlerFuture, Layer};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts attempts.
/// #[derive(Clone, Default)]
/// struct Count(Arc<AtomicU64>);
///
/// struct Counted {
///     inner: BoxHandler,
///     count: Count,
/// }
///
/// impl Layer for Count {
///     fn layer(&self, inner: BoxHandler) -> BoxHandler {
///         Arc::new(Counted { inner, count: self.clone() })
///     }
/// }
///
/// impl Handle for Counted {
///     fn handle(&self, delivery: Delivery) -> HandlerFuture {
///         self.count.0.fetch_add(1, Ordering::Relaxed);
///         self.inner.handle(delivery)
///     }
/// }
/// ```
pub trait Layer: Send + Sync + 'static {
    /// Wraps the handler. Called once, when the handler is built.
    fn layer(&self, inner: BoxHandler) -> BoxHandler;
}

impl<L: Layer + ?Sized> Layer for Arc<L> {
    fn layer(&self, inner: BoxHandler) -> BoxHandler {
        (**self).layer(inner)
    }
}

/// A handler with a layer around it. Made by [`Handler::layer`].
pub struct Layered<H, Args, S> {
    inner: H,
    layer: Arc<dyn Layer>,
    marker: PhantomData<fn(Args, S)>,
}

impl<H, Args, S> Layered<H, Args, S> {
    pub(super) fn new(inner: H, layer: impl Layer) -> Self {
        Self { inner, layer: Arc::new(layer), marker: PhantomData }
    }
}

impl<H: Clone, Args, S> Clone for Layered<H, Args, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer), marker: PhantomData }
    }
}

impl<H: Handler<Args, S>, Args: 'static, S: 'static> Handler<Ready, S> for Layered<H, Args, S> {
    fn with_state(self, state: S) -> BoxHandler {
        let inner = self.inner.with_state(state);
        Arc::new(Stack { outer: self.layer.layer(inner.clone()), inner })
    }
}

/// The handler that a layer made, and the one inside: retry policies are found even if the layer does not forward them.
struct Stack {
    outer: BoxHandler,
    inner: BoxHandler,
}

impl Handle for Stack {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        self.outer.handle(delivery)
    }

    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        self.outer.retry_policy(message).or_else(|| self.inner.retry_policy(message))
    }

    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        let mut policies = self.outer.retry_policies();
        policies.extend(self.inner.retry_policies());
        policies
    }
}

/// The rest of the stack, as seen from a [`layer_fn`]: the layers further in, and the handler.
#[derive(Clone)]
pub struct Next(BoxHandler);

impl Next {
    /// Runs the rest of the stack.
    pub fn run(self, delivery: Delivery) -> HandlerFuture {
        self.0.handle(delivery)
    }
}

/// Makes a layer from an async function of the delivery and the rest of the stack.
///
/// ```
/// use lazaret_core::handler::{Delivery, Handler, Next, Text, handler, layer_fn};
/// use lazaret_core::{HandlerError, Message, Position, Reason};
///
/// async fn require_tenant(delivery: Delivery, next: Next) -> Result<(), HandlerError> {
///     if delivery.message().headers.get_str("tenant").is_none() {
///         return Err(HandlerError::msg("no tenant header").reason(Reason::INVALID_SCHEMA));
///     }
///     next.run(delivery).await
/// }
///
/// async fn greet(Text(_name): Text) {}
///
/// let greet = handler(greet.layer(layer_fn(require_tenant)));
/// let message = Message::new("evt-1", "names", Position::new(0, 0)).with_payload("Ada");
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// assert!(runtime.block_on(greet.handle(Delivery::new(message.clone()))).is_err());
/// let message = message.with_header("tenant", "acme");
/// assert!(runtime.block_on(greet.handle(Delivery::new(message))).is_ok());
/// ```
pub fn layer_fn<F, Fut>(function: F) -> LayerFn<F>
where
    F: Fn(Delivery, Next) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    LayerFn(function)
}

/// A layer that is an async function. Made by [`layer_fn`].
#[derive(Clone, Copy)]
pub struct LayerFn<F>(F);

struct CallFn<F> {
    function: F,
    next: Next,
}

impl<F, Fut> Layer for LayerFn<F>
where
    F: Fn(Delivery, Next) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    fn layer(&self, inner: BoxHandler) -> BoxHandler {
        Arc::new(CallFn { function: self.0.clone(), next: Next(inner) })
    }
}

impl<F, Fut> Handle for CallFn<F>
where
    F: Fn(Delivery, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        Box::pin((self.function)(delivery, self.next.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Router, State, handler};
    use super::*;
    use crate::message::Position;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn write(&self, line: impl Into<String>) {
            self.0.lock().unwrap().push(line.into());
        }

        /// A layer that writes when an attempt enters and leaves it.
        fn layer(&self, name: &'static str) -> impl Layer + Clone + use<> {
            let log = self.clone();
            layer_fn(move |delivery, next: Next| {
                let log = log.clone();
                async move {
                    log.write(format!("{name} in"));
                    let result = next.run(delivery).await;
                    log.write(format!("{name} out {}", result.is_ok()));
                    result
                }
            })
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn delivery(event_type: &str) -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)).with_type(event_type))
    }

    async fn fails(State(log): State<Log>) -> Result<(), HandlerError> {
        log.write("handler");
        Err(HandlerError::msg("no"))
    }

    #[tokio::test]
    async fn the_layer_applied_last_runs_first_and_sees_the_outcome_last() {
        let log = Log::default();
        let layered = fails.layer(log.layer("inner")).layer(log.layer("outer")).with_state(log.clone());
        assert!(layered.handle(delivery("A")).await.is_err());
        assert_eq!(log.take(), ["outer in", "inner in", "handler", "inner out false", "outer out false"]);
    }

    #[tokio::test]
    async fn a_layer_around_a_router_runs_for_every_message_and_one_of_a_route_for_its_own() {
        let log = Log::default();
        let router = Router::new().on("A", fails.layer(log.layer("route"))).on("B", || async {});
        let router = handler(router.with_state(log.clone()).layer(log.layer("router")));
        assert!(router.handle(delivery("A")).await.is_err());
        assert_eq!(log.take(), ["router in", "route in", "handler", "route out false", "router out false"]);
        router.handle(delivery("B")).await.unwrap();
        assert_eq!(log.take(), ["router in", "router out true"]);
        assert!(router.handle(delivery("C")).await.is_err());
        assert_eq!(log.take(), ["router in", "router out false"]);
    }

    #[tokio::test]
    async fn a_layer_may_end_the_attempt_without_the_handler() {
        let log = Log::default();
        let closed = layer_fn(|_, _| async { Err(HandlerError::msg("closed")) });
        let layered = fails.layer(closed).with_state(log.clone());
        assert_eq!(layered.handle(delivery("A")).await.unwrap_err().to_string(), "closed");
        assert!(log.take().is_empty());
    }

    #[test]
    fn retry_policies_are_found_through_layers_that_do_not_pass_them_on() {
        let policy = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
        let router = Router::new().on("A", || async {}).retry(policy.clone());
        let log = Log::default();
        let router = handler(router.layer(log.layer("inner")).layer(Arc::new(log.layer("outer"))));
        assert_eq!(router.retry_policy(delivery("A").message()), Some(&policy));
        assert_eq!(router.retry_policy(delivery("B").message()), None);
        assert_eq!(router.retry_policies(), [&policy]);
    }
}
