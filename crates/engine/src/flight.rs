//! Finds messages that crash the process.
//!
//! The flight recorder contains every attempt while it runs. After a crash, the messages in it are
//! suspects. Each suspect runs alone: if the process crashes again, that message is the cause, and the
//! recorder charges it with a crash. All other messages run concurrently as usual, but never together
//! with a suspect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, Partition, QueueName};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use crate::mutation::mutated;
use crate::options::Options;

/// The maximum wait for a suspect that is not delivered. Another instance may own it by now.
const SUSPECT_TIMEOUT: Duration = Duration::from_secs(600);

/// The flight recorder of one consumer and its suspects.
pub(crate) struct Flight {
    recorder: Option<Arc<dyn FlightRecorder>>,
    suspects: Mutex<Vec<TrackedSuspect>>,
    /// A mutation: suspects do not run alone.
    in_company: bool,
    /// `true` while a suspect still has to run alone.
    suspicious: AtomicBool,
    until: Instant,
    /// Suspects take it for writing, other attempts for reading. It is not taken while there are no
    /// suspects.
    alone: RwLock<()>,
}

struct TrackedSuspect {
    suspect: Suspect,
    /// `true` if it ran alone and the process survived.
    cleared: bool,
    /// `true` if it was handled. It may be delivered again until its position is committed.
    handled: bool,
}

/// An attempt that stays in the recorder until this value is dropped.
pub(crate) struct Recorded {
    recorder: Arc<dyn FlightRecorder>,
    slot: Slot,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.recorder.leave(std::mem::replace(&mut self.slot, Slot::NOT_RECORDED));
    }
}

/// An attempt in the recorder. The attempt of a suspect runs alone.
pub(crate) struct Watched<'a> {
    flight: &'a Flight,
    suspect: Option<(&'a QueueName, &'a Message)>,
    recorded: Option<Recorded>,
    _isolation: Isolation<'a>,
}

/// The other attempts that may run meanwhile.
pub(crate) enum Isolation<'a> {
    /// All: there are no suspects.
    None,
    /// All except the attempts of suspects.
    Shared(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>),
    /// None.
    Exclusive(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'a, ()>),
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.recorded = None;
        if let Some((queue, message)) = self.suspect {
            self.flight.clear(queue, message);
        }
    }
}

impl Flight {
    pub(crate) fn new(options: &Options) -> Self {
        let recorder = options.flight_recorder.clone();
        let suspects = recorder.as_ref().map(|recorder| recorder.suspects()).unwrap_or_default();
        for suspect in &suspects {
            tracing::warn!(
                queue = %suspect.queue, message = %suspect.message, attempt = suspect.attempt,
                crashes = suspect.crashes, "message was in flight when the process crashed"
            );
        }
        Self {
            recorder,
            in_company: mutated!(options, RunSuspectsInCompany),
            suspicious: AtomicBool::new(!suspects.is_empty()),
            suspects: Mutex::new(
                suspects
                    .into_iter()
                    .map(|suspect| TrackedSuspect { suspect, cleared: false, handled: false })
                    .collect(),
            ),
            until: Instant::now() + SUSPECT_TIMEOUT,
            alone: RwLock::new(()),
        }
    }

