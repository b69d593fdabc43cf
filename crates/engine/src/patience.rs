//! Keeps asking the store until it answers, and says so meanwhile (I9).

use std::future::Future;
use std::time::Duration;

use lazaret_core::store::{self, ErrorKind};

use crate::error::Error;
use crate::events::{Counters, Event};
use crate::shared::Component;

const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Why somebody stops before their message is settled. The message will be delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The partition goes, or the consumer ends.
    Gone,
    /// The store says that somebody else took over.
    Fenced,
}

/// Calls the store until it succeeds. While it does not, the source is held back. Fenced callers leave; trouble that
/// waiting cannot mend ends the consumer.
pub(crate) async fn patiently<T, F, Fut>(component: &Component, mut call: F) -> Result<T, Left>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = store::Result<T>>,
{
    let mut waiting = Waiting::new(component);
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) => waiting.after(error).await?,
        }
    }
}

/// The wait between two calls to a store that has trouble.
pub(crate) struct Waiting<'a> {
    component: &'a Component,
    delay: Duration,
    trouble: Option<crate::gate::Trouble>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(component: &'a Component) -> Self {
        Self { component, delay: FIRST_DELAY, trouble: None }
    }

    /// Waits if calling again may help.
    pub(crate) async fn after(&mut self, error: store::StoreError) -> Result<(), Left> {
        let shared = &self.component.shared;
        match error.kind() {
            ErrorKind::Fenced => return Err(Left::Fenced),
            kind if !kind.is_temporary() => {
                shared.stop(Error::Store(error));
                return Err(Left::Gone);
            }
            _ => {}
        }
        Counters::add(&shared.counters.hand_off_failures, 1);
        let (queue, kind) = (&self.component.queue, error.kind());
        shared.tell(&Event::HandOffFailed { queue, kind, error: &error.to_string() });
        self.trouble.get_or_insert_with(|| shared.gate.trouble());
        tokio::time::sleep(self.delay).await;
        self.delay = (self.delay * 2).min(LONGEST_DELAY);
        Ok(())
    }
}
