//! Shared application state, as an extractor.

use std::ops::{Deref, DerefMut};

use super::delivery::Delivery;
use super::extract::FromDelivery;
use crate::failure::HandlerError;

/// An extractor that may read the state of the application. See [`State`].
///
/// Every [`FromDelivery`] is one, for any state. Implement this trait for an extractor that needs the state itself:
///
/// ```
/// use lazaret_core::HandlerError;
/// use lazaret_core::handler::{Delivery, FromDeliveryWith, Handler, handler};
///
/// #[derive(Clone)]
/// struct App {
///     region: String,
/// }
///
/// struct Region(String);
///
/// impl FromDeliveryWith<App> for Region {
///     fn from_delivery_with(_: &Delivery, app: &App) -> Result<Self, HandlerError> {
///         Ok(Self(app.region.clone()))
///     }
/// }
///
/// async fn place(Region(region): Region) {
///     println!("{region}");
/// }
///
/// let place = place.with_state(App { region: "eu-1".to_owned() });
/// # let _ = place;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an extractor for a handler with the state `{S}`",
    label = "cannot be a handler's parameter",
    note = "extractors are `Json<T>`, `Text`, `Payload`, `Key`, `Headers`, `EventType`, `Message`, `Attempt`, `Context`, `Option<StoredLetter>`, and `Result<T, HandlerError>` of any of them",
    note = "`State<T>` is one after `with_state(..)` was given a `T`, or a type that `T` implements `FromRef` for"
)]
pub trait FromDeliveryWith<S>: Sized {
    /// Extracts the value from the delivery and the state.
    fn from_delivery_with(delivery: &Delivery, state: &S) -> Result<Self, HandlerError>;
}

impl<S, T: FromDelivery> FromDeliveryWith<S> for T {
    fn from_delivery_with(delivery: &Delivery, _: &S) -> Result<Self, HandlerError> {
        T::from_delivery(delivery)
    }
}

/// Shared application state. An extractor: take it as a parameter, and provide the state with
/// [`Router::with_state`](super::Router::with_state) or [`Handler::with_state`](super::Handler::with_state).
///
/// The state is cloned for every attempt: put what is expensive to clone into an `Arc`.
///
/// ```
/// use lazaret_core::handler::{Delivery, Router, State, handler};
/// use lazaret_core::{Message, Position};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Clone, Default)]
/// struct App {
///     placed: Arc<AtomicU64>,
/// }
///
/// async fn place(State(app): State<App>) {
///     app.placed.fetch_add(1, Ordering::Relaxed);
/// }
///
/// let app = App::default();
/// let router = handler(Router::new().on("OrderPlaced", place).with_state(app.clone()));
/// let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_type("OrderPlaced");
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// runtime.block_on(router.handle(Delivery::new(message))).unwrap();
/// assert_eq!(app.placed.load(Ordering::Relaxed), 1);
/// ```
///
/// A handler whose state was not provided does not compile:
///
/// ```compile_fail,E0277
/// # use lazaret_core::handler::{Router, State, handler};
/// #[derive(Clone)]
/// struct App;
/// async fn place(State(_): State<App>) {}
/// let router = handler(Router::new().on("OrderPlaced", place)); // no `with_state`
/// ```
///
/// Neither does one that was given another type:
///
/// ```compile_fail,E0277
/// # use lazaret_core::handler::{Router, State, handler};
/// #[derive(Clone)]
/// struct App;
/// async fn place(State(_): State<App>) {}
/// let router = handler(Router::new().on("OrderPlaced", place).with_state("not an App"));
/// ```
///
/// Nor a function without a router:
///
/// ```compile_fail,E0277
/// # use lazaret_core::handler::{State, handler};
/// #[derive(Clone)]
/// struct App;
/// async fn place(State(_): State<App>) {}
/// let place = handler(place);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<S, T: FromRef<S>> FromDeliveryWith<S> for State<T> {
    fn from_delivery_with(_: &Delivery, state: &S) -> Result<Self, HandlerError> {
        Ok(Self(T::from_ref(state)))
    }
}

