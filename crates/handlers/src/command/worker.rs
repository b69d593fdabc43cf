//! One worker: a process that reads messages and writes answers, one line each.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::environment;
use super::group::Group;
use super::setup::Setup;
use super::stderr::Stderr;

/// The longest answer that is read.
pub(super) const ANSWER_LIMIT: usize = 64 * 1024;

/// A worker that waits for a message, or works on one.
pub(super) struct Worker {
    pub(super) group: Group,
    pub(super) stderr: Stderr,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The worker never had the whole message.
    Unsent,
    /// The worker has closed its end, or died.
    Gone,
    /// The answer is longer than any may be.
    TooLong,
}

impl Worker {
    pub(super) fn start(setup: &Setup) -> io::Result<Self> {
        let mut command = setup.command();
        let (name, consumer) = environment::of_worker(setup.caller());
        let mut group = Group::start(command.env(name, consumer))?;
        let stdin = group.stdin()?;
        let stdout = BufReader::new(group.stdout()?);
        let stderr = Stderr::listen(group.stderr()?)?;
        Ok(Self { group, stderr, stdin, stdout })
    }

    /// Whether it can be given a message: it lives, and has said nothing unasked. An answer too many would be taken for
    /// that of the next attempt, so the pipe itself is looked at, whether the runtime knows of its bytes yet or not.
    pub(super) fn is_fit(&self) -> bool {
        let is_silent = || matches!(rustix::io::read(self.stdout.get_ref(), &mut [0]), Err(Errno::AGAIN));
        self.stdout.buffer().is_empty() && is_silent() && !self.group.has_exited()
    }

    /// Hands over a line and waits for one. Whoever gives up waiting cannot use the worker any more.
    pub(super) async fn ask(&mut self, line: &[u8]) -> Result<Vec<u8>, Trouble> {
        let sent = async {
            self.stdin.write_all(line).await?;
            self.stdin.flush().await
        };
        sent.await.map_err(|_| Trouble::Unsent)?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut answer = Vec::new();
        loop {
            let buffer = self.stdout.fill_buf().await.map_err(|_| Trouble::Gone)?;
            if buffer.is_empty() {
                return Err(Trouble::Gone);
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let part = end.unwrap_or(buffer.len());
            if answer.len() + part > ANSWER_LIMIT {
                return Err(Trouble::TooLong);
            }
            answer.extend_from_slice(&buffer[..part]);
            self.stdout.consume(end.map_or(part, |end| end + 1));
            if end.is_some() {
                return Ok(answer);
            }
        }
    }

    /// Lets an idle worker end by itself, and ends it when it does not.
    pub(super) async fn retire(self, grace: Duration) {
        let Self { mut group, stdin, .. } = self;
        drop(stdin);
        if !matches!(timeout(grace, group.exited()).await, Ok(Ok(()))) {
            let _ = group.stop(grace).await;
        }
        let _ = group.end().await;
    }
}
