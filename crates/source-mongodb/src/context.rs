//! What the source, its worker and its readers share.

use std::sync::Arc;

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

/// Tells the source what happened, apart from messages.
pub(crate) enum Control {
    /// The partition was assigned, under this number.
    Assigned(u64, Assignment),
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

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) options: Arc<MongoSourceOptions>,
    pub(crate) writer: Arc<CheckpointWriter>,
    pub(crate) status: watch::Sender<MongoStatus>,
    pub(crate) batches: mpsc::Sender<Batch>,
    pub(crate) control: mpsc::UnboundedSender<Control>,
}

impl Context {
    pub(crate) fn set_state(&self, state: StreamState) {
        self.status.send_modify(|status| status.state = state);
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
