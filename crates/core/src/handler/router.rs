//! Which handler a message goes to.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use super::delivery::Delivery;
use super::{BoxHandler, Handle, Handler, HandlerFuture, handler};
use crate::failure::{HandlerError, Phase, Reason};
use crate::message::{Message, Operation};

/// A handler that chooses among others by the type of the event.
///
/// The first that fits is called: the handler of exactly this type, then those of patterns in the order of their
/// registration, then that of the operation, then the [`fallback`](Self::fallback). When nothing fits, the attempt
/// fails with reason `UNKNOWN_EVENT_TYPE`, so that no event is lost because nobody wrote a handler for it.
/// [`ignore_others`](Self::ignore_others) settles such events as handled instead.
///
/// A message without a type goes by its operation, or to the fallback; no pattern fits it, not even `*`.
///
/// ```
/// use lazaret_core::handler::{Context, Delivery, Handle, Router, Text};
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
///     .on("Case*", any_case)
///     .on_operation(Operation::Insert, inserted);
///
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// let handle = |event_type: &str| {
///     let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_type(event_type);
///     runtime.block_on(router.handle(Delivery::new(message)))
/// };
/// assert!(handle("CaseClosed").is_ok());
/// assert_eq!(handle("OrderLost").unwrap_err().failure().reason, Reason::UNKNOWN_EVENT_TYPE);
/// ```
#[derive(Clone, Default)]
pub struct Router {
    types: HashMap<Arc<str>, BoxHandler>,
    patterns: Vec<(Arc<str>, BoxHandler)>,
    operations: Vec<(Operation, BoxHandler)>,
    others: Others,
}

/// What becomes of a message that no route fits.
#[derive(Clone, Default)]
enum Others {
    #[default]
    Fail,
    Ignore,
    Call(BoxHandler),
}

impl Router {
    /// A router that knows no handler yet.
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
    pub fn on<A: 'static>(mut self, event_type: impl Into<Arc<str>>, h: impl Handler<A>) -> Self {
        let event_type = event_type.into();
        let known =
            self.types.contains_key(&event_type) || self.patterns.iter().any(|(p, _)| *p == event_type);
        assert!(!known, "the event type {event_type:?} has a handler already");
        if event_type.contains('*') {
            self.patterns.push((event_type, handler(h)));
        } else {
            self.types.insert(event_type, handler(h));
        }
        self
    }

    /// Sends events of this operation to this handler, unless a handler of their type fits.
    ///
    /// # Panics
    ///
    /// If this operation has a handler already.
    #[must_use]
    #[track_caller]
    pub fn on_operation<A: 'static>(mut self, operation: Operation, h: impl Handler<A>) -> Self {
        let known = self.operations.iter().any(|(known, _)| *known == operation);
        assert!(!known, "the operation {operation:?} has a handler already");
        self.operations.push((operation, handler(h)));
        self
    }

    /// Sends all other events to this handler.
    ///
    /// # Panics
    ///
    /// If it is decided already what becomes of other events.
    #[must_use]
    #[track_caller]
    pub fn fallback<A: 'static>(self, h: impl Handler<A>) -> Self {
        self.decide_others(Others::Call(handler(h)))
    }

    /// Settles all other events as handled. No trace of them is kept.
    ///
    /// # Panics
    ///
    /// If it is decided already what becomes of other events.
    #[must_use]
    #[track_caller]
    pub fn ignore_others(self) -> Self {
        self.decide_others(Others::Ignore)
    }

    #[track_caller]
    fn decide_others(mut self, others: Others) -> Self {
        assert!(matches!(self.others, Others::Fail), "a router has one fallback, or ignores others");
        self.others = others;
        self
    }

    fn find(&self, message: &Message) -> Option<&BoxHandler> {
        let by_type = message.event_type.as_deref().and_then(|event_type| {
            self.types
                .get(event_type)
                .or_else(|| first(&self.patterns, |pattern| matches(pattern, event_type)))
        });
        by_type.or_else(|| message.operation.and_then(|op| first(&self.operations, |known| *known == op)))
    }
}

fn first<K>(routes: &[(K, BoxHandler)], fits: impl Fn(&K) -> bool) -> Option<&BoxHandler> {
    routes.iter().find(|(key, _)| fits(key)).map(|(_, handler)| handler)
}

impl Handle for Router {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        match (self.find(delivery.message()), &self.others) {
            (Some(handler), _) | (None, Others::Call(handler)) => handler.handle(delivery),
            (None, Others::Ignore) => Box::pin(ready(Ok(()))),
            (None, Others::Fail) => Box::pin(ready(Err(no_route(delivery.message())))),
        }
    }
}

