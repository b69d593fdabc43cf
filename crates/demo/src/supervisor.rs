//! Keeps the worker running: starts it, listens to it, and starts it again when it dies, as a supervisor of yours would.

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
use crate::report::{Report, Told};

/// How long it waits before it starts a worker that died.
const RESTART_AFTER: Duration = Duration::from_millis(250);
/// So many deaths in a row before the worker was ready, and there is no use in going on.
const HOPELESS: u32 = 3;
/// How long a worker may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(20);

/// What becomes of the worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    /// It said something.
    Report(Report),
    /// It died.
    Died {
        /// Which life that was.
        life: u32,
        /// How, in words.
        how: String,
    },
    /// It was asked to end, and has ended.
    Ended,
    /// It cannot be kept running.
    Hopeless(String),
}

/// The way to talk to whoever keeps the worker running. The worker does not outlive it.
#[derive(Debug)]
pub(crate) struct Supervisor {
    orders: mpsc::Sender<Told>,
    news: mpsc::Receiver<News>,
    /// One task, which ends when this is dropped.
    keeping: JoinSet<()>,
}

impl Supervisor {
    /// Starts the worker with this command line.
    pub(crate) fn start(program: Vec<OsString>, folder: Folder, port: u16) -> Self {
        let (orders, ordered) = mpsc::channel(16);
        let (tell, news) = mpsc::channel(256);
        let mut keeping = JoinSet::new();
        keeping.spawn(async move {
            let keeper = Keeper { program, folder, port, ordered, tell: tell.clone() };
            if let Err(error) = keeper.keep().await {
                let _ = tell.send(News::Hopeless(error.to_string())).await;
            }
        });
        Self { orders, news, keeping }
    }

    /// What happens next; `None` when nothing will.
    pub(crate) async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }

    /// What has happened since.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Asks for a replay.
    pub(crate) async fn replay(&self) {
        let _ = self.orders.send(Told::Replay).await;
    }

    /// Asks the worker to settle what is in flight and to end. `News::Ended` tells when it has.
    pub(crate) async fn stop(&self) {
        let _ = self.orders.send(Told::Stop).await;
    }

    /// Kills the worker if it runs, and waits until it is gone. What it would settle goes with its folder.
    pub(crate) async fn dismiss(self) {
        let Self { orders, news, mut keeping } = self;
        drop((orders, news));
        keeping.join_next().await;
    }
}

struct Keeper {
    program: Vec<OsString>,
    folder: Folder,
    port: u16,
    ordered: mpsc::Receiver<Told>,
    tell: mpsc::Sender<News>,
}

/// How a life ended.
struct Life {
    status: ExitStatus,
    was_ready: bool,
    was_stopped: bool,
}

impl Keeper {
    async fn keep(mut self) -> Result<(), Error> {
        let mut vain = 0;
        for life in 1.. {
            let ended = self.live(life).await?;
            if ended.was_stopped {
                let last = if ended.status.success() {
                    News::Ended
                } else {
                    News::Hopeless(format!("the worker did not end well: {}", how(ended.status)))
                };
                let _ = self.tell.send(last).await;
                break;
            }
            vain = if ended.was_ready { 0 } else { vain + 1 };
            if vain >= HOPELESS {
                return Err(Error::Worker(format!("{}\n{}", how(ended.status), self.last_words())));
            }
            let _ = self.tell.send(News::Died { life, how: how(ended.status) }).await;
            tokio::time::sleep(RESTART_AFTER).await;
        }
        Ok(())
    }

    /// One life of the worker.
    async fn live(&mut self, life: u32) -> Result<Life, Error> {
        let mut child = self.spawn()?;
        let mut input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| Error::Worker("it has no output".to_owned()))?;
        let mut lines = BufReader::new(output).lines();
        send(&mut input, &Told::Start { life, port: self.port }).await;
        let (mut was_ready, mut was_stopped) = (false, false);
        let mut deadline = None;
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => {
                        // A line that was cut off by death says nothing.
                        let Ok(report) = serde_json::from_str(&line) else { continue };
                        if let Report::Ready { port } = report {
                            was_ready = true;
                            // The next life listens at the same place.
                            self.port = port;
                        }
                        let _ = self.tell.send(News::Report(report)).await;
                    }
                    Ok(None) | Err(_) => break,
                },
                order = self.ordered.recv(), if !was_stopped => match order {
                    Some(order) => {
                        was_stopped = order == Told::Stop;
                        send(&mut input, &order).await;
                        if was_stopped {
                            input = None;
                            deadline = Some(Instant::now() + PATIENCE);
                        }
                    }
                    // Nobody wants it any more.
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
        // Who is asked to stop while it dies need not be started again.
        while let Ok(order) = self.ordered.try_recv() {
            was_stopped |= order == Told::Stop;
        }
        was_stopped |= self.ordered.is_closed();
        Ok(Life { status, was_ready, was_stopped })
    }

    fn spawn(&self) -> Result<Child, Error> {
        let (program, arguments) =
            self.program.split_first().ok_or_else(|| Error::Worker("it has no program".to_owned()))?;
        let log = OpenOptions::new().create(true).append(true).open(self.folder.log()).map_err(Error::Io)?;
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C at the terminal is ours: we stop the worker. Its death would be one of the story otherwise.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::Io)
    }

    /// The end of what the worker wrote to its log.
    fn last_words(&self) -> String {
        const WORDS: usize = 2000;
        let log = std::fs::read(self.folder.log()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(WORDS)..]).trim().to_owned()
    }
}

/// Tells the worker something. A worker that is dying does not listen, and its end is noticed elsewhere.
async fn send(input: &mut Option<ChildStdin>, told: &Told) {
    if let (Some(input), Ok(mut line)) = (input, serde_json::to_vec(told)) {
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

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(6), _) => "killed by SIGABRT".to_owned(),
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("it ended with {code}"),
        (None, None) => "it ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, test_kill_process};
    use tempfile::TempDir;

    use super::*;

    /// A worker that says that it is ready, and then listens to nobody.
    async fn deaf(folder: &TempDir) -> (Supervisor, Pid) {
        let pid = folder.path().join("pid");
        let script =
            format!("echo $$ > '{}'; echo '{{\"ready\":{{\"port\":7}}}}'; exec sleep 1000", pid.display());
        let program = ["sh", "-c", &script].map(OsString::from).to_vec();
        let mut worker = Supervisor::start(program, Folder::new(folder.path()), 0);
        assert_eq!(worker.next().await, Some(News::Report(Report::Ready { port: 7 })));
        let pid = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        (worker, Pid::from_raw(pid).unwrap())
    }

    #[tokio::test]
    async fn a_worker_that_nobody_wants_any_more_is_gone_before_its_folder_is() {
        let folder = TempDir::new().unwrap();
        let (worker, pid) = deaf(&folder).await;
        test_kill_process(pid).unwrap();
        worker.dismiss().await;
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
        folder.close().unwrap();
    }

    #[tokio::test]
    async fn a_worker_does_not_outlive_whoever_forgot_to_dismiss_it() {
        let folder = TempDir::new().unwrap();
        let (worker, pid) = deaf(&folder).await;
        drop(worker);
        let gone = async {
            while test_kill_process(pid).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
    }
}
