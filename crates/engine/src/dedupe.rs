//! The duplicate filter. It takes one claim per attempt, renews it while the attempt runs, and repeats
//! the mark until the store answers.
//!
//! A claim belongs to one attempt, so two copies of a message never share a claim, not even in one
//! process. Every claim is marked or released, whatever happens to its attempt. If an attempt is dropped
//! with its partition, the task that [releases](release) claims does this. Only a crash leaves a claim
//! behind, and that claim ends with its lease.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::store::{self, Certainty, Dedupe, DedupeClaim};
use lazaret_core::{Clock, MessageId, QueueName};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::component::Component;
use crate::identity::Identity;
use crate::mutation::mutated;
use crate::options::{DedupeOptions, Options};
use crate::store_clock::StoreClock;
use crate::store_retry::{Abandoned, backoff, retry_until_ok};
use crate::stored::RENEW_INTERVAL;
use crate::time::Moment;

/// The maximum number of dropped claims that wait for the releasing task. Claims above this limit end
/// with their lease.
const WAITING_LIMIT: usize = 1024;
/// The maximum number of claims that are released concurrently.
const RELEASE_LIMIT: usize = 256;
/// The minimum delay between two calls.
const MIN_DELAY: Duration = Duration::from_millis(20);
/// The maximum delay between two calls for one claim.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The duplicate filter of one consumer.
pub(crate) struct DuplicateFilter {
    store: Arc<dyn Dedupe>,
    window: Duration,
    lease: Duration,
    refresh: Duration,
    clock: Arc<dyn Clock>,
    /// The prefix of the owners of this process's claims. No other process uses it.
    process: String,
    attempts: AtomicU64,
    /// Mutations: all attempts share one owner; handled messages are not marked.
    shares_claims: bool,
    forgets_marks: bool,
    dropped: mpsc::Sender<DroppedClaim>,
}

/// The response to a claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The attempt may run.
    Yes(Claim),
    /// Another attempt at the message, or at a copy of it, is running.
    InFlight,
    /// The message was handled before.
    Done,
}

/// The claim of one attempt. If it is dropped, a task marks or releases it.
pub(crate) struct Claim {
    filter: Arc<DuplicateFilter>,
    release: Option<Release>,
}

/// The pending mark or release of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    queue: QueueName,
    message: MessageId,
    owner: String,
    /// `true` if the handler succeeded: the message is then marked as handled.
    handled: bool,
}

/// A claim that was dropped.
#[derive(Debug)]
struct DroppedClaim {
    release: Release,
    /// The time at which the claim has ended by itself, whenever it was last renewed.
    ends_by: Instant,
}

/// The claims that were dropped before they were marked or released.
pub(crate) struct Dropped(mpsc::Receiver<DroppedClaim>);

impl DuplicateFilter {
    /// Creates the filter that the options configure, and the receiver of its dropped claims.
    pub(crate) fn new(
        options: &Options,
        identity: &Identity,
        clock: &Arc<StoreClock>,
    ) -> (Option<Arc<Self>>, Dropped) {
        let (dropped, inbound) = mpsc::channel(WAITING_LIMIT);
        let filter = options.dedupe.clone().map(|DedupeOptions { filter, window }| {
            Arc::new(Self {
                store: filter,
                window,
                lease: options.lease,
                refresh: options.refresh,
                clock: clock.clone(),
                process: identity.process(),
                attempts: AtomicU64::new(0),
                shares_claims: mutated!(options, ShareClaims),
                forgets_marks: mutated!(options, ForgetMarks),
                dropped,
            })
        });
        (filter, Dropped(inbound))
    }

    /// Asks the store once to claim this message.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        queue: &QueueName,
        message: &MessageId,
    ) -> store::Result<Claimed> {
        let number = if self.shares_claims { 0 } else { self.attempts.fetch_add(1, Ordering::Relaxed) };
        let release = Release {
            queue: queue.clone(),
            message: message.clone(),
            owner: format!("{}/{number}", self.process),
            handled: false,
        };
        // Created before the call, so that a claim whose response is lost is also released.
        let mut claim = Claim { filter: self.clone(), release: Some(release) };
        match claim.extend().await {
            Ok(DedupeClaim::Claimed) => Ok(Claimed::Yes(claim)),
            Ok(answer) => {
                claim.release = None;
                Ok(if answer == DedupeClaim::Done { Claimed::Done } else { Claimed::InFlight })
            }
            Err(error) => {
                if error.certainty() == Certainty::NotDone {
                    claim.release = None;
                }
                Err(error)
            }
        }
    }

    /// Returns the moment before a claim request.
    pub(crate) fn asks(&self) -> Moment {
        Moment::now(&*self.clock)
    }

    /// Returns `true` while a claim that was requested at that moment is safe to use: no other attempt
    /// can have claimed the message. The process may have been stopped while it waited for the response
    /// (I6).
    pub(crate) fn is_safe(&self, asked: Moment) -> bool {
        asked.elapsed(&*self.clock) < self.lease - self.lease / 10
    }

    /// Returns the delays between the claims of a message that another attempt holds.
    pub(crate) fn delays(&self) -> ClaimDelays {
        ClaimDelays { backoff: backoff(MIN_DELAY.min(self.refresh), self.refresh), longest: self.refresh }
    }
}