/// A part of the application state that a handler can take as [`State`].
///
/// Every type that can be cloned is a part of itself. Implement it for the fields of a larger state:
///
/// ```
/// use lazaret_core::handler::{FromRef, Handler, State, handler};
///
/// #[derive(Clone)]
/// struct Database;
///
/// #[derive(Clone)]
/// struct App {
///     database: Database,
/// }
///
/// impl FromRef<App> for Database {
///     fn from_ref(app: &App) -> Self {
///         app.database.clone()
///     }
/// }
///
/// async fn place(State(_database): State<Database>, State(_app): State<App>) {}
///
/// let place = place.with_state(App { database: Database });
/// # let _ = place;
/// ```
#[diagnostic::on_unimplemented(
    message = "`State<{Self}>` was not provided",
    label = "no state of this type",
    note = "provide it with `with_state(..)` on the router or handler; the state there is `{S}`",
    note = "for a part of a larger state implement `FromRef<{S}>` for `{Self}`"
)]
pub trait FromRef<S> {
    /// Clones the part out of the state.
    fn from_ref(state: &S) -> Self;
}

impl<T: Clone> FromRef<T> for T {
    fn from_ref(state: &T) -> Self {
        state.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Attempt, Handler, Router, Text, handler};
    use super::*;
    use crate::message::{Message, Position};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    #[derive(Clone, Default)]
    struct App {
        log: Log,
        region: &'static str,
    }

    impl FromRef<App> for Log {
        fn from_ref(app: &App) -> Self {
            app.log.clone()
        }
    }

    fn delivery(event_type: &str) -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)).with_type(event_type).with_payload("7"))
    }

    async fn place(Text(text): Text, State(app): State<App>, State(log): State<Log>) {
        log.0.lock().unwrap().push(format!("{text} in {}", app.region));
    }

    async fn ping() {}

    #[tokio::test]
    async fn a_handler_takes_the_state_and_parts_of_it_beside_other_extractors() {
        let app = App { region: "eu-1", ..App::default() };
        let bound = place.with_state(app.clone());
        bound.handle(delivery("A")).await.unwrap();
        assert_eq!(*app.log.0.lock().unwrap(), ["7 in eu-1"]);
    }

    #[tokio::test]
    async fn a_router_gives_its_state_to_every_route_nested_routers_and_the_fallback() {
        let app = App { region: "eu-1", ..App::default() };
        let inner = Router::new().on("OrderPlaced", place);
        let router = Router::new().on("Order*", inner).on("Ping", ping).fallback(place);
        let router = handler(router.with_state(app.clone()));
        for event_type in ["OrderPlaced", "Ping", "Other"] {
            router.handle(delivery(event_type)).await.unwrap();
        }
        assert_eq!(app.log.0.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn routes_with_states_of_different_types_stand_in_one_router() {
        async fn other(State(number): State<u8>, State(log): State<Log>, Attempt(_): Attempt) {
            log.0.lock().unwrap().push(number.to_string());
        }
        #[derive(Clone)]
        struct Other(Log);
        impl FromRef<Other> for Log {
            fn from_ref(other: &Other) -> Self {
                other.0.clone()
            }
        }
        impl FromRef<Other> for u8 {
            fn from_ref(_: &Other) -> Self {
                9
            }
        }
        let app = App::default();
        let router = Router::new().on("A", place).with_state(app.clone());
        let router = handler(router.on("B", other).with_state(Other(app.log.clone())));
        router.handle(delivery("A")).await.unwrap();
        router.handle(delivery("B")).await.unwrap();
        assert_eq!(*app.log.0.lock().unwrap(), ["7 in ", "9"]);
    }

    #[test]
    fn state_reads_like_what_it_holds() {
        let mut state = State(vec![1]);
        state.push(2);
        assert_eq!(state.len(), 2);
    }
}
