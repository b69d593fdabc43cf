//! Applies annotations and payload edits to a letter, identically in every store.

use jiff::Timestamp;

use super::audit::Actor;
use super::digest_key::DigestKey;
use super::error::{ErrorKind, Result, StoreError};
use super::payload_digest::PayloadDigest;
use super::rules::{AuditLine, LetterView};
use super::triage::{Change, Comment};
use crate::letter::{Edit, Letter};
use crate::message::Message;

/// Maximum number of comments of a letter; further ones are refused (I7).
pub const COMMENTS_LIMIT: usize = 100;
/// Maximum length of a comment, in characters.
pub const COMMENT_CHARS: usize = 4096;
/// Maximum number of payload edits of a letter; further ones are refused, because no original may be lost (I7).
pub const EDITS_LIMIT: usize = 100;
/// Maximum size of the originals that a letter keeps of its payload edits, in bytes; an edit beyond it is refused, unless it is the
/// first.
pub const EDITS_BYTES: usize = 8 << 20;

/// The earlier edits of a letter, as far as a change depends on them. Stores that keep edits apart from their letters need not load them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptEdits {
    /// Their number.
    pub edits: usize,
    /// The size of their originals, in bytes.
    pub bytes: usize,
    /// `true` if the change puts the first payload back.
    pub reverts: bool,
}

impl KeptEdits {
    /// Those of a whole letter.
    pub fn of(letter: &Letter, change: &Change) -> Self {
        let first = letter.edits.first();
        let reverts = match change {
            Change::Payload(payload) | Change::HeldPayload(payload) => {
                first.is_some_and(|first| first.original == *payload)
            }
            _ => false,
        };
        let bytes = letter.edits.iter().map(|edit| length(edit.original.as_ref())).sum();
        Self { edits: letter.edits.len(), bytes, reverts }
    }
}

impl Change {
    /// Applies the change to the letter, updates its touch time, and returns the audit line, which never holds a payload: the key of the
    /// store seals the digests in it.
    /// [`check_change`](super::rules::check_change) checks that the letter's state allows the change.
    ///
    /// # Errors
    /// `Invalid` if a limit of the letter is reached.
    pub fn apply(
        &self,
        letter: &mut Letter,
        by: &Actor,
        key: &DigestKey,
        now: Timestamp,
    ) -> Result<AuditLine> {
        let (line, edit) = self.apply_after(KeptEdits::of(letter, self), letter, by, key, now)?;
        letter.edits.extend(edit);
        Ok(line)
    }

    /// Like [`apply`](Self::apply), for a letter whose edits were not loaded. Returns the edit to be kept beside the audit line, if
    /// the change is one.
    ///
    /// # Errors
    /// `Invalid` if a limit of the letter is reached.
    pub fn apply_after(
        &self,
        kept: KeptEdits,
        letter: &mut Letter,
        by: &Actor,
        key: &DigestKey,
        now: Timestamp,
    ) -> Result<(AuditLine, Option<Edit>)> {
        let mut edit = None;
        let (before, after) = match self {
            Self::Payload(payload) | Self::HeldPayload(payload) => {
                check_room(letter, "edits", kept.edits, EDITS_LIMIT)?;
                let original = letter.message.payload.clone();
                let KeptEdits { bytes, reverts, .. } = kept;
                // The first payload can always be put back.
                if bytes > 0 && !reverts && bytes.saturating_add(length(original.as_ref())) > EDITS_BYTES {
                    let limit = format!("its edits keep {bytes} bytes, and the limit is {EDITS_BYTES}");
                    return refuse(format!("letter {} cannot keep another original: {limit}", letter.id));
                }
                let shown = (shown(original.as_ref(), key), shown(payload.as_ref(), key));
                edit = Some(Edit { by: by.who.clone(), at: now, why: by.why.clone(), original });
                // A payload that was supplied by an edit is no longer left out.
                letter.payload_left_out &= payload.is_none();
                letter.message = Message { payload: payload.clone(), ..(*letter.message).clone() }.into();
                shown
            }
            Self::Comment(text) => {
                check_room(letter, "comments", letter.comments.len(), COMMENTS_LIMIT)?;
                let length = text.chars().count();
                if length > COMMENT_CHARS {
                    return refuse(format!(
                        "the comment has {length} characters, the limit is {COMMENT_CHARS}"
                    ));
                }
                letter.comments.push(Comment { by: by.who.clone(), at: now, text: text.clone() });
                (None, None)
            }
            Self::Assignee(assignee) => {
                let before = std::mem::replace(&mut letter.assignee, assignee.as_deref().map(Into::into));
                (before.map(|name| name.to_string()), assignee.clone())
            }
            Self::Owner(owner) => {
                let before = std::mem::replace(&mut letter.owner, owner.as_deref().map(Into::into));
                (before.map(|name| name.to_string()), owner.clone())
            }
            Self::ExpiresAt(at) => {
                let before = std::mem::replace(&mut letter.expires_at, *at);
                (before.map(|time| time.to_string()), at.map(|time| time.to_string()))
            }
        };
        // Its due time is relative to this touch from now on, if the clock was set back since the last one.
        LetterView::of(letter).head(now).date(letter);
        letter.last_touched_at = now;
        let line = AuditLine::new(by, self.as_str(), letter.id, before.as_deref(), after.as_deref());
        Ok((line, edit))
    }
}

