//! The router: builds the routes from event types to handlers.

use std::fmt;
use std::sync::Arc;

use super::function::Ready;
use super::table::{Bound, Table};
use super::{BoxHandler, Handler};
use crate::message::Operation;
use crate::policy::RetryPolicy;

/// Chooses a handler by the type of the event.
///
/// The first that fits is called: the handler of exactly this type, then those of patterns in the order of their
/// registration, then that of the operation, then the [`fallback`](Self::fallback). When nothing fits, the attempt
/// fails with reason `UNKNOWN_EVENT_TYPE`, so that no event is lost for want of a handler.
/// [`ignore_others`](Self::ignore_others) settles such events as handled instead.
///
/// A message without a type goes by its operation, or to the fallback; no pattern fits it, not even `*`.
///
/// `S` is the state that the handlers still need: a router without [`State`](super::State) extractors, or after
/// [`with_state`](Self::with_state), is a `Router<()>`, which a consumer takes. A router can be a route of another router.
///
/// ```
/// use lazaret_core::handler::{Context, Delivery, Router, Text, handler};
/// use lazaret_core::policy::RetryPolicy;
/// use lazaret_core::{HandlerError, Message, Operation, Position, Reason};
///
/// async fn placed(Text(_order): Text) -> Result<(), HandlerError> {
///     Ok(())
/// }
/// async fn any_case(_: Context) {}
/// async fn inserted() {}
///
/// let router = Router::new()
///     .on("OrderPlaced", placed)
///     .retry(RetryPolicy { max_attempts: 8, ..RetryPolicy::default() }) // of "OrderPlaced"
///     .on("Case*", any_case)
///     .on_operation(Operation::Insert, inserted);
///
/// let router = handler(router);
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// let handle = |event_type: &str| {
///     let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_type(event_type);
///     runtime.block_on(router.handle(Delivery::new(message)))
/// };
/// assert!(handle("CaseClosed").is_ok());
/// assert_eq!(handle("OrderLost").unwrap_err().failure().reason, Reason::UNKNOWN_EVENT_TYPE);
/// ```
pub struct Router<S = ()> {
    routes: Vec<Route<S>>,
    ignores_others: bool,
}

/// One route: what it fits, the handler, and the retry policy that replaces the consumer's.
struct Route<S> {
    fits: Fits,
    bind: Bind<S>,
    retry: Option<Arc<RetryPolicy>>,
}

/// Gives a handler its state.
type Bind<S> = Arc<dyn Fn(&S) -> BoxHandler + Send + Sync>;

/// The messages that a route fits.
#[derive(Clone, PartialEq, Eq)]
enum Fits {
    Type(Arc<str>),
    Pattern(Arc<str>),
    Operation(Operation),
    Others,
}

impl<S> Clone for Router<S> {
    fn clone(&self) -> Self {
        Self { routes: self.routes.clone(), ignores_others: self.ignores_others }
    }
}

impl<S> Clone for Route<S> {
    fn clone(&self) -> Self {
        Self { fits: self.fits.clone(), bind: Arc::clone(&self.bind), retry: self.retry.clone() }
    }
}

impl<S> Default for Router<S> {
    fn default() -> Self {
        Self { routes: Vec::new(), ignores_others: false }
    }
}

