//! A MongoDB wire server in memory, with change streams on single collections.
//!
//! It is no MongoDB: secondary indexes do nothing, it has no transactions, and no post-batch resume tokens. The tests that need
//! these run against the replica set in `LAZARET_TEST_MONGODB`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{failed_start, free_ports, is_running, spawn, terminate, wait_until};
use super::install::Tool;
use super::maven::{Program, java_with};
use super::{Variable, write};

const SERVER: Program = Program {
    name: "mongo-java-server",
    version: "1.47.0",
    artifacts: &[
        ("de.bwaldvogel", "mongo-java-server", "1.47.0"),
        // The server logs through slf4j and ships no binding.
        ("org.slf4j", "slf4j-simple", "2.0.17"),
    ],
    // The launcher is compiled when it is started.
    java: Tool { program: "javac", package: "default-jdk-headless" },
};
const LAUNCHER: &str = include_str!("MongoServer.java");
/// The startup timeout. It is for a server that hangs: a slow machine takes minutes, and a process that exited is noticed at once.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// The file with the state of a running server.
const STATE: &str = "state.json";
const SOURCE: &str = "MongoServer.java";
const LOG: &str = "mongodb.log";

/// A running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Server {
    pid: u32,
    port: u16,
}

impl Server {
    fn read(text: &str) -> Option<Self> {
        let state: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| state[name].as_u64();
        Some(Self { pid: number("pid")?.try_into().ok()?, port: number("port")?.try_into().ok()? })
    }

    fn text(self) -> String {
        json!({ "pid": self.pid, "port": self.port }).to_string()
    }

    fn variables(self) -> Vec<Variable> {
        let address = format!("mongodb://127.0.0.1:{}/?directConnection=true", self.port);
        vec![
            ("LAZARET_TEST_MONGODB".to_owned(), address),
            // Tests of what it cannot do are left out, and the run says so.
            ("LAZARET_TEST_MONGODB_KIND".to_owned(), "wire-server".to_owned()),
        ]
    }
}

/// Starts a server in this folder unless one runs there, and waits until it responds.
pub(super) fn start(folder: &Path) -> Result<Vec<Variable>, String> {
    if let Some(server) = running(folder) {
        if responds(server.port) {
            return Ok(server.variables());
        }
        stop(folder)?;
    }
    let classes = SERVER.fetch(folder)?;
    // Once more with another port: another process may have taken it before the server did.
    let server = launch(folder, &classes).or_else(|why| {
        eprintln!("MongoDB: {why}\nstarting it once more");
        launch(folder, &classes)
    })?;
    Ok(server.variables())
}

/// Starts a server, and waits until it responds.
fn launch(folder: &Path, classes: &Path) -> Result<Server, String> {
    let source = folder.join(SOURCE);
    write(&source, LAUNCHER)?;
    let [port] = free_ports()?;
    let mut java = java_with(classes);
    java.args(["-Xms64m", "-Xmx4g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]);
    java.arg(&source).arg(port.to_string());
    let mut child = spawn(&mut java, &folder.join(LOG))?;
    let server = Server { pid: child.id(), port };
    write(&folder.join(STATE), &server.text())?;
    wait_until(&mut child, START_TIMEOUT, || responds(port))
        .map_err(|why| failed_start(&why, stop(folder), &folder.join(LOG)))?;
    Ok(server)
}

/// Stops the server of this folder, if one runs there.
pub(super) fn stop(folder: &Path) -> Result<(), String> {
    running(folder).map_or(Ok(()), |server| terminate(server.pid, &mark(folder)))
}

/// Returns the server that runs in this folder.
fn running(folder: &Path) -> Option<Server> {
    let server = Server::read(&fs::read_to_string(folder.join(STATE)).ok()?)?;
    is_running(server.pid, &mark(folder)).then_some(server)
}

/// Returns a text that only the command line of this folder's server contains.
fn mark(folder: &Path) -> String {
    folder.join(SOURCE).display().to_string()
}

/// Returns whether a server responds to `ping`.
fn responds(port: u16) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(2);
    // An OP_MSG: length, request id 7, no response, opcode 2013, no flags, one body section.
    // The body: { ping: 1, $db: "admin" }.
    const BODY: &[u8] = b"\x1e\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0";
    let ask = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let length = u32::try_from(16 + 4 + 1 + BODY.len()).unwrap_or_default();
        let header = [length, 7, 0, 2013, 0].map(u32::to_le_bytes).concat();
        stream.write_all(&[&header[..], &[0], BODY].concat())?;
        let mut response = [0; 16];
        stream.read_exact(&mut response)?;
        Ok::<_, std::io::Error>(response)
    };
    // The response names the request.
    ask().is_ok_and(|response| response[8..12] == 7_u32.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_server_is_read_back() {
        let server = Server { pid: 70_000, port: 65_535 };
        assert_eq!(Server::read(&server.text()), Some(server));
        for text in ["", "{}", r#"{"pid":1}"#, r#"{"pid":1,"port":70000}"#] {
            assert_eq!(Server::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_folder_without_a_server_has_nothing_to_stop() {
        assert_eq!(stop(Path::new("/no/such/folder")), Ok(()));
        assert!(!responds(free_ports::<1>().unwrap()[0]));
    }
}
