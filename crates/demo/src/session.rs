//! A running demo: its folder, the worker and the sender of orders.

use std::ffi::OsString;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::dashboard::{Dashboard, Kind};
use crate::error::Error;
use crate::folder::Folder;
use crate::journal::Reader;
use crate::orders::{self, HARBOUR};
use crate::protocol::State;
use crate::sender::Sender;
use crate::supervisor::Supervisor;

/// The timeout for expected events.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running demo. Dropping it removes its folder.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) folder: Folder,
    pub(crate) dashboard: Dashboard,
    pub(crate) sender: Sender,
    pub(crate) worker: Supervisor,
    journal: Reader,
    _temp_dir: TempDir,
}

impl Session {
    /// Creates the folder, and starts the worker with this command line followed by the folder.
    pub(crate) fn open(mut program: Vec<OsString>, port: u16) -> Result<Self, Error> {
        let temp_dir = tempfile::Builder::new().prefix("lazaret-demo-").tempdir()?;
        let folder = Folder::new(temp_dir.path());
        let sender = Sender::new(&folder)?;
        program.push(folder.root().as_os_str().to_owned());
        let worker = Supervisor::start(program, folder.clone(), port);
        let journal = Reader::new(folder.journal());
        Ok(Self { folder, dashboard: Dashboard::new(), sender, worker, journal, _temp_dir: temp_dir })
    }

    /// Applies the worker events and journal entries since the last call.
    pub(crate) fn poll(&mut self) -> Result<(), Error> {
        while let Some(event) = self.worker.try_next() {
            self.dashboard.apply(event);
        }
        let entries = self.journal.read()?;
        self.dashboard.read(&entries);
        self.dashboard.sent = self.sender.sent();
        match &self.dashboard.fatal {
            Some(why) => Err(Error::Worker(why.clone())),
            None => Ok(()),
        }
    }

    /// Starts or ends the outage of the bank.
    pub(crate) fn set_outage(&mut self, down: bool) -> Result<(), Error> {
        self.folder.set_outage(down)?;
        self.dashboard.is_outage = down;
        let (kind, text) = if down {
            let customers = orders::HARBOUR_CUSTOMERS;
            (
                Kind::Bad,
                format!("{HARBOUR} is down: {customers} of {} customers pay with it", orders::CUSTOMERS),
            )
        } else {
            (Kind::Good, format!("{HARBOUR} is up again"))
        };
        self.dashboard.note(kind, text);
        Ok(())
    }

    /// Waits until a condition holds. Polls, because the state comes from files and from another process.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&Dashboard) -> bool,
        mut meanwhile: impl FnMut(&Dashboard),
    ) -> Result<(), Error> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.poll()?;
            meanwhile(&self.dashboard);
            if condition(&self.dashboard) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Stuck(format!("{what}; {}", self.describe_state())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn describe_state(&self) -> String {
        let dashboard = &self.dashboard;
        let State { letters, in_flight, operation, .. } = &dashboard.state;
        format!(
            "{} orders sent, {} handled, {in_flight} in flight, letters {letters:?}, operation {operation:?}",
            dashboard.sent,
            dashboard.handled()
        )
    }

    /// Ends the demo at any point. Kills the worker, then removes the folder.
    pub(crate) async fn shut_down(self) {
        self.worker.kill().await;
    }

    /// Stops the worker and waits until it has settled messages in flight.
    pub(crate) async fn stop_worker(&mut self) -> Result<(), Error> {
        self.worker.stop().await;
        while !self.dashboard.ended {
            match self.worker.next().await {
                Some(event) => self.dashboard.apply(event),
                None => return Err(Error::Worker("the supervisor has ended".to_owned())),
            }
            if let Some(why) = &self.dashboard.fatal {
                return Err(Error::Worker(why.clone()));
            }
        }
        self.poll()
    }
}
