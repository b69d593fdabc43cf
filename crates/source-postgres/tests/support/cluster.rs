//! A server of its own for a test that stops or kills it.
//!
//! The server refuses to run as root. For root it runs as the user `postgres` or `nobody`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::LONG;

/// A server and its cluster, which end with this.
pub(crate) struct Cluster {
    programs: PathBuf,
    folder: TempDir,
    user: Option<(u32, u32)>,
    port: u16,
    settings: Vec<String>,
    server: Option<Child>,
}

impl Cluster {
    /// Creates a cluster and starts its server. `None`, with a message, where PostgreSQL is not installed.
    pub(crate) fn start(settings: &[&str]) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "initdb not found: install postgresql");
            println!("not run: initdb not found; install postgresql");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let user = unprivileged();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut cluster = Self { programs, folder, user, port, settings, server: None };
        let mut initdb = cluster.command("initdb");
        initdb.args(["-U", "lazaret", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let output = initdb.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        cluster.run();
        Some(cluster)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-D").arg(self.data()).current_dir(self.folder.path()).stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts the server, and waits until it responds.
    pub(crate) fn run(&mut self) {
        let mut postgres = self.command("postgres");
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        postgres.args(["-p", &self.port.to_string()]).stdout(Stdio::null()).stderr(log);
        let fixed = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=on"].map(str::to_owned);
        for setting in fixed.iter().chain(&self.settings) {
            postgres.args(["-c", setting]);
        }
        self.server = Some(postgres.spawn().unwrap());
        let started = Instant::now();
        loop {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            if log.contains("ready to accept connections") {
                return;
            }
            if started.elapsed() > LONG || self.server.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.server = None;
                panic!("the server does not start:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops the server as a crash does: nothing is written any more.
    pub(crate) fn crash(&mut self) {
        self.stop("immediate");
    }

    fn stop(&mut self, mode: &str) {
        let stopped = self.command("pg_ctl").args(["stop", "-w", "-m", mode]).output().unwrap();
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        self.server.take().unwrap().wait().unwrap();
    }

    pub(crate) fn dsn(&self) -> String {
        format!("postgres://lazaret@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // The processes of the server end with the first one.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The folder with the programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
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
    let id = Command::new("id").arg("-u").output().unwrap();
    if id.stdout.trim_ascii() != b"0" {
        return None;
    }
    let users = fs::read_to_string(Path::new("/etc/passwd")).unwrap();
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields[2].parse().ok()?, fields[3].parse().ok()?))
    })
}
