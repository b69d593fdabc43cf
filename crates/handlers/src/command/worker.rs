//! A worker: a process that reads messages and writes responses, one line each.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use super::environment;
use super::group::Group;
use super::setup::Setup;
use super::stderr::Stderr;

/// The maximum size of a response.
pub(super) const RESPONSE_LIMIT: usize = 64 * 1024;

/// A worker process, idle or with one message.
pub(super) struct Worker {
    pub(super) group: Group,
    pub(super) stderr: Stderr,
    /// `true` once the worker has responded to a message.
    pub(super) has_responded: bool,
    pub(super) started: Instant,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// The reason why there is no valid response.
#[derive(Debug)]
pub(super) enum WorkerError {
    /// The message was not sent completely.
    Unsent,
    /// The worker closed its output or exited.
    Exited,
    /// The response exceeds the limit.
    TooLong,
}

impl Worker {
    pub(super) fn start(setup: &Setup) -> io::Result<Self> {
        let started = Instant::now();
        let mut command = setup.command();
        let (name, consumer) = environment::worker_variable(setup.caller());
        let mut group = Group::start(command.env(name, consumer))?;
        let stdin = group.stdin()?;
        let stdout = BufReader::new(group.stdout()?);
        let stderr = Stderr::capture(group.stderr()?)?;
        Ok(Self { group, stderr, has_responded: false, started, stdin, stdout })
    }

    /// Returns `true` if the worker is ready for a message: it runs and has no unread output. An extra
    /// response would be taken for the response of the next attempt, so the pipe is read directly,
    /// bypassing the readiness state of the runtime.
    pub(super) fn is_ready(&self) -> bool {
        let is_silent = || matches!(rustix::io::read(self.stdout.get_ref(), &mut [0]), Err(Errno::AGAIN));
        self.stdout.buffer().is_empty() && is_silent() && !self.group.has_exited()
    }

    /// Sends a line and waits for the response. A worker whose call is cancelled cannot be reused.
    pub(super) async fn call(&mut self, line: &[u8]) -> Result<Vec<u8>, WorkerError> {
        let sent = async {
            self.stdin.write_all(line).await?;
            self.stdin.flush().await
        };
        sent.await.map_err(|_| WorkerError::Unsent)?;
        self.response().await
    }

    async fn response(&mut self) -> Result<Vec<u8>, WorkerError> {
        let mut response = Vec::new();
        loop {
            let buffer = self.stdout.fill_buf().await.map_err(|_| WorkerError::Exited)?;
            if buffer.is_empty() {
                return Err(WorkerError::Exited);
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let part = end.unwrap_or(buffer.len());
            if response.len() + part > RESPONSE_LIMIT {
                return Err(WorkerError::TooLong);
            }
            response.extend_from_slice(&buffer[..part]);
            self.stdout.consume(end.map_or(part, |end| end + 1));
            if end.is_some() {
                return Ok(response);
            }
        }
    }

    /// Closes the input of an idle worker, and kills it if it does not exit in time.
    pub(super) async fn retire(self, grace: Duration) {
        let Self { mut group, stdin, .. } = self;
        drop(stdin);
        if !matches!(timeout(grace, group.exited()).await, Ok(Ok(()))) {
            let _ = group.terminate(grace).await;
        }
        let _ = group.kill().await;
    }
}
