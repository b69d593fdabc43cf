//! XChaCha20-Poly1305 on a value in memory.

use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};

pub(crate) const KEY_BYTES: usize = 32;
pub(crate) const NONCE_BYTES: usize = 24;
pub(crate) const TAG_BYTES: usize = 16;

/// A cipher with its key, which is erased from memory with it.
pub(crate) struct Cipher(XChaCha20Poly1305);

/// The value, its key, its nonce or what it is bound to is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// Encrypts the text in place, and returns its tag.
    pub(crate) fn encrypt(
        &self,
        nonce: &[u8; NONCE_BYTES],
        bound_to: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let tag = self.0.encrypt_in_place_detached(&XNonce::from(*nonce), bound_to, text);
        tag.expect("a value in memory is shorter than the 256 GiB that the cipher can take").into()
    }

    /// Decrypts the text in place, unless it is not what was encrypted.
    pub(crate) fn decrypt(
        &self,
        nonce: &[u8; NONCE_BYTES],
        bound_to: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
        self.0.decrypt_in_place_detached(&nonce, bound_to, text, &tag).map_err(|_| Forged)
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random numbers, which every hash table needs as well");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_value_at_the_same_place_is_decrypted() {
        let (cipher, nonce) = (Cipher::new(&[7; KEY_BYTES]), random());
        let mut text = *b"hello";
        let tag = cipher.encrypt(&nonce, b"here", &mut text);
        assert_ne!(&text, b"hello");
        let sealed = text;
        let fails = |cipher: &Cipher, nonce: &[u8; NONCE_BYTES], place: &[u8], byte: u8, tag| {
            let mut text = sealed;
            text[0] ^= byte;
            assert_eq!(cipher.decrypt(nonce, place, &mut text, tag), Err(Forged));
        };
        fails(&Cipher::new(&[8; KEY_BYTES]), &nonce, b"here", 0, &tag);
        fails(&cipher, &random(), b"here", 0, &tag);
        fails(&cipher, &nonce, b"there", 0, &tag);
        fails(&cipher, &nonce, b"here", 1, &tag);
        fails(&cipher, &nonce, b"here", 0, &[0; TAG_BYTES]);
        cipher.decrypt(&nonce, b"here", &mut text, &tag).unwrap();
        assert_eq!(&text, b"hello");
    }

    /// Appendix A.3.1 of the draft of XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03).
    #[test]
    fn it_is_the_cipher_of_the_draft() {
        let key: [u8; KEY_BYTES] = std::array::from_fn(|n| 0x80 + u8::try_from(n).unwrap());
        let nonce: [u8; NONCE_BYTES] = std::array::from_fn(|n| 0x40 + u8::try_from(n).unwrap());
        let bound_to = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
            the future, sunscreen would be it.";
        let tag = Cipher::new(&key).encrypt(&nonce, &bound_to, &mut text);
        assert_eq!(text[..8], [0xbd, 0x6d, 0x17, 0x9d, 0x3e, 0x83, 0xd4, 0x3b]);
        let expected =
            [0xc0, 0x87, 0x59, 0x24, 0xc1, 0xc7, 0x98, 0x79, 0x47, 0xde, 0xaf, 0xd8, 0x78, 0x0a, 0xcf, 0x49];
        assert_eq!(tag, expected);
    }
}
