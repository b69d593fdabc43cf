//! State that the source, its worker and its readers share.

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
    /// The number of the assignment.
    pub(crate) generation: u64,
    /// The assignment, in the incarnation that is read.
    pub(crate) assignment: Assignment,
    /// Whether the incarnation began with this assignment.
    pub(crate) is_recreated: bool,
    /// Whether the incarnation is recorded.
    pub(crate) is_recorded: bool,
}

/// An event for the source, other than messages.
pub(crate) enum Control {
    Assigned(Assigned),
    Lost,
    Error(SourceError),
}

/// A command for the worker.
pub(crate) enum Command {
    /// Start again after the committed position.
    Rewind,
    /// Flush the checkpoint, release the lease, and end.
    Close(oneshot::Sender<Result<(), SourceError>>),
}

/// The registry of incarnations. `None` when the source runs without an engine.
pub(crate) type Registry = Arc<Mutex<Option<Arc<dyn IncarnationRegistry>>>>;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) options: Arc<MongoSourceOptions>,
    pub(crate) writer: Arc<CheckpointWriter>,
    pub(crate) registry: Registry,
    /// Whether this process has written a start position. `Start::Now` applies only to the first start.
    pub(crate) started: Arc<AtomicBool>,
    pub(crate) status: watch::Sender<MongoStatus>,
    pub(crate) batches: mpsc::Sender<Batch>,
    pub(crate) control: mpsc::UnboundedSender<Control>,
}

impl Context {
    pub(crate) fn set_state(&self, state: StreamState) {
        self.status.send_modify(|status| status.state = state);
    }

    /// Returns the registry of incarnations.
    pub(crate) fn registry(&self) -> Option<Arc<dyn IncarnationRegistry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends an event to the source, which lives as long as its worker.
    pub(crate) fn tell(&self, control: Control) {
        let _ = self.control.send(control);
    }

    /// Reports an error to the engine.
    pub(crate) fn report(&self, error: StreamError) {
        self.tell(Control::Error(error.into_source_error(self.options.stream.as_str())));
    }
}
