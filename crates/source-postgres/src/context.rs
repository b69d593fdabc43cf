//! State that the source, its worker and its readers share.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::message::PartitionNumber;
use lazaret_core::source::{Ownership, SourceError};
use lazaret_core::{Message, Partition};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::checkpoint::{CheckpointWriter, Progress, WriteError};
use crate::continuation;
use crate::delivered::DeliveredRow;
use crate::options::OutboxOptions;
use crate::session::Session;
use crate::status::{OutboxState, OutboxStatus};

/// Messages of one assignment.
pub(crate) struct Batch {
    pub(crate) generation: u64,
    pub(crate) messages: Vec<Message>,
    /// The row versions of the messages.
    pub(crate) versions: Vec<i64>,
}

/// An assignment of the partition.
pub(crate) struct Assigned {
    /// The number of the assignment.
    pub(crate) generation: u64,
    /// The partition, in the incarnation that is read.
    pub(crate) partition: Partition,
    /// Whether the incarnation began with this assignment.
    pub(crate) is_recreated: bool,
    /// Whether the incarnation is recorded.
    pub(crate) is_recorded: bool,
    pub(crate) progress: Progress,
    /// How long the assignment is certain.
    pub(crate) ownership: Ownership,
}

/// An event for the source, other than messages.
pub(crate) enum Control {
    Assigned(Box<Assigned>),
    Lost,
    Error(SourceError),
}

/// A command for the worker.
pub(crate) enum Command {
    /// Start again after the committed position.
    Rewind,
    /// Give up the right to read, and end.
    Close(oneshot::Sender<()>),
}

/// The right to acknowledge rows of one assignment.
#[derive(Clone)]
pub(crate) struct Leadership {
    pub(crate) generation: u64,
    /// The number of the checkpoint's claim.
    pub(crate) fence: u64,
    pub(crate) session: Arc<Session>,
    /// The partition, in the incarnation that is read.
    pub(crate) partition: PartitionNumber,
    /// The last position that was written.
    pub(crate) position: Arc<AtomicI64>,
}

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) options: Arc<OutboxOptions>,
    pub(crate) writer: Arc<CheckpointWriter>,
    pub(crate) leadership: Arc<Mutex<Option<Leadership>>>,
    /// The registry of incarnations. `None` when the source runs without an engine.
    pub(crate) registry: Arc<Mutex<Option<Arc<dyn IncarnationRegistry>>>>,
    /// Signals that a writer announced rows.
    pub(crate) announced: Arc<Notify>,
    pub(crate) status: watch::Sender<OutboxStatus>,
    pub(crate) batches: mpsc::Sender<Batch>,
    pub(crate) control: mpsc::UnboundedSender<Control>,
}

impl Context {
    pub(crate) fn set_state(&self, state: OutboxState) {
        self.status.send_modify(|status| status.state = state);
    }

    /// Sends an event to the source, which lives as long as its worker.
    pub(crate) fn tell(&self, control: Control) {
        let _ = self.control.send(control);
    }

    /// Returns the registry of incarnations.
    pub(crate) fn registry(&self) -> Option<Arc<dyn IncarnationRegistry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_leadership(&self, leadership: Option<Leadership>) {
        *self.leadership.lock().unwrap_or_else(PoisonError::into_inner) = leadership;
    }
}

/// Acknowledges rows: deletes these rows, then moves the position. An earlier assignment has nothing
/// left to acknowledge.
///
/// A crash between the two steps leaves a position that is too low, and the rows after it are gone. The
/// opposite order would leave rows that nobody reads.
///
/// If other rows have ids of delivered rows, they stay, and the position records this. The next leader
/// then reads the table in a new incarnation (I1). The reader of this incarnation ends.
pub(crate) async fn acknowledge(
    leadership: Option<Leadership>,
    writer: &CheckpointWriter,
    progress: &Progress,
    delete: &[DeliveredRow],
) -> Result<(), SourceError> {
    let Some(Leadership { fence, session, position, .. }) = leadership else { return Ok(()) };
    if !delete.is_empty() && !session.delete(delete).await? {
        return match writer.write(fence, &progress.clone().replaced()).await {
            Ok(()) => {
                session.set_replaced();
                Err(SourceError::temporary(
                    "other rows have the ids of rows that were delivered; the table is read anew",
                ))
            }
            Err(WriteError::Fenced) => Ok(()),
            Err(WriteError::Store(error)) => Err(error.into()),
        };
    }
    match writer.write(fence, progress).await {
        Ok(()) => {
            position.store(continuation::after(progress), Ordering::Relaxed);
            Ok(())
        }
        Err(WriteError::Fenced) => Ok(()),
        Err(WriteError::Store(error)) => Err(error.into()),
    }
}
