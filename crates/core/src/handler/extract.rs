//! Extractors: the parameters of handlers.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::delivery::Delivery;
use crate::failure::{HandlerError, Phase, Reason};
use crate::letter::Letter;
use crate::message::{Headers, Message};

/// A type that a handler can take as a parameter: an extractor.
///
/// Extraction is decoding: it does no I/O and does not wait. An extraction that fails ends the attempt; unless the
/// error names another phase, the failure is one of phase `decode`.
///
/// ```
/// use lazaret_core::handler::{Delivery, FromDelivery, handler};
/// use lazaret_core::{HandlerError, Reason};
///
/// struct Tenant(String);
///
/// impl FromDelivery for Tenant {
///     fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
///         match delivery.message().headers.get_str("tenant") {
///             Some(tenant) => Ok(Self(tenant.to_owned())),
///             None => Err(HandlerError::msg("no tenant header").reason(Reason::INVALID_SCHEMA)),
///         }
///     }
/// }
///
/// let by_tenant = handler(|Tenant(tenant): Tenant| async move { println!("{tenant}") });
/// # let _ = by_tenant;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an extractor",
    label = "cannot be a handler's parameter",
    note = "extractors are `Json<T>`, `Text`, `Payload`, `Key`, `Headers`, `EventType`, `Message`, `Attempt`, `Context`, `Option<StoredLetter>`, and `Result<T, HandlerError>` of any of them",
    note = "`State<T>` gives a handler the state of the application"
)]
pub trait FromDelivery: Sized {
    /// Extracts the value from the delivery.
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError>;
}

/// The payload, read as JSON. A tombstone, or a payload that does not fit `T`, is a decode failure with reason
/// `INVALID_SCHEMA`.
///
/// ```
/// use lazaret_core::handler::{Delivery, FromDelivery, Json};
/// use lazaret_core::{Message, Position};
/// let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_payload("[1, 2]");
/// let Json(numbers) = Json::<Vec<u8>>::from_delivery(&Delivery::new(message)).unwrap();
/// assert_eq!(numbers, [1, 2]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromDelivery for Json<T> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let payload = expect_payload(delivery, "JSON")?;
        serde_json::from_slice(payload).map(Self).map_err(|error| undecodable(error.into()))
    }
}

/// The payload, read as UTF-8. A tombstone or other bytes are a decode failure with reason `INVALID_SCHEMA`.
///
/// ```
/// use lazaret_core::handler::{Delivery, FromDelivery, Text};
/// use lazaret_core::{Message, Position};
/// let message = Message::new("evt-1", "names", Position::new(0, 0)).with_payload("Ada");
/// assert_eq!(Text::from_delivery(&Delivery::new(message)).unwrap(), Text("Ada".to_owned()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub String);

impl FromDelivery for Text {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let payload = expect_payload(delivery, "text")?;
        match std::str::from_utf8(payload) {
            Ok(text) => Ok(Self(text.to_owned())),
            Err(error) => Err(undecodable(error.into())),
        }
    }
}

fn expect_payload<'d>(delivery: &'d Delivery, expected: &str) -> Result<&'d Bytes, HandlerError> {
    delivery.message().payload.as_ref().ok_or_else(|| {
        undecodable(HandlerError::msg(format!("the payload is a tombstone, expected {expected}")))
    })
}

fn undecodable(error: HandlerError) -> HandlerError {
    error.reason(Reason::INVALID_SCHEMA).phase(Phase::Decode)
}

/// The raw payload. `None` is a tombstone, which is not an empty payload. Shares the bytes, copies nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(pub Option<Bytes>);

impl FromDelivery for Payload {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Self(delivery.message().payload.clone()))
    }
}

/// The key. No key and an empty key are two different things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub Option<Bytes>);

impl FromDelivery for Key {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Self(delivery.message().key.clone()))
    }
}

/// The type of the event, if the source provides it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventType(pub Option<Arc<str>>);

impl FromDelivery for EventType {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Self(delivery.message().event_type.clone()))
    }
}

/// The number of the attempt, from 1, counted across restarts. An attempt that a crash cut off may be repeated under its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

impl FromDelivery for Attempt {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Self(delivery.attempt()))
    }
}

/// The letter that is retried or replayed. Take it as `Option<StoredLetter>`, which is `None` for a live message.
///
/// ```
/// use lazaret_core::handler::{StoredLetter, handler};
///
/// async fn project(letter: Option<StoredLetter>) {
///     if let Some(letter) = letter {
///         println!("held since {}, because of {:?}", letter.enqueued_at, letter.cause);
///     }
/// }
/// # let _ = handler(project);
/// ```
///
/// Without the `Option` it is not an extractor, for most messages have no letter:
///
/// ```compile_fail
/// # use lazaret_core::handler::{StoredLetter, handler};
/// handler(|letter: StoredLetter| async {});
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLetter(Arc<Letter>);

impl StoredLetter {
    /// The letter, shared.
    pub fn into_inner(self) -> Arc<Letter> {
        self.0
    }
}

impl Deref for StoredLetter {
    type Target = Letter;

    fn deref(&self) -> &Letter {
        &self.0
    }
}

impl FromDelivery for Option<StoredLetter> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.letter().map(StoredLetter))
    }
}

impl FromDelivery for Context {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(Self::new(delivery.clone()))
    }
}

