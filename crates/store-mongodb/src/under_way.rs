//! What this process is doing after its decisions. Who meets a document in which something is left to do waits for the call that does it,
//! if that is one of this process, and does it itself otherwise.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The documents with decisions of this process that are under way.
#[derive(Default)]
pub(crate) struct UnderWay {
    /// How many calls are about each.
    documents: Mutex<BTreeMap<String, usize>>,
    ended: Notify,
}

/// Decisions about some documents are under way as long as this is there: to the end, or until their call is given up.
pub(crate) struct Decisions<'a> {
    of: &'a UnderWay,
    documents: Vec<String>,
}

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that decisions about these documents begin.
    pub(crate) fn begin(&self, documents: Vec<String>) -> Decisions<'_> {
        let mut under_way = self.lock();
        documents.iter().for_each(|id| *under_way.entry(id.clone()).or_default() += 1);
        drop(under_way);
        Decisions { of: self, documents }
    }

    /// Whether a decision about this document is under way.
    pub(crate) fn has(&self, document: &str) -> bool {
        self.lock().contains_key(document)
    }

    /// Waits for the end of what is under way about these documents. Returns whether there was something.
    pub(crate) async fn wait_for(&self, documents: &[&str]) -> bool {
        let mut waited = false;
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if !documents.iter().any(|id| self.has(id)) {
                return waited;
            }
            waited = true;
            ended.await;
        }
    }
}

impl Drop for Decisions<'_> {
    fn drop(&mut self) {
        let mut under_way = self.of.lock();
        for id in &self.documents {
            if let Some(calls) = under_way.get_mut(id) {
                *calls -= 1;
                if *calls == 0 {
                    under_way.remove(id);
                }
            }
        }
        drop(under_way);
        self.of.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_waits_goes_on_when_the_last_call_has_ended() {
        let under_way = UnderWay::default();
        assert!(!under_way.wait_for(&["a"]).await, "nothing is under way");
        let (one, other) = (under_way.begin(vec!["a".into(), "b".into()]), under_way.begin(vec!["a".into()]));
        let mut waiting = pin!(under_way.wait_for(&["a", "c"]));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(one);
        assert!(under_way.has("a") && !under_way.has("b"));
        assert!(waiting.as_mut().now_or_never().is_none(), "another call is about it, too");
        drop(other);
        assert!(waiting.await);
        assert!(!under_way.has("a"), "I7: nothing is remembered");
    }
}
