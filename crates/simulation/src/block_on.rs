//! Runs a future on a blocked thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the thread until the future is ready. The future must not need this thread's runtime to make progress.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // Without this, the runtime's budget would make the future yield to tasks that cannot run here.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_does_not_advance_during_a_blocking_call() {
        let before = tokio::time::Instant::now();
        for number in 0..1000 {
            let (send, receive) = tokio::sync::oneshot::channel();
            let other = thread::spawn(move || send.send(number));
            assert_eq!(block_on(receive), Ok(number));
            assert_eq!(other.join().ok(), Some(Ok(())));
        }
        assert_eq!(tokio::time::Instant::now(), before);
    }
}
