//! Listens to what a process says on its standard error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::words::Tail;

/// How long the last words of a process are waited for. Its pipe is closed by then, unless somebody ran off with it.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// A task that ends when its owner does.
pub(super) struct Beside(JoinHandle<()>);

impl Beside {
    pub(super) fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps the end of what a process says.
pub(super) struct Stderr {
    tail: Arc<Mutex<Tail>>,
    listening: Beside,
}

impl Stderr {
    pub(super) fn listen(pipe: Option<ChildStderr>) -> Self {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let kept = Arc::clone(&tail);
        let listening = Beside::start(async move {
            let Some(mut pipe) = pipe else { return };
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                lock(&kept).push(&buffer[..count]);
            }
        });
        Self { tail, listening }
    }

    /// Forgets what was said so far.
    pub(super) fn forget(&self) {
        lock(&self.tail).clear();
    }

    /// What was said last.
    pub(super) fn words(&self) -> String {
        lock(&self.tail).words()
    }

    /// What was said last by a process that has ended.
    pub(super) async fn last_words(&mut self) -> String {
        // Whether it came to its end or not: what there is, is there.
        let _ = timeout(LAST_WORDS, &mut self.listening.0).await;
        self.words()
    }
}

/// Nothing is left half done under this lock.
fn lock(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}