    /// Returns `true` while a suspect still has to run alone. All attempts must then be
    /// [watched](Self::watch).
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspicious.load(Ordering::Acquire)
    }

    /// Returns the recorder, for attempts that end at their first poll.
    pub(crate) fn recorder(&self) -> Option<&Arc<dyn FlightRecorder>> {
        self.recorder.as_ref()
    }

    /// Waits until an attempt at this message may run: together with others, or alone if it is a
    /// suspect.
    pub(crate) async fn isolate(&self, queue: &QueueName, message: &Message) -> Isolation<'_> {
        if !self.is_suspicious() || self.in_company {
            Isolation::None
        } else if self.is_suspect(queue, message) {
            Isolation::Exclusive(self.alone.write().await)
        } else {
            Isolation::Shared(self.alone.read().await)
        }
    }

    /// Records an attempt that starts now.
    pub(crate) fn watch<'a>(
        &'a self,
        isolation: Isolation<'a>,
        queue: &'a QueueName,
        message: &'a Message,
        attempt: u32,
    ) -> Watched<'a> {
        let suspect = matches!(isolation, Isolation::Exclusive(_)).then_some((queue, message));
        let recorded = self.recorder.as_ref().map(|recorder| record(recorder, queue, message, attempt));
        Watched { flight: self, suspect, recorded, _isolation: isolation }
    }

    fn is_suspect(&self, queue: &QueueName, message: &Message) -> bool {
        let identity = Identity::of_message(queue, message);
        self.with(|suspects| {
            suspects.iter().any(|known| !known.cleared && known.suspect.identity == identity)
        })
    }

    /// Returns the suspect for this message, if it was charged with a crash.
    pub(crate) fn charged(&self, queue: &QueueName, message: &Message) -> Option<Suspect> {
        self.recorder.as_ref()?;
        self.with(|suspects| {
            let known = suspects.iter().find(|known| known.suspect.is(queue, message))?;
            (known.suspect.crashes > 0).then(|| known.suspect.clone())
        })
    }

    /// Clears a suspect that ran alone. Earlier charges stay until its outcome is durable.
    fn clear(&self, queue: &QueueName, message: &Message) {
        let charged = self.with(|suspects| {
            let known = suspects.iter_mut().find(|known| known.suspect.is(queue, message));
            let charged = known.is_some_and(|known| {
                known.cleared = true;
                known.suspect.crashes > 0
            });
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            charged
        });
        if !charged {
            self.forget(queue, message);
        }
    }

    /// Removes a suspect whose outcome is durable: its crashes no longer count, or its letter holds
    /// them. The outcome of a message that was handled live is durable when its position is
    /// [committed](Self::committed).
    pub(crate) fn forget(&self, queue: &QueueName, message: &Message) {
        let Some(recorder) = &self.recorder else { return };
        let gone: Vec<TrackedSuspect> = self.with(|suspects| {
            let gone = suspects.extract_if(.., |known| known.suspect.is(queue, message)).collect();
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            gone
        });
        gone.iter().for_each(|known| recorder.forget(known.suspect.identity));
    }

    /// Records that a live message was handled.
    pub(crate) fn handled(&self, queue: &QueueName, message: &Message) {
        if self.recorder.is_some() {
            self.with(|suspects| {
                let known = suspects.iter_mut().find(|known| known.suspect.is(queue, message));
                known.into_iter().for_each(|known| known.handled = true);
            });
        }
    }

    /// Removes the handled suspects of this partition up to this position, because they are not
    /// delivered again. Suspects that are letters may still be tried.
    pub(crate) fn committed(&self, partition: &Partition, offset: u64) {
        let Some(recorder) = &self.recorder else { return };
        let gone = self.with(|suspects| {
            let is_gone = |known: &mut TrackedSuspect| {
                let Suspect { partition: of, offset: at, .. } = &known.suspect;
                known.handled && of == partition && *at <= offset
            };
            let gone: Vec<TrackedSuspect> = suspects.extract_if(.., is_gone).collect();
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            gone
        });
        for TrackedSuspect { suspect, .. } in gone {
            recorder.forget(suspect.identity);
        }
    }

    /// Stops waiting for suspects that are not delivered in time.
    pub(crate) fn expire_suspects(&self) {
        if self.is_suspicious() && Instant::now() >= self.until {
            tracing::warn!("suspects expired, not delivered since the crash");
            let gone = self.with(|suspects| {
                suspects.iter_mut().for_each(|known| known.cleared = true);
                let gone: Vec<Suspect> = suspects.iter().map(|known| known.suspect.clone()).collect();
                suspects.retain(|known| known.suspect.crashes > 0);
                gone
            });
            self.suspicious.store(false, Ordering::Release);
            for suspect in gone.iter().filter(|suspect| suspect.crashes == 0) {
                self.recorder.iter().for_each(|recorder| recorder.forget(suspect.identity));
            }
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<TrackedSuspect>) -> T) -> T {
        look(&mut self.suspects.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Records an attempt.
pub(crate) fn record(
    recorder: &Arc<dyn FlightRecorder>,
    queue: &QueueName,
    message: &Message,
    attempt: u32,
) -> Recorded {
    let slot = recorder.enter(queue, message, attempt);
    Recorded { recorder: recorder.clone(), slot }
}

impl Recorded {
    /// Empties the slot between two attempts.
    pub(crate) fn idle(&self) {
        self.recorder.rest(&self.slot);
    }

    /// Records another attempt in the same slot.
    pub(crate) fn reuse(&self, queue: &QueueName, message: &Message, attempt: u32) {
        self.recorder.enter_again(&self.slot, queue, message, attempt);
    }
}
