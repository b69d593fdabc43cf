//! A standby: a copy of a cluster that follows it by streaming replication, and can be promoted.

use lazaret_port_testkit::free_port;

use super::{Address, Cluster, START_TIMEOUT, succeeded};

/// The setting of a primary that acknowledges a commit only when its standby has written it, too.
pub const SYNCHRONOUS: &str = "synchronous_standby_names=standby";
/// The name of a standby in that setting.
const NAME: &str = "standby";
/// What a standby logs when it follows its primary.
const STREAMING: &str = "started streaming WAL from primary";
/// The file that makes a server a standby. A promotion removes it.
const SIGNAL: &str = "standby.signal";

impl Cluster {
    /// Copies this running server, and starts the copy as its standby, at a free port. Settings that were given to this server, such as
    /// [`SYNCHRONOUS`], are not those of the standby: after a promotion it waits for no other.
    ///
    /// # Errors
    /// A text that says why the standby does not follow.
    pub fn standby(&self) -> Result<Self, String> {
        let port = self.port()?;
        let mut standby = Self::empty(Address::Port(free_port()), &[])?;
        let mut copy = standby.command("pg_basebackup");
        copy.args(["-d", &format!("host=127.0.0.1 port={port} user=lazaret application_name={NAME}")]);
        copy.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
        succeeded("pg_basebackup", copy.output())?;
        standby.run()?;
        standby.wait_for_log(STREAMING)?;
        Ok(standby)
    }

    /// Makes a standby the primary, and waits until it accepts writes.
    ///
    /// # Errors
    /// A text that says why it was not promoted.
    pub fn promote(&self) -> Result<(), String> {
        let timeout = START_TIMEOUT.as_secs().to_string();
        succeeded("pg_ctl", self.command("pg_ctl").args(["promote", "-w", "-t", &timeout]).output())
    }

    /// The host and port, for a DSN with several of them.
    ///
    /// # Errors
    /// A text, for a server at a socket.
    pub fn host(&self) -> Result<String, String> {
        Ok(format!("127.0.0.1:{}", self.port()?))
    }

    fn port(&self) -> Result<u16, String> {
        match self.address {
            Address::Port(port) => Ok(port),
            Address::Socket => Err("the server has a socket, and no port".to_owned()),
        }
    }

    pub(super) fn is_standby(&self) -> bool {
        self.data().join(SIGNAL).exists()
    }
}
