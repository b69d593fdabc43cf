//! Opens a stream for a check, in the same way as the source.

use lazaret_core::store::Checkpoint;

use crate::error::{ErrorClass, StreamError};
use crate::options::{MongoSourceOptions, OnInvalidate, Start};
use crate::position::{MAX_LAG, StreamPosition, next_time, wall_time};
use crate::resume::candidates;
use crate::source::MongoSource;
use crate::stream::{Connection, OpenAt};

/// A stream that was opened for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Whether the stream continues after its checkpoint. Otherwise it starts where the options say.
    pub resumes: bool,
    /// Whether it excludes the events of a store. See [`MongoSourceOptions::store_collections`].
    pub excludes_store: bool,
}

/// The error for a stream that cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
#[non_exhaustive]
pub struct ProbeError {
    /// The class of the error. [`ErrorClass::advice`] returns the remedy.
    pub class: ErrorClass,
    /// The message of the server or the driver.
    pub detail: String,
}

impl ProbeError {
    /// Creates an error of this class.
    pub fn new(class: ErrorClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into() }
    }
}

impl From<StreamError> for ProbeError {
    fn from(error: StreamError) -> Self {
        Self { class: error.class, detail: error.detail }
    }
}

impl MongoSource {
    /// Opens a stream where the source would, with the same pipeline and options. Reads until the server
    /// has sent an event or certified a position. Writes nothing and takes no lease.
    ///
    /// # Errors
    /// When the source could not open or read the stream. The error is the source's.
    pub async fn probe(
        options: &MongoSourceOptions,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Probed, ProbeError> {
        options.validate().map_err(|error| StreamError::new(ErrorClass::Fatal, error.to_string()))?;
        let connection = Connection::new(options).await?;
        let excludes_store = connection.excludes();
        let checkpoint = checkpoint.filter(|_| options.start != Start::Now);
        let all = checkpoint.map(candidates).transpose();
        let all = all.map_err(|why| StreamError::new(ErrorClass::Fatal, why))?.unwrap_or_default();
        let mut refused = None;
        for candidate in &all {
            if candidate.after_invalidation && options.on_invalidate == OnInvalidate::Stop {
                let why = "the stream was invalidated by a drop or a rename; set `on-invalidate: start-after` to continue";
                return Err(StreamError::new(ErrorClass::Fatal, why).into());
            }
            let at = match candidate.after_invalidation {
                true => OpenAt::StartAfter(&candidate.position),
                false => OpenAt::Position(&candidate.position),
            };
            let opened = match is_reached(&connection, &candidate.position).await {
                Ok(()) => connection.probe(at).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok(()) => return Ok(Probed { resumes: true, excludes_store }),
                Err(error) if error.class.is_position_refused() => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        start(&connection, options.start).await?;
        Ok(Probed { resumes: false, excludes_store })
    }
}

/// Opens a stream without a checkpoint.
async fn start(connection: &Connection, start: Start) -> Result<(), StreamError> {
    let position = match start {
        Start::Resume | Start::Now => return connection.probe(OpenAt::Now).await,
        Start::OplogStart => StreamPosition::At(connection.oplog_start().await?),
        Start::At(time) => StreamPosition::At(time),
    };
    connection.probe(OpenAt::Position(&position)).await
}

/// Checks that the server has reached a position.
async fn is_reached(connection: &Connection, position: &StreamPosition) -> Result<(), StreamError> {
    let newest = connection.last_operation().await?;
    match position.time().zip(newest) {
        Some((time, newest)) if time > next_time(newest) => {
            let is_far = time.time.saturating_sub(newest.time) > MAX_LAG;
            let class = if is_far { ErrorClass::HistoryReplaced } else { ErrorClass::ServerBehind };
            let (time, newest) = (wall_time(time), wall_time(newest));
            Err(StreamError::new(
                class,
                format!("the checkpoint is of {time}, the last operation of {newest}"),
            ))
        }
        _ => Ok(()),
    }
}
