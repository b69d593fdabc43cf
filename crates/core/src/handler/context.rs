//! The attempt, as the handler sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::delivery::Delivery;
use crate::failure::{Phase, Reason};
use crate::letter::Letter;
use crate::message::{Message, MessageId};
use crate::store::{ErrorKind, StoreError};

/// The maximum number of metadata entries of one message.
pub const METADATA_ENTRIES: usize = 64;
/// The maximum size of the metadata of one message in bytes, keys and values together.
pub const METADATA_BYTES: usize = 16 * 1024;

/// The metadata would exceed its limits. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata full: at most {METADATA_ENTRIES} entries and {METADATA_BYTES} bytes")]
pub struct MetadataFull;

/// Metadata within its limits.
#[derive(Default)]
pub(super) struct Metadata {
    entries: BTreeMap<String, String>,
    bytes: usize,
}

impl Metadata {
    pub(super) fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    pub(super) fn put(&mut self, key: String, value: String) -> Result<(), MetadataFull> {
        let (replaced_entries, replaced_bytes) =
            self.entries.get(&key).map_or((0, 0), |old| (1, key.len() + old.len()));
        let entries = self.entries.len() - replaced_entries + 1;
        let bytes = self.bytes - replaced_bytes + key.len() + value.len();
        if entries > METADATA_ENTRIES || bytes > METADATA_BYTES {
            return Err(MetadataFull);
        }
        self.bytes = bytes;
        self.entries.insert(key, value);
        Ok(())
    }
}

/// The attempt in progress: its number, message and cancellation, and metadata for the letter. An extractor: take it as a
/// parameter.
///
/// ```
/// use lazaret_core::handler::{Context, Delivery, handler};
/// use lazaret_core::{HandlerError, Message, Phase, Position};
///
/// async fn charge(context: Context) -> Result<(), HandlerError> {
///     context.put_metadata("gateway", "eu-1")?; // kept with the letter, if there will be one
///     context.mark_phase(Phase::ExternalCall); // a failure from here on may have had its effect
///     Ok(())
/// }
///
/// let delivery = Delivery::new(Message::new("evt-1", "payments", Position::new(0, 0)));
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// runtime.block_on(handler(charge).handle(delivery.clone())).unwrap();
/// assert_eq!(delivery.metadata()["gateway"], "eu-1");
/// assert_eq!(delivery.phase(), Phase::ExternalCall);
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    delivery: Delivery,
    /// The attempt that it was made for.
    attempt: u32,
}

impl Context {
    pub(super) fn new(delivery: Delivery) -> Self {
        Self { attempt: delivery.attempt(), delivery }
    }

    /// The number of the attempt, from 1, counted across restarts. An attempt that a crash cut off may be repeated under its number.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The identity of the message: the same on every attempt, fit for an idempotency key.
    pub fn event_id(&self) -> &MessageId {
        &self.message().id
    }

    /// The message.
    pub fn message(&self) -> &Message {
        self.delivery.message()
    }

    /// Sets an entry of the metadata of the message, replacing an earlier one under this key. All attempts share the metadata,
    /// and a letter keeps it.
    pub fn put_metadata(&self, key: impl Into<String>, value: impl Into<String>) -> Result<(), MetadataFull> {
        self.delivery.put_metadata(key.into(), value.into())
    }

