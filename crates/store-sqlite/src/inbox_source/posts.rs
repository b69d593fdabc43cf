//! Messages to post, encoded by the caller. The [redo log](crate::redo) stores the same encoding.

use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::source::NewMessage;
use lazaret_core::store::{DigestKey, ErrorKind, Result, StoreError};
use lazaret_core::{ConsumerName, MessageId};
use sha2::{Digest, Sha256};

use super::options::InboxOptions;
use crate::error::Work;
use crate::redo::{Fields, Size, put};
use crate::rows::{bound, encode_headers, limit, nanos};

/// The name of the call in errors.
pub(super) const OPERATION: &str = "post";

/// A message to post. The inbox assigns its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(super) id: Option<MessageId>,
    pub(super) size: i64,
    pub(super) event_type: Option<Arc<str>>,
    pub(super) content_type: Option<Arc<str>>,
    pub(super) correlation: Option<Arc<str>>,
    pub(super) undecodable: Option<Arc<str>>,
    /// Its event time; without it, the time of the post.
    pub(super) at: Option<i64>,
    pub(super) key: Option<Bytes>,
    pub(super) headers: Option<Bytes>,
    pub(super) payload: Option<Bytes>,
    /// Recognizes the payload of a message with an explicit id, which may be posted again. Not part of the redo log: it follows
    /// from the payload. The file has it [sealed](stored_digest).
    pub(super) digest: Option<[u8; DIGEST_BYTES]>,
}

/// The length of a digest. A collision makes a changed payload pass as a duplicate, no more.
const DIGEST_BYTES: usize = 16;

/// The digest of a payload as the file has it, under the key of the store: it stays there when the payload is gone.
pub(super) fn stored_digest(key: Option<&DigestKey>, digest: &[u8; DIGEST_BYTES]) -> [u8; DIGEST_BYTES] {
    let Some(key) = key else { return *digest };
    let mut stored = [0; DIGEST_BYTES];
    stored.copy_from_slice(&key.seal_post(digest)[..DIGEST_BYTES]);
    stored
}

fn digest(id: Option<&MessageId>, payload: Option<&Bytes>) -> Option<[u8; DIGEST_BYTES]> {
    id?;
    let mut hasher = Sha256::new();
    // A tombstone is not an empty payload.
    hasher.update([u8::from(payload.is_some())]);
    hasher.update(payload.map_or(&[][..], |payload| payload));
    let hash = hasher.finalize();
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(&hash[..DIGEST_BYTES]);
    Some(digest)
}

impl Post {
    fn new(message: NewMessage) -> Self {
        Self {
            digest: digest(message.id.as_ref(), message.payload.as_ref()),
            size: limit(message.byte_size()),
            id: message.id.map(MessageId::given),
            event_type: message.event_type,
            content_type: message.content_type,
            correlation: message.correlation,
            undecodable: message.undecodable,
            at: message.timestamp.map(nanos),
            key: message.key,
            headers: encode_headers(&message.headers).map(Bytes::from),
            payload: message.payload,
        }
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        put::option(into, self.id.as_ref().map(MessageId::as_str), put::text);
        put::signed(into, self.size);
        for text in [&self.event_type, &self.content_type, &self.correlation, &self.undecodable] {
            put::option(into, text.as_deref(), put::text);
        }
        put::option(into, self.at, put::signed);
        for blob in [&self.key, &self.headers, &self.payload] {
            put::option(into, blob.as_deref(), put::bytes);
        }
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let id = fields.option(Fields::text)?.map(MessageId::new);
        let size = fields.signed()?;
        let mut text = || -> Work<_> { Ok(fields.option(Fields::text)?.map(Arc::from)) };
        let (event_type, content_type) = (text()?, text()?);
        let (correlation, undecodable) = (text()?, text()?);
        let at = fields.option(Fields::signed)?;
        let mut blob = || -> Work<_> { Ok(fields.option(Fields::bytes)?.map(Bytes::copy_from_slice)) };
        let (key, headers, payload) = (blob()?, blob()?, blob()?);
        let digest = digest(id.as_ref(), payload.as_ref());
        Ok(Self {
            id,
            size,
            event_type,
            content_type,
            correlation,
            undecodable,
            at,
            key,
            headers,
            payload,
            digest,
        })
    }
}

/// The messages of one call, and the limits of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Posts {
    pub(super) consumer: ConsumerName,
    pub(super) max_messages: i64,
    pub(super) max_bytes: i64,
    pub(super) posts: Vec<Post>,
}

impl Posts {
    /// Returns `true` if one of the messages has an explicit id.
    pub(super) fn has_ids(&self) -> bool {
        self.posts.iter().any(|post| post.digest.is_some())
    }

    pub(super) fn new(
        consumer: &ConsumerName,
        options: &InboxOptions,
        messages: Vec<NewMessage>,
    ) -> Result<Self> {
        if messages.iter().any(|message| message.id.as_ref().is_some_and(|id| id.as_str().is_empty())) {
            // All messages with an empty id would be duplicates of each other.
            return Err(StoreError::not_done(ErrorKind::Invalid, OPERATION, "empty message id"));
        }
        Ok(Self {
            consumer: consumer.clone(),
            max_messages: bound(options.max_messages),
            max_bytes: bound(options.max_bytes),
            posts: messages.into_iter().map(Post::new).collect(),
        })
    }

    /// What they write, if none is a duplicate.
    pub(super) fn to_write(&self) -> Size {
        let bytes = |post: &Post| 128 + usize::try_from(post.size).unwrap_or(usize::MAX / 2);
        Size { count: self.posts.len(), bytes: self.posts.iter().map(bytes).sum() }
    }
}
