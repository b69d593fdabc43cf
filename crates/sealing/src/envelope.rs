//! The stored form of an encrypted value.
//!
//! Bytes: a mark, the id of the data key, a nonce, a tag, and the encrypted bytes. A text is the same in base64, with the id of the letter in
//! front: the message of a failure is copied to the group of the letter, and has to tell there where it came from.
//!
//! A value is an encrypted one if it begins with the mark **and names a data key of the store**. Ids of data keys are random and nobody
//! sees them outside of the store, so no sender of messages can make up such a value. One that begins with the mark and is too short, or
//! has another version, is damaged. All others are plain: they were written before encryption was turned on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::cipher::{Forged, NONCE_BYTES, TAG_BYTES};
use crate::key::{DATA_KEY_ID_BYTES, DataKey, DataKeyId};

/// The mark of encrypted bytes. No JSON begins so.
const MARK: &[u8; 3] = b"\0LZ";
/// The version, behind the mark.
const VERSION: u8 = 1;
/// The mark of an encrypted text.
const TEXT_MARK: &str = "lz";
/// The version of a text, behind its mark.
const TEXT_VERSION: &str = "1";
/// What ends the version of a text.
const TEXT_SEPARATOR: char = '~';
const HEADER_BYTES: usize = MARK.len() + 1 + DATA_KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES;
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
    /// Takes apart what has the form of encrypted bytes; `None` for bytes without the mark.
    ///
    /// # Errors
    /// `Forged` for bytes with the mark that are too short, or have another version.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Option<Self>, Forged> {
        match bytes.strip_prefix(MARK) {
            Some(marked) => Self::parse_marked(marked).map(Some).ok_or(Forged),
            None => Ok(None),
        }
    }

    fn parse_marked(marked: &'a [u8]) -> Option<Self> {
        let (&VERSION, rest) = marked.split_first()? else { return None };
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
    sealed.push(VERSION);
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
    let mut text = format!("{TEXT_MARK}{TEXT_VERSION}{TEXT_SEPARATOR}");
    URL_SAFE_NO_PAD.encode_string([subject.as_slice(), sealed].concat(), &mut text);
    text
}

/// The subject of an encrypted text, and the encrypted bytes.
pub(crate) type SealedText = ([u8; SUBJECT_BYTES], Vec<u8>);

/// The subject and the encrypted bytes of what has the form of an encrypted text; `None` for a text without the mark.
///
/// # Errors
/// `Forged` for a text with the mark that is too short, is not in base64, or has another version.
pub(crate) fn from_text(text: &str) -> Result<Option<SealedText>, Forged> {
    let marked = text.strip_prefix(TEXT_MARK).and_then(|marked| marked.split_once(TEXT_SEPARATOR));
    let Some((version, encoded)) = marked else { return Ok(None) };
    if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    if version != TEXT_VERSION {
        return Err(Forged);
    }
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| Forged)?;
    let (subject, sealed) = bytes.split_first_chunk::<SUBJECT_BYTES>().ok_or(Forged)?;
    Ok(Some((*subject, sealed.to_vec())))
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
            let parsed = Sealed::parse(&sealed).unwrap().unwrap();
            assert_eq!((parsed.key, parsed.open(&key, b"here").unwrap().as_slice()), (key.id, value));
            assert_eq!(parsed.open(&key, b"there"), Err(Forged));
            let text = to_text(&[9; SUBJECT_BYTES], &sealed);
            assert_eq!(from_text(&text), Ok(Some(([9; SUBJECT_BYTES], sealed))));
        }
    }

    #[test]
    fn what_is_cut_behind_its_mark_or_has_another_version_is_forged() {
        let key = key();
        let sealed = seal(&key, &[3; NONCE_BYTES], b"here", b"hello");
        for end in 0..sealed.len() {
            let opened = match Sealed::parse(&sealed[..end]) {
                Ok(Some(parsed)) => parsed.open(&key, b"here").map(Some),
                Ok(None) => Ok(None),
                Err(Forged) => Err(Forged),
            };
            let expected = if end < MARK.len() { Ok(None) } else { Err(Forged) };
            assert_eq!(opened, expected, "cut at {end}");
        }
        let mut newer = sealed;
        newer[MARK.len()] = VERSION + 1;
        assert!(matches!(Sealed::parse(&newer), Err(Forged)));
        for text in ["lz1~", "lz1~AAAA", "lz1~not base64", "lz2~AAAA"] {
            assert_eq!(from_text(text), Err(Forged), "{text}");
        }
        for text in ["", "boom", "lz1", "lz~AAAA", "lzx~", "lz 1~"] {
            assert_eq!(from_text(text), Ok(None), "{text}");
        }
    }
}