    /// The metadata set so far.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.delivery.metadata()
    }

    /// Sets the phase that the attempt has reached. A failure is reported in the phase set last.
    pub fn mark_phase(&self, phase: Phase) {
        self.delivery.mark_phase(phase);
    }

    /// Waits until the attempt should end: it timed out, or the consumer stops.
    ///
    /// ```
    /// use lazaret_core::handler::{Context, Delivery, FromDelivery};
    /// use lazaret_core::{Message, Position};
    /// let delivery = Delivery::new(Message::new("evt-1", "orders", Position::new(0, 0)));
    /// let context = Context::from_delivery(&delivery).unwrap();
    /// delivery.cancel();
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// runtime.block_on(context.cancelled());
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.delivery.cancellation().cancelled_owned()
    }

    /// Returns `true` when the attempt should end.
    pub fn is_cancelled(&self) -> bool {
        self.delivery.is_cancelled()
    }

    /// The letter that is retried or replayed; `None` for a live message.
    pub fn letter(&self) -> Option<Arc<Letter>> {
        self.delivery.letter()
    }

    /// The name of the replay operation of this attempt.
    pub fn replay(&self) -> Option<String> {
        self.delivery.replay()
    }

    /// Sends the message to the dead letters, with reason `MANUAL`. For failures that a retry cannot fix.
    ///
    /// When this returns `Ok`, the letter is durable and the message is settled, whatever the handler does and returns
    /// afterwards. Sending it once more has no effect. When it returns an error, the message is not settled: return
    /// the error with `?` and the attempt fails. A context that outlives its attempt, in a task that the handler spawned,
    /// gets an error: the message has another fate by then.
    ///
    /// ```
    /// use lazaret_core::handler::{Context, Delivery, handler};
    /// use lazaret_core::{HandlerError, Message, Position};
    ///
    /// async fn refund(context: Context) -> Result<(), HandlerError> {
    ///     context.send_to_dlq("the order was never paid").await?;
    ///     Ok(())
    /// }
    ///
    /// let delivery = Delivery::new(Message::new("evt-1", "refunds", Position::new(0, 0)));
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// let error = runtime.block_on(handler(refund).handle(delivery)).unwrap_err();
    /// assert_eq!(error.to_string(), "store unavailable during send_to_dlq: no store is configured");
    /// ```
    pub async fn send_to_dlq(&self, reason: impl Into<String>) -> Result<(), StoreError> {
        self.send_to_dlq_with(Reason::MANUAL, reason).await
    }

    /// As [`send_to_dlq`](Self::send_to_dlq), with a reason code of the handler's choice.
    pub async fn send_to_dlq_with(&self, reason: Reason, why: impl Into<String>) -> Result<(), StoreError> {
        if self.delivery.sent_to_dlq() {
            return Ok(());
        }
        if !self.delivery.is_running(self.attempt) {
            return Err(StoreError::not_done(ErrorKind::Fenced, "send_to_dlq", "the attempt is over"));
        }
        let Some(sink) = self.delivery.sink() else {
            return Err(StoreError::not_done(
                ErrorKind::Unavailable,
                "send_to_dlq",
                "no store is configured",
            ));
        };
        sink.send_to_dlq(&self.delivery, reason, why.into()).await?;
        self.delivery.mark_sent(self.attempt);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::delivery::DeadLetterSink;
    use super::*;
    use crate::message::Position;
    use crate::store::Certainty;
    use async_trait::async_trait;
    use std::sync::Mutex;

    /// A sink that records what it is given, or fails.
    #[derive(Default)]
    struct Notes {
        broken: bool,
        taken: Mutex<Vec<(String, Reason, String)>>,
    }

    #[async_trait]
    impl DeadLetterSink for Notes {
        async fn send_to_dlq(
            &self,
            delivery: &Delivery,
            reason: Reason,
            why: String,
        ) -> Result<(), StoreError> {
            assert!(!delivery.sent_to_dlq(), "the flag may be set only after the letter is durable");
            if self.broken {
                return Err(StoreError::maybe(ErrorKind::Unavailable, "hand_off", "connection reset"));
            }
            let id = delivery.message().id.to_string();
            self.taken.lock().unwrap().push((id, reason, why));
            Ok(())
        }
    }

    fn delivery() -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)))
    }

    #[tokio::test]
    async fn a_message_sent_to_the_dead_letters_is_marked_once_it_is_durable() {
        let sink = Arc::new(Notes::default());
        let delivery = delivery().with_sink(sink.clone());
        let context = Context::new(delivery.clone());
        assert!(!delivery.sent_to_dlq());
        context.send_to_dlq("bad data").await.unwrap();
        assert!(delivery.sent_to_dlq());
        assert_eq!(*sink.taken.lock().unwrap(), [("m".into(), Reason::MANUAL, "bad data".into())]);
    }

    #[tokio::test]
    async fn a_handler_may_choose_the_reason() {
        let sink = Arc::new(Notes::default());
        let context = Context::new(delivery().with_sink(sink.clone()));
        context.send_to_dlq_with(Reason::DOMAIN_INVALID, "negative amount").await.unwrap();
        assert_eq!(sink.taken.lock().unwrap()[0].1, Reason::DOMAIN_INVALID);
    }

    #[tokio::test]
    async fn sending_a_message_twice_makes_one_letter() {
        // I8
        let sink = Arc::new(Notes::default());
        let context = Context::new(delivery().with_sink(sink.clone()));
        context.send_to_dlq("first").await.unwrap();
        context.send_to_dlq("second").await.unwrap();
        assert_eq!(sink.taken.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_store_error_reaches_the_handler_and_nothing_is_marked() {
        let delivery = delivery().with_sink(Arc::new(Notes { broken: true, ..Notes::default() }));
        let error = Context::new(delivery.clone()).send_to_dlq("x").await.unwrap_err();
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::MaybeDone));
        assert!(!delivery.sent_to_dlq());
    }

    #[tokio::test]
    async fn without_a_sink_the_handler_gets_an_error_that_there_is_no_store() {
        let delivery = delivery();
        let error = Context::new(delivery.clone()).send_to_dlq("x").await.unwrap_err();
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
        assert_eq!(error.context(), "no store is configured");
        assert!(!delivery.sent_to_dlq());
    }

    #[tokio::test]
    async fn the_first_sink_stays() {
        let first = Arc::new(Notes::default());
        let delivery = delivery().with_sink(first.clone()).with_sink(Arc::new(Notes::default()));
        Context::new(delivery).send_to_dlq("x").await.unwrap();
        assert_eq!(first.taken.lock().unwrap().len(), 1);
    }

    #[test]
    fn metadata_has_room_for_so_many_entries_and_no_more() {
        let context = Context::new(delivery());
        for i in 0..METADATA_ENTRIES {
            context.put_metadata(i.to_string(), "v").unwrap();
        }
        assert_eq!(context.put_metadata("one more", "v"), Err(MetadataFull));
        context.put_metadata("0", "replaced").unwrap();
        assert_eq!(context.metadata().len(), METADATA_ENTRIES);
        assert_eq!(context.metadata()["0"], "replaced");
    }

    #[test]
    fn metadata_has_room_for_so_many_bytes_and_no_more() {
        let context = Context::new(delivery());
        context.put_metadata("k", "v".repeat(METADATA_BYTES - 1)).unwrap();
        assert_eq!(context.put_metadata("k", "v".repeat(METADATA_BYTES)), Err(MetadataFull));
        assert_eq!(context.put_metadata("l", ""), Err(MetadataFull));
        assert_eq!(context.metadata()["k"].len(), METADATA_BYTES - 1);
        context.put_metadata("k", "").unwrap();
        context.put_metadata("l", "v".repeat(METADATA_BYTES - 2)).unwrap();
    }

    #[test]
    fn a_context_tells_about_its_attempt() {
        let delivery = delivery();
        delivery.begin_attempt(3);
        let context = Context::new(delivery.clone());
        assert_eq!((context.attempt(), context.event_id().as_str()), (3, "m"));
        assert!(context.letter().is_none() && context.replay().is_none());
        context.mark_phase(Phase::ExternalCall);
        assert_eq!(delivery.phase(), Phase::ExternalCall);
    }

    #[tokio::test]
    async fn a_handler_that_waits_for_its_cancellation_is_woken() {
        let delivery = delivery();
        let context = Context::new(delivery.clone());
        assert!(!context.is_cancelled());
        let waiting = context.cancelled();
        delivery.cancel();
        waiting.await;
        assert!(context.is_cancelled());
    }
}
