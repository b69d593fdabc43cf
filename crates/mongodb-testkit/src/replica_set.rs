//! A replica set whose members a test can kill, freeze, and keep from replicating.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Document, Timestamp, doc};
use mongodb::{Client, Database};
use tempfile::TempDir;

use super::process::Process;
use super::{MONGOD, Turn, program, turn, until};

/// The time without a primary after which a member calls an election. Those of a production server make tests long.
const ELECTION_TIMEOUT_MS: i32 = 4_000;
const HEARTBEAT_INTERVAL_MS: i32 = 500;
/// How long a command may take at a member that responds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Little memory, as tests run several servers. A checkpoint each second lets a small oplog be truncated soon. The commands for tests make
/// members stop their replication.
const FIXED_ARGUMENTS: [&str; 6] =
    ["--wiredTigerCacheSizeGB", "0.25", "--syncdelay", "1", "--setParameter", "enableTestCommands=1"];
/// The argument that makes a set the one that keeps the configuration of a cluster.
pub(crate) const CONFIGURATION: &str = "--configsvr";

/// One server of a set.
#[derive(Debug)]
struct Member {
    process: Process,
    /// Of a client that knows this server alone.
    admin: Database,
}

/// The term of an election, and a time in it.
type OpTime = (i64, Timestamp);

impl Member {
    async fn command(&self, command: Document) -> Result<Document, String> {
        let answered = tokio::time::timeout(COMMAND_TIMEOUT, self.admin.run_command(command).into_future());
        match answered.await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err("the member does not answer".to_owned()),
        }
    }

    async fn hello(&self) -> Option<Document> {
        if !self.process.responds() {
            return None;
        }
        self.command(doc! { "hello": 1 }).await.ok()
    }

    /// The election that it has won, if it is primary.
    async fn election(&self) -> Option<ObjectId> {
        let hello = self.hello().await?;
        let is_primary = hello.get_bool("isWritablePrimary").unwrap_or_default();
        is_primary.then(|| hello.get_object_id("electionId").ok()).flatten()
    }

    /// Returns once it is primary or secondary.
    async fn until_member(&self) -> Result<(), String> {
        until("a server is a member of its set", || async {
            let hello = self.hello().await?;
            let is = |name: &str| hello.get_bool(name).unwrap_or_default();
            (is("isWritablePrimary") || is("secondary")).then_some(())
        })
        .await
    }

    async fn last_write(&self) -> Option<OpTime> {
        let hello = self.hello().await?;
        let time = hello.get_document("lastWrite").ok()?.get_document("opTime").ok()?;
        Some((time.get_i64("t").ok()?, time.get_timestamp("ts").ok()?))
    }
}

/// A replica set, which ends with this. Its members are numbered from 0.
///
/// Its methods panic if the servers do not do in time what they are told.
#[derive(Debug)]
pub struct ReplicaSet {
    name: String,
    members: Vec<Member>,
    /// Behind the members: they end before it is removed.
    folder: TempDir,
    /// Of a set that is not a part of a cluster.
    _turn: Option<Turn>,
}

fn must<T>(done: Result<T, String>) -> T {
    done.unwrap_or_else(|why| panic!("{why}"))
}

impl ReplicaSet {
    /// Starts a set for a test, with so many members and with these arguments beside its own, and waits until it has a primary and
    /// secondaries. `None`, with a message that tells what was not run, if no program is named.
    ///
    /// # Panics
    /// If the set does not start.
    pub async fn for_test(what: &str, members: usize, arguments: &[&str]) -> Option<Self> {
        let mongod = program(MONGOD, what)?;
        let turn = turn(members).await;
        Some(must(Self::start(&mongod, members, arguments, Some(turn)).await))
    }

    pub(crate) async fn start(
        mongod: &Path,
        members: usize,
        arguments: &[&str],
        turn: Option<Turn>,
    ) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("set{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().map_err(|error| format!("failed to make a folder: {error}"))?;
        let mut set = Self { name, members: Vec::new(), folder, _turn: turn };
        for number in 0..members {
            let folder = set.folder.path().join(number.to_string());
            let texts =
                ["--replSet", &set.name].into_iter().chain(FIXED_ARGUMENTS).chain(arguments.iter().copied());
            let mut all: Vec<OsString> = texts.map(OsString::from).collect();
            all.extend(["--dbpath".into(), folder.clone().into_os_string()]);
            let mut process = Process::new(mongod, &folder, all)?;
            process.start().await?;
            let uri = format!("mongodb://{}/?directConnection=true", process.address());
            let client = Client::with_uri_str(uri).await.map_err(|error| error.to_string())?;
            set.members.push(Member { process, admin: client.database("admin") });
        }
        set.initiate(arguments.contains(&CONFIGURATION)).await?;
        Ok(set)
    }

