//! Listens to what a process says on its standard error.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use crate::words::Tail;

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

/// Keeps the end of what a process says. A task listens all the time, so that the process never waits for a reader; whoever
/// asks first takes what is still in the pipe, so that nothing is missed that was said before.
pub(super) struct Stderr {
    ear: Arc<Ear>,
    _listening: Beside,
}

struct Ear {
    pipe: Receiver,
    tail: Mutex<Tail>,
}

impl Stderr {
    pub(super) fn listen(pipe: ChildStderr) -> io::Result<Self> {
        let pipe = Receiver::from_owned_fd(pipe.into_owned_fd()?)?;
        let ear = Arc::new(Ear { pipe, tail: Mutex::default() });
        let listener = Arc::clone(&ear);
        let listening =
            Beside::start(
                async move { while listener.pipe.readable().await.is_ok() && listener.take_one() {} },
            );
        Ok(Self { ear, _listening: listening })
    }

    /// Forgets what was said so far.
    pub(super) fn forget(&self) {
        self.ear.take_all().clear();
    }

    /// What was said last.
    pub(super) fn words(&self) -> String {
        self.ear.take_all().words()
    }
}

impl Ear {
    /// Takes a part of what is in the pipe. Whether there may be more, now or later.
    fn take_one(&self) -> bool {
        let mut tail = self.lock();
        let mut buffer = [0; 4096];
        match self.pipe.try_read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                tail.push(&buffer[..count]);
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Takes all that is in the pipe now, whether the runtime knows of it yet or not. More than a pipe holds is not waited
    /// for: a process that never stops talking is not listened to for ever.
    fn take_all(&self) -> MutexGuard<'_, Tail> {
        let mut tail = self.lock();
        let mut buffer = [0; 4096];
        for _ in 0..256 {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(count @ 1..) => tail.push(&buffer[..count]),
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        tail
    }

    /// Nothing is left half done under this lock.
    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
