//! Takes over the position of another reader of the same stream.

use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use jiff::Timestamp;
use lazaret_core::source::SourceError;
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, KeyValue, StoreError};

use crate::checkpoint::{CheckpointError, CheckpointWriter, Progress};
use crate::error::{ErrorClass, StreamError};
use crate::incarnation::Life;
use crate::lease::Lease;
use crate::options::{MongoSourceOptions, Start};
use crate::position::{StreamPosition, is_certified, offset_of};
use crate::resume::candidates;
use crate::source::MongoSource;
use crate::stream::{Connection, OpenAt};

/// The position at which another reader of a stream stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForeignPosition {
    /// The last event that the reader settled, with everything before it also settled.
    pub processed: Option<ForeignAnchor>,
    /// A later position, for which the server certified that no event lies in between. It is used when
    /// the server no longer accepts the processed position, or there is none.
    pub seen: Option<ForeignAnchor>,
}

/// A resume token and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignAnchor {
    /// The resume token.
    pub token: Document,
    /// The time of the event.
    pub at: Timestamp,
}

/// Options for taking over a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeOverOptions {
    /// Whether to replace the checkpoint of a consumer that has a different position. The consumer then
    /// goes back, or skips the events in between.
    pub replace: bool,
    /// Whether only to report what would be done.
    pub dry_run: bool,
}

/// The result of taking over a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakenOver {
    /// The position is now the consumer's, or would be after a dry run. The stream continues after it.
    Written {
        /// The kind of position that was used.
        anchor: ForeignAnchorKind,
        /// The time of the position.
        at: Timestamp,
    },
    /// The consumer already has this position.
    AlreadyThere,
    /// The consumer has a different position, which was kept.
    Kept {
        /// The time of the position that was kept.
        at: Timestamp,
        /// Whether it is after the other reader's position, so that nothing is missing.
        is_later: bool,
    },
}

/// The kind of a reader's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignAnchorKind {
    /// The last settled event.
    Processed,
    /// The certified position after the last settled event.
    Seen,
}

/// The reason why a position was not taken over. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// Another process is reading the stream.
    #[error(
        "the stream {stream} is being read by {leader}; stop it, then run this again; the lease of a process that crashed ends \
         after {ttl:?}"
    )]
    Leading {
        /// The stream.
        stream: String,
        /// The process.
        leader: String,
        /// The remaining time of its lease.
        ttl: Duration,
    },
    /// The server accepts no position of the other reader.
    #[error("the position cannot be used: {0}")]
    Refused(String),
    /// The consumer ignores its checkpoint.
    #[error(
        "the consumer starts with what happens from now on (`start: latest`) and would ignore the position; use `start: resume`"
    )]
    StartsNow,
    /// The server or an option caused an error.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The store caused an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A position that the server accepted.
#[derive(Clone, Debug, PartialEq)]
struct Chosen {
    kind: ForeignAnchorKind,
    position: StreamPosition,
    at: Timestamp,
}

impl Chosen {
    fn new(kind: ForeignAnchorKind, anchor: &ForeignAnchor) -> Self {
        Self { kind, position: StreamPosition::After(anchor.token.clone()), at: anchor.at }
    }
}

impl MongoSource {
    /// Turns the position of another reader into the checkpoint of a consumer, so that the consumer's
    /// stream continues there. The other reader must be stopped.
    ///
    /// The stream resumes after the last event that the other reader settled. The certified position is
    /// used only if the server no longer accepts that event (I1). A consumer that has a position keeps
    /// it, unless [`TakeOverOptions::replace`] is set. The checkpoint is written under the lease of the
    /// stream, so a running consumer is never moved (I6).
    ///
    /// # Errors
    /// When the consumer is running, the server accepts no position, or the server or the store fails.
    pub async fn take_over(
        options: &MongoSourceOptions,
        store: Arc<dyn KeyValue>,
        position: &ForeignPosition,
        how: TakeOverOptions,
    ) -> Result<TakenOver, TakeOverError> {
        options.validate()?;
        if options.start == Start::Now {
            return Err(TakeOverError::StartsNow);
        }
        let name = options.checkpoint_name();
        let existing = store.load(&name).await?.unwrap_or_default();
        if let Some(decided) = keep(&existing, position, how.replace)? {
            return Ok(decided);
        }
        let chosen = choose(options, position).await?;
        let written = TakenOver::Written { anchor: chosen.kind, at: chosen.at };
        if how.dry_run {
            return Ok(written);
        }
        let owner = format!("take-over/{}", bson::Uuid::new());
        let lease = Lease::new(store.clone(), &name, owner.clone(), options.lease);
        let fence = lease.acquire().await?.map_err(|holder| TakeOverError::Leading {
            stream: options.stream.to_string(),
            leader: holder.map_or_else(|| "another process".to_owned(), |lock| lock.owner),
            ttl: options.lease.ttl,
        })?;
        let writer = CheckpointWriter::new(store, name, owner, options.checkpoint);
        let outcome = write(&writer, fence, position, &chosen, how.replace).await;
        lease.release().await?;
        Ok(outcome?.unwrap_or(written))
    }
}

