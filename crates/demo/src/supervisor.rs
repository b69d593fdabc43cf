//! Supervises the worker: starts it, reads its reports, and restarts it after a crash, as systemd or
//! Kubernetes would.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::Error;
use crate::folder::Folder;
use crate::protocol::{Report, WorkerCommand};

/// The delay before a crashed worker is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// The number of consecutive crashes before the worker was ready at which the supervisor gives up.
const MAX_FAILED_STARTS: u32 = 3;
/// The time a worker has to exit after it was told to stop.
const TIMEOUT: Duration = Duration::from_secs(20);

/// An event of the worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WorkerEvent {
    /// The worker sent a report.
    Report(Report),
    /// The worker crashed.
    Crashed {
        /// The incarnation.
        incarnation: u32,
        /// A description of the exit.
        how: String,
    },
    /// The worker was stopped and has exited.
    Ended,
    /// The worker does not keep running, or failed to shut down.
    Fatal(String),
}

/// A handle of the supervisor. Dropping it kills the worker.
#[derive(Debug)]
pub(crate) struct Supervisor {
    commands: mpsc::Sender<WorkerCommand>,
    events: mpsc::Receiver<WorkerEvent>,
    /// The supervisor task. Dropping this aborts it.
    task: JoinSet<()>,
}

impl Supervisor {
    /// Starts the worker with this command line.
    pub(crate) fn start(program: Vec<OsString>, folder: Folder, port: u16) -> Self {
        let (commands, received) = mpsc::channel(16);
        let (send, events) = mpsc::channel(256);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let events = send.clone();
            let supervisor =
                SupervisorTask { program, folder, port, commands: received, events, replay_asked: false };
            if let Err(error) = supervisor.run().await {
                let _ = send.send(WorkerEvent::Fatal(error.to_string())).await;
            }
        });
        Self { commands, events, task }
    }

    /// Waits for the next event. Returns `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<WorkerEvent> {
        self.events.recv().await
    }

    /// Returns the next event without waiting.
    pub(crate) fn try_next(&mut self) -> Option<WorkerEvent> {
        self.events.try_recv().ok()
    }

    /// Requests a replay.
    pub(crate) async fn replay(&self) {
        let _ = self.commands.send(WorkerCommand::Replay).await;
    }

    /// Tells the worker to settle messages in flight and exit. `WorkerEvent::Ended` follows.
    pub(crate) async fn stop(&self) {
        let _ = self.commands.send(WorkerCommand::Stop).await;
    }

    /// Kills the worker if it is running, and waits until it has exited.
    pub(crate) async fn kill(self) {
        let Self { commands, events, mut task } = self;
        drop((commands, events));
        task.join_next().await;
    }
}

struct SupervisorTask {
    program: Vec<OsString>,
    folder: Folder,
    port: u16,
    commands: mpsc::Receiver<WorkerCommand>,
    events: mpsc::Sender<WorkerEvent>,
    /// Whether a replay was requested and not answered. The request is repeated to the next incarnation.
    replay_asked: bool,
}

/// The end of one incarnation.
struct Exited {
    status: ExitStatus,
    was_ready: bool,
    was_stopped: bool,
}

impl SupervisorTask {
    async fn run(mut self) -> Result<(), Error> {
        let mut failed_starts = 0;
        for incarnation in 1.. {
            let ended = self.run_once(incarnation).await?;
            if ended.was_stopped {
                let last = if ended.status.success() {
                    WorkerEvent::Ended
                } else {
                    WorkerEvent::Fatal(format!(
                        "the worker failed to shut down: {}",
                        describe_exit(ended.status)
                    ))
                };
                let _ = self.events.send(last).await;
                break;
            }
            failed_starts = if ended.was_ready { 0 } else { failed_starts + 1 };
            if failed_starts >= MAX_FAILED_STARTS {
                return Err(Error::Worker(format!("{}\n{}", describe_exit(ended.status), self.log_tail())));
            }
            let _ = self
                .events
                .send(WorkerEvent::Crashed { incarnation, how: describe_exit(ended.status) })
                .await;
            tokio::time::sleep(RESTART_DELAY).await;
        }
        Ok(())
    }

