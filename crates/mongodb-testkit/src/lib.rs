//! MongoDB servers of their own for tests that kill, freeze and roll them back: replica sets and sharded clusters.
//!
//! They run the program that `LAZARET_TEST_MONGOD` names, and for the router of a cluster that of `LAZARET_TEST_MONGOS`. They listen at
//! free ports of the loopback interface, keep their data in a temporary folder, and end with the values that own them.

mod cluster;
mod process;
mod replica_set;

use std::path::PathBuf;
use std::time::Duration;

pub use cluster::Cluster;
pub use replica_set::ReplicaSet;
use tokio::sync::{Semaphore, SemaphorePermit};

const MONGOD: &str = "LAZARET_TEST_MONGOD";
const MONGOS: &str = "LAZARET_TEST_MONGOS";
/// How many servers the tests of a program run at once: they share few processors, and members that get none call elections. A test that needs
/// more runs them alone.
const SERVERS_AT_ONCE: usize = 4;
/// How long servers may take until they have started, elected a primary, or caught up.
const TIMEOUT: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the program that a variable names. Prints what was not run without it.
fn program(variable: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("not run: {what}; {variable} names no program");
    }
    path
}

/// The right to run some servers.
type Turn = SemaphorePermit<'static>;

/// Waits until other tests of this program leave room for so many servers.
async fn turn(servers: usize) -> Turn {
    static ROOM: Semaphore = Semaphore::const_new(SERVERS_AT_ONCE);
    let servers = u32::try_from(servers.min(SERVERS_AT_ONCE)).expect("a few");
    ROOM.acquire_many(servers).await.expect("it is never closed")
}

/// Asks until there is an answer.
async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> Result<T, String> {
    let asked = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, asked).await.map_err(|_| format!("timed out waiting until {what}"))
}
