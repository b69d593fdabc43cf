//! Signs webhook requests, so that the receiver can verify sender and time.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header with the signature.
pub const HEADER: &str = "lazaret-signature";

/// Signs a body: `t=SECONDS,v1=HEX`, the HMAC-SHA256 of the time, a dot and the body under the secret.
///
/// ```
/// use lazaret_telemetry::alerts::signature;
/// let header = signature::sign(b"key", 1, b"{}");
/// assert!(signature::verify(&header, b"key", b"{}"));
/// assert!(!signature::verify(&header, b"key", b"{ }"));
/// ```
pub fn sign(secret: &[u8], seconds: i64, body: &[u8]) -> String {
    let digest = mac(secret, seconds, body).finalize().into_bytes();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

/// Verifies a signature header against secret and body. The receiver must also check that the time is recent.
pub fn verify(header: &str, secret: &[u8], body: &[u8]) -> bool {
    let part = |name: &str| header.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let (Some(seconds), Some(hex)) = (part("t").and_then(|text| text.parse().ok()), part("v1")) else {
        return false;
    };
    let bytes: Option<Vec<u8>> = (0..hex.len())
        .step_by(2)
        .map(|at| hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()))
        .collect();
    bytes.is_some_and(|bytes| mac(secret, seconds, body).verify_slice(&bytes).is_ok())
}

fn mac(secret: &[u8], seconds: i64, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(seconds.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_what_other_implementations_compute() {
        // python3 -c "import hmac;print(hmac.new(b'secret', b'1700000000.{\"a\":1}', 'sha256').hexdigest())"
        let expected = "t=1700000000,v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(sign(b"secret", 1_700_000_000, b"{\"a\":1}"), expected);
    }

    #[test]
    fn another_secret_time_or_body_does_not_verify() {
        let header = sign(b"secret", 7, b"body");
        assert!(verify(&header, b"secret", b"body"));
        assert!(!verify(&header, b"other", b"body"));
        assert!(!verify(&header, b"secret", b"bodY"));
        assert!(!verify(&header.replace("t=7", "t=8"), b"secret", b"body"));
        for bad in ["", "t=7", "v1=00", "t=7,v1=zz", "t=7,v1=0"] {
            assert!(!verify(bad, b"secret", b"body"), "{bad}");
        }
    }
}
