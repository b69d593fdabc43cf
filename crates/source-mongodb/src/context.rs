//! What the source, its worker and its readers share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Assignment, SourceError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::checkpoint::CheckpointWriter;
use crate::error::StreamError;
use crate::event::ReadEvent;
use crate::options::MongoSourceOptions;
use crate::status::{MongoStatus, StreamState};

/// Events of one assignment.
pub(crate) struct Batch {
    pub(crate) generation: u64,
    pub(crate) events: Vec<ReadEvent>,
}

/// An assignment of the partition.
pub(crate) struct Assigned {
    /// Its number.
    pub(crate) generation: u64,
    /// In the incarnation that is read.
    pub(crate) assignment: Assignment,
    /// The incarnation began with this assignment.
    pub(crate) is_recreated: bool,
    /// The incarnation is recorded.
    pub(crate) is_recorded: bool,
}

/// Tells the source what happened, apart from messages.
pub(crate) enum Control {
    Assigned(Assigned),
    Lost,
    Error(SourceError),
}

/// Tells the worker what to do.
pub(crate) enum Command {
    /// Start again behind the committed position.
    Rewind,
    /// Flush the checkpoint, release the lease, and end.
    Close(oneshot::Sender<Result<(), SourceError>>),
}

/// Where incarnations are recorded; `None` when the source runs without an engine.
pub(crate) type Registry = Arc<Mutex<Option<Arc<dyn IncarnationRegistry>>>>;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) options: Arc<MongoSourceOptions>,
    pub(crate) writer: Arc<CheckpointWriter>,
    pub(crate) registry: Registry,
    /// This process has written a start position: `Start::Now` applies to the first start only.
    pub(crate) started: Arc<AtomicBool>,
    pub(crate) status: watch::Sender<MongoStatus>,
    pub(crate) batches: mpsc::Sender<Batch>,
    pub(crate) control: mpsc::UnboundedSender<Control>,
}

impl Context {
    pub(crate) fn set_state(&self, state: StreamState) {
        self.status.send_modify(|status| status.state = state);
    }

    /// Where incarnations are recorded.
    pub(crate) fn registry(&self) -> Option<Arc<dyn IncarnationRegistry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the source. It lives as long as its worker.
    pub(crate) fn tell(&self, control: Control) {
        let _ = self.control.send(control);
    }

    /// Reports an error to the engine.
    pub(crate) fn report(&self, error: StreamError) {
        self.tell(Control::Error(error.into_source_error(self.options.stream.as_str())));
    }
}
