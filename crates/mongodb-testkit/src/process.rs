//! One server: a process with a port and a log, which a test can kill, freeze and start again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lazaret_port_testkit::free_port;
use rustix::process::{Pid, Signal, kill_process};

use super::until;

const FIXED_ARGUMENTS: [&str; 3] = ["--bind_ip", "127.0.0.1", "--nounixsocket"];
/// How much of a log explains why a server did not start.
const LOG_LINES: usize = 20;

/// A server, which ends with this.
#[derive(Debug)]
pub(crate) struct Process {
    program: PathBuf,
    arguments: Vec<OsString>,
    port: u16,
    log: PathBuf,
    child: Option<Child>,
    is_frozen: bool,
}

impl Process {
    /// A server with its log in this folder, which it creates. It was not started.
    pub(crate) fn new(program: &Path, folder: &Path, arguments: Vec<OsString>) -> Result<Self, String> {
        fs::create_dir_all(folder)
            .map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
        let port = free_port();
        let mut all: Vec<OsString> = FIXED_ARGUMENTS.map(OsString::from).into();
        all.extend(["--port".into(), port.to_string().into()]);
        all.extend(arguments);
        let (program, log) = (program.to_owned(), folder.join("log"));
        Ok(Self { program, arguments: all, port, log, child: None, is_frozen: false })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns whether it runs, and is not frozen.
    pub(crate) fn responds(&self) -> bool {
        self.child.is_some() && !self.is_frozen
    }

    /// Starts it, and waits until it accepts connections.
    pub(crate) async fn start(&mut self) -> Result<(), String> {
        let mut child =
            self.spawn().map_err(|error| format!("failed to start {}: {error}", self.program.display()))?;
        let port = self.port;
        let accepted = until("a server accepts connections", || {
            let accepts = match child.try_wait() {
                Ok(None) => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok().map(|_| Ok(())),
                ended => Some(Err(format!("the server ended: {ended:?}"))),
            };
            std::future::ready(accepts)
        });
        let accepted = accepted.await.flatten();
        self.child = Some(child);
        accepted.map_err(|why| format!("{why}\n{}", self.end_of_log()))
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn()
    }

    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Kills it with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.is_frozen = false;
    }

    /// Stops it with `SIGSTOP`: its connections stay open, and nobody answers.
    pub(crate) fn freeze(&mut self) {
        self.signal(Signal::STOP);
        self.is_frozen = true;
    }

    /// Lets it go on.
    pub(crate) fn thaw(&mut self) {
        self.signal(Signal::CONT);
        self.is_frozen = false;
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the server was started");
        kill_process(Pid::from_child(child), signal).expect("a child that was not waited for takes signals");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