fn length(payload: Option<&bytes::Bytes>) -> usize {
    payload.map_or(0, bytes::Bytes::len)
}

/// A payload in the audit: its size and its sealed digest, so that a later reader can tell which one ran, and cannot guess it.
fn shown(payload: Option<&bytes::Bytes>, key: &DigestKey) -> Option<String> {
    payload.map(|payload| format!("{} bytes, {}", payload.len(), key.seal(PayloadDigest::of(Some(payload)))))
}

fn check_room(letter: &Letter, what: &str, has: usize, limit: usize) -> Result<()> {
    if has < limit {
        Ok(())
    } else {
        refuse(format!("letter {} has {has} {what}, the limit is {limit}", letter.id))
    }
}

fn refuse<T>(context: String) -> Result<T> {
    Err(StoreError::not_done(ErrorKind::Invalid, "change", context))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Position, QueueName};

    fn letter() -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload("first");
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), Timestamp::UNIX_EPOCH)
    }

    fn ada() -> Actor {
        Actor::new("ada", "cli", "typo")
    }

    #[test]
    fn the_first_payload_is_never_lost() {
        let (mut l, key, now) = (letter(), DigestKey::random(), Timestamp::UNIX_EPOCH);
        for n in 1..=EDITS_LIMIT {
            Change::Payload(Some(n.to_string().into())).apply(&mut l, &ada(), &key, now).unwrap();
        }
        assert_eq!(l.edits[0].original.as_deref(), Some(b"first".as_slice()));
        assert_eq!((l.edits.len(), l.message.payload.as_deref()), (EDITS_LIMIT, Some(b"100".as_slice())));
        let refused = Change::Payload(None).apply(&mut l, &ada(), &key, now).unwrap_err();
        assert_eq!((refused.kind(), l.edits.len()), (ErrorKind::Invalid, EDITS_LIMIT));
    }

    #[test]
    fn the_originals_have_a_byte_limit_and_the_first_can_be_put_back() {
        let (mut l, key, now) = (letter(), DigestKey::random(), Timestamp::UNIX_EPOCH);
        let large = |byte: u8| Change::Payload(Some(vec![byte; 2 << 20].into()));
        let edits = (0..25).take_while(|n| large(*n).apply(&mut l, &ada(), &key, now).is_ok()).count();
        assert_eq!(edits, 4, "the originals of the first four are 5 bytes and three payloads");
        let kept: usize = l.edits.iter().map(|edit| length(edit.original.as_ref())).sum();
        assert!(kept <= EDITS_BYTES);
        Change::Payload(Some("first".into())).apply(&mut l, &ada(), &key, now).unwrap();
        assert_eq!(large(9).apply(&mut l, &ada(), &key, now).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn an_edit_supplies_a_payload_that_was_left_out() {
        let (mut l, key, now) = (letter(), DigestKey::random(), Timestamp::UNIX_EPOCH);
        l.payload_left_out = true;
        Change::Payload(None).apply(&mut l, &ada(), &key, now).unwrap();
        assert!(l.payload_left_out);
        Change::Payload(Some("new".into())).apply(&mut l, &ada(), &key, now).unwrap();
        assert!(!l.payload_left_out);
    }

    #[test]
    fn the_audit_never_holds_a_payload() {
        let (mut l, key, now) = (letter(), DigestKey::random(), Timestamp::UNIX_EPOCH);
        let line = Change::Payload(Some("secret".into())).apply(&mut l, &ada(), &key, now).unwrap();
        let digest = |payload: &[u8]| PayloadDigest::of(Some(payload));
        let shown = |payload: &[u8]| format!("{} bytes, {}", payload.len(), key.seal(digest(payload)));
        assert_eq!(
            (line.before.as_ref(), line.after.as_ref()),
            (Some(&shown(b"first")), Some(&shown(b"secret")))
        );
        // Nor what a guess could be compared with.
        let plain = digest(b"secret").to_string();
        assert!(!format!("{line:?}").contains(plain.trim_start_matches("sha256:")), "{line:?}");
    }
}
