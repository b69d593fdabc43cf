//! Decides about messages that are posted: which are taken, at which positions, and which are duplicates.

use std::collections::HashMap;

use bytes::Bytes;
use lazaret_core::source::{NewMessage, Posted};
use lazaret_core::store::{DigestKey, ErrorKind, PayloadDigest, Result, StoreError};
use lazaret_core::{MessageId, Position};
use uuid::Uuid;

use super::options::InboxOptions;
use crate::values::{bound, encode_headers, key_of, limit, nanos, text};

/// The name of the call in errors.
pub(super) const OPERATION: &str = "post";

/// A message to post. The inbox assigns its position.
pub(super) struct Post {
    message: NewMessage,
    id: Option<MessageId>,
    size: i64,
    /// The key of its explicit id, and the digest that recognizes its payload if it is posted again.
    pub(super) identity: Option<(Uuid, PostDigest)>,
}

/// Recognizes a payload that is posted again.
#[derive(Clone, Copy)]
pub(super) struct PostDigest {
    /// As it is stored, under the key of the store: it stays there when the payload is gone.
    sealed: [u8; 32],
    /// As earlier versions stored it.
    plain: PayloadDigest,
}

impl PostDigest {
    fn new(payload: Option<&[u8]>, key: &DigestKey) -> Self {
        let plain = PayloadDigest::of(payload);
        Self { sealed: key.seal_post(plain.as_bytes()), plain }
    }

    fn is_stored_as(&self, stored: [u8; 32]) -> bool {
        stored == self.sealed || stored == *self.plain.as_bytes()
    }
}

impl Post {
    fn new(message: NewMessage, key: &DigestKey) -> Self {
        let id = message.id.clone().map(MessageId::given);
        let identity =
            id.as_ref().map(|id| (key_of(&[id.as_str()]), PostDigest::new(message.payload.as_deref(), key)));
        Self { size: limit(message.byte_size()), id, identity, message }
    }
}

/// The messages of one call.
///
/// # Errors
/// `Invalid` if one has an empty id: all such messages would be duplicates of each other.
pub(super) fn posts(messages: Vec<NewMessage>, key: &DigestKey) -> Result<Vec<Post>> {
    if messages.iter().any(|message| message.id.as_ref().is_some_and(|id| id.as_str().is_empty())) {
        return Err(StoreError::not_done(ErrorKind::Invalid, OPERATION, "empty message id"));
    }
    Ok(messages.into_iter().map(|message| Post::new(message, key)).collect())
}

/// A message that was posted before, and waits or was consumed recently.
#[derive(Clone, Copy)]
pub(super) struct KnownPost {
    pub(super) position: u64,
    /// The stored digest of its payload.
    pub(super) digest: [u8; 32],
}

/// The fill of an inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) next: i64,
    pub(super) messages: i64,
    pub(super) bytes: i64,
}

/// Takes messages in order, within the limits. After one that exceeds a limit, no later one of the call is taken: it must not
/// overtake.
pub(super) fn take(
    posts: &[Post],
    mut known: HashMap<Uuid, KnownPost>,
    options: &InboxOptions,
    now: i64,
    fill: &mut Fill,
) -> (Vec<Posted>, TakenRows) {
    let (max_messages, max_bytes) = (bound(options.max_messages), bound(options.max_bytes));
    let (mut answers, mut rows, mut full) = (Vec::with_capacity(posts.len()), TakenRows::default(), false);
    for post in posts {
        let before = post.identity.and_then(|(key, digest)| Some((*known.get(&key)?, digest)));
        if let (Some((before, digest)), Some(id)) = (before, &post.id) {
            let (id, position) = (id.clone(), Position::new(0, before.position));
            answers.push(match digest.is_stored_as(before.digest) {
                true => Posted::Known { id, position },
                false => Posted::Conflict { id, position },
            });
        } else if post.size > max_bytes {
            answers.push(Posted::TooLarge);
        } else if full || fill.messages >= max_messages || post.size > max_bytes - fill.bytes {
            full = true;
            answers.push(Posted::Full);
        } else {
            let position = Position::new(0, fill.next.unsigned_abs());
            let id = post.id.clone().unwrap_or_else(|| MessageId::of_position(&position));
            if let Some((key, digest)) = post.identity {
                known.insert(key, KnownPost { position: position.offset, digest: digest.sealed });
            }
            rows.push(fill.next, &id, post, now);
            *fill = Fill { next: fill.next + 1, messages: fill.messages + 1, bytes: fill.bytes + post.size };
            answers.push(Posted::Taken { id, position });
        }
    }
    (answers, rows)
}

/// The columns of the messages that were taken, and of their explicit ids.
#[derive(Default)]
pub(super) struct TakenRows {
    pub(super) position: Vec<i64>,
    pub(super) message: Vec<String>,
    pub(super) size: Vec<i64>,
    /// Event type, content type, correlation, and why it cannot be decoded.
    pub(super) texts: [Vec<Option<String>>; 4],
    pub(super) at: Vec<i64>,
    /// Key, headers, payload.
    pub(super) bytes: [Vec<Option<Vec<u8>>>; 3],
    pub(super) id_hash: Vec<Uuid>,
    pub(super) id_position: Vec<i64>,
    pub(super) id_digest: Vec<Vec<u8>>,
}

impl TakenRows {
    fn push(&mut self, position: i64, id: &MessageId, post: &Post, now: i64) {
        let new = &post.message;
        self.position.push(position);
        self.message.push(text(id.as_str()).into_owned());
        self.size.push(post.size);
        let texts = [&new.event_type, &new.content_type, &new.correlation, &new.undecodable];
        for (column, value) in self.texts.iter_mut().zip(texts) {
            column.push(value.as_deref().map(|value| text(value).into_owned()));
        }
        self.at.push(new.timestamp.map_or(now, nanos));
        let owned = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.to_vec());
        let bytes = [owned(&new.key), encode_headers(&new.headers), owned(&new.payload)];
        for (column, value) in self.bytes.iter_mut().zip(bytes) {
            column.push(value);
        }
        if let Some((key, digest)) = post.identity {
            self.id_hash.push(key);
            self.id_position.push(position);
            self.id_digest.push(digest.sealed.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_digest_is_sealed_and_a_plain_one_of_an_earlier_version_still_matches() {
        let key = DigestKey::random();
        let message = |payload: &'static str| NewMessage {
            id: Some("a".into()),
            payload: Some(payload.into()),
            ..NewMessage::default()
        };
        let posted = |payload, known| {
            let posts = posts(vec![message(payload)], &key).unwrap();
            let (id, _) = posts[0].identity.unwrap();
            let known = Option::into_iter(known).map(|digest| (id, KnownPost { position: 0, digest }));
            take(&posts, known.collect(), &InboxOptions::default(), 0, &mut Fill::default())
        };
        let (answers, rows) = posted("4111", None);
        assert!(matches!(answers[..], [Posted::Taken { .. }]));
        let plain = *PayloadDigest::of(Some(b"4111")).as_bytes();
        let sealed = <[u8; 32]>::try_from(rows.id_digest[0].as_slice()).unwrap();
        assert_ne!(sealed, plain);
        for stored in [sealed, plain] {
            assert!(matches!(posted("4111", Some(stored)).0[..], [Posted::Known { .. }]));
            assert!(matches!(posted("4112", Some(stored)).0[..], [Posted::Conflict { .. }]));
        }
    }
}
