//! Sign-ins that have begun at the provider and are not completed yet.
//!
//! The browser keeps its sign-in in a cookie that only this process can read and create. No sign-in is
//! therefore lost, however many others begin, and nothing is kept here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openidconnect::{CsrfToken as OidcState, Nonce, PkceCodeVerifier};
use ring::aead::{self, Aad, LessSafeKey, NONCE_LEN, UnboundKey};
use tokio::time::Instant;

use super::next::Next;

/// How long a person may take to sign in at the provider.
pub(super) const LASTS: Duration = Duration::from_secs(600);
/// The maximum length of a cookie. Browsers keep 4,096 bytes including its name.
const MAX_BYTES: usize = 4000;
/// The purpose of the key.
const PURPOSE: &[u8] = b"lazaret sign-in";

/// A sign-in that has begun. Only the browser that began it can complete it, and its code at the
/// provider can be used only once.
pub(super) struct Flow {
    pub(super) state: OidcState,
    pub(super) nonce: Nonce,
    pub(super) verifier: PkceCodeVerifier,
    pub(super) redirect_uri: String,
    pub(super) next: Next,
}

/// The error for a system without random numbers, or a sign-in that does not fit into a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotSealed;

/// Seals sign-ins with a key of this process.
pub(super) struct Flows {
    key: LessSafeKey,
    /// The number of sealed cookies. Each has its own nonce.
    sealed: AtomicU64,
    started: Instant,
}

impl Flows {
    /// Generates a key.
    pub(super) fn new() -> Result<Self, NotSealed> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|_| NotSealed)?;
        let key = UnboundKey::new(&aead::CHACHA20_POLY1305, &key).map_err(|_| NotSealed)?;
        Ok(Self { key: LessSafeKey::new(key), sealed: AtomicU64::new(0), started: Instant::now() })
    }

    /// Writes a sign-in that begins now to a cookie.
    pub(super) fn seal(&self, flow: &Flow) -> Result<String, NotSealed> {
        let begun = self.started.elapsed().as_secs().to_string();
        let fields: [&str; 6] = [
            &begun,
            flow.state.secret(),
            flow.nonce.secret(),
            flow.verifier.secret(),
            &flow.redirect_uri,
            flow.next.as_str(),
        ];
        let mut sealed = fields.join("\n").into_bytes();
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.sealed.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let used_once = aead::Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(used_once, Aad::from(PURPOSE), &mut sealed)
            .map_err(|_| NotSealed)?;
        let cookie = URL_SAFE_NO_PAD.encode([nonce.as_slice(), sealed.as_slice()].concat());
        if cookie.len() <= MAX_BYTES { Ok(cookie) } else { Err(NotSealed) }
    }

    /// Reads the sign-in of a browser. Returns `None` if the cookie was not created here, or is too old.
    pub(super) fn open(&self, cookie: &str) -> Option<Flow> {
        if cookie.len() > MAX_BYTES {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.key.open_in_place(nonce, Aad::from(PURPOSE), sealed).ok()?;
        let mut fields = std::str::from_utf8(opened).ok()?.split('\n').map(str::to_owned);
        let begun = Duration::from_secs(fields.next()?.parse().ok()?);
        if self.started.elapsed().saturating_sub(begun) >= LASTS {
            return None;
        }
        Some(Flow {
            state: OidcState::new(fields.next()?),
            nonce: Nonce::new(fields.next()?),
            verifier: PkceCodeVerifier::new(fields.next()?),
            redirect_uri: fields.next()?,
            next: Next::of(fields.next().as_deref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(next: &str) -> Flow {
        Flow {
            state: OidcState::new_random(),
            nonce: Nonce::new_random(),
            verifier: PkceCodeVerifier::new("v".repeat(43)),
            redirect_uri: format!("https://{}:65535/console/login/callback", "x".repeat(253)),
            next: Next::of(Some(next)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_comes_back_from_its_cookie_in_time() {
        let flows = Flows::new().unwrap();
        tokio::time::advance(Duration::from_secs(1000)).await;
        let flow = flow("/console/groups?q=a%20b");
        let cookie = flows.seal(&flow).unwrap();
        tokio::time::advance(LASTS - Duration::from_secs(1)).await;
        let opened = flows.open(&cookie).unwrap();
        assert_eq!(
            (opened.state.secret(), opened.nonce.secret(), opened.verifier.secret()),
            (flow.state.secret(), flow.nonce.secret(), flow.verifier.secret())
        );
        assert_eq!((opened.redirect_uri, opened.next), (flow.redirect_uri, flow.next));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(flows.open(&cookie).is_none(), "too late");
    }

    #[tokio::test]
    async fn a_cookie_that_was_changed_or_made_elsewhere_is_no_flow() {
        let (flows, others) = (Flows::new().unwrap(), Flows::new().unwrap());
        let flow = flow("/console/groups");
        let cookie = flows.seal(&flow).unwrap();
        assert_ne!(cookie, flows.seal(&flow).unwrap(), "no two are alike");
        assert!(flows.open(&cookie).is_some() && others.open(&cookie).is_none());
        for at in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(flows.open(&String::from_utf8(changed).unwrap()).is_none(), "{at}");
        }
        for wrong in ["", "AAAA", &cookie[..cookie.len() - 4], &"A".repeat(5000), "not base64!"] {
            assert!(flows.open(wrong).is_none(), "{wrong}");
        }
        let opened = URL_SAFE_NO_PAD.decode(&cookie).unwrap();
        let shown = String::from_utf8_lossy(&opened);
        assert!(!shown.contains(flow.verifier.secret().as_str()), "the browser cannot read it");
    }

    #[tokio::test]
    async fn the_longest_flow_fits_into_a_cookie() {
        let longest = format!("/console/{}", "x".repeat(2048 - "/console/".len()));
        let flow = flow(&longest);
        assert_eq!(flow.next.as_str(), longest);
        let flows = Flows::new().unwrap();
        let cookie = flows.seal(&flow).unwrap();
        assert_eq!(flows.open(&cookie).unwrap().next.as_str(), longest);
    }
}