/// Writes a position under a lease. Returns `Some` if an earlier leader has moved the checkpoint in the
/// meantime, and it was kept.
async fn write(
    writer: &CheckpointWriter,
    fence: u64,
    position: &ForeignPosition,
    chosen: &Chosen,
    replace: bool,
) -> Result<Option<TakenOver>, TakeOverError> {
    let fenced = |error| match error {
        CheckpointError::Store(error) => TakeOverError::Store(error),
        CheckpointError::Fenced => {
            TakeOverError::Refused("another process has taken over the stream".to_owned())
        }
    };
    let claimed = writer.claim(1, fence).await.map_err(fenced)?.checkpoint;
    if let Some(decided) = keep(&claimed, position, replace)? {
        return Ok(Some(decided));
    }
    let token = chosen.position.to_bytes();
    let (processed, seen) = match chosen.kind {
        ForeignAnchorKind::Processed => {
            let offset = offset_of_position(&chosen.position, chosen.at);
            (Progress { token: Some(token), offset, settled: Vec::new() }, None)
        }
        ForeignAnchorKind::Seen => (Progress::default(), Some(Anchor { token, at: chosen.at })),
    };
    // The next event shows which collection the position belongs to.
    let life = Life { collection: None, ..Life::of(&claimed) };
    writer.replace(processed, seen, &life).await.map_err(fenced)?;
    Ok(None)
}

/// Decides whether a checkpoint stays as it is. Returns `None` if the position is to be written.
fn keep(
    existing: &Checkpoint,
    position: &ForeignPosition,
    replace: bool,
) -> Result<Option<TakenOver>, TakeOverError> {
    use ForeignAnchorKind::{Processed, Seen};
    let unreadable =
        |why| TakeOverError::Refused(format!("the consumer has a checkpoint of another source: {why}"));
    let all = candidates(existing).map_err(unreadable)?;
    let Some(current) = all.first() else { return Ok(None) };
    let foreign = [(Processed, &position.processed), (Seen, &position.seen)];
    let mut foreign =
        foreign.into_iter().filter_map(|(kind, anchor)| Some(Chosen::new(kind, anchor.as_ref()?)));
    if foreign.clone().any(|foreign| all.iter().any(|candidate| candidate.position == foreign.position)) {
        return Ok(Some(TakenOver::AlreadyThere));
    }
    if replace {
        return Ok(None);
    }
    let anchors = [&existing.seen, &existing.processed];
    let own = anchors.into_iter().flatten().find(|anchor| current.position.to_bytes() == anchor.token);
    let at = own.map_or(Timestamp::UNIX_EPOCH, |anchor| anchor.at);
    let is_later = foreign.all(|foreign| {
        offset_of_position(&current.position, at) >= offset_of_position(&foreign.position, foreign.at)
    });
    Ok(Some(TakenOver::Kept { at, is_later }))
}

/// Returns the offset of a position: the time in its token, or this time.
fn offset_of_position(position: &StreamPosition, at: Timestamp) -> u64 {
    let seconds = u32::try_from(at.as_second().max(0)).unwrap_or(u32::MAX);
    offset_of(position.time().unwrap_or(bson::Timestamp { time: seconds, increment: 0 }))
}

