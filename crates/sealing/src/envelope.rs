//! The stored form of an encrypted value.
//!
//! Bytes: a mark, the id of the data key, a nonce, a tag, and the encrypted bytes. A text is the same in base64, with the id of the letter in
//! front: the message of a failure is copied to the group of the letter, and has to tell there where it came from.
//!
//! A value is an encrypted one if it begins with the mark **and names a data key of the store**. Ids of data keys are random and nobody
//! sees them outside of the store, so no sender of messages can make up such a value. All others are plain: they were written before
//! encryption was turned on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::cipher::{Forged, NONCE_BYTES, TAG_BYTES};
use crate::key::{DATA_KEY_ID_BYTES, DataKey, DataKeyId};

/// The mark of encrypted bytes; the last one is the version. No JSON begins so.
const MARK: &[u8; 4] = b"\0LZ\x01";
/// The mark of an encrypted text, with its version.
const TEXT_MARK: &str = "lz1~";
const HEADER_BYTES: usize = MARK.len() + DATA_KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES;
/// The number of bytes of the id of a letter.
pub(crate) const SUBJECT_BYTES: usize = 16;

/// Encrypted bytes, taken apart.
pub(crate) struct Sealed<'a> {
    pub(crate) key: DataKeyId,
    nonce: [u8; NONCE_BYTES],
    tag: [u8; TAG_BYTES],
    text: &'a [u8],
}

impl<'a> Sealed<'a> {
    /// Takes apart what has the form of encrypted bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MARK)?;
        let (key, rest) = rest.split_first_chunk::<DATA_KEY_ID_BYTES>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let (tag, text) = rest.split_first_chunk::<TAG_BYTES>()?;
        Some(Self { key: DataKeyId(*key), nonce: *nonce, tag: *tag, text })
    }

    pub(crate) fn open(&self, key: &DataKey, bound_to: &[u8]) -> Result<Vec<u8>, Forged> {
        let mut text = self.text.to_vec();
        key.cipher.decrypt(&self.nonce, bound_to, &mut text, &self.tag)?;
        Ok(text)
    }
}

/// Encrypts bytes.
pub(crate) fn seal(key: &DataKey, nonce: &[u8; NONCE_BYTES], bound_to: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(HEADER_BYTES + bytes.len());
    sealed.extend_from_slice(MARK);
    sealed.extend_from_slice(&key.id.0);
    sealed.extend_from_slice(nonce);
    sealed.extend_from_slice(&[0; TAG_BYTES]);
    sealed.extend_from_slice(bytes);
    let (header, text) = sealed.split_at_mut(HEADER_BYTES);
    let tag = key.cipher.encrypt(nonce, bound_to, text);
    header[HEADER_BYTES - TAG_BYTES..].copy_from_slice(&tag);
    sealed
}

/// The text of encrypted bytes.
pub(crate) fn to_text(subject: &[u8; SUBJECT_BYTES], sealed: &[u8]) -> String {
    let mut text = TEXT_MARK.to_owned();
    URL_SAFE_NO_PAD.encode_string([subject.as_slice(), sealed].concat(), &mut text);
    text
}

/// The subject and the encrypted bytes of what has the form of an encrypted text.
pub(crate) fn from_text(text: &str) -> Option<([u8; SUBJECT_BYTES], Vec<u8>)> {
    let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(TEXT_MARK)?).ok()?;
    let (subject, sealed) = bytes.split_first_chunk::<SUBJECT_BYTES>()?;
    Some((*subject, sealed.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> DataKey {
        DataKey::new(DataKeyId([1; 16]), &[2; 32])
    }

    #[test]
    fn a_value_comes_back_from_bytes_and_from_text() {
        let key = key();
        for value in [&b""[..], b"x", b"{\"a\": 1}", &[0xff; 1000]] {
            let sealed = seal(&key, &[3; NONCE_BYTES], b"here", value);
            let parsed = Sealed::parse(&sealed).unwrap();
            assert_eq!((parsed.key, parsed.open(&key, b"here").unwrap().as_slice()), (key.id, value));
            assert_eq!(parsed.open(&key, b"there"), Err(Forged));
            let text = to_text(&[9; SUBJECT_BYTES], &sealed);
            assert_eq!(from_text(&text), Some(([9; SUBJECT_BYTES], sealed)));
        }
    }

    #[test]
    fn what_is_cut_off_is_no_encrypted_value_or_a_forged_one() {
        let key = key();
        let sealed = seal(&key, &[3; NONCE_BYTES], b"here", b"hello");
        for end in 0..sealed.len() {
            let opened = Sealed::parse(&sealed[..end]).map(|parsed| parsed.open(&key, b"here"));
            assert!(matches!(opened, None | Some(Err(Forged))), "cut at {end}");
        }
        for text in ["", "lz1~", "lz1~AAAA", "lz1~not base64", "boom"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