/// The delays between the claims of one attempt. They start short and grow to the polling interval of
/// the store.
pub(crate) struct ClaimDelays {
    backoff: ExponentialBackoff,
    longest: Duration,
}

impl ClaimDelays {
    pub(crate) fn next(&mut self) -> Duration {
        self.backoff.next().unwrap_or(self.longest)
    }
}

impl Claim {
    /// Claims the message, or extends the claim.
    async fn extend(&self) -> store::Result<DedupeClaim> {
        let Some(Release { queue, message, owner, .. }) = &self.release else {
            return Ok(DedupeClaim::Claimed);
        };
        self.filter.store.claim(queue, message, owner, self.filter.lease).await
    }

    /// Renews the claim for as long as possible.
    async fn renew(&self) {
        loop {
            tokio::time::sleep((self.filter.lease / 3).min(RENEW_INTERVAL)).await;
            if let Ok(DedupeClaim::InFlight | DedupeClaim::Done) = self.extend().await {
                // The claim ended while the store was unreachable. The effect of a running handler
                // cannot be undone.
                if let Some(Release { queue, message, .. }) = &self.release {
                    tracing::warn!(%queue, %message, "claim lost to another attempt");
                }
                return;
            }
        }
    }

    /// Marks the message as handled, and repeats the call until it succeeds: the handler's effect has
    /// already happened.
    pub(crate) async fn handled(mut self, component: &Component) -> Result<(), Abandoned> {
        if let Some(release) = &mut self.release {
            release.handled = true;
        }
        if let Some(release) = &self.release {
            let mark = pin!(retry_until_ok(component, || release.write(&self.filter)));
            renewed_during(Some(&self), mark).await?;
        }
        self.release = None;
        Ok(())
    }

    /// Ends the claim of a message that was not handled.
    pub(crate) async fn end(mut self) {
        if let Some(release) = &self.release
            && release.write(&self.filter).await.is_ok()
        {
            self.release = None;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            // If the channel is full or the consumer has ended, the claim ends with its lease.
            let ends_by = Instant::now() + self.filter.lease;
            let _ = self.filter.dropped.try_send(DroppedClaim { release, ends_by });
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.release).finish()
    }
}

/// Runs `work` and renews the claim, if any, meanwhile. The caller pins the work: a future passed by
/// value would take its space again at each place where it is awaited, for each message in flight.
pub(crate) async fn renewed_during<T>(claim: Option<&Claim>, work: Pin<&mut impl Future<Output = T>>) -> T {
    let Some(claim) = claim else { return work.await };
    let renewal = async {
        claim.renew().await;
        // The work runs to its end, even if the claim is lost.
        std::future::pending::<T>().await
    };
    tokio::select! {
        biased;
        value = work => value,
        value = renewal => value,
    }
}

/// Ends the claim, if any, of a message that was not handled.
pub(crate) async fn end(claim: Option<Claim>) {
    if let Some(claim) = claim {
        claim.end().await;
    }
}

impl Release {
    /// Calls the store once.
    async fn write(&self, filter: &DuplicateFilter) -> store::Result<()> {
        let Self { queue, message, owner, .. } = self;
        match self.handled && !filter.forgets_marks {
            true => filter.store.done(queue, message, owner, filter.window).await,
            false => filter.store.abandon(queue, message, owner).await,
        }
    }
}

impl DroppedClaim {
    /// Calls the store until it answers. A claim that has ended meanwhile is not released.
    async fn write_until_ok(self, filter: &DuplicateFilter) {
        let Self { release, ends_by } = self;
        let mut delays = backoff(MIN_DELAY, MAX_DELAY);
        while release.handled || Instant::now() < ends_by {
            match release.write(filter).await {
                Err(error) if error.kind().is_temporary() => {
                    tokio::time::sleep(delays.next().unwrap_or(MAX_DELAY)).await;
                }
                Err(error) => {
                    let Release { queue, message, .. } = &release;
                    tracing::warn!(%queue, %message, %error, "claim not released");
                    return;
                }
                Ok(()) => return,
            }
        }
    }
}

/// Marks or releases the dropped claims. Once `last` is cancelled, it accepts no more claims and
/// finishes the remaining ones.
pub(crate) async fn release(
    filter: Option<Arc<DuplicateFilter>>,
    mut dropped: Dropped,
    last: CancellationToken,
) {
    let Some(filter) = filter else { return };
    let mut writing = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = last.cancelled(), if !dropped.0.is_closed() => dropped.0.close(),
            Some(release) = dropped.0.recv(), if writing.len() < RELEASE_LIMIT => {
                writing.push(release.write_until_ok(&filter));
            }
            Some(()) = writing.next(), if !writing.is_empty() => {}
            else => return,
        }
    }
}
