//! A PostgreSQL server in a cluster of its own, from the binaries of the distribution.
//!
//! The server refuses to run as root. For root it runs as an unprivileged user, in a folder that this user can reach.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{failed_start, free_ports, is_running, spawn, terminate, wait_until};
use super::install::{self, Tool};
use super::maven::last_lines;
use super::{Variable, remove, write};

/// The package of the server. Its programs are not in `PATH`, but that of Debian's wrapper is.
const SERVER: Tool = Tool { program: "pg_ctlcluster", package: "postgresql" };
/// Where Debian installs the versions of the server.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The users as which root runs the server, the first that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The file with the state of a running server.
const STATE: &str = "state.json";
const LOG: &str = "postgres.log";
/// The superuser of the cluster, who needs no password.
const ROLE: &str = "lazaret";

/// A running server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    pid: u32,
    port: u16,
    data: PathBuf,
}

impl Server {
    fn read(text: &str) -> Option<Self> {
        let state: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| state[name].as_u64();
        let data = PathBuf::from(state["data"].as_str()?);
        Some(Self { pid: number("pid")?.try_into().ok()?, port: number("port")?.try_into().ok()?, data })
    }

    fn text(&self) -> String {
        json!({ "pid": self.pid, "port": self.port, "data": self.data.display().to_string() }).to_string()
    }

    fn variables(&self) -> Vec<Variable> {
        let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/postgres?sslmode=disable", self.port);
        vec![("LAZARET_TEST_POSTGRES".to_owned(), dsn)]
    }
}

/// The user as which the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
}

/// Starts a server in this folder unless one runs there, and waits until it responds.
pub(super) fn start(folder: &Path) -> Result<Vec<Variable>, String> {
    let programs = programs()?;
    if let Some(server) = running(folder).filter(|server| responds(&programs, server.port)) {
        return Ok(server.variables());
    }
    // Also what a server has left that was killed.
    stop(folder)?;
    // Once more with another port: another process may have taken it before the server did.
    let server = launch(folder, &programs).or_else(|why| {
        eprintln!("PostgreSQL: {why}\nstarting it once more");
        launch(folder, &programs)
    })?;
    Ok(server.variables())
}

/// Returns the folder with the programs of the newest version that is installed. Installs one if there is none.
fn programs() -> Result<PathBuf, String> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    install::ensure(&[SERVER])?;
    installed()
        .ok_or_else(|| format!("initdb and postgres not found below {VERSIONS}; install {}", SERVER.package))
}

fn installed() -> Option<PathBuf> {
    let has_all = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_isready"].iter().all(|program| folder.join(program).is_file())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    std::env::split_paths(&path).chain(versions.into_iter().map(|(_, folder)| folder)).find(has_all)
}

/// Creates a cluster and starts its server.
fn launch(folder: &Path, programs: &Path) -> Result<Server, String> {
    let user = unprivileged(folder)?;
    let [port] = free_ports()?;
    // A folder below that of root may be closed to others.
    let data = match user {
        Some(_) => std::env::temp_dir().join(format!("lazaret-postgres-{}-{port}", std::process::id())),
        None => folder.join("data"),
    };
    remove(&data)?;
    create(&data, user)?;
    let mut initdb = Command::new(programs.join("initdb"));
    initdb.arg("-D").arg(&data).args(["-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
    let output = as_user(&mut initdb, user).current_dir(&data).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("failed to start initdb: {error}"))?;
    if !output.status.success() {
        let log = [output.stdout, output.stderr].concat();
        return Err(format!("initdb failed with {}:\n{}", output.status, last_lines(&log)));
    }
    let mut postgres = Command::new(programs.join("postgres"));
    postgres.arg("-D").arg(&data).args(["-p", &port.to_string()]).current_dir(&data);
    for setting in
        ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200", "fsync=on"]
    {
        postgres.args(["-c", setting]);
    }
    let mut child = spawn(as_user(&mut postgres, user), &folder.join(LOG))?;
    let server = Server { pid: child.id(), port, data };
    write(&folder.join(STATE), &server.text())?;
    wait_until(&mut child, START_TIMEOUT, || responds(programs, port))
        .map_err(|why| failed_start(&why, stop(folder), &folder.join(LOG)))?;
    Ok(server)
}

/// Creates the folder of the cluster, which only its user may read.
fn create(data: &Path, user: Option<User>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("failed to create {}: {error}", data.display());
    fs::create_dir_all(data).map_err(failed)?;
    fs::set_permissions(data, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    user.map_or(Ok(()), |User { uid, gid }| chown(data, Some(uid), Some(gid)).map_err(failed))
}

fn as_user(command: &mut Command, user: Option<User>) -> &mut Command {
    match user {
        Some(User { uid, gid }) => command.uid(uid).gid(gid),
        None => command,
    }
}

/// Returns the user as which root runs the server; `None` if this process is not root's.
fn unprivileged(folder: &Path) -> Result<Option<User>, String> {
    let own =
        fs::metadata(folder).map_err(|error| format!("failed to find {}: {error}", folder.display()))?;
    let id = Command::new("id").arg("-u").output().map_err(|error| format!("failed to start id: {error}"))?;
    if id.stdout.trim_ascii() != b"0" || own.uid() != 0 {
        return Ok(None);
    }
    let users =
        fs::read_to_string("/etc/passwd").map_err(|error| format!("failed to read /etc/passwd: {error}"))?;
    let found = USERS.iter().find_map(|name| user(&users, name));
    found.map(Some).ok_or_else(|| {
        format!("the server refuses to run as root, and there is no user {}", USERS.join(" or "))
    })
}

/// Returns the user with this name.
fn user(users: &str, name: &str) -> Option<User> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_it.then_some(User { uid, gid })
    })
}

/// Stops the server of this folder, if one runs there, and removes its cluster.
pub(super) fn stop(folder: &Path) -> Result<(), String> {
    let Ok(state) = fs::read_to_string(folder.join(STATE)) else { return Ok(()) };
    let Some(server) = Server::read(&state) else { return Ok(()) };
    if is_running(server.pid, &mark(&server)) {
        terminate(server.pid, &mark(&server))?;
    }
    remove(&server.data)
}

/// Returns the server that runs in this folder.
fn running(folder: &Path) -> Option<Server> {
    let server = Server::read(&fs::read_to_string(folder.join(STATE)).ok()?)?;
    is_running(server.pid, &mark(&server)).then_some(server)
}

/// Returns a text that only the command line of this server contains.
fn mark(server: &Server) -> String {
    server.data.display().to_string()
}

/// Returns whether the server accepts connections.
fn responds(programs: &Path, port: u16) -> bool {
    let mut ask = Command::new(programs.join("pg_isready"));
    ask.args(["-q", "-t", "2", "-h", "127.0.0.1", "-p", &port.to_string()]);
    ask.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_server_is_read_back() {
        let server = Server { pid: 70_000, port: 65_535, data: "/tmp/data".into() };
        assert_eq!(Server::read(&server.text()), Some(server));
        for text in ["", "{}", r#"{"pid":1,"port":1}"#, r#"{"pid":1,"port":70000,"data":"/tmp"}"#] {
            assert_eq!(Server::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_folder_without_a_server_has_nothing_to_stop() {
        assert_eq!(stop(Path::new("/no/such/folder")), Ok(()));
    }

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgresql:x:7:7::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/bash\n";
        assert_eq!(user(users, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(user(users, "nobody"), None);
    }
}
