//! Claim checks: small records that stand for messages stored as letters.

use std::sync::Arc;

use lazaret_core::{Headers, Letter, Message};

use crate::headers::HeaderStyle;

/// The maximum length of a key that is written.
const KEY_LIMIT: usize = 1024;

/// Returns the letter to write in place of this one.
pub(crate) fn of(letter: &Letter) -> Letter {
    let Letter { id, queue, message, .. } = letter;
    // Text, not null: a reader that ignores headers must not mistake it for a tombstone.
    let payload = format!("claim check: letter {id} of {queue} in Lazaret's store holds the message");
    let key = message.key.clone().filter(|key| key.len() <= KEY_LIMIT);
    let small =
        Message { key, payload: Some(payload.into()), headers: Headers::new(), ..(**message).clone() };
    Letter { message: Arc::new(small), payload_left_out: false, ..letter.clone() }
}

/// Returns the header style of a claim check.
pub(crate) fn style(style: HeaderStyle) -> HeaderStyle {
    HeaderStyle { minimal: true, claim_check: true, ..style }
}
