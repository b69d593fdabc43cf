//! Captures the standard error of a process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use crate::report::Report;
use crate::sanitize::Tail;

/// A task that is aborted when it is dropped.
pub(super) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub(super) fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps the end of the standard error. A task reads continuously, so that the process never blocks.
/// [`text`](Self::text) and the other methods first read the rest of the pipe, so that no earlier output
/// is missed.
pub(super) struct Stderr {
    capture: Arc<Capture>,
    _reader: AbortOnDrop,
}

struct Capture {
    pipe: Receiver,
    tail: Mutex<Tail>,
}

impl Stderr {
    pub(super) fn capture(pipe: ChildStderr) -> io::Result<Self> {
        let pipe = Receiver::from_owned_fd(pipe.into_owned_fd()?)?;
        let capture = Arc::new(Capture { pipe, tail: Mutex::default() });
        let shared = Arc::clone(&capture);
        let reader =
            AbortOnDrop::start(
                async move { while shared.pipe.readable().await.is_ok() && shared.read_some() {} },
            );
        Ok(Self { capture, _reader: reader })
    }

    /// Discards the output so far.
    pub(super) fn clear(&self) {
        self.capture.read_all().clear();
    }

    /// Returns the sanitized end of the output.
    pub(super) fn text(&self) -> String {
        self.capture.read_all().text()
    }

    /// Returns the sanitized end of the output, and the report of the failure if the last line is one.
    pub(super) fn text_and_report(&self) -> (String, Option<Report>) {
        self.capture.read_all().text_and_report()
    }
}

impl Capture {
    /// Reads a part of the pipe. Returns `true` if there may be more.
    fn read_some(&self) -> bool {
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

    /// Reads everything in the pipe, bypassing the readiness state of the runtime. The amount is limited
    /// to the capacity of a pipe, so that a process with endless output does not block this call.
    fn read_all(&self) -> MutexGuard<'_, Tail> {
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

    /// Locks the tail. A poisoned lock is usable, because no update is partial.
    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
