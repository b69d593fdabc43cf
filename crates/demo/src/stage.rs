//! The stage: the folder, the worker and whoever sends orders. Story and screen play on it.

use std::ffi::OsString;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::board::{Board, Kind};
use crate::error::Error;
use crate::folder::Folder;
use crate::journal::Reader;
use crate::orders::{self, HARBOUR};
use crate::report::State;
use crate::sender::Sender;
use crate::supervisor::Supervisor;

/// How long something that must happen may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that a demo needs. Its folder goes when it goes.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) folder: Folder,
    pub(crate) board: Board,
    pub(crate) sender: Sender,
    pub(crate) worker: Supervisor,
    journal: Reader,
    _removed: TempDir,
}

impl Stage {
    /// Makes the folder and starts the worker with this command line and the name of the folder.
    pub(crate) fn open(mut program: Vec<OsString>, port: u16) -> Result<Self, Error> {
        let removed = tempfile::Builder::new().prefix("lazaret-demo-").tempdir()?;
        let folder = Folder::new(removed.path());
        let sender = Sender::new(&folder)?;
        program.push(folder.root().as_os_str().to_owned());
        let worker = Supervisor::start(program, folder.clone(), port);
        let journal = Reader::new(folder.journal());
        Ok(Self { folder, board: Board::new(), sender, worker, journal, _removed: removed })
    }

    /// Looks at what has happened since.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        while let Some(news) = self.worker.news() {
            self.board.hear(news);
        }
        let entries = self.journal.read()?;
        self.board.read(&entries);
        self.board.sent = self.sender.sent();
        match &self.board.hopeless {
            Some(why) => Err(Error::Worker(why.clone())),
            None => Ok(()),
        }
    }

    /// Breaks the bank, or repairs it.
    pub(crate) fn set_outage(&mut self, down: bool) -> Result<(), Error> {
        self.folder.set_outage(down)?;
        self.board.is_outage = down;
        let (kind, text) = if down {
            let customers = orders::HARBOUR_CUSTOMERS;
            (
                Kind::Bad,
                format!(
                    "{HARBOUR} does not answer any more: {customers} of {} customers pay with it",
                    orders::CUSTOMERS
                ),
            )
        } else {
            (Kind::Good, format!("{HARBOUR} answers again"))
        };
        self.board.note(kind, text);
        Ok(())
    }

    /// Waits until this is so. Looks again and again, because what it looks at are files and another process.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Board) -> bool,
        mut meanwhile: impl FnMut(&Board),
    ) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look()?;
            meanwhile(&self.board);
            if is_so(&self.board) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Stuck(format!("{what}; {}", self.where_it_stands())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn where_it_stands(&self) -> String {
        let board = &self.board;
        let State { letters, in_flight, operation, .. } = &board.state;
        format!(
            "{} orders sent, {} handled, {in_flight} in flight, letters {letters:?}, operation {operation:?}",
            board.sent,
            board.handled()
        )
    }

    /// Leaves the stage, in the middle of the story as well: the worker goes, and then the folder.
    pub(crate) async fn leave(self) {
        self.worker.dismiss().await;
    }

    /// Stops the worker, and waits until it has settled what was in flight.
    pub(crate) async fn close(&mut self) -> Result<(), Error> {
        self.worker.stop().await;
        while !self.board.ended {
            match self.worker.next().await {
                Some(news) => self.board.hear(news),
                None => return Err(Error::Worker("it is gone".to_owned())),
            }
            if let Some(why) = &self.board.hopeless {
                return Err(Error::Worker(why.clone()));
            }
        }
        self.look()
    }
}
