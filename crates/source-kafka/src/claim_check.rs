//! Claim checks: small records in place of messages that are letters in the store.

use std::sync::Arc;

use lazaret_core::{Headers, Letter, Message};

use crate::headers::HeaderStyle;

/// The longest key that is written.
const KEY_LIMIT: usize = 1024;

/// Returns the letter that is written in place of this one.
pub(crate) fn of(letter: &Letter) -> Letter {
    let Letter { id, queue, message, .. } = letter;
    // Text, not null: a reader that ignores headers must not take it for a tombstone.
    let payload = format!("claim check: letter {id} of {queue} in Lazaret's store holds the message");
    let key = message.key.clone().filter(|key| key.len() <= KEY_LIMIT);
    let small =
        Message { key, payload: Some(payload.into()), headers: Headers::new(), ..(**message).clone() };
    Letter { message: Arc::new(small), payload_left_out: false, ..letter.clone() }
}

/// Returns the style of its headers.
pub(crate) fn style(style: HeaderStyle) -> HeaderStyle {
    HeaderStyle { minimal: true, claim_check: true, ..style }
}
