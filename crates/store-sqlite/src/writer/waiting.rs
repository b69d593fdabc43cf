//! The writer's wait for its next request.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::requests::Command;

/// The next event of the queue.
pub(super) enum Next {
    Command(Command),
    Idle,
    End,
}

/// Unparks a thread that waits for a request.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next value, or the end of the channel; `None` after the timeout.
pub(super) fn receive_within<T>(waiting: &mut mpsc::Receiver<T>, time: Duration) -> Option<Option<T>> {
    let until = Instant::now() + time;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut next = pin!(waiting.recv());
    loop {
        if let Poll::Ready(next) = next.as_mut().poll(&mut context) {
            return Some(next);
        }
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        thread::park_timeout(left);
    }
}
