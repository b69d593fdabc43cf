//! Reads dead letters, hands them off, and only then moves the checkpoint.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

use backon::ExponentialBuilder;
use lazaret_core::Timestamp;
use lazaret_core::store::{Checkpoints, ErrorKind, HandOff, LetterStore, Placed, Placement, StoreError};
use tokio::time::Instant;

use crate::copies::{self, Candidate};
use crate::error::{AdoptError, AdoptErrorKind};
use crate::progress::{Outcome, Report};
use crate::source::{Content, Cursor, DeadLetterSource, Found};
use crate::target::Target;

/// The delays between attempts to use the store.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(20))
    .with_max_delay(Duration::from_secs(2))
    .with_factor(2.0)
    .without_max_times();

/// Adopts everything that a source returns, until its end or until `shutdown` completes. The source is
/// opened at the cursor of the checkpoint with this name. For an example, see the
/// [crate documentation](crate).
///
/// # Errors
/// When the source or the store fails, or the queue is full. The error holds the progress. The next run
/// continues from there.
pub async fn adopt<S, D>(
    store: &S,
    target: &Target,
    checkpoint: &str,
    source: &mut D,
    shutdown: impl Future<Output = ()>,
) -> Result<Report<D::Cursor>, AdoptError<D::Cursor>>
where
    S: LetterStore + Checkpoints + ?Sized,
    D: DeadLetterSource,
{
    let run = Run::resume(store, target, checkpoint).await?;
    run.read_all(source, shutdown, |_| ()).await
}

/// An adoption in progress.
pub(crate) struct Run<'a, S: ?Sized, C> {
    store: &'a S,
    target: &'a Target,
    checkpoint: &'a str,
    report: Report<C>,
}

/// A dead letter that is being handed off.
struct Entry<P> {
    place: P,
    address: String,
    /// The outcome, set when the dead letter needs no letter or when its letter is durable.
    outcome: Option<Outcome>,
    candidate: Option<Candidate>,
}

impl<P> Entry<P> {
    fn is_damaged(&self) -> bool {
        self.candidate.as_ref().is_some_and(Candidate::is_damaged)
    }
}

impl<'a, S: LetterStore + Checkpoints + ?Sized, C: Cursor> Run<'a, S, C> {
    /// Loads the checkpoint.
    pub(crate) async fn resume(
        store: &'a S,
        target: &'a Target,
        checkpoint: &'a str,
    ) -> Result<Self, AdoptError<C>> {
        let loaded = retry_until_ok(target.store_timeout, || store.load(checkpoint)).await;
        let loaded =
            loaded.map_err(|error| AdoptError::new(AdoptErrorKind::Store(error), &Report::default()))?;
        Ok(Self { store, target, checkpoint, report: Report::from_checkpoint(loaded.as_ref()) })
    }

    /// Starts over at the beginning. Dead letters that have a letter are recognised.
    #[cfg(feature = "kafka")]
    pub(crate) fn restart(&mut self) {
        self.report.next = C::default();
    }

    /// Adopts everything that the source returns, and calls `progress` after each batch that is durable.
    pub(crate) async fn read_all<D: DeadLetterSource<Cursor = C>>(
        mut self,
        source: &mut D,
        shutdown: impl Future<Output = ()>,
        progress: impl Fn(&Report<C>),
    ) -> Result<Report<C>, AdoptError<C>> {
        let opened = source.open(self.report.next.clone()).await;
        opened.map_err(|error| AdoptError::new(error, &self.report))?;
        self.report.count_deleted(source.deleted());
        self.report.left = source.remaining();
        let mut shutdown = pin!(shutdown);
        loop {
            let read = tokio::select! {
                biased;
                // The next run reads dead letters again that were read but not handed off.
                () = &mut shutdown => return Ok(self.report),
                read = source.read() => read,
            };
            let found = read.map_err(|error| AdoptError::new(error, &self.report))?;
            let ended = found.is_empty();
            self.adopt(found, source.cursor()).await?;
            self.report.left = source.remaining();
            // A callback that panics does not stop the adoption (I10).
            if catch_unwind(AssertUnwindSafe(|| progress(&self.report))).is_err() {
                tracing::warn!("progress callback panicked");
            }
            if ended {
                return Ok(self.report);
            }
        }
    }

    /// Makes these dead letters durable and moves the checkpoint. `next` is the position at which
    /// reading continues after them.
    async fn adopt(&mut self, found: Vec<Found<C::Place>>, mut next: C) -> Result<(), AdoptError<C>> {
        let now = Timestamp::now();
        let entries = found.into_iter().map(|found| self.entry(found, now)).collect();
        let (entries, stopped) = self.hand_off(entries).await;
        // Reading continues at the first dead letter that is not durable.
        for entry in entries.iter().filter(|entry| entry.outcome.is_none()) {
            next.move_back_to(&entry.place);
        }
        for Entry { place, address, outcome, .. } in entries {
            if let Some(outcome) = outcome.filter(|_| next.is_past(&place)) {
                self.report.count(outcome, || address);
            }
        }
        if self.report.next != next {
            self.report.next = next;
            self.save(now).await?;
        }
        stopped.map_err(|kind| AdoptError::new(kind, &self.report))
    }

    fn entry(&self, found: Found<C::Place>, now: Timestamp) -> Entry<C::Place> {
        let Found { place, mut address, content } = found;
        let (outcome, candidate) = match content {
            Content::Unknown(reason) => {
                tracing::warn!(address, reason, "dead letter not recognised and skipped");
                if let Some(reason) = reason {
                    address = format!("{address}: {reason}");
                }
                (Some(Outcome::Unknown), None)
            }
            Content::Closed => (Some(Outcome::Closed), None),
            Content::Letter(letter) if self.target.is_foreign(&letter) => (Some(Outcome::Foreign), None),
            Content::Letter(letter) => {
                (None, Some(Candidate::new(self.target, *letter, address.clone(), now)))
            }
        };
        Entry { place, address, outcome, candidate }
    }

