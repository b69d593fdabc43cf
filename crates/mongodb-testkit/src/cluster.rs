//! A sharded cluster: a router, the set with the configuration, and shards of one member or several.

use std::path::Path;

use bson::doc;
use mongodb::Client;
use tempfile::TempDir;

use super::process::Process;
use super::replica_set::{CONFIGURATION, ReplicaSet};
use super::{MONGOD, MONGOS, Turn, program, turn, until};

/// A stream waits for the times of all shards. Shards without writes tell them once in ten seconds by default.
const SHARD: [&str; 3] = ["--shardsvr", "--setParameter", "periodicNoopIntervalSecs=1"];

/// A cluster, which ends with this.
///
/// Its methods panic if the servers do not do in time what they are told.
#[derive(Debug)]
pub struct Cluster {
    router: Process,
    shards: Vec<ReplicaSet>,
    configuration: ReplicaSet,
    /// Behind the router, which ends before it is removed.
    _folder: TempDir,
    _turn: Turn,
}

impl Cluster {
    /// Starts a cluster for a test, with a shard of so many members each. `None`, with a message that tells what was not run, if a program
    /// is not named.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub async fn for_test(what: &str, shards: &[usize]) -> Option<Self> {
        let (mongod, mongos) = (program(MONGOD, what)?, program(MONGOS, what)?);
        // The router and the configuration are two more.
        let turn = turn(shards.iter().sum::<usize>() + 2).await;
        Some(Self::start(&mongod, &mongos, shards, turn).await.unwrap_or_else(|why| panic!("{why}")))
    }

    async fn start(mongod: &Path, mongos: &Path, shards: &[usize], turn: Turn) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("failed to make a folder: {error}"))?;
        let configuration = ReplicaSet::start(mongod, 1, &[CONFIGURATION], None).await?;
        let arguments = vec!["--configdb".into(), configuration.seeds().into()];
        let mut router = Process::new(mongos, folder.path(), arguments)?;
        router.start().await?;
        let client = Client::with_uri_str(format!("mongodb://{}/", router.address())).await;
        let client = client.map_err(|error| error.to_string())?;
        let mut sets = Vec::new();
        for members in shards {
            let shard = ReplicaSet::start(mongod, *members, &SHARD, None).await?;
            // The router answers when it has read the configuration.
            until("a shard is added", || async {
                let added = client.database("admin").run_command(doc! { "addShard": shard.seeds() }).await;
                added.ok()
            })
            .await?;
            sets.push(shard);
        }
        Ok(Self { router, shards: sets, configuration, _folder: folder, _turn: turn })
    }

    /// The address of the router.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.router.address())
    }

    /// A shard, to be killed or frozen.
    pub fn shard(&mut self, number: usize) -> &mut ReplicaSet {
        &mut self.shards[number]
    }

    /// The set with the configuration, to be killed or frozen.
    pub fn configuration(&mut self) -> &mut ReplicaSet {
        &mut self.configuration
    }

    /// Kills the router with `SIGKILL`.
    pub fn kill_router(&mut self) {
        self.router.kill();
    }

    /// Starts the router that was killed, and waits until it accepts connections.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart_router(&mut self) {
        self.router.start().await.unwrap_or_else(|why| panic!("{why}"));
    }
}
