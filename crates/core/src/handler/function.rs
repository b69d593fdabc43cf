//! Implements `Handler` for functions: one implementation per number of parameters.

use std::sync::Arc;

use super::delivery::Delivery;
use super::outcome::IntoOutcome;
use super::state::FromDeliveryWith;
use super::{BoxHandler, Handle, Handler, HandlerFuture};
use crate::failure::Phase;

/// A function with its state, whose parameters are extracted at every call.
struct Function<F>(F);

impl<F: Fn(Delivery) -> HandlerFuture + Send + Sync + 'static> Handle for Function<F> {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        (self.0)(delivery)
    }
}

/// Marks handlers that are not functions. See [`Handler`].
pub enum Ready {}

impl<H: Handle + Clone, S> Handler<Ready, S> for H {
    fn with_state(self, _: S) -> BoxHandler {
        Arc::new(self)
    }
}

macro_rules! handler_of {
    ($($arg:ident)*) => {
        impl<F, Fut, R, Via, S, $($arg,)*> Handler<(Via, $($arg,)*), S> for F
        where
            F: Fn($($arg,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = R> + Send + 'static,
            R: IntoOutcome<Via> + 'static,
            Via: 'static,
            S: Clone + Send + Sync + 'static,
            $($arg: FromDeliveryWith<S> + 'static,)*
        {
            #[allow(non_snake_case)]
            fn with_state(self, state: S) -> BoxHandler {
                Arc::new(Function(move |delivery: Delivery| -> HandlerFuture {
                    let (function, state) = (self.clone(), state.clone());
                    // The future extracts: the guard against panics around it covers the extractors too.
                    Box::pin(async move {
                        // A panic in an extractor is a failure of phase `decode` as well.
                        delivery.mark_phase(Phase::Decode);
                        let work = {
                            $(let $arg = $arg::from_delivery_with(&delivery, &state)?;)*
                            drop(state);
                            delivery.mark_phase(Phase::Handle);
                            function($($arg,)*)
                        };
                        work.await.into_outcome()
                    })
                }))
            }
        }
    };
}

handler_of!();
handler_of!(T1);
handler_of!(T1 T2);
handler_of!(T1 T2 T3);
handler_of!(T1 T2 T3 T4);
handler_of!(T1 T2 T3 T4 T5);
handler_of!(T1 T2 T3 T4 T5 T6);
handler_of!(T1 T2 T3 T4 T5 T6 T7);
handler_of!(T1 T2 T3 T4 T5 T6 T7 T8);

#[cfg(test)]
mod tests {
    use super::super::{
        Attempt, Context, EventType, FromDelivery, Json, Key, Payload, Router, StoredLetter, Text, handler,
    };
    use super::*;
    use crate::failure::{HandlerError, Reason};
    use crate::message::{Headers, Message, Position};
    use std::convert::Infallible;
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn delivery() -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)).with_payload("7"))
    }

    async fn run<A: 'static>(h: impl Handler<A>) -> Result<(), HandlerError> {
        handler(h).handle(delivery()).await
    }

    #[tokio::test]
    async fn a_function_of_none_to_eight_extractors_is_a_handler() {
        async fn none() {}
        async fn one(_: Json<u8>) {}
        async fn two(_: Json<u8>, _: Text) {}
        async fn three(_: Json<u8>, _: Text, _: Key) {}
        async fn four(_: Json<u8>, _: Text, _: Key, _: Payload) {}
        async fn five(_: Json<u8>, _: Text, _: Key, _: Payload, _: Attempt) {}
        async fn six(_: Json<u8>, _: Text, _: Key, _: Payload, _: Attempt, _: Context) {}
        async fn seven(_: (), _: Text, _: Key, _: Payload, _: Attempt, _: Context, _: Headers) {}
        #[expect(clippy::too_many_arguments)]
        async fn eight(
            _: Json<u8>,
            _: EventType,
            _: Key,
            _: (),
            _: Attempt,
            _: Context,
            _: Headers,
            _: Option<StoredLetter>,
        ) {
        }
        run(none).await.unwrap();
        run(one).await.unwrap();
        run(two).await.unwrap();
        run(three).await.unwrap();
        run(four).await.unwrap();
        run(five).await.unwrap();
        run(six).await.unwrap();
        run(seven).await.unwrap();
        run(eight).await.unwrap();
    }

    #[tokio::test]
    async fn a_handler_may_return_nothing_or_a_result_of_any_error() {
        async fn nothing() {}
        async fn infallible() -> Result<(), Infallible> {
            Ok(())
        }
        async fn fine() -> Result<(), io::Error> {
            Ok(())
        }
        async fn broken() -> Result<(), io::Error> {
            Err(io::Error::other("disk on fire"))
        }
        async fn precise() -> Result<(), HandlerError> {
            Err(HandlerError::msg("no such card").reason(Reason::DOMAIN_INVALID))
        }
        run(nothing).await.unwrap();
        run(infallible).await.unwrap();
        run(fine).await.unwrap();
        let failure = run(broken).await.unwrap_err().failure();
        assert_eq!(
            (failure.error_type.as_str(), failure.message.as_str()),
            ("std::io::error::Error", "disk on fire")
        );
        assert_eq!(run(precise).await.unwrap_err().failure().reason, Reason::DOMAIN_INVALID);
    }

    #[tokio::test]
    async fn a_closure_brings_its_state() {
        let sum = Arc::new(AtomicU32::new(0));
        let state = Arc::clone(&sum);
        let add = handler(move |Json(number): Json<u32>| {
            let sum = Arc::clone(&state);
            async move {
                sum.fetch_add(number, Ordering::Relaxed);
            }
        });
        add.handle(delivery()).await.unwrap();
        add.handle(delivery()).await.unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 14);
    }

    /// Records its extraction in the metadata; `BAD` ones fail.
    struct Probe<const N: u32, const BAD: bool>;

    impl<const N: u32, const BAD: bool> FromDelivery for Probe<N, BAD> {
        fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
            assert_eq!(delivery.phase(), Phase::Decode);
            let order = delivery.metadata().remove("order").unwrap_or_default();
            delivery.put_metadata("order".into(), format!("{order}{N}")).unwrap();
            if BAD { Err(HandlerError::msg(format!("probe {N}"))) } else { Ok(Self) }
        }
    }

    #[tokio::test]
    async fn extractors_run_from_left_to_right_before_the_handler() {
        let delivery = delivery();
        let order = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&order);
        let look =
            handler(move |_: Probe<1, false>, _: Probe<2, false>, context: Context, _: Probe<3, false>| {
                *seen.lock().unwrap() = Some(context.metadata()["order"].clone());
                async move { context.mark_phase(Phase::ExternalCall) }
            });
        look.handle(delivery.clone()).await.unwrap();
        assert_eq!(order.lock().unwrap().as_deref(), Some("123"));
        assert_eq!(delivery.phase(), Phase::ExternalCall);
    }

    #[tokio::test]
    async fn the_first_extractor_that_fails_ends_the_attempt_in_phase_decode() {
        async fn never(_: Probe<1, false>, _: Probe<2, true>, _: Probe<3, true>) {
            panic!("the handler must not be called");
        }
        let delivery = delivery();
        let error = handler(never).handle(delivery.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), "probe 2");
        assert_eq!(delivery.metadata()["order"], "12");
        assert_eq!(error.failure_in(delivery.phase()).phase, Phase::Decode);
    }

    #[tokio::test]
    async fn a_handler_works_in_phase_handle() {
        let delivery = delivery();
        handler(|_: Text| async {}).handle(delivery.clone()).await.unwrap();
        assert_eq!(delivery.phase(), Phase::Handle);
        handler(|| async {}).handle(delivery.clone()).await.unwrap();
        assert_eq!(delivery.phase(), Phase::Handle);
    }

    #[tokio::test]
    async fn nothing_is_extracted_before_the_future_runs() {
        let delivery = delivery();
        drop(handler(|_: Probe<1, false>| async {}).handle(delivery.clone()));
        assert!(delivery.metadata().is_empty());
    }

    #[tokio::test]
    async fn a_ready_handler_can_stand_where_a_function_can() {
        async fn fine() {}
        let boxed: BoxHandler = handler(fine);
        run(boxed.clone()).await.unwrap();
        run(Router::new().fallback(boxed)).await.unwrap();
    }

    #[test]
    fn a_panic_goes_through_to_the_caller() {
        async fn panics() {
            panic!("a bug");
        }
        let panics = handler(panics);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let call = std::panic::AssertUnwindSafe(|| runtime.block_on(panics.handle(delivery())));
        assert!(std::panic::catch_unwind(call).is_err());
    }
}