impl<S: Clone + Send + Sync + 'static> Router<S> {
    /// A router without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends events of this type to this handler. `*` stands for any characters, or none.
    ///
    /// # Panics
    ///
    /// If this type or pattern has a handler already.
    #[must_use]
    #[track_caller]
    pub fn on<A: 'static>(self, event_type: impl Into<Arc<str>>, h: impl Handler<A, S>) -> Self {
        let event_type = event_type.into();
        let is_pattern = event_type.contains('*');
        let fits =
            if is_pattern { Fits::Pattern(event_type.clone()) } else { Fits::Type(event_type.clone()) };
        assert!(!self.has(&fits), "the event type {event_type:?} has a handler already");
        self.add(fits, h)
    }

    /// Sends events of this operation to this handler, unless a handler of their type fits.
    ///
    /// # Panics
    ///
    /// If this operation has a handler already.
    #[must_use]
    #[track_caller]
    pub fn on_operation<A: 'static>(self, operation: Operation, h: impl Handler<A, S>) -> Self {
        let fits = Fits::Operation(operation);
        assert!(!self.has(&fits), "the operation {operation:?} has a handler already");
        self.add(fits, h)
    }

    /// Sends all other events to this handler.
    ///
    /// # Panics
    ///
    /// If the router has a fallback or ignores other events already.
    #[must_use]
    #[track_caller]
    pub fn fallback<A: 'static>(self, h: impl Handler<A, S>) -> Self {
        self.assert_no_fallback();
        self.add(Fits::Others, h)
    }

    /// Settles all other events as handled. No trace of them is kept.
    ///
    /// # Panics
    ///
    /// If the router has a fallback or ignores other events already.
    #[must_use]
    #[track_caller]
    pub fn ignore_others(mut self) -> Self {
        self.assert_no_fallback();
        self.ignores_others = true;
        self
    }

    /// Sets the retry policy of the route added last, in place of the consumer's.
    ///
    /// The policy replaces the consumer's as a whole, for live messages and for letters alike. Its
    /// [`strategy`](RetryPolicy::strategy) must be the consumer's, because messages of one sequence may take different
    /// routes: building the consumer fails otherwise. Where routers are nested, the innermost policy applies.
    ///
    /// ```
    /// use lazaret_core::handler::Router;
    /// use lazaret_core::policy::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// async fn place() {}
    /// async fn notify() {}
    ///
    /// let patient = RetryPolicy { max_attempts: 20, max_delay: Duration::from_secs(600), ..RetryPolicy::default() };
    /// let router: Router = Router::new()
    ///     .on("OrderPlaced", place).retry(patient)
    ///     .on("OrderShipped", notify); // the consumer's policy
    /// # let _ = router;
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no route yet, or the route has a policy already.
    #[must_use]
    #[track_caller]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        let Some(route) = self.routes.last_mut() else {
            panic!("a retry policy belongs to a route: add the route first");
        };
        assert!(route.retry.is_none(), "the route has a retry policy already");
        route.retry = Some(Arc::new(policy));
        self
    }

    /// Gives the handlers their state. Routes that are added afterwards may need another one.
    ///
    /// ```
    /// use lazaret_core::handler::{Router, State, handler};
    ///
    /// #[derive(Clone)]
    /// struct App;
    ///
    /// async fn place(State(_app): State<App>) {}
    ///
    /// let router = handler(Router::new().on("OrderPlaced", place).with_state(App));
    /// # let _ = router;
    /// ```
    #[must_use]
    pub fn with_state<S2>(self, state: S) -> Router<S2> {
        let routes = self.routes.into_iter().map(|route| {
            let bound = (route.bind)(&state);
            let bind: Bind<S2> = Arc::new(move |_| bound.clone());
            Route { fits: route.fits, bind, retry: route.retry }
        });
        Router { routes: routes.collect(), ignores_others: self.ignores_others }
    }

    fn add<A: 'static>(mut self, fits: Fits, h: impl Handler<A, S>) -> Self {
        let bind: Bind<S> = Arc::new(move |state| h.clone().with_state(state.clone()));
        self.routes.push(Route { fits, bind, retry: None });
        self
    }

    fn has(&self, fits: &Fits) -> bool {
        self.routes.iter().any(|route| route.fits == *fits)
    }

    #[track_caller]
    fn assert_no_fallback(&self) {
        assert!(
            !self.ignores_others && !self.has(&Fits::Others),
            "a router has one fallback, or ignores others"
        );
    }
}

