//! Apache Kafka in KRaft mode: one process with an open listener and a SASL listener for a restricted user.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{failed_start, free_ports, is_running, spawn, terminate, wait_until};
use super::install::Tool;
use super::maven::{Program, java_with, last_lines};
use super::{Variable, remove, write};

const KAFKA: Program = Program {
    name: "Kafka",
    version: "4.1.0",
    artifacts: &[
        ("org.apache.kafka", "kafka_2.13", "4.1.0"),
        ("org.apache.kafka", "kafka-tools", "4.1.0"),
        // Kafka logs through slf4j and ships no binding.
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    java: Tool { program: "java", package: "default-jre-headless" },
};
/// The user of the SASL listener. Its ACLs allow to read topics, describe their configuration and join groups with the prefix
/// [`OPEN`] only.
const USER: &str = "reader";
const PASSWORD: &str = "reader-secret";
const OPEN: &str = "open-";
/// The startup timeout. It is for a broker that hangs: a slow machine takes minutes, and a process that exited is noticed at once.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// The file with the state of a running broker.
const STATE: &str = "state.json";
const PROPERTIES: &str = "server.properties";
const LOG: &str = "kafka.log";

/// A running broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Broker {
    pid: u32,
    /// The port of the open listener.
    plain: u16,
    /// The port of the SASL listener.
    sasl: u16,
}

impl Broker {
    fn read(text: &str) -> Option<Self> {
        let state: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| state[name].as_u64();
        let port = |name: &str| number(name).and_then(|port| u16::try_from(port).ok());
        Some(Self { pid: u32::try_from(number("pid")?).ok()?, plain: port("plain")?, sasl: port("sasl")? })
    }

    fn text(self) -> String {
        json!({ "pid": self.pid, "plain": self.plain, "sasl": self.sasl }).to_string()
    }

    fn variables(self) -> Vec<Variable> {
        let Self { plain, sasl, .. } = self;
        let mut variables = vec![
            ("LAZARET_TEST_KAFKA".to_owned(), format!("127.0.0.1:{plain}")),
            ("LAZARET_TEST_KAFKA_SASL".to_owned(), format!("{USER}:{PASSWORD}@127.0.0.1:{sasl}")),
        ];
        // Tests that kill their broker start another one with this program.
        let program = std::env::current_exe().ok().map(|path| path.display().to_string());
        variables.extend(program.map(|program| ("LAZARET_TEST_KAFKA_STARTER".to_owned(), program)));
        variables
    }
}

/// Starts a broker in this folder unless one runs there, and waits until it responds.
pub(super) fn start(folder: &Path) -> Result<Vec<Variable>, String> {
    if let Some(broker) = running(folder) {
        if responds(broker.plain) {
            return Ok(broker.variables());
        }
        stop(folder)?;
    }
    let classes = fetch(folder)?;
    // Once more with other ports: another process may have taken one of them before the broker did.
    let broker = start_empty(folder, &classes).or_else(|why| {
        eprintln!("Kafka: {why}\nstarting it once more");
        start_empty(folder, &classes)
    })?;
    allow(&classes, broker.plain).map_err(|why| stop_failed(folder, &why))?;
    Ok(broker.variables())
}

/// Starts another broker in a separate folder, with its old data and ports if it was killed before. Returns its process id and
/// address. `home` is the folder of the shared broker, which has the classes. Its user gets no ACLs.
pub(super) fn start_another(folder: &Path, home: &Path) -> Result<(u32, String), String> {
    let classes = fetch(home)?;
    let before = fs::read_to_string(folder.join(STATE)).ok().and_then(|text| Broker::read(&text));
    let broker = match (before, running(folder)) {
        (_, Some(broker)) => broker,
        (Some(Broker { plain, sasl, .. }), None) => launch(folder, &classes, plain, sasl)?,
        (None, None) => start_empty(folder, &classes)?,
    };
    Ok((broker.pid, format!("127.0.0.1:{}", broker.plain)))
}

/// Starts a broker without data.
fn start_empty(folder: &Path, classes: &Path) -> Result<Broker, String> {
    let [plain, sasl, controller] = free_ports()?;
    let data = folder.join("data");
    // Data of an earlier run is useless: the tests create their topics.
    remove(&data)?;
    let properties = folder.join(PROPERTIES);
    write(&properties, &settings(&data, plain, sasl, controller))?;
    let file = properties.display().to_string();
    run_tool(
        classes,
        &["kafka.tools.StorageTool", "format", "--cluster-id", "lazaret-tests", "--config", &file],
    )?;
    launch(folder, classes, plain, sasl)
}

/// Starts a broker on the data of its folder, and waits until it responds.
fn launch(folder: &Path, classes: &Path, plain: u16, sasl: u16) -> Result<Broker, String> {
    let mut java = java_with(classes);
    java.args(["-Xms256m", "-Xmx768m", "kafka.Kafka", &mark(folder)]);
    let mut child = spawn(&mut java, &folder.join(LOG))?;
    let broker = Broker { pid: child.id(), plain, sasl };
    write(&folder.join(STATE), &broker.text())?;
    wait_until(&mut child, START_TIMEOUT, || responds(plain)).map_err(|why| stop_failed(folder, &why))?;
    Ok(broker)
}

