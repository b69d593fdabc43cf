//! The key of the digests that leave a store: what is derived from a payload, or from the audit, tells nothing without it.

use std::fmt;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{KeyValue, update};
use super::payload_digest::PayloadDigest;

/// The length of a key.
const BYTES: usize = 32;

/// The secret key of a store, for digests that others read: those of payloads, in the audit and in the plans that a server shows, and the
/// hashes of the chain of the audit.
///
/// A plain digest of a short or guessable payload is as good as the payload: whoever reads it tries one guess after the other,
/// elsewhere and unnoticed. With a key that never leaves the store, equal payloads still have equal digests, and nothing else can be
/// learned from them.
///
/// ```
/// use lazaret_core::store::{DigestKey, PayloadDigest};
/// let (one, other) = (DigestKey::random(), DigestKey::random());
/// let digest = PayloadDigest::of(Some(b"4111"));
/// assert_eq!(one.seal(digest), one.seal(digest));
/// assert_ne!(one.seal(digest), other.seal(digest));
/// assert_eq!(one.seal(PayloadDigest::of(None)), "none");
/// assert_eq!(format!("{one:?}"), "DigestKey(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DigestKey([u8; BYTES]);

impl DigestKey {
    /// Where a store keeps its key: the space and the name of a [value](KeyValue).
    pub const PLACE: (&'static str, &'static str) = ("store", "digest-key");

    /// Restores a key from its value in a store. Returns `None` for something else.
    pub fn from_value(value: &[u8]) -> Option<Self> {
        value.try_into().ok().map(Self)
    }

    /// Creates a key.
    pub fn random() -> Self {
        let mut hasher = Sha256::new();
        // Each has 122 random bits.
        (0..4).for_each(|_| hasher.update(Uuid::new_v4().as_bytes()));
        Self(hasher.finalize().into())
    }

    /// How a sealed digest begins: what follows has 64 hexadecimal digits.
    pub const SEALED: &str = "hmac-sha256:";

    /// The digest of a payload as others see it: `hmac-sha256:` and 64 hexadecimal digits, the HMAC-SHA-256 of the SHA-256 of the
    /// payload; `none` without a payload.
    pub fn seal(&self, digest: PayloadDigest) -> String {
        if digest == PayloadDigest::of(None) {
            return digest.to_string();
        }
        format!("{}{}", Self::SEALED, hex(self.mac(b"payload", digest.as_bytes())))
    }

    /// A hash of the chain of the audit as others see it: `hmac-sha256:` and 64 hexadecimal digits.
    ///
    /// The chain has no key, so that everybody who has its entries can verify it. For the same reason its hash would tell whether a guess
    /// of a field is right to a reader who sees all other fields.
    pub fn seal_audit_hash(&self, hash: &[u8; 32]) -> String {
        format!("{}{}", Self::SEALED, hex(self.mac(b"head", hash)))
    }

    /// The hash of a plan as others see it, in 64 hexadecimal digits. It covers the payloads of the plan.
    pub fn seal_plan_hash(&self, hash: &str) -> String {
        hex(self.mac(b"plan", hash.as_bytes()))
    }

    /// The digest of the payload of a posted message as an inbox stores it, to tell the same message that is posted again from another
    /// one with its id. It outlives the payload. The argument is a plain digest, which earlier versions stored.
    pub fn seal_post(&self, digest: &[u8]) -> [u8; 32] {
        self.mac(b"post", digest)
    }

    fn mac(&self, purpose: &[u8], of: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(purpose);
        mac.update(&[0]);
        mac.update(of);
        mac.finalize().into_bytes().into()
    }
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key is never printed.
impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(…)")
    }
}

/// Returns the digest key of a store. The first caller creates it; copies of the store, such as a restored backup, have the same.
/// Stores implement [`Audit::digest_key`](super::Audit::digest_key) with it.
///
/// # Errors
/// When the store cannot be read or written, or holds something else in the place of its key.
pub async fn stored_digest_key<K: KeyValue + ?Sized>(store: &K) -> Result<DigestKey> {
    let found = update(store, DigestKey::PLACE, |reading| match &reading.found {
        Some(found) => Ok((found.value.clone(), None)),
        None => {
            let key = Bytes::copy_from_slice(&DigestKey::random().0);
            Ok((key.clone(), Some(key)))
        }
    });
    DigestKey::from_value(&found.await?).ok_or_else(|| {
        let context = format!("the key of digests does not have {BYTES} bytes");
        StoreError::not_done(ErrorKind::Corrupt, "digest_key", context)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_digest_is_what_other_implementations_compute() {
        // python3 -c "import hmac,hashlib as h;d=h.sha256(b'{}').digest();print(hmac.new(b'k'*32,b'payload\0'+d,'sha256').hexdigest())"
        let key = DigestKey([b'k'; BYTES]);
        let expected = "hmac-sha256:4471ecc675bbd571eeefcbde654e84bc277fe2f3299760ce379aef5256b10eec";
        assert_eq!(key.seal(PayloadDigest::of(Some(b"{}"))), expected);
        // python3 -c "import hmac;print(hmac.new(b'k'*32,b'plan\0ab','sha256').hexdigest())"
        assert_eq!(
            key.seal_plan_hash("ab"),
            "e5df293d398395b39fc4c2d10c8d3d641f72e009d9c335b74d711d1574c8a67a"
        );
        // python3 -c "import hmac;print(hmac.new(b'k'*32,b'head\0'+b'\xab'*32,'sha256').hexdigest())"
        assert_eq!(
            key.seal_audit_hash(&[0xab; 32]),
            "hmac-sha256:e04ae9962dea7b53e09c5efee4ecead8ce5b1de393476ac8ed09737ad8194ddd"
        );
        // python3 -c "import hmac;print(hmac.new(b'k'*32,b'post\0ab','sha256').hexdigest())"
        assert_eq!(
            hex(key.seal_post(b"ab")),
            "4e6d1ac00142bb5082d5f5f924f4229435b33be43f39bde591a3127268ccf7dd"
        );
        assert_eq!(DigestKey::from_value(&[b'k'; BYTES]), Some(key));
        assert_eq!(DigestKey::from_value(b"k"), None);
    }
}