impl<S: Clone + Send + Sync + 'static> Handler<Ready, S> for Router<S> {
    fn with_state(self, state: S) -> BoxHandler {
        let mut table = Table { ignores_others: self.ignores_others, ..Table::default() };
        for route in self.routes {
            let bound = Bound { handler: (route.bind)(&state), retry: route.retry };
            match route.fits {
                Fits::Type(event_type) => drop(table.types.insert(event_type, bound)),
                Fits::Pattern(pattern) => table.patterns.push((pattern, bound)),
                Fits::Operation(operation) => table.operations.push((operation, bound)),
                Fits::Others => table.fallback = Some(bound),
            }
        }
        Arc::new(table)
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = if self.ignores_others { "ignore" } else { "fail" };
        f.debug_struct("Router")
            .field("routes", &self.routes.iter().map(|route| &route.fits).collect::<Vec<_>>())
            .field("others", &others)
            .finish()
    }
}

impl fmt::Debug for Fits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(text) | Self::Pattern(text) => fmt::Debug::fmt(text, f),
            Self::Operation(operation) => fmt::Debug::fmt(operation, f),
            Self::Others => f.write_str("fallback"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Delivery, handler};
    use super::*;
    use crate::failure::{HandlerError, Phase, Reason};
    use crate::message::{Message, Position};
    use std::future::ready;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<&'static str>>>);

    impl Log {
        /// A handler that writes its name into the log.
        fn writer(&self, name: &'static str) -> BoxHandler {
            let log = self.clone();
            handler(move || {
                log.0.lock().unwrap().push(name);
                ready(())
            })
        }
    }

    fn message(event_type: Option<&str>, operation: Option<Operation>) -> Message {
        let mut message = Message::new("m", "s", Position::new(0, 0));
        message.event_type = event_type.map(Into::into);
        message.operation = operation;
        message
    }

    #[tokio::test]
    async fn exact_types_go_before_patterns_before_operations_before_the_fallback() {
        let log = Log::default();
        let router = Router::new()
            .fallback(log.writer("fallback"))
            .on_operation(Operation::Insert, log.writer("insert"))
            .on("Case*", log.writer("Case*"))
            .on("*Closed", log.writer("*Closed"))
            .on("CaseOpened", log.writer("CaseOpened"));
        let router = handler(router);
        let insert = Some(Operation::Insert);
        let table = [
            (Some("CaseOpened"), insert, "CaseOpened"),
            (Some("CaseClosed"), insert, "Case*"),
            (Some("OrderClosed"), insert, "*Closed"),
            (Some("OrderPlaced"), insert, "insert"),
            (Some("caseopened"), None, "fallback"),
            (None, insert, "insert"),
            (None, Some(Operation::Delete), "fallback"),
            (None, None, "fallback"),
        ];
        for (event_type, operation, expected) in table {
            router.handle(Delivery::new(message(event_type, operation))).await.unwrap();
            assert_eq!(log.0.lock().unwrap().drain(..).collect::<Vec<_>>(), [expected], "{event_type:?}");
        }
    }

    #[tokio::test]
    async fn an_unknown_type_is_a_failure_that_says_so() {
        let router = handler(Router::new().on("A", || async {}).on("*", || async {}));
        let error = router.handle(Delivery::new(message(None, None))).await.unwrap_err().failure();
        assert_eq!((error.reason, error.phase), (Reason::UNKNOWN_EVENT_TYPE, Phase::Filter));
        assert_eq!(error.message, "no handler for a message without an event type");
        let router = handler(Router::new().on("A", || async {}));
        let error = router.handle(Delivery::new(message(Some("B"), None))).await.unwrap_err().failure();
        assert_eq!(error.message, r#"no handler for the event type "B""#);
        assert_eq!(error.reason, Reason::UNKNOWN_EVENT_TYPE);
    }

    #[tokio::test]
    async fn others_can_be_ignored() {
        let router = Router::new().on("A", || async { Err(HandlerError::msg("called")) }).ignore_others();
        let router = handler(router);
        router.handle(Delivery::new(message(Some("B"), None))).await.unwrap();
        assert!(router.handle(Delivery::new(message(Some("A"), None))).await.is_err());
    }

    #[tokio::test]
    async fn a_router_can_be_a_route() {
        let log = Log::default();
        let inner = Router::new().on("OrderPlaced", log.writer("inner"));
        let router = handler(Router::new().on("Order*", inner));
        router.handle(Delivery::new(message(Some("OrderPlaced"), None))).await.unwrap();
        assert_eq!(*log.0.lock().unwrap(), ["inner"]);
    }

    #[test]
    #[should_panic = "the event type \"A\" has a handler already"]
    fn a_type_cannot_have_two_handlers() {
        let _ = Router::<()>::new().on("A", || async {}).on("A", || async {});
    }

    #[test]
    #[should_panic = "the event type \"A*\" has a handler already"]
    fn a_pattern_cannot_have_two_handlers() {
        let _ = Router::<()>::new().on("A*", || async {}).on("A*", || async {});
    }

    #[test]
    #[should_panic = "the operation Insert has a handler already"]
    fn an_operation_cannot_have_two_handlers() {
        let _ = Router::<()>::new()
            .on_operation(Operation::Insert, || async {})
            .on_operation(Operation::Insert, || async {});
    }

    #[test]
    #[should_panic = "a router has one fallback, or ignores others"]
    fn a_router_with_a_fallback_cannot_ignore_others() {
        let _ = Router::<()>::new().fallback(|| async {}).ignore_others();
    }

    #[test]
    fn a_router_shows_its_routes() {
        let router = Router::<()>::new().on("B", || async {}).on("A*", || async {}).ignore_others();
        assert_eq!(format!("{router:?}"), r#"Router { routes: ["B", "A*"], others: "ignore" }"#);
        let router = Router::<()>::new().on_operation(Operation::Insert, || async {}).fallback(|| async {});
        assert_eq!(format!("{router:?}"), r#"Router { routes: [Insert, fallback], others: "fail" }"#);
    }

    #[test]
    fn each_route_has_its_own_retry_policy_or_none() {
        let policy = |max_attempts| RetryPolicy { max_attempts, ..RetryPolicy::default() };
        let inner = Router::new().on("OrderPlaced", || async {}).retry(policy(2)).fallback(|| async {});
        let router = Router::new()
            .on("Order*", inner)
            .retry(policy(3))
            .on("CaseOpened", || async {})
            .on_operation(Operation::Insert, || async {})
            .retry(policy(4))
            .fallback(|| async {})
            .retry(policy(5));
        let router = handler(router);
        let table = [
            (Some("OrderPlaced"), None, Some(2)),
            (Some("OrderShipped"), None, Some(3)),
            (Some("CaseOpened"), None, None),
            (None, Some(Operation::Insert), Some(4)),
            (Some("Other"), None, Some(5)),
        ];
        for (event_type, operation, expected) in table {
            let message = message(event_type, operation);
            let found = router.retry_policy(&message).map(|policy| policy.max_attempts);
            assert_eq!(found, expected, "{event_type:?}");
        }
        let mut all: Vec<_> = router.retry_policies().iter().map(|policy| policy.max_attempts).collect();
        all.sort_unstable();
        assert_eq!(all, [2, 3, 4, 5]);
    }

    #[test]
    #[should_panic = "a retry policy belongs to a route: add the route first"]
    fn a_retry_policy_needs_a_route() {
        let _ = Router::<()>::new().retry(RetryPolicy::default());
    }

    #[test]
    #[should_panic = "the route has a retry policy already"]
    fn a_route_has_one_retry_policy() {
        let _ = Router::<()>::new()
            .on("A", || async {})
            .retry(RetryPolicy::default())
            .retry(RetryPolicy::default());
    }
}