/// Stops a broker that failed to start, and returns the error with the end of its log.
fn stop_failed(folder: &Path, why: &str) -> String {
    failed_start(why, stop(folder), &folder.join(LOG))
}

/// Stops the broker of this folder, if one runs there.
pub(super) fn stop(folder: &Path) -> Result<(), String> {
    if let Some(broker) = running(folder) {
        terminate(broker.pid, &mark(folder))?;
    }
    remove(&folder.join("data"))
}

/// Returns the broker that runs in this folder.
fn running(folder: &Path) -> Option<Broker> {
    let broker = Broker::read(&fs::read_to_string(folder.join(STATE)).ok()?)?;
    is_running(broker.pid, &mark(folder)).then_some(broker)
}

/// Returns a text that only the command line of this folder's broker contains.
fn mark(folder: &Path) -> String {
    folder.join(PROPERTIES).display().to_string()
}

/// Fetches Kafka. Returns the folder of the classes.
pub(super) fn fetch(folder: &Path) -> Result<PathBuf, String> {
    KAFKA.fetch(folder)
}

/// Returns the broker's settings: small, with fast rebalances and compaction.
fn settings(data: &Path, plain: u16, sasl: u16, controller: u16) -> String {
    let listeners = format!("PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}");
    let login = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let settings = [
        ("process.roles", "broker,controller".to_owned()),
        ("node.id", "1".to_owned()),
        ("controller.quorum.voters", format!("1@127.0.0.1:{controller}")),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("listeners", format!("{listeners},CONTROLLER://127.0.0.1:{controller}")),
        ("advertised.listeners", listeners),
        ("inter.broker.listener.name", "PLAINTEXT".to_owned()),
        (
            "listener.security.protocol.map",
            "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        ),
        ("sasl.enabled.mechanisms", "PLAIN".to_owned()),
        (
            "listener.name.sasl_plaintext.plain.sasl.jaas.config",
            format!("{login} user_{USER}=\"{PASSWORD}\";"),
        ),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        ("super.users", "User:ANONYMOUS".to_owned()),
        ("log.dirs", data.display().to_string()),
        ("auto.create.topics.enable", "false".to_owned()),
        ("offsets.topic.num.partitions", "4".to_owned()),
        ("offsets.topic.replication.factor", "1".to_owned()),
        ("transaction.state.log.num.partitions", "4".to_owned()),
        ("transaction.state.log.replication.factor", "1".to_owned()),
        ("transaction.state.log.min.isr", "1".to_owned()),
        ("share.coordinator.state.topic.replication.factor", "1".to_owned()),
        ("share.coordinator.state.topic.min.isr", "1".to_owned()),
        ("group.initial.rebalance.delay.ms", "0".to_owned()),
        ("group.min.session.timeout.ms", "1000".to_owned()),
        ("log.cleaner.backoff.ms", "200".to_owned()),
    ];
    settings.map(|(name, value)| format!("{name}={value}\n")).concat()
}

/// Adds the user's ACLs. Success also shows that the broker is fully up.
fn allow(classes: &Path, port: u16) -> Result<(), String> {
    let (server, principal) = (format!("127.0.0.1:{port}"), format!("User:{USER}"));
    let tool = ["org.apache.kafka.tools.AclCommand", "--bootstrap-server", &server, "--add"];
    let rights = ["--allow-principal", &principal, "--consumer", "--topic", OPEN, "--group", OPEN];
    run_tool(classes, &[&tool[..], &rights, &["--resource-pattern-type", "prefixed"]].concat())?;
    // The user may describe the configuration of topics that it cannot write.
    let describe = ["--allow-principal", &principal, "--operation", "DescribeConfigs", "--topic", OPEN];
    run_tool(classes, &[&tool[..], &describe, &["--resource-pattern-type", "prefixed"]].concat())
}

fn run_tool(classes: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = java_with(classes)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("failed to start java: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let log = [output.stdout, output.stderr].concat();
    Err(format!("{} failed with {}:\n{}", arguments[0], output.status, last_lines(&log)))
}

/// Returns whether a broker responds to an ApiVersions request.
fn responds(port: u16) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(2);
    // Length, ApiVersions version 0, correlation id 7, null client id.
    const REQUEST: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let ask = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(&REQUEST)?;
        let mut response = [0; 10];
        stream.read_exact(&mut response)?;
        Ok::<_, std::io::Error>(response)
    };
    // The correlation id, and no error.
    ask().is_ok_and(|response| response[4..] == [0, 0, 0, 7, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_broker_is_read_back() {
        let broker = Broker { pid: 70_000, plain: 1024, sasl: 65_535 };
        assert_eq!(Broker::read(&broker.text()), Some(broker));
        for text in ["", "{}", r#"{"pid":1,"plain":1}"#, r#"{"pid":1,"plain":1,"sasl":70000}"#] {
            assert_eq!(Broker::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_folder_without_a_broker_has_nothing_to_stop() {
        assert_eq!(stop(Path::new("/no/such/folder")), Ok(()));
        assert!(!responds(free_ports::<1>().unwrap()[0]));
    }
}
