//! A PostgreSQL server of its own for tests that stop or kill it, and a standby that takes over.
//!
//! The server refuses to run as root. For root it runs as the user `postgres` or `nobody`.

mod standby;
mod tls;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lazaret_port_testkit::free_port;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use standby::SYNCHRONOUS;

const NOT_INSTALLED: &str = "initdb, pg_ctl and postgres not found; install postgresql";
/// What a server logs when it accepts connections, and what a standby logs.
const READY: &str = "ready to accept connections";
const READY_TO_READ: &str = "ready to accept read-only connections";
/// How long a server may take to start, after a crash too.
const START_TIMEOUT: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Where the distribution puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The port in the name of a socket.
const PORT_OF_SOCKET: u16 = 5432;
/// The users as which root runs the server, the first that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];
const FIXED_SETTINGS: [&str; 2] = ["fsync=on", "max_connections=200"];

/// The user and the database, in a DSN of `key=value` pairs.
pub const DATABASE: &str = "user=lazaret dbname=postgres sslmode=disable";

/// Where a server accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// A socket in its folder. No other program can take it while the server is away.
    Socket,
    /// A port of the loopback interface.
    Port(u16),
}

/// A server and its cluster, which end with this.
pub struct Cluster {
    programs: PathBuf,
    folder: TempDir,
    user: Option<(u32, u32)>,
    address: Address,
    settings: Vec<String>,
    server: Option<Child>,
}

impl Cluster {
    /// Creates a cluster and starts its server, which accepts connections at a [socket](Self::socket) only.
    ///
    /// # Errors
    /// A text that says why the server does not run.
    pub fn at_socket() -> Result<Self, String> {
        Self::start(Address::Socket, &[])
    }

    /// Creates a cluster for a test and starts its server with these settings, at a free port. `None`, with a message, where PostgreSQL is
    /// not installed.
    ///
    /// # Panics
    /// If the server does not start, and where PostgreSQL is not installed when `CI=true`.
    pub fn for_test(settings: &[&str]) -> Option<Self> {
        Self::if_installed(|port| Self::start(Address::Port(port), settings))
    }

    /// Starts a cluster at a free port. `None`, with a message, where PostgreSQL is not installed.
    fn if_installed(start: impl FnOnce(u16) -> Result<Self, String>) -> Option<Self> {
        if !is_installed() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{NOT_INSTALLED}");
            println!("not run: {NOT_INSTALLED}");
            return None;
        }
        Some(start(free_port()).unwrap_or_else(|why| panic!("{why}")))
    }

    fn start(address: Address, settings: &[&str]) -> Result<Self, String> {
        let mut cluster = Self::empty(address, settings)?;
        cluster.create()?;
        Ok(cluster)
    }

    /// Creates the data, and starts the server.
    fn create(&mut self) -> Result<(), String> {
        let mut initdb = self.command("initdb");
        initdb.args(["-U", "lazaret", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        succeeded("initdb", initdb.output())?;
        self.run()
    }

    /// A folder without data.
    fn empty(address: Address, settings: &[&str]) -> Result<Self, String> {
        let programs = programs().ok_or(NOT_INSTALLED)?;
        let folder = tempfile::tempdir().map_err(|error| format!("failed to make a folder: {error}"))?;
        let user = unprivileged();
        let prepared = fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))
            .and_then(|()| user.map_or(Ok(()), |(uid, gid)| chown(folder.path(), Some(uid), Some(gid))));
        prepared.map_err(|error| format!("failed to prepare the folder of the server: {error}"))?;
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        Ok(Self { programs, folder, user, address, settings, server: None })
    }

    /// The socket of a server that has one.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{PORT_OF_SOCKET}"))
    }

    /// The DSN of the server: pairs for a socket, a URL for a port.
    pub fn dsn(&self) -> String {
        match self.address {
            Address::Socket => {
                format!("host={} port={PORT_OF_SOCKET} {DATABASE}", self.folder.path().display())
            }
            Address::Port(port) => format!("postgres://lazaret@127.0.0.1:{port}/postgres?sslmode=disable"),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The path of a program: in the folder of the programs, or beside the server that a link in it leads to.
    fn program(&self, name: &str) -> PathBuf {
        let here = self.programs.join(name);
        if here.is_file() {
            return here;
        }
        fs::canonicalize(self.programs.join("postgres")).unwrap_or_default().with_file_name(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command.arg("-D").arg(self.data()).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts the server, and waits until it accepts connections. A standby that was not promoted accepts those that read.
    ///
    /// # Errors
    /// A text with the log of the server.
    pub fn run(&mut self) -> Result<(), String> {
        let file =
            fs::File::create(self.log()).map_err(|error| format!("failed to make the log: {error}"))?;
        let mut postgres = self.command("postgres");
        match self.address {
            Address::Socket => {
                postgres.args(["-p", &PORT_OF_SOCKET.to_string(), "-c", "listen_addresses="]);
                postgres.arg("-k").arg(self.folder.path());
            }
            Address::Port(port) => {
                postgres.args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
                postgres.args(["-c", "unix_socket_directories="]);
            }
        }
        for setting in FIXED_SETTINGS.into_iter().chain(self.settings.iter().map(String::as_str)) {
            postgres.args(["-c", setting]);
        }
        postgres.stdout(Stdio::null()).stderr(file);
        let ready = if self.is_standby() { READY_TO_READ } else { READY };
        let server = postgres.spawn().map_err(|error| format!("failed to start the server: {error}"))?;
        self.server = Some(server);
        self.wait_for_log(ready)
    }

    /// Waits until the running server has logged these words.
    fn wait_for_log(&mut self, words: &str) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(self.log()).unwrap_or_default();
            if text.contains(words) {
                return Ok(());
            }
            let runs = self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(None)));
            if !runs || started.elapsed() > START_TIMEOUT {
                return Err(format!("the server never logged {words:?}:\n{text}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops the server as a crash does: nothing is written any more.
    ///
    /// # Errors
    /// A text that says why it was not stopped.
    pub fn crash(&mut self) -> Result<(), String> {
        self.stop("immediate")
    }

    /// Stops the server as for maintenance: it ends all sessions with a message, and writes everything.
    ///
    /// # Errors
    /// A text that says why it was not stopped.
    pub fn shut_down(&mut self) -> Result<(), String> {
        self.stop("fast")
    }

    fn stop(&mut self, mode: &str) -> Result<(), String> {
        succeeded("pg_ctl", self.command("pg_ctl").args(["stop", "-w", "-m", mode]).output())?;
        match self.server.take().map(|mut server| server.wait()) {
            Some(Err(error)) => Err(format!("the server cannot be waited for: {error}")),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // An immediate stop, which leaves no shared memory behind.
            let _ = kill_process(Pid::from_child(&server), Signal::QUIT);
            let _ = server.wait();
        }
    }
}

fn succeeded(program: &str, ended: std::io::Result<Output>) -> Result<(), String> {
    let ended = ended.map_err(|error| format!("failed to run {program}: {error}"))?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{program} failed: {}", String::from_utf8_lossy(&ended.stderr))),
    }
}

/// Returns whether the programs of PostgreSQL are installed.
pub fn is_installed() -> bool {
    programs().is_some()
}

/// The folder with the programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_all = |folder: &PathBuf| {
        ["initdb", "pg_ctl", "postgres"].iter().all(|program| folder.join(program).is_file())
    };
    std::env::split_paths(&path).chain(versions.into_iter().map(|(_, folder)| folder)).find(has_all)
}

/// The user as which root runs the server; `None` for another user than root.
fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    USERS.into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    })
}
