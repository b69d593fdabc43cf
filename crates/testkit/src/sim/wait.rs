//! Waits for a future with the whole thread.

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

/// Runs a future to its end on this thread. It must not need the thread's own runtime to go on.
pub(crate) fn for_the<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // The runtime would make it yield to others after a while, and here nobody else runs.
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
    async fn time_stands_still_while_a_thread_is_waited_for() {
        let before = tokio::time::Instant::now();
        for number in 0..1000 {
            let (send, receive) = tokio::sync::oneshot::channel();
            let other = thread::spawn(move || send.send(number));
            assert_eq!(for_the(receive), Ok(number));
            assert_eq!(other.join().ok(), Some(Ok(())));
        }
        assert_eq!(tokio::time::Instant::now(), before);
    }
}
