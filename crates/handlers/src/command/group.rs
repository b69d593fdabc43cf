//! A process group that ends as a whole.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// A process that leads its own process group.
///
/// Dropping it kills the group. The leader is reaped last, so that its process id cannot be reused while
/// signals are sent to the group.
pub(super) struct Group {
    child: Child,
    leader: Pid,
    /// `true` once the group was killed and its leader reaped.
    reaped: bool,
}

impl Group {
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let leader = leader.ok_or_else(|| io::Error::other("the new process has no id"))?;
        Ok(Self { child, leader, reaped: false })
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

    /// Returns `true` if the leader has exited. Does not reap it.
    pub(super) fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.leader), options) {
                Ok(status) => return status.is_some(),
                Err(Errno::INTR) => {}
                // The child no longer exists.
                Err(_) => return true,
            }
        }
    }

    /// Waits until the leader has exited. Does not reap it.
    pub(super) async fn exited(&self) -> io::Result<()> {
        // Subscribe before the check, so that no exit is missed.
        let mut exits = signal(SignalKind::child())?;
        while !self.has_exited() {
            exits.recv().await;
        }
        Ok(())
    }

    /// Kills the remaining processes and reaps the leader.
    pub(super) async fn kill(&mut self) -> io::Result<ExitStatus> {
        self.send(Signal::KILL);
        let status = self.child.wait().await?;
        self.reaped = true;
        Ok(status)
    }

    /// Terminates the group, and kills it if it is still running after the grace period.
    pub(super) async fn terminate(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.send(Signal::TERM);
        if let Ok(waited) = timeout(grace, self.exited()).await {
            waited?;
        }
        self.kill().await
    }

    /// Sends a signal to all processes of the group. An empty group is not an error.
    fn send(&self, signal: Signal) {
        if !self.reaped {
            let _ = kill_process_group(self.leader, signal);
        }
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("the new process has no pipe")
}

impl Drop for Group {
    fn drop(&mut self) {
        // tokio reaps the leader.
        self.send(Signal::KILL);
    }
}
