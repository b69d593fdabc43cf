//! The digest of a payload: tells whether a letter still has the payload that a plan was made for.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The SHA-256 of a payload, as `sha256sum` prints it; `none` for a letter without one.
///
/// ```
/// use lazaret_core::store::PayloadDigest;
/// let digest = PayloadDigest::of(Some(b"{}"));
/// assert_eq!(digest.to_string(), "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// assert_ne!(PayloadDigest::of(None), PayloadDigest::of(Some(b"")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadDigest([u8; 32]);

impl PayloadDigest {
    /// No payload. No payload has this hash.
    const NONE: Self = Self([0; 32]);

    /// Computes the digest of a payload.
    pub fn of(payload: Option<&[u8]>) -> Self {
        payload.map_or(Self::NONE, |payload| Self(Sha256::digest(payload).into()))
    }

    /// The bytes, for a store.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Restores a digest from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for PayloadDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("none");
        }
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PayloadDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a payload digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected none, or sha256: and 64 hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for PayloadDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or(InvalidDigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| InvalidDigest)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidDigest)?;
        }
        Ok(Self(bytes))
    }
}
