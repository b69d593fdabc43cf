//! Keys: those that users give, and the data keys that are wrapped by them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use crate::cipher::{Cipher, KEY_BYTES, NONCE_BYTES, random};
use crate::hmac::hmac_sha256;

/// The id of an [`EncryptionKey`]: a function of the key, which it does not reveal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// The id as text: `k_` and 16 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not an encryption key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected 32 bytes, as 64 hexadecimal digits or in base64; `lazaret keys generate` prints such a key"
)]
pub struct InvalidKey;

/// A key that wraps data keys. It encrypts nothing else, so it can be replaced without a change of what is stored.
///
/// ```
/// use lazaret_sealing::EncryptionKey;
/// let text = EncryptionKey::generate();
/// let key = EncryptionKey::parse(text.as_bytes()).unwrap();
/// assert!(key.id().as_str().starts_with("k_"));
/// assert!(EncryptionKey::parse(b"too short").is_err());
/// ```
pub struct EncryptionKey {
    id: KeyId,
    pub(crate) cipher: Cipher,
}

impl EncryptionKey {
    /// Makes the key from its bytes.
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let hash = Sha256::new().chain_update("lazaret encryption key id").chain_update(bytes).finalize();
        let digits: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { id: KeyId(format!("k_{digits}")), cipher: Cipher::new(bytes) }
    }

    /// Reads a key as a file or a command gives it: 32 bytes as they are, as 64 hexadecimal digits, or in base64. White space around the
    /// text is ignored.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn parse(text: &[u8]) -> Result<Self, InvalidKey> {
        if let Ok(bytes) = <[u8; KEY_BYTES]>::try_from(text) {
            return Ok(Self::new(&bytes));
        }
        let text = text.trim_ascii();
        let decoded = match text.len() {
            64 => from_hex(text),
            _ => STANDARD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).ok(),
        };
        let bytes = decoded.and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
        bytes.map(|bytes| Self::new(&bytes)).ok_or(InvalidKey)
    }

    /// Makes the text of a new random key: 64 hexadecimal digits.
    pub fn generate() -> String {
        random::<KEY_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The id of the key.
    pub const fn id(&self) -> &KeyId {
        &self.id
    }
}

/// Shows the id only.
impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EncryptionKey").field(&self.id.0).finish()
    }
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|nibble| u8::try_from(nibble).ok());
    digits.chunks(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(*pair.get(1)?)?)).collect()
}

/// The number of bytes of the id of a data key.
pub(crate) const DATA_KEY_ID_BYTES: usize = 16;

/// The id of a data key. It is random, so nobody outside of the store can name one of its keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DataKeyId(pub(crate) [u8; DATA_KEY_ID_BYTES]);

impl DataKeyId {
    pub(crate) fn new() -> Self {
        Self(random())
    }
}

impl fmt::Display for DataKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("d_")?;
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DataKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key that encrypts values.
pub(crate) struct DataKey {
    pub(crate) id: DataKeyId,
    pub(crate) cipher: Cipher,
    /// Makes the nonces of values that must be recognized when they are sealed again.
    nonces: [u8; KEY_BYTES],
}

impl DataKey {
    pub(crate) fn new(id: DataKeyId, bytes: &[u8; KEY_BYTES]) -> Self {
        let nonces = hmac_sha256(bytes, &[b"lazaret nonces of repeated values"]);
        Self { id, cipher: Cipher::new(bytes), nonces }
    }

    /// A nonce that is the same for the same value at the same place, and for nothing else: it tells that two values are equal, and no more.
    pub(crate) fn nonce_of(&self, bound_to: &[u8], value: &[u8]) -> [u8; NONCE_BYTES] {
        let length = (bound_to.len() as u64).to_be_bytes();
        let hash = hmac_sha256(&self.nonces, &[&length, bound_to, value]);
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&hash[..NONCE_BYTES]);
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_each_of_its_forms() {
        let bytes: [u8; KEY_BYTES] = std::array::from_fn(|n| u8::try_from(n).unwrap() * 7);
        let id = EncryptionKey::new(&bytes).id().clone();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        let base64 = format!(" {}\n", STANDARD.encode(bytes));
        for form in
            [&bytes[..], digits.as_bytes(), base64.as_bytes(), URL_SAFE_NO_PAD.encode(bytes).as_bytes()]
        {
            assert_eq!(EncryptionKey::parse(form).unwrap().id(), &id);
        }
        let other = EncryptionKey::new(&[1; KEY_BYTES]);
        assert_ne!(other.id(), &id);
        for wrong in [&b""[..], b"secret", &bytes[1..], &digits.as_bytes()[1..], "é".repeat(32).as_bytes()] {
            assert_eq!(EncryptionKey::parse(wrong).unwrap_err(), InvalidKey);
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let text = EncryptionKey::generate();
        let key = EncryptionKey::parse(text.as_bytes()).unwrap();
        assert_eq!(format!("{key:?}"), format!("EncryptionKey(\"{}\")", key.id()));
        assert!(!text.contains(&key.id().as_str()[2..]), "the id is no part of the key");
    }

    #[test]
    fn a_repeated_value_has_its_nonce_again() {
        let key = DataKey::new(DataKeyId([1; 16]), &[2; KEY_BYTES]);
        let other = DataKey::new(DataKeyId([1; 16]), &[3; KEY_BYTES]);
        let nonce = key.nonce_of(b"a", b"bc");
        assert_eq!(nonce, key.nonce_of(b"a", b"bc"));
        for different in [key.nonce_of(b"ab", b"c"), key.nonce_of(b"a", b"bd"), other.nonce_of(b"a", b"bc")] {
            assert_ne!(nonce, different);
        }
    }
}