    async fn initiate(&self, is_configuration: bool) -> Result<(), String> {
        let addresses = self.members.iter().map(|member| member.process.address());
        let members = (0_i32..).zip(addresses).map(|(number, host)| doc! { "_id": number, "host": host });
        let mut config = doc! {
            "_id": &self.name,
            "members": members.collect::<Vec<_>>(),
            "settings": {
                "electionTimeoutMillis": ELECTION_TIMEOUT_MS,
                "heartbeatIntervalMillis": HEARTBEAT_INTERVAL_MS,
            },
        };
        if is_configuration {
            config.insert("configsvr", true);
        }
        let initiated = self.members[0].command(doc! { "replSetInitiate": config }).await;
        initiated.map_err(|error| format!("failed to initiate the set: {error}"))?;
        for member in &self.members {
            member.until_member().await?;
        }
        self.until_primary().await.map(|_| ())
    }

    /// The address of the set, with all members.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet={}", self.hosts(), self.name)
    }

    /// Its name and its members, as a cluster names them.
    pub(crate) fn seeds(&self) -> String {
        format!("{}/{}", self.name, self.hosts())
    }

    fn hosts(&self) -> String {
        self.members.iter().map(|member| member.process.address()).collect::<Vec<_>>().join(",")
    }

    /// A client that knows one member alone, and reads there even if it is no primary.
    pub fn client_of(&self, member: usize) -> &Client {
        self.members[member].admin.client()
    }

    /// All numbers but this one.
    pub fn others(&self, member: usize) -> Vec<usize> {
        (0..self.members.len()).filter(|other| *other != member).collect()
    }

    async fn until_primary(&self) -> Result<usize, String> {
        until("a set has a primary", || async {
            let mut latest = None;
            for (number, member) in self.members.iter().enumerate() {
                let election = member.election().await.map(|election| (election.bytes(), number));
                // One that was cut off has not yet heard of a later election.
                latest = latest.max(election);
            }
            latest.map(|(_, number)| number)
        })
        .await
    }

    /// The number of the primary, once a member that responds has won an election.
    ///
    /// # Panics
    /// If there is none.
    pub async fn primary(&self) -> usize {
        must(self.until_primary().await)
    }

    /// Kills a member with `SIGKILL`.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
    }

    /// Starts a member that was killed, and waits until it is primary or secondary.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&mut self, member: usize) {
        let member = &mut self.members[member];
        must(member.process.start().await);
        must(member.until_member().await);
    }

    /// Stops a member with `SIGSTOP`: its connections stay open, and it does not answer.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&mut self, member: usize) {
        self.members[member].process.freeze();
    }

    /// Lets a member go on that was frozen.
    ///
    /// # Panics
    /// If it does not run.
    pub fn thaw(&mut self, member: usize) {
        self.members[member].process.thaw();
    }

    /// Keeps a secondary from replicating, or lets it replicate again. It votes, and the primary stays primary.
    ///
    /// # Panics
    /// If the member does not respond.
    pub async fn set_replicating(&self, member: usize, is_replicating: bool) {
        let mode = if is_replicating { "off" } else { "alwaysOn" };
        let command = doc! { "configureFailPoint": "stopReplProducer", "mode": mode };
        must(self.members[member].command(command).await);
    }

    /// Waits until a member has all that the primary has now. What it had beyond is rolled back.
    ///
    /// # Panics
    /// If it does not catch up.
    pub async fn until_caught_up(&self, member: usize) {
        let primary = &self.members[self.primary().await];
        let last = must(until("a primary tells its last write", || primary.last_write()).await);
        let caught_up = until("a member has caught up", || async {
            self.members[member].last_write().await.filter(|own| *own >= last)
        });
        must(caught_up.await);
    }
}