fn no_route(message: &Message) -> HandlerError {
    let text = match (&message.event_type, message.operation) {
        (Some(event_type), _) => format!("no handler for the event type {event_type:?}"),
        (None, Some(operation)) => format!("no handler for the operation {operation:?}, and no event type"),
        (None, None) => "no handler for a message without an event type".to_owned(),
    };
    HandlerError::msg(text).reason(Reason::UNKNOWN_EVENT_TYPE).phase(Phase::Filter)
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut types: Vec<_> = self.types.keys().collect();
        types.sort_unstable();
        let others = match self.others {
            Others::Fail => "fail",
            Others::Ignore => "ignore",
            Others::Call(_) => "fallback",
        };
        f.debug_struct("Router")
            .field("types", &types)
            .field("patterns", &self.patterns.iter().map(|(pattern, _)| pattern).collect::<Vec<_>>())
            .field("operations", &self.operations.iter().map(|(operation, _)| operation).collect::<Vec<_>>())
            .field("others", &others)
            .finish()
    }
}

/// Whether a pattern, in which `*` stands for any characters, fits the whole text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let Some((middle, end)) = rest.rsplit_once('*') else {
        return text.ends_with(rest);
    };
    // Taking the leftmost place for each part leaves the most room for those behind it.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else {
            return false;
        };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Position;
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
        let router = Router::new().on("A", || async {}).on("*", || async {});
        let error = router.handle(Delivery::new(message(None, None))).await.unwrap_err().failure();
        assert_eq!((error.reason, error.phase), (Reason::UNKNOWN_EVENT_TYPE, Phase::Filter));
        assert_eq!(error.message, "no handler for a message without an event type");
        let router = Router::new().on("A", || async {});
        let error = router.handle(Delivery::new(message(Some("B"), None))).await.unwrap_err().failure();
        assert_eq!(error.message, r#"no handler for the event type "B""#);
        assert_eq!(error.reason, Reason::UNKNOWN_EVENT_TYPE);
    }

    #[tokio::test]
    async fn others_can_be_ignored() {
        let router = Router::new().on("A", || async { Err(HandlerError::msg("called")) }).ignore_others();
        router.handle(Delivery::new(message(Some("B"), None))).await.unwrap();
        assert!(router.handle(Delivery::new(message(Some("A"), None))).await.is_err());
    }

    #[tokio::test]
    async fn a_router_can_be_a_route() {
        let log = Log::default();
        let inner = Router::new().on("OrderPlaced", log.writer("inner"));
        let router = Router::new().on("Order*", inner);
        router.handle(Delivery::new(message(Some("OrderPlaced"), None))).await.unwrap();
        assert_eq!(*log.0.lock().unwrap(), ["inner"]);
    }

    #[test]
    #[should_panic = "the event type \"A\" has a handler already"]
    fn a_type_cannot_have_two_handlers() {
        let _ = Router::new().on("A", || async {}).on("A", || async {});
    }

    #[test]
    #[should_panic = "the event type \"A*\" has a handler already"]
    fn a_pattern_cannot_have_two_handlers() {
        let _ = Router::new().on("A*", || async {}).on("A*", || async {});
    }

    #[test]
    #[should_panic = "the operation Insert has a handler already"]
    fn an_operation_cannot_have_two_handlers() {
        let _ = Router::new()
            .on_operation(Operation::Insert, || async {})
            .on_operation(Operation::Insert, || async {});
    }

    #[test]
    #[should_panic = "a router has one fallback, or ignores others"]
    fn a_router_with_a_fallback_cannot_ignore_others() {
        let _ = Router::new().fallback(|| async {}).ignore_others();
    }

    #[test]
    fn a_star_stands_for_any_characters_or_none() {
        let table = [
            ("*", "", true),
            ("*", "anything", true),
            ("Case*", "Case", true),
            ("Case*", "CaseClosed", true),
            ("Case*", "ACase", false),
            ("*Closed", "CaseClosed", true),
            ("*Closed", "CaseClosedX", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*ab*ab*", "ab", false),
            ("*ab*ab*", "xabab", true),
            ("a**b", "ab", true),
            ("é*ü", "é→ü", true),
            ("a?c*", "abc", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_router_shows_its_routes() {
        let router = Router::new().on("B", || async {}).on("A", || async {}).ignore_others();
        let shown = format!("{router:?}");
        assert!(shown.contains(r#"types: ["A", "B"]"#) && shown.contains("ignore"), "{shown}");
    }
}