    /// Runs one incarnation of the worker.
    async fn run_once(&mut self, incarnation: u32) -> Result<Exited, Error> {
        let mut child = self.spawn()?;
        let mut input = child.stdin.take();
        let output =
            child.stdout.take().ok_or_else(|| Error::Worker("its standard output is missing".to_owned()))?;
        let mut lines = BufReader::new(output).lines();
        send(&mut input, &WorkerCommand::Start { incarnation, port: self.port }).await;
        let (mut was_ready, mut was_stopped) = (false, false);
        let mut deadline = None;
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => {
                        // A crash may truncate a line.
                        let Ok(report) = serde_json::from_str(&line) else { continue };
                        if let Report::Ready { port } = report {
                            was_ready = true;
                            // The next incarnation uses the same port.
                            self.port = port;
                            if self.replay_asked {
                                send(&mut input, &WorkerCommand::Replay).await;
                            }
                        }
                        self.replay_asked &= !matches!(report, Report::Log(_));
                        let _ = self.events.send(WorkerEvent::Report(report)).await;
                    }
                    Ok(None) | Err(_) => break,
                },
                command = self.commands.recv(), if !was_stopped => match command {
                    Some(command) => {
                        was_stopped = command == WorkerCommand::Stop;
                        self.replay_asked |= command == WorkerCommand::Replay;
                        // A worker that is not ready yet receives the request when it is.
                        if was_ready || was_stopped {
                            send(&mut input, &command).await;
                        }
                        if was_stopped {
                            input = None;
                            deadline = Some(Instant::now() + TIMEOUT);
                        }
                    }
                    // The handle was dropped.
                    None => {
                        was_stopped = true;
                        let _ = child.start_kill();
                    }
                },
                () = until(deadline) => {
                    let _ = child.start_kill();
                    deadline = None;
                }
            }
        }
        let status = child.wait().await.map_err(Error::Io)?;
        // A worker that crashed while it was being stopped is not restarted.
        while let Ok(command) = self.commands.try_recv() {
            was_stopped |= command == WorkerCommand::Stop;
            self.replay_asked |= command == WorkerCommand::Replay;
        }
        was_stopped |= self.commands.is_closed();
        Ok(Exited { status, was_ready, was_stopped })
    }

    fn spawn(&self) -> Result<Child, Error> {
        let (program, arguments) = self
            .program
            .split_first()
            .ok_or_else(|| Error::Worker("its command line is empty".to_owned()))?;
        let log = OpenOptions::new().create(true).append(true).open(self.folder.log()).map_err(Error::Io)?;
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C must reach only this process, which then stops the worker. Otherwise it would count
            // as a crash.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::Io)
    }

    /// Returns the end of the worker's log.
    fn log_tail(&self) -> String {
        const MAX_BYTES: usize = 2000;
        let log = std::fs::read(self.folder.log()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(MAX_BYTES)..]).trim().to_owned()
    }
}

/// Sends a command to the worker. Errors are ignored, because the exit of the worker is detected elsewhere.
async fn send(input: &mut Option<ChildStdin>, command: &WorkerCommand) {
    if let (Some(input), Ok(mut line)) = (input, serde_json::to_vec(command)) {
        line.push(b'\n');
        let _: io::Result<()> = async {
            input.write_all(&line).await?;
            input.flush().await
        }
        .await;
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(6), _) => "killed by SIGABRT".to_owned(),
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "exited".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, test_kill_process};
    use tempfile::TempDir;

    use super::*;

    /// Starts a worker that reports ready and then ignores every command.
    async fn unresponsive(folder: &TempDir) -> (Supervisor, Pid) {
        let pid = folder.path().join("pid");
        let script =
            format!("echo $$ > '{}'; echo '{{\"ready\":{{\"port\":7}}}}'; exec sleep 1000", pid.display());
        let program = ["sh", "-c", &script].map(OsString::from).to_vec();
        let mut worker = Supervisor::start(program, Folder::new(folder.path()), 0);
        assert_eq!(worker.next().await, Some(WorkerEvent::Report(Report::Ready { port: 7 })));
        let pid = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        (worker, Pid::from_raw(pid).unwrap())
    }

    #[tokio::test]
    async fn a_killed_worker_exits_before_its_folder_is_removed() {
        let folder = TempDir::new().unwrap();
        let (worker, pid) = unresponsive(&folder).await;
        test_kill_process(pid).unwrap();
        worker.kill().await;
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
        folder.close().unwrap();
    }

    #[tokio::test]
    async fn a_worker_does_not_outlive_a_dropped_supervisor() {
        let folder = TempDir::new().unwrap();
        let (worker, pid) = unresponsive(&folder).await;
        drop(worker);
        let exited = async {
            while test_kill_process(pid).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, exited).await.unwrap();
    }

    #[tokio::test]
    async fn a_replay_that_a_crashed_worker_did_not_answer_is_asked_for_again() {
        let folder = TempDir::new().unwrap();
        let crashed = folder.path().join("crashed");
        let script = format!(
            r#"read start; echo '{{"ready":{{"port":7}}}}'; read command
               if [ ! -e '{0}' ]; then touch '{0}'; exit 1; fi
               echo '{{"log":"started"}}'; read command; exit 0"#,
            crashed.display()
        );
        let program = ["sh", "-c", &script].map(OsString::from).to_vec();
        let mut worker = Supervisor::start(program, Folder::new(folder.path()), 0);
        assert_eq!(worker.next().await, Some(WorkerEvent::Report(Report::Ready { port: 7 })));
        worker.replay().await;
        let how = "exit code 1".to_owned();
        assert_eq!(worker.next().await, Some(WorkerEvent::Crashed { incarnation: 1, how }));
        assert_eq!(worker.next().await, Some(WorkerEvent::Report(Report::Ready { port: 7 })));
        assert_eq!(worker.next().await, Some(WorkerEvent::Report(Report::Log("started".to_owned()))));
        // The replay was answered, so it is not requested again.
        worker.stop().await;
        assert_eq!(worker.next().await, Some(WorkerEvent::Ended));
    }
}
