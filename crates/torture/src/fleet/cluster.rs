//! A PostgreSQL server of the run's own, which may be killed.
//!
//! The server refuses to run as root. For root it runs as the user `postgres` or `nobody`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start, after a crash too.
const START_TIMEOUT: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Where the distribution puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The port in the name of the socket. The server has no other: another program could take it while the server is away.
const PORT: u16 = 5432;
/// The users as which root runs the server, the first that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The user and the database, in a DSN.
pub(super) const DATABASE: &str = "user=lazaret dbname=postgres sslmode=disable";

/// A server and its cluster, which end with this.
pub(super) struct Cluster {
    programs: PathBuf,
    folder: TempDir,
    user: Option<(u32, u32)>,
    server: Option<Child>,
}

impl Cluster {
    /// Creates a cluster and starts its server.
    pub(super) fn start() -> Result<Self, String> {
        let programs = programs().ok_or("initdb, pg_ctl and postgres not found; install postgresql")?;
        let folder = tempfile::tempdir().map_err(|error| format!("failed to make a folder: {error}"))?;
        let user = unprivileged();
        let prepared = fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))
            .and_then(|()| user.map_or(Ok(()), |(uid, gid)| chown(folder.path(), Some(uid), Some(gid))));
        prepared.map_err(|error| format!("failed to prepare the folder of the server: {error}"))?;
        let mut cluster = Self { programs, folder, user, server: None };
        let mut initdb = cluster.command("initdb");
        initdb.args(["-U", "lazaret", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        succeeded("initdb", initdb.output())?;
        cluster.run()?;
        Ok(cluster)
    }

    /// The socket of the server.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{PORT}"))
    }

    /// The DSN of the server.
    pub(super) fn dsn(&self) -> String {
        format!("host={} port={PORT} {DATABASE}", self.folder.path().display())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-D").arg(self.folder.path().join("data")).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts the server, and waits until it accepts connections.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let log = self.folder.path().join("log");
        let file = fs::File::create(&log).map_err(|error| format!("failed to make the log: {error}"))?;
        let mut postgres = self.command("postgres");
        postgres.args(["-p", &PORT.to_string(), "-k"]).arg(self.folder.path());
        postgres.args(["-c", "listen_addresses=", "-c", "fsync=on", "-c", "max_connections=200"]);
        postgres.stdout(Stdio::null()).stderr(file);
        let started = Instant::now();
        let server = postgres.spawn().map_err(|error| format!("failed to start the server: {error}"))?;
        let server = self.server.insert(server);
        loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("ready to accept connections") {
                return Ok(());
            }
            if started.elapsed() > START_TIMEOUT || !matches!(server.try_wait(), Ok(None)) {
                return Err(format!("the server does not start:\n{text}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops the server as a crash does: nothing is written any more.
    pub(super) fn crash(&mut self) -> Result<(), String> {
        succeeded("pg_ctl", self.command("pg_ctl").args(["stop", "-w", "-m", "immediate"]).output())?;
        match self.server.take().map(|mut server| server.wait()) {
            Some(Err(error)) => Err(format!("the server cannot be waited for: {error}")),
            _ => Ok(()),
        }
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

/// The folder with the programs of the newest version that is installed.
pub(super) fn programs() -> Option<PathBuf> {
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