impl FromDelivery for Message {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.message().clone())
    }
}

impl FromDelivery for Headers {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(delivery.message().headers.clone())
    }
}

impl FromDelivery for () {
    fn from_delivery(_: &Delivery) -> Result<Self, HandlerError> {
        Ok(())
    }
}

/// For handlers that treat bad payloads themselves.
impl<T: FromDelivery> FromDelivery for Result<T, HandlerError> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        Ok(T::from_delivery(delivery))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Position, QueueName};
    use jiff::Timestamp;

    fn message() -> Message {
        Message::new("m", "s", Position::new(0, 0))
    }

    fn extract<T: FromDelivery>(message: Message) -> Result<T, HandlerError> {
        T::from_delivery(&Delivery::new(message))
    }

    #[track_caller]
    fn assert_undecodable<T: FromDelivery>(message: Message, text: &str) {
        let failure = extract::<T>(message).err().expect("extraction should fail").failure();
        assert_eq!((failure.phase, &failure.reason), (Phase::Decode, &Reason::INVALID_SCHEMA));
        assert!(failure.message.contains(text), "{}", failure.message);
    }

    #[test]
    fn json_is_read_into_its_type() {
        assert_eq!(
            extract::<Json<(u8, String)>>(message().with_payload(r#"[7, "x"]"#)).unwrap().0,
            (7, "x".into())
        );
    }

    #[test]
    fn bad_json_is_a_decode_failure() {
        assert_undecodable::<Json<u8>>(message().with_payload("{broken"), "line 1");
        assert_undecodable::<Json<u8>>(message().with_payload("300"), "300");
        assert_undecodable::<Json<u8>>(message().with_payload("7 8"), "trailing");
        assert_undecodable::<Json<u8>>(message().with_payload(""), "EOF");
    }

    #[test]
    fn bad_json_keeps_its_error_type_for_rules() {
        let error = extract::<Json<u8>>(message().with_payload("x")).unwrap_err();
        assert!(error.error().unwrap().is::<serde_json::Error>());
    }

    #[test]
    fn a_tombstone_is_neither_json_nor_text() {
        assert_undecodable::<Json<Option<u8>>>(message(), "the payload is a tombstone, expected JSON");
        assert_undecodable::<Text>(message(), "the payload is a tombstone, expected text");
    }

    #[test]
    fn text_is_utf_8() {
        assert_eq!(extract::<Text>(message().with_payload("né")).unwrap().0, "né");
        assert_undecodable::<Text>(message().with_payload(&b"\xff"[..]), "utf-8");
    }

    #[test]
    fn a_payload_tells_a_tombstone_from_nothing_written() {
        assert_eq!(extract::<Payload>(message()).unwrap(), Payload(None));
        assert_eq!(extract::<Payload>(message().with_payload("")).unwrap(), Payload(Some(Bytes::new())));
    }

    #[test]
    fn a_payload_shares_the_bytes_of_the_message() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let Payload(taken) = extract(message().with_payload(bytes.clone())).unwrap();
        assert_eq!(taken.unwrap().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn a_null_key_is_not_an_empty_key() {
        // I5
        assert_eq!(extract::<Key>(message()).unwrap(), Key(None));
        assert_eq!(extract::<Key>(message().with_key("")).unwrap(), Key(Some(Bytes::new())));
        assert_eq!(extract::<Key>(message().with_key("k")).unwrap(), Key(Some("k".into())));
    }

    #[test]
    fn headers_type_message_and_nothing_are_taken_as_they_are() {
        let message = message().with_header("a", "1").with_header("a", "2").with_type("OrderPlaced");
        assert_eq!(extract::<Headers>(message.clone()).unwrap(), message.headers);
        assert_eq!(extract::<EventType>(message.clone()).unwrap().0.as_deref(), Some("OrderPlaced"));
        assert_eq!(extract::<Message>(message.clone()).unwrap(), message);
        assert!(extract::<()>(message).is_ok());
    }

    #[test]
    fn an_attempt_is_the_one_under_way() {
        let delivery = Delivery::new(message());
        assert_eq!(Attempt::from_delivery(&delivery).unwrap(), Attempt(1));
        delivery.begin_attempt(2);
        assert_eq!(Attempt::from_delivery(&delivery).unwrap(), Attempt(2));
    }

    #[test]
    fn v37_v38_a_letter_is_there_on_retry_and_absent_on_live_handling() {
        assert!(extract::<Option<StoredLetter>>(message()).unwrap().is_none());
        let letter =
            Letter::new(QueueName::of("c", "c"), "k".into(), message().into(), Timestamp::UNIX_EPOCH);
        let delivery = Delivery::for_letter(Arc::new(letter.clone()), None);
        let taken = Option::<StoredLetter>::from_delivery(&delivery).unwrap().unwrap();
        assert_eq!(taken.queue.as_str(), "c/c");
        assert_eq!(*taken.into_inner(), letter);
    }

    #[test]
    fn a_handler_may_deal_with_a_bad_payload_itself() {
        let bad: Result<Json<u8>, HandlerError> = extract(message().with_payload("x")).unwrap();
        assert_eq!(bad.unwrap_err().failure().reason, Reason::INVALID_SCHEMA);
        let good: Result<Json<u8>, HandlerError> = extract(message().with_payload("7")).unwrap();
        assert_eq!(good.unwrap(), Json(7));
    }
}