/// Finds the position that the server accepts, as its stream would.
async fn choose(options: &MongoSourceOptions, position: &ForeignPosition) -> Result<Chosen, TakeOverError> {
    let mut refused = None;
    if let Some(processed) = &position.processed {
        let chosen = Chosen::new(ForeignAnchorKind::Processed, processed);
        match probe(options, &chosen.position).await? {
            None => return Ok(chosen),
            Some(error) => refused = Some(error.to_string()),
        }
    }
    let Some(seen) = &position.seen else {
        let why = refused.unwrap_or_else(|| "it holds no resume token".to_owned());
        return Err(TakeOverError::Refused(why));
    };
    if !seen.token.get_str("_data").is_ok_and(is_certified) {
        let why =
            "the server did not certify the position `seen`, so events before it may not have been handled";
        return Err(TakeOverError::Refused(match refused {
            Some(refused) => format!("{refused}; and {why}"),
            None => why.to_owned(),
        }));
    }
    let chosen = Chosen::new(ForeignAnchorKind::Seen, seen);
    match probe(options, &chosen.position).await? {
        None => Ok(chosen),
        Some(error) => Err(TakeOverError::Refused(error.to_string())),
    }
}

/// Opens the stream at a position. Returns the error of a server that refuses it.
async fn probe(
    options: &MongoSourceOptions,
    position: &StreamPosition,
) -> Result<Option<StreamError>, SourceError> {
    let failed = |error: StreamError| error.into_source_error(options.stream.as_str());
    let connection = Connection::new(options).await.map_err(failed)?;
    match connection.probe(OpenAt::Position(position)).await {
        Ok(()) => Ok(None),
        Err(error) if error.class.is_position_refused() => Ok(Some(error)),
        // The position is valid. The next event is too large or lacks an image, which the consumer reports.
        Err(error) if matches!(error.class, ErrorClass::EventTooLarge | ErrorClass::ImageMissing) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use lazaret_memory::MemoryStore;

    use super::*;

    const EARLY: &str = "8200000064000000012B042C0100296E";
    const LATE: &str = "82000000C8000000012B042C0100296E";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn processed(data: &str) -> ForeignPosition {
        let processed = ForeignAnchor { token: doc! { "_data": data }, at: at(100) };
        ForeignPosition { processed: Some(processed), seen: None }
    }

    fn checkpoint(data: &str) -> Checkpoint {
        let token = StreamPosition::After(doc! { "_data": data }).to_bytes();
        Checkpoint { processed: Some(Anchor { token, at: at(100) }), ..Checkpoint::default() }
    }

    #[test]
    fn a_position_is_written_only_if_there_is_none() {
        // I1
        let decide = |existing: &Checkpoint, replace| keep(existing, &processed(EARLY), replace).unwrap();
        assert_eq!(decide(&Checkpoint::default(), false), None);
        assert_eq!(decide(&checkpoint(EARLY), true), Some(TakenOver::AlreadyThere));
        let later = TakenOver::Kept { at: at(100), is_later: true };
        assert_eq!(decide(&checkpoint(LATE), false), Some(later));
        assert_eq!(decide(&checkpoint(LATE), true), None);
    }

    #[test]
    fn an_earlier_position_of_the_consumer_is_told_apart() {
        let kept = keep(&checkpoint(EARLY), &processed(LATE), false).unwrap();
        assert_eq!(kept, Some(TakenOver::Kept { at: at(100), is_later: false }));
    }

    #[test]
    fn a_checkpoint_of_another_source_is_never_replaced() {
        let foreign = Anchor { token: r#"{"version":2}"#.into(), at: at(1) };
        let existing = Checkpoint { processed: Some(foreign), ..Checkpoint::default() };
        assert!(matches!(keep(&existing, &processed(EARLY), true), Err(TakeOverError::Refused(_))));
    }

    #[tokio::test]
    async fn a_consumer_that_ignores_its_checkpoint_gets_none() {
        let options = MongoSourceOptions {
            start: Start::Now,
            ..MongoSourceOptions::collection("mongodb://127.0.0.1:1", "shop", "orders")
        };
        let store = Arc::new(MemoryStore::default());
        let taken =
            MongoSource::take_over(&options, store, &processed(EARLY), TakeOverOptions::default()).await;
        assert!(matches!(taken, Err(TakeOverError::StartsNow)));
    }

    #[tokio::test]
    async fn an_empty_position_and_one_that_nobody_certified_are_refused() {
        let options = MongoSourceOptions::collection("mongodb://127.0.0.1:1", "shop", "orders");
        let empty = choose(&options, &ForeignPosition::default()).await.unwrap_err();
        assert!(empty.to_string().contains("no resume token"), "{empty}");
        let ForeignPosition { processed: seen, .. } = processed(EARLY);
        let uncertified = ForeignPosition { processed: None, seen };
        let error = choose(&options, &uncertified).await.unwrap_err();
        assert!(error.to_string().contains("did not certify"), "{error}");
    }
}