    /// Hands the letters off, and retries temporary failures until the timeout. Afterwards, entries
    /// whose letters are durable have an outcome.
    async fn hand_off(
        &self,
        entries: Vec<Entry<C::Place>>,
    ) -> (Vec<Entry<C::Place>>, Result<(), AdoptErrorKind>) {
        use backon::RetryableWithContext;

        let deadline = Instant::now() + self.target.store_timeout;
        let attempt = |mut entries: Vec<Entry<C::Place>>| async move {
            let handed_off = self.hand_off_open(&mut entries).await;
            (entries, handed_off)
        };
        // A full queue is reported at once: only an operator can make space.
        let is_retried = |error: &StoreError| {
            let kind = error.kind();
            kind.is_temporary() && kind != ErrorKind::Full && Instant::now() < deadline
        };
        let (entries, handed_off) = attempt.retry(BACKOFF).context(entries).when(is_retried).await;
        let handed_off = handed_off.map_err(|error| match error.kind() {
            ErrorKind::Full => AdoptErrorKind::Full(error),
            _ => AdoptErrorKind::Store(error),
        });
        (entries, handed_off)
    }

    /// Hands off the letters of all entries without an outcome.
    async fn hand_off_open(&self, entries: &mut [Entry<C::Place>]) -> Result<(), StoreError> {
        loop {
            self.find_copies(entries).await?;
            let open: Vec<usize> =
                (0..entries.len()).filter(|index| entries[*index].outcome.is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let items =
                open.iter().filter_map(|index| entries[*index].candidate.as_ref()).map(item).collect();
            let answers = self.store.hand_off(&self.target.queue, &self.target.limits, items).await?;
            // Compares with letters that an earlier record or another adoption stored in the meantime.
            if let Err(error) = record_outcomes(entries, &open, answers) {
                self.find_copies(entries).await?;
                return Err(error);
            }
        }
    }

    /// Looks for copies of all entries without an outcome. Entries without a copy may get a new id.
    async fn find_copies(&self, entries: &mut [Entry<C::Place>]) -> Result<(), StoreError> {
        let mut open: Vec<&mut Entry<C::Place>> =
            entries.iter_mut().filter(|entry| entry.outcome.is_none()).collect();
        let candidates = open.iter_mut().filter_map(|entry| entry.candidate.as_mut()).collect();
        let found = copies::find(self.store, self.target, candidates, true).await?;
        let mut failed = Ok(());
        for (entry, is_there) in open.into_iter().zip(found) {
            match is_there {
                Ok(true) => entry.outcome = Some(Outcome::AlreadyThere { damaged: entry.is_damaged() }),
                Ok(false) => {}
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    async fn save(&self, now: Timestamp) -> Result<(), AdoptError<C>> {
        let checkpoint = self.report.checkpoint(now);
        let save = || self.store.save(self.checkpoint, checkpoint.clone());
        let saved = retry_until_ok(self.target.store_timeout, save).await;
        saved.map_err(|error| AdoptError::new(AdoptErrorKind::Store(error), &self.report))
    }
}

/// Returns the hand-off of a letter. It has no grant, because no consumer owns its partition, and is
/// placed by its position.
fn item(candidate: &Candidate) -> HandOff {
    HandOff { letter: candidate.letter.clone(), placement: Placement::Imported, grant: None }
}

/// Records the answers of the store. An entry whose id is held still has no outcome. Returns the worst
/// error: a full queue ranks above a permanent error, which ranks above a temporary one.
fn record_outcomes<P>(
    entries: &mut [Entry<P>],
    open: &[usize],
    answers: Vec<Result<Placed, StoreError>>,
) -> Result<(), StoreError> {
    let rank = |error: &StoreError| match error.kind() {
        ErrorKind::Full => 2,
        kind => u8::from(!kind.is_temporary()),
    };
    let mut worst: Option<StoreError> = None;
    for (index, answer) in open.iter().zip(answers) {
        let entry = &mut entries[*index];
        match answer {
            Ok(Placed::Held(_)) => entry.candidate.iter_mut().for_each(Candidate::mark_held),
            Ok(_) => {
                entry.outcome = Some(Outcome::Adopted { damaged: entry.is_damaged() });
                warn_of_own_id(entry);
            }
            Err(error) if worst.as_ref().is_none_or(|known| rank(known) < rank(&error)) => {
                worst = Some(error);
            }
            Err(_) => {}
        }
    }
    worst.map_or(Ok(()), Err)
}

fn warn_of_own_id<P>(entry: &Entry<P>) {
    if let Some(candidate) = entry.candidate.as_ref().filter(|candidate| candidate.has_own_id()) {
        let Entry { address, .. } = entry;
        let message = &candidate.letter.message.id;
        tracing::warn!(address, %message, "dead letter with the id of another message adopted under an id of its own");
    }
}

/// Retries a store call until the timeout while its error is temporary.
async fn retry_until_ok<T, F: Future<Output = Result<T, StoreError>>>(
    timeout: Duration,
    call: impl FnMut() -> F,
) -> Result<T, StoreError> {
    use backon::Retryable;

    let deadline = Instant::now() + timeout;
    let is_retried = |error: &StoreError| error.kind().is_temporary() && Instant::now() < deadline;
    call.retry(BACKOFF).when(is_retried).await
}
