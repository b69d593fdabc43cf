//! A process and all that it starts: they end together.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// A process that leads a group of its own.
///
/// Whoever drops it kills the group. The leader is reaped last, so that its number names this group as long as signals are
/// sent to it, and never that of a stranger.
pub(super) struct Group {
    child: Child,
    leader: Pid,
    /// Whether the group was killed and its leader reaped.
    is_over: bool,
}

impl Group {
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let leader = leader.ok_or_else(|| io::Error::other("the new process has no number"))?;
        Ok(Self { child, leader, is_over: false })
    }

    pub(super) fn stdin(&mut self) -> io::Result<ChildStdin> {
        self.child.stdin.take().ok_or_else(no_pipe)
    }

    pub(super) fn stdout(&mut self) -> io::Result<ChildStdout> {
        self.child.stdout.take().ok_or_else(no_pipe)
    }

    pub(super) fn stderr(&mut self) -> io::Result<ChildStderr> {
        self.child.stderr.take().ok_or_else(no_pipe)
    }

    /// Whether the leader has ended. It is not reaped.
    pub(super) fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.leader), options) {
                Ok(status) => return status.is_some(),
                Err(Errno::INTR) => {}
                // There is no such child any more.
                Err(_) => return true,
            }
        }
    }

    /// Waits until the leader has ended. It is not reaped.
    pub(super) async fn exited(&self) -> io::Result<()> {
        // Listening comes first, so that no end is missed.
        let mut ends = signal(SignalKind::child())?;
        while !self.has_exited() {
            ends.recv().await;
        }
        Ok(())
    }

    /// Kills whoever is left, and reaps the leader.
    pub(super) async fn end(&mut self) -> io::Result<ExitStatus> {
        self.send(Signal::KILL);
        let status = self.child.wait().await?;
        self.is_over = true;
        Ok(status)
    }

    /// Asks the group to end, and ends it when it has not done so in time.
    pub(super) async fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.send(Signal::TERM);
        if let Ok(waited) = timeout(grace, self.exited()).await {
            waited?;
        }
        self.end().await
    }

    /// Sends a signal to all processes of the group. That there is none left is no error.
    fn send(&self, signal: Signal) {
        if !self.is_over {
            let _ = kill_process_group(self.leader, signal);
        }
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("the new process has no such pipe")
}

impl Drop for Group {
    fn drop(&mut self) {
        // The runtime reaps the leader.
        self.send(Signal::KILL);
    }
}
