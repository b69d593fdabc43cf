//! Estimates the memory that a message takes.

use lazaret_core::Message;
use lazaret_core::relay::Hop;

/// Returns the approximate memory size of a message: its bytes and the structures that hold them.
pub(crate) fn memory_size(message: &Message) -> usize {
    let key = message.key.as_ref().map_or(0, |key| key.len());
    let hop = message
        .hop
        .as_ref()
        .map_or(0, |hop| size_of::<Hop>() + hop.failure.message.len() + hop.failure.error_type.len());
    let bytes = message.payload_len() + key + message.headers.byte_size() + message.id.with_str(str::len);
    size_of::<Message>() + bytes + hop
}
