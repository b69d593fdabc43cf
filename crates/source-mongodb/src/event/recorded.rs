//! The messages of change events that another tool recorded.

use bson::{Document, RawDocumentBuf};
use jiff::Timestamp;
use lazaret_core::{Message, Position};

use super::{Fields, MessageFactory, ReadEvent};
use crate::options::MongoSourceOptions;
use crate::position::{offset_at, time_of_token};

impl MessageFactory {
    /// Builds the message of an event that another tool recorded. See [`MongoSourceOptions::message_of`].
    fn recorded(
        &mut self,
        mut event: Document,
        record: &str,
        at: Timestamp,
    ) -> Result<Message, bson::error::Error> {
        let data = event.get_document("_id").ok().and_then(|token| token.get_str("_data").ok());
        if let Some(time) = data.and_then(time_of_token)
            && !event.contains_key("clusterTime")
        {
            event.insert("clusterTime", time);
        }
        let raw = RawDocumentBuf::try_from(&event)?;
        let placed = offset_at(at);
        let has_time = Fields::of(&raw).cluster_time.is_some();
        Ok(match ReadEvent::of(raw.clone(), if has_time { 0 } else { placed }) {
            Some(event) => self.message(event),
            None => {
                let position = Position::new(0, placed);
                // No token begins with a tilde, because tokens are hexadecimal digits or JSON.
                let mut message = self.described(&Fields::of(&raw), &format!("~{record}"), position, None);
                self.add_payload(&mut message, raw);
                message
            }
        })
    }
}

impl MongoSourceOptions {
    /// Builds the message that the source delivers for a change event from an event that another tool
    /// recorded. The id, key, position and form are the same. The cluster time is added from the resume
    /// token.
    ///
    /// An event without a resume token gets an id that no server event has, derived from the name of its
    /// record. It is placed at the time of the record.
    ///
    /// ```
    /// use lazaret_source_mongodb::MongoSourceOptions;
    /// use lazaret_source_mongodb::bson::doc;
    ///
    /// let options = MongoSourceOptions::collection("mongodb://127.0.0.1", "shop", "orders");
    /// let event = doc! {
    ///     "_id": { "_data": "826AFB78B2000000162B0429296E1404" }, "operationType": "delete", "documentKey": { "_id": 7 },
    /// };
    /// let message = options.message_of(event, "tool/1", jiff::Timestamp::UNIX_EPOCH).unwrap();
    /// assert_eq!(message.id.as_str(), "orders:826AFB78B2000000162B0429296E1404");
    ///
    /// let without_token = doc! { "operationType": "delete", "documentKey": { "_id": 7 } };
    /// let message = options.message_of(without_token, "tool/1", jiff::Timestamp::UNIX_EPOCH).unwrap();
    /// assert_eq!(message.id.as_str(), "orders:~tool/1");
    /// ```
    ///
    /// # Errors
    /// When the event cannot be BSON, because the name of a field contains a null character.
    pub fn message_of(
        &self,
        event: Document,
        record: &str,
        at: Timestamp,
    ) -> Result<Message, bson::error::Error> {
        MessageFactory::of(self).recorded(event, record, at)
    }
}

#[cfg(test)]
mod tests {
    use bson::{Timestamp as ClusterTime, doc};

    use super::*;
    use crate::event::factory::tests::{factory, insert, message_of};
    use crate::event::headers;
    use crate::position::offset_of;

    fn recorded(event: Document) -> Message {
        factory().recorded(event, "tool/1", Timestamp::from_second(500).unwrap()).unwrap()
    }

    #[test]
    fn a_recorded_event_is_the_message_that_the_source_delivers() {
        // I5, I8
        let mut event = insert();
        event.insert("_id", doc! { "_data": "8200000064000000032B04" });
        let live = message_of(&event);
        assert_eq!(recorded(event.clone()), live);
        // This record has neither the time nor the namespace.
        event.remove("clusterTime");
        let again = recorded(event);
        assert_eq!((&again.id, &again.key, &again.position), (&live.id, &live.key, &live.position));
        assert_eq!((&again.headers, again.operation), (&live.headers, live.operation));
    }

    #[test]
    fn a_recorded_event_without_a_token_has_an_id_of_its_own_and_the_place_of_its_record() {
        let mut event = insert();
        event.remove("_id");
        event.remove("clusterTime");
        let message = recorded(event);
        assert_eq!((message.id.as_str(), &message.position.token), ("orders:~tool/1", &None));
        let written = offset_of(ClusterTime { time: 500, increment: 0 });
        assert!(message.position.offset >= written, "it was recorded after it happened");
        assert_eq!(message.headers.get_str(headers::RESUME_TOKEN), None);
    }

    #[test]
    fn a_recorded_token_without_a_time_is_placed_at_the_time_of_the_record() {
        let mut event = insert();
        event.remove("clusterTime");
        let message = recorded(event);
        assert_eq!(message.id.as_str(), "orders:82AB");
        assert_eq!(message.position.offset >> 31, 500);
    }
}
