//! Sign-ins that have begun at the provider, and have not come back yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openidconnect::{CsrfToken as OidcState, Nonce, PkceCodeVerifier};
use tokio::time::Instant;

use super::next::Next;

/// How long somebody may take to sign in at the provider.
pub(super) const LASTS: Duration = Duration::from_secs(600);
/// The most sign-ins at a time. Beyond it, the oldest is dropped.
const MAX_FLOWS: usize = 1024;

/// A sign-in that has begun. It can be completed once, by the browser that began it.
pub(super) struct Flow {
    pub(super) state: OidcState,
    pub(super) nonce: Nonce,
    pub(super) verifier: PkceCodeVerifier,
    pub(super) redirect_uri: String,
    pub(super) next: Next,
}

/// All of them, by the cookie of their browser.
#[derive(Default)]
pub(super) struct Flows(Mutex<HashMap<String, (Instant, Flow)>>);

impl Flows {
    pub(super) fn begin(&self, cookie: String, flow: Flow) {
        let now = Instant::now();
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flows.retain(|_, (begun, _)| now.duration_since(*begun) < LASTS);
        if flows.len() >= MAX_FLOWS
            && let Some(oldest) =
                flows.iter().min_by_key(|(_, (begun, _))| *begun).map(|(key, _)| key.clone())
        {
            flows.remove(&oldest);
        }
        flows.insert(cookie, (now, flow));
    }

    /// Takes the sign-in of a browser.
    pub(super) fn take(&self, cookie: &str) -> Option<Flow> {
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, flow) = flows.remove(cookie)?;
        (begun.elapsed() < LASTS).then_some(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow {
            state: OidcState::new_random(),
            nonce: Nonce::new_random(),
            verifier: PkceCodeVerifier::new("v".repeat(43)),
            redirect_uri: String::new(),
            next: Next::of(None),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_is_completed_once_and_in_time() {
        let flows = Flows::default();
        flows.begin("a".into(), flow());
        assert!(flows.take("b").is_none() && flows.take("a").is_some() && flows.take("a").is_none());
        flows.begin("a".into(), flow());
        tokio::time::advance(LASTS).await;
        assert!(flows.take("a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_flows_is_bounded() {
        let flows = Flows::default();
        for number in 0..=MAX_FLOWS {
            flows.begin(number.to_string(), flow());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(flows.take("0").is_none(), "the oldest");
        assert!(flows.take("1").is_some() && flows.take(&MAX_FLOWS.to_string()).is_some());
    }
}
