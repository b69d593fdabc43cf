//! HMAC with SHA-256 (RFC 2104).

use sha2::{Digest, Sha256};

const BLOCK_BYTES: usize = 64;

/// The code of a message that is given in parts.
pub(crate) fn hmac_sha256(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let pad = |byte: u8| {
        let mut block = [byte; BLOCK_BYTES];
        block.iter_mut().zip(key).for_each(|(padded, key)| *padded ^= key);
        block
    };
    let mut inner = Sha256::new();
    inner.update(pad(0x36));
    parts.iter().for_each(|part| inner.update(part));
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner.finalize()).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of RFC 4231 that are not 32 bytes long are padded with zeros, as the algorithm does.
    #[test]
    fn it_gives_the_codes_of_rfc_4231() {
        let hex = |code: [u8; 32]| code.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut first = [0; 32];
        first[..20].fill(0x0b);
        assert_eq!(
            hex(hmac_sha256(&first, &[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        let mut second = [0; 32];
        second[..4].copy_from_slice(b"Jefe");
        assert_eq!(
            hex(hmac_sha256(&second, &[b"what do ya want for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
